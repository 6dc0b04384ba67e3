"""The registry of workloads."""

import importlib

BASE_WORKLOADS_DIR = "algoperf/workloads/"
WORKLOADS = {
    "imagenet_vit": {
        "workload_path": "imagenet_vit/imagenet",
        "workload_class_name": "ImagenetVitWorkload",
    },
    "imagenet_vit_map": {
        "workload_path": "imagenet_vit/imagenet",
        "workload_class_name": "ImagenetVitMapWorkload",
    },
    "librispeech_conformer": {
        "workload_path": "librispeech_conformer/librispeech",
        "workload_class_name": "LibriSpeechConformerWorkload",
    },
    "wmt": {"workload_path": "wmt/wmt", "workload_class_name": "WmtWorkload"},
    "finewebedu_lm": {
        "workload_path": "finewebedu_lm/finewebedu_lm",
        "workload_class_name": "LmWorkload",
    },
}
BASE_WORKLOADS = [
    "imagenet_resnet",
    "imagenet_vit",
    "librispeech_conformer",
    "finewebedu_lm",
    "wmt",
]


def get_base_workload_name(workload_name):
    return next((base for base in BASE_WORKLOADS if base in workload_name), workload_name)


def convert_filepath_to_module(path):
    return path.removesuffix(".py").replace("/", ".")


def import_workload(
    workload_path, workload_class_name, return_class=False, workload_init_kwargs=None
):
    module = importlib.import_module(convert_filepath_to_module(workload_path))
    workload_class = getattr(module, workload_class_name)
    return workload_class if return_class else workload_class(**workload_init_kwargs)
