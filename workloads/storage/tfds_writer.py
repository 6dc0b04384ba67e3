"""Writes a TFDS directory without TensorFlow: `dataset_info.json`, `features.json`, shards."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.storage import preparation, tfrecord

Example = Mapping[str, Any]


def write_dataset(
    directory: str | os.PathLike[str],
    *,
    dataset: str,
    splits: Mapping[str, Sequence[Example]],
    features: Any,
    description: str,
    supervised_keys: tuple[str, str] | None = None,
    shards: Mapping[str, int] | None = None,
) -> None:
    """Write splits as `tfds.builder_from_directory` reads them.

    `dataset` is `name[/config]:version`. `features` is a connector of the library; an encoded image
    is bytes. `description` says what the data is: files of an earlier call with the same one are
    removed first. `shards` are those of each split, 1 if it is not named. `dataset_info.json` and
    `features.json`, without which nothing is read, are written last. The same input gives the same
    bytes. Raises DataError where the directory holds other files.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_info, file_adapters

    directory = Path(directory)
    preparation.claim(directory, description)
    for path in preparation.visible(directory):
        if path.name != preparation.NOTE_FILE:
            path.unlink()
    full_name, _, version = dataset.partition(":")
    name, _, config = full_name.partition("/")
    info = tfds.core.DatasetInfo(
        builder=dataset_info.DatasetIdentity(
            name=name,
            version=tfds.core.Version(version),
            data_dir=os.fspath(directory),
            module_name="",
            config_name=config or None,
        ),
        features=features,
        supervised_keys=supervised_keys,
        description=description,
    )
    info.set_file_format(file_adapters.FileFormat.TFRECORD)
    written = [
        _write_split(directory, name, split, examples, features, (shards or {}).get(split, 1))
        for split, examples in splits.items()
    ]
    info.set_splits(tfds.core.splits.SplitDict(written))
    info.write_to_directory(directory)


def _write_split(
    directory: Path,
    name: str,
    split: str,
    examples: Sequence[Example],
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
        serializer.get_tf_example(features.encode_example(_opened(example))).SerializeToString(
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


def _opened(example: Example) -> dict[str, Any]:
    """The example with bytes as files in memory: the library opens the images it encodes."""
    return {
        name: io.BytesIO(value) if isinstance(value, bytes) else value
        for name, value in example.items()
    }
