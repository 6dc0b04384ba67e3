"""Splits of a TFDS directory as sources of examples (images, texts), without TensorFlow.

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
from typing import Any, Protocol

from workloads.base.errors import DataError
from workloads.storage import tfrecord

_STREAM_BYTES = 2**20


class RecordFiles(Protocol):
    """Serialized examples by number, over all shards of a split."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> bytes: ...


def _open_shards(split: "TfdsSplit") -> RecordFiles:
    """The records of all shards. Raises DataError for a file format other than these two."""
    if split.file_format == "tfrecord":
        return _TFRecordShards(split.shards, split.shard_lengths, split.repair)
    if split.file_format == "array_record":
        return _ArrayRecordShards(split.shards, split.shard_lengths, split.repair)
    raise DataError(
        f"{os.path.dirname(split.shards[0])}: file format {split.file_format!r} cannot be read; "
        "tfrecord and array_record can",
        split.repair,
    )


def _stream_tfrecord(path: str, repair: str) -> Iterator[bytes]:
    """The records of one shard in order, each checked, without an index."""
    offset = 0
    with open(path, "rb", buffering=_STREAM_BYTES) as file:
        for number in itertools.count():
            header = file.read(tfrecord.HEADER.size)
            if not header:
                return
            where = tfrecord.Where(path, number, offset, repair)
            length = tfrecord.payload_length(header, where)
            rest = file.read(length + tfrecord.CHECKSUM.size)
            size = length + tfrecord.FRAME_BYTES
            yield tfrecord.payload_of(header + rest, size, where)
            offset += size


def _stream_array(path: str, repair: str) -> Iterator[bytes]:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    try:
        source = ArrayRecordDataSource([path])
        for number in range(len(source)):
            yield source[number]
    except (RuntimeError, ValueError, IndexError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem


class _TFRecordShards:
    def __init__(self, shards: Sequence[str], lengths: Sequence[int], repair: str) -> None:
        self._files = [tfrecord.TFRecordFile(path, repair) for path in shards]
        self._lengths = lengths
        self._starts = list(itertools.accumulate(lengths, initial=0))
        self._repair = repair

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> bytes:
        shard = bisect.bisect_right(self._starts, number) - 1
        file = self._files[shard]
        if len(file) != self._lengths[shard]:
            raise DataError(
                f"{file.path} has {len(file)} records, dataset_info.json says "
                f"{self._lengths[shard]}",
                self._repair,
            )
        return file[number - self._starts[shard]]


class _ArrayRecordShards:
    def __init__(self, shards: Sequence[str], lengths: Sequence[int], repair: str) -> None:
        self._shards, self._lengths, self._repair = shards, lengths, repair

    def __len__(self) -> int:
        return sum(self._lengths)

    def __getitem__(self, number: int) -> bytes:
        try:
            return self._source[number]
        except (RuntimeError, ValueError, IndexError) as problem:
            where = f"{os.path.dirname(self._shards[0])}: record {number} of the split"
            raise DataError(f"{where} cannot be read: {problem}", self._repair) from problem

    @functools.cached_property
    def _source(self) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        source = ArrayRecordDataSource(list(self._shards))
        if len(source) != len(self):
            raise ValueError(f"the shards hold {len(source)} records, not {len(self)}")
        return source

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_source"}


DEFAULT_REPAIR = "prepare the directory again with `python -m workloads prepare NAME`"
_INCOMPLETE = "incomplete."


# The features of a record that are read, and where `tf.train.Example` keeps their kind.
IMAGE_AND_LABEL = {"image": "bytes_list", "label": "int64_list"}
TEXT = {"text": "bytes_list"}


class TfdsSplit:
    """Examples of one split: `split[i]` is `{"image": bytes, "label": int}`, the image encoded.

    `features` says what else is read: with `TEXT`, `split[i]` is `{"text": bytes}`, UTF-8.
    `dataset` is the expected name, `name[/config]:version`, such as
    `imagenet_v2/matched-frequency:3.0.0`; None takes what is there. `repair` is the advice that
    errors end with. Opening checks the identity, the split, and that every shard is there and
    large enough; each record is checked when it is read. Picklable, safe in threads, cheap to
    send to worker processes.

    Raises DataError where the directory is absent, half prepared, of another data set, lacks
    features or shards, or a record is damaged.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str,
        *,
        dataset: str | None = None,
        repair: str = DEFAULT_REPAIR,
        features: Mapping[str, str] = IMAGE_AND_LABEL,
    ) -> None:
        self.directory = Path(directory)
        self.split = split
        self.repair = repair
        self.features = dict(features)
        builder = _open_builder(self.directory, dataset, repair)
        self.dataset: str = _full_name(builder)
        self.num_classes: int | None = _num_classes(builder, self)
        info = _split_info(builder, self)
        self.shard_lengths: tuple[int, ...] = tuple(info.shard_lengths)
        self.shards: tuple[str, ...] = tuple(os.fspath(path) for path in info.filepaths)
        self.file_format: str = builder.info.file_format.value
        self._records = _open_shards(self)
        _check_shards(self, int(info.num_bytes))

    def __len__(self) -> int:
        return sum(self.shard_lengths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The features that are read, each a bytes or an int; IndexError beyond the end."""
        return self._parsed(self.serialized(number), number)

    def iterate_shard(self, shard: int) -> Iterator[dict[str, Any]]:
        """The examples of one shard in order, read as a stream: no index is made.

        Raises DataError at the first damaged record, and at the end where there are more or fewer
        than `dataset_info.json` says.
        """
        start, length = sum(self.shard_lengths[:shard]), self.shard_lengths[shard]
        count = 0
        stream = _stream_tfrecord if self.file_format == "tfrecord" else _stream_array
        for serialized in stream(self.shards[shard], self.repair):
            yield self._parsed(serialized, start + count)
            count += 1
        if count != length:
            raise self.error(
                f"{self.shards[shard]} has {count} records, dataset_info.json says {length}"
            )

    def _parsed(self, serialized: bytes, number: int) -> dict[str, Any]:
        found = _features(serialized, number, self)
        # A protobuf map makes the key that is asked for, so a missing feature is an empty list.
        values = {name: getattr(found[name], kind).value for name, kind in self.features.items()}
        if any(len(value) != 1 for value in values.values()):
            counts = " and ".join(f"{len(value)} {name}s" for name, value in values.items())
            raise self.error(f"example {number} has {counts}, not one each")
        return {name: value[0] for name, value in values.items()}

    def serialized(self, number: int) -> bytes:
        """The example as it is stored, a serialized `tf.train.Example`."""
        if not 0 <= number < len(self):
            raise IndexError(f"{self}: example {number} asked, there are {len(self)}")
        return self._records[number]

    def error(self, problem: str) -> DataError:
        """A DataError that names this split and how to repair it."""
        return DataError(f"{self}: {problem}", self.repair)

    def __str__(self) -> str:
        return f"{self.directory}, split {self.split!r}"


def directory_of(data_dir: str | os.PathLike[str], dataset: str) -> Path:
    """Where TFDS keeps `name[/config]:version` below `data_dir`."""
    return Path(data_dir, *dataset.replace(":", "/").split("/"))


def _open_builder(directory: Path, dataset: str | None, repair: str) -> Any:
    """The library's read-only builder of a directory, which must be of the expected data set."""
    _check_prepared(directory, repair)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(directory)
    except Exception as problem:  # the library raises many types for a damaged JSON file
        raise DataError(
            f"{directory}: dataset_info.json or features.json cannot be read: {problem}", repair
        ) from problem
    found = _full_name(builder)
    if dataset is not None and found != dataset:
        raise DataError(f"{directory}: this is data set {found}, not {dataset}", repair)
    return builder


def _check_prepared(directory: Path, repair: str) -> None:
    missing = [n for n in ("dataset_info.json", "features.json") if not (directory / n).is_file()]
    if not missing:
        return
    halves = sorted(
        str(path)
        for place in (directory, directory.parent)
        if place.is_dir()
        for path in place.iterdir()
        if path.name.startswith(_INCOMPLETE)
    )
    if halves:
        raise DataError(
            f"{directory}: the preparation was interrupted and left {', '.join(halves)} "
            "(remove it, unless it is still running)",
            repair,
        )
    what = "has no " + " and no ".join(missing) if directory.is_dir() else "does not exist"
    raise DataError(f"{directory}: {what}", repair)


def _full_name(builder: Any) -> str:
    config = f"/{builder.builder_config.name}" if builder.builder_config else ""
    return f"{builder.name}{config}:{builder.version}"


def _num_classes(builder: Any, split: TfdsSplit) -> int | None:
    features = builder.info.features
    for name in split.features:
        if name not in features:
            raise split.error(f"features.json has no feature {name!r}, only {', '.join(features)}")
    return getattr(features["label"], "num_classes", None) if "label" in features else None


def _split_info(builder: Any, split: TfdsSplit) -> Any:
    splits = builder.info.splits
    if split.split not in splits:
        there = ", ".join(splits) or "none"
        raise split.error(f"dataset_info.json has no such split; it has: {there}")
    return splits[split.split]


def _check_shards(split: TfdsSplit, num_bytes: int) -> None:
    missing = [path for path in split.shards if not os.path.isfile(path)]
    if missing:
        names = ", ".join(os.path.basename(path) for path in missing[:3])
        raise split.error(f"{len(missing)} of {len(split.shards)} shards are missing: {names} …")
    for path, length in zip(split.shards, split.shard_lengths, strict=True):
        if os.path.getsize(path) < length * tfrecord.FRAME_BYTES:
            raise split.error(f"{path} is too small for the {length} records it should hold")
    on_disk = sum(os.path.getsize(path) for path in split.shards)
    expected = num_bytes + sum(split.shard_lengths) * tfrecord.FRAME_BYTES
    if on_disk < expected and split.file_format == "tfrecord":
        raise split.error(
            f"the shards have {on_disk} bytes together, {expected} by dataset_info.json"
        )


def _features(serialized: bytes, number: int, split: TfdsSplit) -> Any:
    """The example's features by name, parsed by protobuf alone.

    `features.deserialize_example_np` with SkipDecoding gives the same in 57 µs instead of 10 µs
    per example of 110 kB.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        return tf_example_pb2.Example.FromString(serialized).features.feature
    except Exception as problem:  # protobuf's DecodeError, whose module differs by version
        raise split.error(f"example {number} is no tf.train.Example: {problem}") from problem


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
