"""Writes a TFDS directory without TensorFlow: `dataset_info.json`, `features.json`, shards."""

import io
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.storage import tfrecord

# TFDS's prefix for unfinished directories, and our own mark.
_UNFINISHED = "incomplete.attnperf_"


def write_image_dataset(
    directory: str | os.PathLike[str],
    *,
    dataset: str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    num_classes: int,
    encoding: str = "jpeg",
    description: str = "",
    shards: int = 1,
) -> None:
    """Write image classification splits as `tfds.builder_from_directory` reads them.

    `dataset` is `name[/config]:version`. Every example is `{"image": encoded bytes, "label": int,
    "file_name": str}`, the features of TFDS `imagenet2012`. The directory appears whole or not at
    all; one that is there is replaced. The same input gives the same bytes.
    """
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format=encoding),
            "label": tfds.features.ClassLabel(num_classes=num_classes),
            "file_name": tfds.features.Text(),
        }
    )
    # The library opens what it is given: an image is encoded bytes, so a file in memory.
    opened = {
        name: [{**example, "image": io.BytesIO(example["image"])} for example in examples]
        for name, examples in splits.items()
    }
    _write(directory, dataset, opened, features, ("image", "label"), description, shards)


def write_mnist(
    directory: str | os.PathLike[str],
    *,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    description: str = "",
) -> None:
    """Write grey images of 28 × 28 as TFDS' `mnist:3.0.1` has them, one shard a split.

    Every example is `{"image": PNG bytes, "label": int}`. Otherwise as `write_image_dataset`.
    """
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(28, 28, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    opened = {
        name: [{**example, "image": io.BytesIO(example["image"])} for example in examples]
        for name, examples in splits.items()
    }
    _write(directory, "mnist:3.0.1", opened, features, ("image", "label"), description, shards=1)


def write_librispeech(
    directory: str | os.PathLike[str],
    *,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    description: str = "",
) -> None:
    """Write utterances as TFDS' `librispeech/default:2.1.1` has them, one shard a split.

    Every example is `{"speech": int16 samples at 16 kHz, "text": str, "speaker_id": int,
    "chapter_id": int, "id": str}`. Otherwise as `write_image_dataset`.
    """
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "speech": tfds.features.Audio(sample_rate=16_000, dtype=np.int16),
            "text": tfds.features.Text(),
            "speaker_id": np.int64,
            "chapter_id": np.int64,
            "id": np.str_,
        }
    )
    keys = ("speech", "text")
    _write(directory, "librispeech/default:2.1.1", splits, features, keys, description, shards=1)


def write_translation_dataset(
    directory: str | os.PathLike[str],
    *,
    dataset: str,
    splits: Mapping[str, Sequence[Mapping[str, str]]],
    languages: tuple[str, str],
    description: str = "",
) -> None:
    """Write pairs of sentences as TFDS' `wmt14_translate/de-en` has them, one shard a split.

    Every example is `{language: sentence}` for both `languages`, source first. Otherwise as
    `write_image_dataset`.
    """
    import tensorflow_datasets as tfds

    features = tfds.features.Translation(languages=languages)
    _write(directory, dataset, splits, features, languages, description, shards=1)


def _write(
    directory: str | os.PathLike[str],
    dataset: str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    features: Any,
    supervised_keys: tuple[str, str],
    description: str,
    shards: int,
) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_info, file_adapters

    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Callers hold the lock of `preparation.locked`: these were left by a killed process.
    for pattern in (f"{_UNFINISHED}*_{directory.name}", f".{directory.name}.*.old"):
        for half in directory.parent.glob(pattern):
            shutil.rmtree(half, ignore_errors=True)  # it may be a link
    temporary = directory.with_name(f"{_UNFINISHED}{uuid.uuid4().hex[:6]}_{directory.name}")
    temporary.mkdir()
    full_name, _, version = dataset.partition(":")
    name, _, config = full_name.partition("/")
    try:
        info = tfds.core.DatasetInfo(
            builder=dataset_info.DatasetIdentity(
                name=name,
                version=tfds.core.Version(version),
                data_dir=os.fspath(temporary),
                module_name="",
                config_name=config or None,
            ),
            features=features,
            supervised_keys=supervised_keys,
            description=description,
        )
        info.set_file_format(file_adapters.FileFormat.TFRECORD)
        written = [
            _write_split(temporary, name, split, examples, features, shards)
            for split, examples in splits.items()
        ]
        info.set_splits(tfds.core.splits.SplitDict(written))
        info.write_to_directory(temporary)
        _replace_directory(temporary, directory)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def _replace_directory(new: Path, target: Path) -> None:
    """Rename `new` to `target`; a directory that is there gives way and is removed."""
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    shutil.rmtree(old, ignore_errors=True)


def _write_split(
    directory: Path,
    name: str,
    split: str,
    examples: Sequence[Mapping[str, Any]],
    features: Any,
    shards: int,
) -> Any:
    """Write the shards of one split; returns the library's SplitInfo."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    template = tfds.core.ShardedFileTemplate(
        data_dir=directory, dataset_name=name, split=split, filetype_suffix="tfrecord"
    )
    serializer = ExampleSerializer(features.get_serialized_info())
    serialized = [
        # The order of a protobuf map is arbitrary unless it is asked to be deterministic.
        serializer.get_tf_example(features.encode_example(example)).SerializeToString(
            deterministic=True
        )
        for example in examples
    ]
    parts = [list(part) for part in np.array_split(np.arange(len(serialized)), shards)]
    for shard, part in enumerate(parts):
        path = template.sharded_filepath(shard_index=shard, num_shards=shards)
        tfrecord.write_tfrecord(path, (serialized[i] for i in part))
    return tfds.core.SplitInfo(
        name=split,
        shard_lengths=[len(part) for part in parts],
        num_bytes=sum(map(len, serialized)),
        filename_template=template,
    )
