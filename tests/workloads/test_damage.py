"""ImageNet's files, and damage of data of every layout."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pytest

from sweeps.study import jax_calls
from tests.workloads import data_files, small_directories
from tests.workloads.data_files import cut, edited, saved, written
from tests.workloads.small_directories import REPAIR
from workloads.base import loader
from workloads.base.errors import DataError
from workloads.images import imagenet, images
from workloads.storage import tfds_directory, tfrecord, token_records, tokenizer
from workloads.text.corpora import fineweb_data

Damage = Callable[[Path], object]


def _read_pictures(folder: Path) -> Any:
    directory = tfds_directory.directory_of(folder, small_directories.PICTURES)
    train, test = (small_directories.open_pictures(directory, split) for split in ("train", "test"))
    return train[19], test[1]


READERS: dict[str, Callable[[Path], object]] = {
    "pictures": _read_pictures,
    "tokens": lambda folder: token_records.open_split(folder, "train", REPAIR),
    "tokens, whole": lambda folder: token_records.check(folder, REPAIR, full=True),
    "tokenizer": lambda folder: tokenizer.load(folder / "spm.model", REPAIR),
    "Arrow": fineweb_data.check,
    "speech": lambda folder: small_directories.open_speech(folder)[1],
}
# What messages end with, where no other repair is given.
REPAIRS = {"Arrow": "dataset_setup.py --finewebedu"}


def _write_arrow(folder: Path) -> None:
    for split in ("train", "val"):
        small_directories.write_arrow_tokens(folder / split, [1, 2, 3] * 1000)


@pytest.fixture
def write(spm_model: bytes) -> dict[str, Callable[[Path], object]]:
    def write_tokens(folder: Path) -> None:
        small_directories.write_tokens(folder, spm_model)

    return {
        "pictures": small_directories.write_pictures,
        **dict.fromkeys(("tokens", "tokens, whole", "tokenizer"), write_tokens),
        "Arrow": _write_arrow,
        "speech": small_directories.write_speech,
    }


def _one_record_more(path: Path) -> None:
    records = list(tfrecord.TFRecordFile(path))
    tfrecord.write_tfrecord(path, [*records, records[0]])


def _records(*records: bytes) -> Damage:
    """Other records, the first filled up to the bytes of the shard."""

    def damage(path: Path) -> None:
        first = records[0] * path.stat().st_size
        tfrecord.write_tfrecord(path, [first, *records[1:]])

    return damage


def _column(documents: Any, kind: pa.DataType, name: str = "input_ids") -> Damage:
    """Other documents in a file of Arrow."""

    def damage(path: Path) -> None:
        schema = pa.schema([(name, pa.list_(kind))])
        with pa.ipc.new_stream(str(path), schema) as stream:
            column = pa.array(documents, schema.field(0).type)
            stream.write_batch(pa.record_batch([column], schema=schema))

    return damage


def _patched(start: int, new: bytes) -> Damage:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[:start] + new + content[start + len(new) :])

    return damage


def _archive(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), np.zeros(3))
    path.with_suffix(".npz").rename(path)


def _huge(path: Path) -> None:
    """An array of 7 PB by its header."""
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(3,), }" + b" " * 15, b"(3333333333333333,), }"))


def _removed(key: str) -> Damage:
    return edited(lambda features: features["featuresDict"]["features"].pop(key))


PICTURES = "imagenet_v2/matched-frequency/3.0.0"
INFO, FEATURES = f"{PICTURES}/dataset_info.json", f"{PICTURES}/features.json"
LAST = f"{PICTURES}/imagenet_v2-train.tfrecord-00002-of-00003"
TEST = f"{PICTURES}/imagenet_v2-test.tfrecord-00000-of-00003"
SHARD = "train/data-00002-of-00003.arrow"
OTHER_VOCABULARY = tokenizer.train(["a cat sat on the mat by the sea"] * 20, 18)
ARROW, HELD_OUT = "train/data-00000-of-00001.arrow", "val/data-00000-of-00001.arrow"
AUDIO, TARGETS = "a/1-1-0_audio.npy", "a/1-1-0_targets.npy"
LIST = "a.csv is no list of utterances"
# A kind of data, the damaged file, and what the message must hold beside folder and repair.
CASES = [
    ("pictures", PICTURES, shutil.rmtree, "3.0.0: does not exist"),
    ("pictures", INFO, Path.unlink, "has no dataset_info.json"),
    ("pictures", INFO, written("{"), "dataset_info.json or features.json cannot be read"),
    ("pictures", FEATURES, written("{}"), "dataset_info.json or features.json cannot be read"),
    ("pictures", LAST, Path.unlink, "1 of 3 shards are missing: imagenet_v2-train.tfrecord-00002"),
    ("pictures", LAST, cut, "bytes together"),
    ("pictures", INFO, edited(lambda info: info.update(fileFormat="riegeli")), "riegeli"),
    ("pictures", INFO, edited(lambda info: info.update(name="imagenet2012")), "imagenet2012/match"),
    ("pictures", INFO, edited(lambda info: info["splits"].pop(0)), "it has: t"),
    ("pictures", FEATURES, _removed("label"), "'label'"),
    ("pictures", LAST, _one_record_more, "00002-of-00003 has 7 records"),
    ("pictures", TEST, _records(b"\xff", b"\xff"), "'test': example 1 is no tf.train.Example"),
    ("pictures", TEST, _records(b"\xff", b""), "example 1 has 0 images and 0 labels"),
    ("tokens", "tokens.json", Path.unlink, "tokens.json does not exist"),
    ("tokens", "tokens.json", written("{"), "tokens.json cannot be read"),
    ("tokens", "tokens.json", edited(lambda info: info.update(version=1)), "$.version"),
    ("tokens", "tokens.json", edited(lambda info: info.update(length=7)), "holds 7 records"),
    ("tokens", "tokens.json", edited(lambda info: info["splits"].pop("train")), "it has test"),
    ("tokens", SHARD, Path.unlink, "lacks data-00002-of-00003.arrow"),
    ("tokens", SHARD, cut, f"{SHARD} is cut short"),
    ("tokens", SHARD, _column([[5] * 36], pa.uint16()), "holds 10 records; tokens.json says 9"),
    ("tokens, whole", SHARD, _column([[5] * 30], pa.uint16()), f"{SHARD} of"),
    ("tokens, whole", SHARD, _column([[330] * 30], pa.uint16()), "from 330 to 330"),
    ("tokens, whole", "spm.model", written(OTHER_VOCABULARY), "the records were made with"),
    ("tokenizer", "spm.model", written("nothing"), "spm.model is no SentencePiece model"),
    ("tokenizer", "spm.model", written(""), "spm.model is no SentencePiece model"),
    ("tokenizer", "spm.model", Path.unlink, "spm.model: the tokenizer cannot be read"),
    ("Arrow", "train", shutil.rmtree, "state.json does not exist"),
    ("Arrow", "train/state.json", Path.unlink, "state.json does not exist"),
    ("Arrow", ARROW, Path.unlink, "lacks data-00000-of-00001.arrow"),
    ("Arrow", "train/state.json", written("{"), "state.json cannot be read"),
    ("Arrow", "train/state.json", written("[]"), "state.json cannot be read: Expected"),
    ("Arrow", "train/state.json", written('{"_data_files": []}'), "lacks any file of data"),
    ("Arrow", ARROW, lambda path: path.write_bytes(path.read_bytes()[:-200]), "cut short"),
    ("Arrow", ARROW, lambda path: path.write_bytes(path.read_bytes()[:-8]), "cut short"),
    ("Arrow", ARROW, written("not Arrow at all"), "cut short"),
    ("Arrow", ARROW, _patched(0, b"\x07" * 300), "arrow cannot be read"),
    ("Arrow", ARROW, _column([[1]], pa.int32(), "tokens"), "input_ids of type null"),
    ("Arrow", ARROW, _column([[1, 2], None, [3]], pa.int32()), "document 1 is null"),
    ("Arrow", ARROW, _column([[1, 2], [None, 3]], pa.int32()), "arrow cannot be read"),
    ("Arrow", ARROW, _column([[1.0]], pa.float32()), "input_ids of type list<item: float>"),
    # Ids are compared before they are cut to 32 bits.
    ("Arrow", HELD_OUT, _column([[5] * 1024 + [60_000]], pa.int32()), "from 5 to 60000"),
    ("Arrow", HELD_OUT, _column([[5] * 1024 + [50_257]], pa.int32()), "from 5 to 50257"),
    ("Arrow", HELD_OUT, _column([[5] * 1024 + [-1]], pa.int32()), "from -1 to 5"),
    ("Arrow", HELD_OUT, _column([[5] * 1024 + [2**32 + 5]], pa.int64()), "from 5 to 4294967301"),
    ("Arrow", HELD_OUT, _column([[5] * 1024 + [2**63 + 1]], pa.uint64()), "9223372036854775809"),
    ("speech", AUDIO, saved(np.zeros(3, np.float32)), "float32 [3]; 1 to 4 samples"),
    ("speech", AUDIO, saved(np.zeros((3, 1), np.int16)), "int16 [3, 1]"),
    ("speech", AUDIO, saved(np.array([None])), f"{AUDIO} cannot be read"),
    ("speech", AUDIO, saved(np.array([0, 32768])), "-32768 to 32767"),
    ("speech", AUDIO, saved(np.array([-32769, 0])), "-32768 to 32767"),
    ("speech", AUDIO, saved(np.zeros(5, np.int16)), "int16 [5]"),
    ("speech", AUDIO, saved(np.zeros(0, np.int16)), "int16 [0]"),
    ("speech", TARGETS, saved(np.ones(4, np.int32)), "int32 [4]; 1 to 3 target ids"),
    ("speech", TARGETS, saved(np.array([3, 0, 2])), "from 1 to 4999"),
    ("speech", TARGETS, saved(np.array([3, 5000])), "from 3 to 5000"),
    ("speech", TARGETS, saved(np.array([3.0])), "float64 [1]"),
    ("speech", AUDIO, _archive, f"{AUDIO} cannot be read"),
    ("speech", AUDIO, _huge, f"{AUDIO} cannot be read"),
    ("speech", AUDIO, written(b"PK\x03\x04no"), f"{AUDIO} cannot be read"),
    ("speech", AUDIO, cut, f"{AUDIO} cannot be read"),
    ("speech", AUDIO, Path.unlink, f"{AUDIO} cannot be read"),
    ("speech", TARGETS, cut, f"{TARGETS} cannot be read"),
    ("speech", TARGETS, written(""), f"{TARGETS} cannot be read"),
    ("speech", "a.csv", Path.unlink, "a.csv cannot be read"),
    ("speech", "a.csv", written("id\n1-1-0\n"), LIST),
    ("speech", "a.csv", written(""), LIST),
    ("speech", "a.csv", written(",id\n"), LIST),
    ("speech", "a.csv", written(",id\n0,1-1-0\n1,1-1-0\n"), LIST),
    ("speech", "a.csv", written(",id\n0,1-1-0\n1\n"), LIST),
    ("speech", "a.csv", written(",id\n0,\n"), LIST),
    ("speech", "a.csv", written(",id\n0,../1-1-0\n"), LIST),
]


@pytest.mark.parametrize(
    ("name", "file", "damage", "words"), CASES, ids=[f"{case[0]}: {case[3]}" for case in CASES]
)
def test_damage_is_named_with_its_repair(
    write: Any, made_once: Any, tmp_path: Path, name: str, file: str, damage: Damage, words: str
) -> None:
    whole = made_once(f"whole {name}", write[name])
    folder = Path(shutil.copytree(whole, tmp_path / "data"))
    damage(folder / file)
    with pytest.raises(DataError) as caught:
        READERS[name](folder)
    message = str(caught.value)
    assert str(folder) in message
    assert words in message
    assert REPAIRS.get(name, REPAIR) in message


SIZES = {"train": 48, "validation": 12, "test": 9}


def _examples(count: int, seed: int) -> list[dict[str, Any]]:
    """Photograph-like JPEGs from 30 to 500 pixels a side, among them very long ones."""
    generator = np.random.default_rng(seed)
    shapes = generator.integers(30, 500, (count, 2))
    shapes[:2] = (30, 500), (500, 31)
    examples = []
    for number, (height, width) in enumerate(shapes.tolist()):
        coarse = generator.integers(0, 256, (6, 6, 3), np.uint8)
        picture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        encoded = cv2.imencode(".jpg", picture)[1].tobytes()
        label = int(generator.integers(1000))
        examples.append({"image": encoded, "label": label, "file_name": f"n{number}.JPEG"})
    return examples


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("small")
    _write(data_dir)
    return data_dir


def _write(data_dir: Path, num_classes: int = 1000, **changes: list[dict[str, Any]]) -> None:
    examples = {role: _examples(size, size) for role, size in SIZES.items()}
    imagenet.write(
        data_dir, {**examples, **changes}, num_classes=num_classes, description="for the tests"
    )


@pytest.fixture
def sizes_of_the_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check, expecting the small directory's sizes."""
    monkeypatch.setattr(imagenet, "SIZES", SIZES)


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy"))


def test_training_views_of_every_shape_of_jpeg(small: Path) -> None:
    source = imagenet.open_split(small, "train")
    with loader.train_batches(
        source,
        seed=0,
        batch_size=16,
        transform=images.train_view,
    ) as stream:
        batches = [next(stream) for _ in range(3)]
    assert {batch["inputs"].shape for batch in batches} == {(16, 224, 224, 3)}
    labels = np.concatenate([batch["targets"] for batch in batches])
    assert sorted(labels) == sorted(source[number]["label"] for number in range(48))
    assert all(picture.std() > 0 for batch in batches for picture in batch["inputs"])


def test_a_label_out_of_range_is_refused(small: Path) -> None:
    split = imagenet.open_split(small, "test")
    label = split[8]["label"]
    with pytest.raises(DataError, match=f"example 8 has label {label}; 0 to {label - 1} are allo"):
        list(imagenet.checked(split, [8], label, decode=False))


NO_IMAGE = {"image": bytes(1000), "label": 3, "file_name": "none.JPEG"}


@pytest.mark.usefixtures("sizes_of_the_small")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda copy: _write(copy, test=_examples(8, 8)),
            "has 8 examples of 1000 classes; expected 9",
        ),
        (lambda copy: _write(copy, num_classes=1001), "of 1001 classes; expected 48 of 1000"),
        (
            lambda copy: _write(copy, test=[*_examples(4, 4), NO_IMAGE, *_examples(4, 5)]),
            r"'test': example 4: 1000 bytes .* no JPEG or PNG",
        ),
        (shutil.rmtree, "prepare imagenet_vit --data_dir=.*/copy"),
    ],
)
def test_other_data_is_refused(copy: Path, change: Callable[[Path], None], message: str) -> None:
    change(copy)
    with pytest.raises(DataError, match=message):
        imagenet.check(copy)


@pytest.mark.usefixtures("sizes_of_the_small")
def test_a_damaged_record_is_found_by_the_full_check(copy: Path) -> None:
    sampled = np.random.RandomState(0).choice(48, imagenet._SAMPLE, replace=False)
    number = next(n for n in range(48) if n not in sampled)
    shard = Path(imagenet.open_split(copy, "train").shards[0])
    data_files.flip(shard, tfrecord.TFRecordFile(shard).offsets[number] + 500)
    lines = imagenet.check(copy)
    assert [line.split(":")[0] for line in lines] == ["train", "validation", "test"]
    assert "48 examples" in lines[0]
    with pytest.raises(DataError, match=rf"00000-of-00001: record {number} at byte \d+ is cor"):
        imagenet.check(copy, full=True)


def test_roles_are_algoperfs_data_sets() -> None:
    """tests/workloads/test_catalog.py has their sizes."""
    assert imagenet.DATASETS == {
        "train": "imagenet2012:5.1.0",
        "validation": "imagenet2012:5.1.0",
        "test": "imagenet_v2/matched-frequency:3.0.0",
    }


def test_what_preparing_lacks_is_named(tmp_path: Path, small: Path) -> None:
    """Where the folder above AlgoPerf's is given, too."""
    shutil.copytree(small, tmp_path / "imagenet" / "jax")
    with pytest.raises(DataError, match=r"give --data_dir .*/imagenet/jax"):
        imagenet.check(tmp_path)
    (tmp_path / imagenet.TRAIN_TAR).touch()
    with pytest.raises(DataError, match=rf"{tmp_path}: ILSVRC2012_img_val\.tar missing"):
        imagenet.prepare(tmp_path, tmp_path)
    (tmp_path / imagenet.VALIDATION_TAR).touch()
    if importlib.util.find_spec("tensorflow") is None:
        with pytest.raises(DataError, match=r"pip install -e '\.\[tfds\]'"):
            imagenet.prepare(tmp_path, tmp_path)


@pytest.mark.usefixtures("sizes_of_the_small")
def test_the_driver_s_digest_is_that_of_the_shards_wherever_they_lie(
    copy: Path, tmp_path: Path
) -> None:
    """Another image in one shard, of as many examples, is another digest."""
    digest = jax_calls.data("imagenet_vit", str(copy))["digest"]
    assert len(digest) == 64
    moved = copy.rename(tmp_path / "moved")
    assert jax_calls.data("imagenet_vit", str(moved))["digest"] == digest
    for role, size in SIZES.items():
        other = tmp_path / role
        _write(other, **{role: _examples(size, size + 1)})
        assert jax_calls.data("imagenet_vit", str(other))["digest"] != digest
