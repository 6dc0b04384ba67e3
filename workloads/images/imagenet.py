"""The ImageNet directories of AlgoPerf's layout: which splits they hold, check, preparation.

`data_dir` is what AlgoPerf's `--data_dir` is for JAX, `$DATA/imagenet/jax`:
`imagenet2012/5.1.0` (train, validation) and `imagenet_v2/matched-frequency/3.0.0` (test).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.base.errors import DataError, check_layout, repair_commands
from workloads.images import images
from workloads.storage import tfds_directory

NUM_CLASSES = 1000
TRAIN_TAR, VALIDATION_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_SAMPLE = 32


IMAGENET, IMAGENET_V2 = "imagenet2012:5.1.0", "imagenet_v2/matched-frequency:3.0.0"
# By role: the TFDS data set whose split of that name plays it, and the number of its examples.
DATASETS = {"train": IMAGENET, "validation": IMAGENET, "test": IMAGENET_V2}
SIZES = {"train": 1_281_167, "validation": 50_000, "test": 10_000}


def write(
    data_dir: str | os.PathLike[str],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    num_classes: int,
    description: str,
    encoding: str = "jpeg",
) -> None:
    """Writes both directories from the examples of each role, with the features of TFDS's.

    Every example is `{"image": encoded bytes, "label": int, "file_name": str}`. Otherwise as
    `tfds_directory.write_dataset`.
    """
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format=encoding),
            "label": tfds.features.ClassLabel(num_classes=num_classes),
            "file_name": tfds.features.Text(),
        }
    )
    for dataset in (IMAGENET, IMAGENET_V2):
        tfds_directory.write_dataset(
            tfds_directory.directory_of(data_dir, dataset),
            dataset=dataset,
            splits={role: examples[role] for role in DATASETS if DATASETS[role] == dataset},
            features=features,
            supervised_keys=("image", "label"),
            description=description,
        )


def open_split(
    data_dir: str | os.PathLike[str], role: str, repair: str | None = None
) -> tfds_directory.TfdsSplit:
    """The source that plays `role` (train, validation or test); its size is not judged here.

    Raises DataError as TfdsSplit does.
    """
    dataset = DATASETS[role]
    by_default = (
        "copy the named files again from a whole directory, or, if there is none, remove the "
        "damaged one; install TensorFlow by pip install -e '.[tfds]'; and run: "
        + repair_commands("imagenet_vit", data_dir, "ARCHIVES")
    )
    directory = tfds_directory.directory_of(data_dir, dataset)
    return tfds_directory.TfdsSplit(directory, role, dataset=dataset, repair=repair or by_default)


def check(data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
    """One line per split about what was found good; DataError at the first thing that is not.

    Opens every split, compares its size and number of classes, and reads and decodes a sample of
    32 images each, which takes seconds. With `full`, reads every record with its checksums and
    label (150 GB), without decoding.
    """
    check_layout(
        Path(data_dir), IMAGENET, tfds_directory.directory_of("", IMAGENET), below="imagenet/jax"
    )
    return [_check_part(data_dir, role, full) for role in DATASETS]


def _check_part(data_dir: str | os.PathLike[str], role: str, full: bool) -> str:
    source = open_split(data_dir, role)
    if (len(source), source.num_classes) != (SIZES[role], NUM_CLASSES):
        raise source.error(
            f"has {len(source)} examples of {source.num_classes} classes; expected "
            f"{SIZES[role]} of {NUM_CLASSES}"
        )
    sample = np.random.RandomState(0).choice(len(source), min(_SAMPLE, len(source)), replace=False)
    every = range(len(source) * full)
    for numbers, decode in ((sample.tolist(), True), (every, False)):
        for _ in checked(source, numbers, NUM_CLASSES, decode):
            pass
    extent = "every record read" if full else f"{len(sample)} images decoded"
    return f"{role}: {DATASETS[role]} split {role!r}, {len(source)} examples, {extent}"


def describe(data_dir: str | os.PathLike[str]) -> list[Any]:
    """Returns what tells the splits of a directory from others, as `TfdsSplit.describe`."""
    return [open_split(data_dir, role).describe() for role in DATASETS]


def checked(
    source: tfds_directory.TfdsSplit,
    numbers: Iterable[int],
    num_classes: int,
    decode: bool,
) -> Iterator[dict[str, Any]]:
    """Yields these examples, their images as they are stored or, with `decode`, uint8 RGB.

    Raises DataError for a damaged record, a label out of range, no image.
    """
    for number in numbers:
        record = source[number]
        if not 0 <= record["label"] < num_classes:
            raise source.error(
                f"example {number} has label {record['label']}; 0 to {num_classes - 1} are allowed"
            )
        try:
            yield images.decoded(record) if decode else record
        except DataError as problem:
            raise source.error(f"example {number}: {problem}") from problem


def prepare(
    data_dir: str | os.PathLike[str], manual_dir: str | os.PathLike[str] | None = None
) -> None:
    """Build both directories with the library's own builders; needs the extra `[tfds]`.

    ILSVRC2012 must be downloaded by hand into `manual_dir` (None: `data_dir/downloads/manual`, as
    AlgoPerf's setup leaves it); ImageNet-v2 is downloaded. What is prepared already is kept.
    Raises DataError where TensorFlow or the archives are missing.
    """
    manual = Path(manual_dir) if manual_dir else Path(data_dir) / "downloads" / "manual"
    missing = [name for name in (TRAIN_TAR, VALIDATION_TAR) if not (manual / name).is_file()]
    if missing and not tfds_directory.directory_of(data_dir, IMAGENET).is_dir():
        raise DataError(
            f"{manual}: {' and '.join(missing)} missing. ImageNet must be downloaded by hand: "
            "register at https://image-net.org/download-images and take the training and the "
            "validation images of ILSVRC2012 (138 GB and 6.3 GB)",
            f"put them into {manual}, or say where they are: "
            + repair_commands("imagenet_vit", data_dir, "FOLDER"),
        )
    try:
        import tensorflow  # noqa: F401
    except ImportError as problem:
        raise DataError(
            "preparing ImageNet runs the builders of tensorflow-datasets, which need TensorFlow; "
            f"it cannot be imported ({problem})",
            "pip install -e '.[tfds]' (reading prepared directories needs no TensorFlow)",
        ) from problem
    import tensorflow_datasets as tfds

    for dataset in (IMAGENET, IMAGENET_V2):
        builder = tfds.builder(dataset, data_dir=os.fspath(data_dir))
        settings = tfds.download.DownloadConfig(manual_dir=os.fspath(manual))
        try:
            builder.download_and_prepare(download_config=settings)
        except Exception as problem:  # network, disk, archives: the library has no common type
            raise DataError(
                f"{builder.data_dir}: the builder of {dataset} failed: "
                f"{type(problem).__name__}: {problem}",
                "the same command goes on with what is missing; with too few open files allowed, "
                "run `ulimit -n 8192` before",
            ) from problem
