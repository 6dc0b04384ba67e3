"""init2winit's public tree, with what it lacks and with our models in its registry.

The tree leaves out modules, names and one call that exist inside of Google. They are filled in here
in memory: by an alias of what is published elsewhere, by something that raises when it is called,
or by a call of the tree's own code. Nothing that computes is replaced. Tested with commit afd5a84
of 2 July 2026.

`python -m tests.init2winit.public_tree CHECKOUT FLAGS…` runs its main.py with these flags.
"""

import builtins
import functools
import importlib
import os
import sys
import types
from pathlib import Path

import orbax.checkpoint as ocp

from tests.init2winit import config
from workloads.base.injection import Substitute
from workloads.init2winit import models

# Modules that are not published, or that no Python of today has.
UNPUBLISHED = (
    "init2winit.model_lib.lingvo_attention",
    "grain.tensorflow",
    "grain._src.tensorflow",
    "tensorflow.contrib",
    "vizier",
)
WRITER = "_read_and_write_csv"


class Unpublished(types.ModuleType):
    """A module of classes whose objects raise when they are called: some are made in any case."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_, **__):
            raise RuntimeError(f"{self.__name__}.{name} is not published")

        return type(name, (), {"__init__": lambda *_, **__: None, "__call__": refuse})


def load(directory):
    """Returns the module main of the tree in `directory`, every model registered."""
    sys.path.insert(0, str(directory))
    hessian = sys.modules["init2winit.hessian"] = types.ModuleType("init2winit.hessian")
    hessian.__path__ = [str(Path(directory) / "hessian")]
    for name in UNPUBLISHED:
        sys.modules[name] = Unpublished(name)
    # Read while its file is imported, and then by another file.
    builtins.SPM_TOKENIZER_VOCAB_PATH = None
    texts = importlib.import_module("init2winit.dataset_lib.wikitext103_input_pipeline")
    texts.SPM_TOKENIZER_VOCAB_PATH = None
    main = importlib.import_module("init2winit.main")
    main.CNS_LOGS_ENCODING = ""
    main.makedirs = functools.partial(os.makedirs, exist_ok=True)
    tree = {name.removeprefix("init2winit."): sys.modules[name] for name in list(sys.modules)}
    for name in ("trainer_lib.base_trainer", "utils"):
        tree[name].ocp = _orbax()
    gfile = main.tf.io.gfile
    tree["utils"].gfile = Substitute(gfile, FileError=main.tf.errors.NotFoundError)
    logger = tree["utils"].MetricLogger
    logger.append_scalar_metrics = _writing(logger.append_scalar_metrics)
    models.register(main.models, tree["trainer_lib.training_algorithm"])
    return main


def _orbax():
    """Orbax without the options of Google's own file system."""

    def file_options(*, cns2_storage_options, **options):
        return ocp.checkpoint_manager.FileOptions(**options)

    return Substitute(
        ocp,
        options=Substitute(ocp.options, Cns2StorageOptions=dict),
        checkpoint_manager=Substitute(ocp.checkpoint_manager, FileOptions=file_options),
    )


def _writing(append):
    """MetricLogger's method, with a call of the function that it defines to write its file."""
    code = next(
        constant
        for constant in append.__code__.co_consts
        if isinstance(constant, types.CodeType) and constant.co_name == WRITER
    )

    def append_scalar_metrics(self, metrics):
        append(self, metrics)
        free = {"self": self, "metrics": metrics}
        cells = tuple(types.CellType(free[name]) for name in code.co_freevars)
        types.FunctionType(code, append.__globals__, WRITER, None, cells)()

    return append_scalar_metrics


def main(directory, *arguments):
    """Trains as the last lines of the tree's main.py do."""
    module = load(directory)
    from absl import app, flags

    module.jax.config.config_with_absl()

    def run(argv):
        module.experiment_dir, module.worker_id = flags.FLAGS.experiment_dir, 1
        module.main(argv)

    app.run(run, [module.__file__, f"--config={config.__file__}", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
