"""TFDS directories, read as sources of examples (images, texts) and written, without TensorFlow.

Directory layout: `dataset_info.json`, `features.json` and one file per shard (tfrecord or
array_record), as https://www.tensorflow.org/datasets/external_tfrecord describes; names, shard
lengths and file names come from the tensorflow-datasets library itself.
"""

import bisect
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.base.errors import DataError
from workloads.storage import preparation, tfrecord

# The features of a record that are read, and where `tf.train.Example` keeps their kind.
IMAGE_AND_LABEL = {"image": "bytes_list", "label": "int64_list"}
TEXT = {"text": "bytes_list"}
Example = Mapping[str, Any]


class TfdsSplit:
    """Examples of one split: `split[i]` is `{"image": bytes, "label": int}`, the image encoded.

    `features` says what else is read: with `TEXT`, `split[i]` is `{"text": bytes}`, UTF-8.
    `dataset` is the expected name, `name[/config]:version`, such as
    `imagenet_v2/matched-frequency:3.0.0`; None takes what is there. `repair` is the advice that
    errors end with. Opening checks the identity, the split, and that the shards are there
    and large enough; each record is checked when it is read. Picklable, safe in threads, cheap to
    send to worker processes.

    Raises DataError where the directory is absent, half prepared, of another data set, lacks
    features or shards, or a record is damaged.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str,
        *,
        repair: str,
        dataset: str | None = None,
        features: Mapping[str, str] = IMAGE_AND_LABEL,
    ) -> None:
        self.directory = Path(directory)
        self.split = split
        self.repair = repair
        self.features = dict(features)
        builder = _open_builder(self.directory, repair)
        self.dataset = _full_name(builder, self.directory)
        if dataset is not None and self.dataset != dataset:
            raise DataError(f"{directory}: this is data set {self.dataset}, not {dataset}", repair)
        stored, splits = builder.info.features, builder.info.splits
        for name in self.features:
            if name not in stored:
                raise self.error(f"features.json has no feature {name!r}, only {', '.join(stored)}")
        self.num_classes: int | None = getattr(dict(stored).get("label"), "num_classes", None)
        if split not in splits:
            names = ", ".join(splits) or "none"
            raise self.error(f"dataset_info.json has no such split; it has: {names}")
        info = splits[split]
        self.shard_lengths: tuple[int, ...] = tuple(info.shard_lengths)
        self.shards: tuple[str, ...] = tuple(os.fspath(path) for path in info.filepaths)
        self.file_format: str = builder.info.file_format.value
        if self.file_format not in ("tfrecord", "array_record"):
            raise self.error(
                f"file format {self.file_format!r} cannot be read; tfrecord and array_record can"
            )
        self._starts = list(itertools.accumulate(self.shard_lengths, initial=0))
        self._files = [tfrecord.TFRecordFile(path, repair) for path in self.shards]
        self._check_shards(int(info.num_bytes))

    def _check_shards(self, num_bytes: int) -> None:
        missing = [path for path in self.shards if not os.path.isfile(path)]
        if missing:
            names = ", ".join(os.path.basename(path) for path in missing[:3])
            raise self.error(f"{len(missing)} of {len(self.shards)} shards are missing: {names} …")
        on_disk = sum(os.path.getsize(path) for path in self.shards)
        expected = num_bytes + len(self) * tfrecord.FRAME_BYTES
        if on_disk < expected and self.file_format == "tfrecord":
            raise self.error(
                f"the shards have {on_disk} bytes together, {expected} by dataset_info.json"
            )

    def describe(self) -> list[Any]:
        """Returns the set, the split, and the examples and bytes of each shard, wherever it lies:
        what tells data apart without reading them, in JSON types."""
        sizes = [os.path.getsize(path) for path in self.shards]
        return [self.dataset, self.split, list(self.shard_lengths), sizes]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The features that are read, each a bytes or an int; IndexError beyond the end."""
        return self._parsed(self.serialized(number), number)

    def iterate_shard(self, shard: int) -> Iterator[dict[str, Any]]:
        """The examples of one shard in order, read as a stream: no index is made.

        Raises DataError at the first damaged record, and at the end where there are more or fewer
        than `dataset_info.json` says.
        """
        count = 0
        start, end = self._starts[shard : shard + 2]
        if self.file_format == "tfrecord":
            records = tfrecord.stream(self.shards[shard], self.repair)
        else:
            records = map(self.serialized, range(start, end))
        for serialized in records:
            yield self._parsed(serialized, start + count)
            count += 1
        self._check_count(shard, count)

    def _check_count(self, shard: int, count: int) -> None:
        expected = self.shard_lengths[shard]
        if count != expected:
            raise self.error(
                f"{self.shards[shard]} has {count} records, dataset_info.json says {expected}"
            )

    def _parsed(self, serialized: bytes, number: int) -> dict[str, Any]:
        """The features of an example, parsed by protobuf alone.

        `features.deserialize_example_np` with SkipDecoding gives the same in 57 µs instead of 10 µs
        per example of 110 kB.
        """
        from tensorflow_datasets.proto import tf_example_pb2

        try:
            stored = tf_example_pb2.Example.FromString(serialized).features.feature
        except Exception as problem:  # protobuf's DecodeError, whose module differs by version
            raise self.error(f"example {number} is no tf.train.Example: {problem}") from problem
        # A protobuf map makes the key that is asked for, so a missing feature is an empty list.
        values = {name: getattr(stored[name], kind).value for name, kind in self.features.items()}
        if any(len(value) != 1 for value in values.values()):
            counts = " and ".join(f"{len(value)} {name}s" for name, value in values.items())
            raise self.error(f"example {number} has {counts}, not one each")
        return {name: value[0] for name, value in values.items()}

    def serialized(self, number: int) -> bytes:
        """The example as it is stored, a serialized `tf.train.Example`."""
        if not 0 <= number < len(self):
            raise IndexError(f"{self}: example {number} asked, there are {len(self)}")
        if self.file_format == "array_record":
            try:
                return self._array_records[number]
            except (RuntimeError, ValueError, IndexError) as problem:
                raise self.error(f"record {number} cannot be read: {problem}") from problem
        shard = bisect.bisect_right(self._starts, number) - 1
        file = self._files[shard]
        self._check_count(shard, len(file))
        return file[number - self._starts[shard]]

    @functools.cached_property
    def _array_records(self) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        source = ArrayRecordDataSource(list(self.shards))
        if len(source) != len(self):
            raise ValueError(f"the shards hold {len(source)} records, not {len(self)}")
        return source

    def error(self, problem: str) -> DataError:
        """A DataError that names this split and how to repair it."""
        return DataError(f"{self}: {problem}", self.repair)

    def __str__(self) -> str:
        return f"{self.directory}, split {self.split!r}"


def directory_of(data_dir: str | os.PathLike[str], dataset: str) -> Path:
    """Where TFDS keeps `name[/config]:version` below `data_dir`."""
    return Path(data_dir, *dataset.replace(":", "/").split("/"))


def _open_builder(directory: Path, repair: str) -> Any:
    """Returns the library's read-only builder of a directory. Raises DataError as `TfdsSplit`."""
    import tensorflow_datasets as tfds

    missing = [n for n in ("dataset_info.json", "features.json") if not (directory / n).is_file()]
    if missing:
        what = "has no " + " and no ".join(missing) if directory.is_dir() else "does not exist"
        raise DataError(
            f"{directory}: {what}. A preparation that was interrupted leaves a folder "
            "incomplete.* beside it; remove that, unless it is still running",
            repair,
        )
    try:
        return tfds.builder_from_directory(directory)
    except Exception as problem:  # the library raises many types for a damaged JSON file
        raise DataError(
            f"{directory}: dataset_info.json or features.json cannot be read: {problem}", repair
        ) from problem


def _full_name(builder: Any, directory: Path) -> str:
    """Returns the name of a data set; one from before 2020 has the configuration in its place."""
    place = ("", "", *directory.absolute().parts)[-3:-1]
    in_place = place[0] == builder.name != place[1]
    config = builder.builder_config.name if builder.builder_config else place[1] * in_place
    return f"{builder.name}{config and '/'}{config}:{builder.version}"


def versions(directory: Path) -> list[Path]:
    """Prepared versions of a TFDS data set in `directory`, the newest first."""
    return sorted(
        (path.parent for path in directory.glob("*/dataset_info.json") if path.is_file()),
        key=lambda path: _version(path.name),
        reverse=True,
    )


def _version(name: str) -> tuple[int, ...]:
    parts = name.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


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
        serializer.get_tf_example(features.encode_example(example)).SerializeToString(
            deterministic=True
        )
        for example in examples
    ]
    parts = [list(part) for part in np.array_split(np.arange(len(serialized)), shards)]
    for shard, part in enumerate(parts):
        tfrecord.write_tfrecord(
            template.sharded_filepath(shard_index=shard, num_shards=shards),
            (serialized[i] for i in part),
        )
    return tfds.core.SplitInfo(
        name=split,
        shard_lengths=[len(part) for part in parts],
        num_bytes=sum(map(len, serialized)),
        filename_template=template,
    )
