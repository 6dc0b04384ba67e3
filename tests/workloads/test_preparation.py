"""Data is made once, by one process at a time, and never over data of other people."""

import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from workloads.base.errors import DataError
from workloads.storage import json_records, preparation, small_data
from workloads.text.corpora.large_corpora import C4

# JSON writes both the quotation marks and the letter otherwise.
NOTE = 'Small: "naïve" pictures.'
REFERENCE = small_data.Reference(note=NOTE, rows=[], sha256="0")
TEXT = msgspec.json.encode(REFERENCE).decode()


def test_a_claimed_directory_stays_that_of_its_data(tmp_path):
    preparation.claim(tmp_path / "new", NOTE)
    (tmp_path / "new" / "shard").touch()
    preparation.claim(tmp_path / "new", NOTE)
    for note in ("Small: sounds.", "Small", ""):
        for names in (None, ["nothing"]):
            with pytest.raises(DataError, match=r"NOTE is there, .* other data; .*\n.*remove"):
                preparation.claim(tmp_path / "new", note, names)
    assert (tmp_path / "new" / "NOTE").read_text("utf-8") == f"{NOTE}\n"
    # Files of others. What a system lays beside people's files is no data.
    for file in ("shard", "folder/file"):
        path = tmp_path / "other" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        for names in (None, ["nothing", file.split("/")[0]]):
            with pytest.raises(DataError, match=f"{file.split('/')[0]} is there"):
                preparation.claim(tmp_path / "other", NOTE, names)
        path.unlink()
    (tmp_path / "other" / "folder" / "@eaDir").mkdir()
    (tmp_path / "other" / "folder" / ".DS_Store").touch()
    preparation.claim(tmp_path / "other", NOTE, ["folder"])
    preparation.claim(tmp_path / "other" / "folder", NOTE)


@pytest.mark.parametrize("name", ["reference.json", "dataset_info.json", "tokens.json"])
def test_every_file_that_is_whole_must_say_the_same(name, tmp_path):
    path = tmp_path / name
    for text in (TEXT, json.dumps(json.loads(TEXT))):
        path.write_text(text, "utf-8")
        preparation.claim(tmp_path, NOTE)
        assert path.exists() == (name != preparation.REFERENCE_FILE)
    with pytest.raises(DataError, match="it is not replaced"):
        preparation.claim(tmp_path, "")
    path.write_text('{"note": "Sm', "utf-8")  # a crash
    preparation.claim(tmp_path, NOTE)
    for text in ('{"description": "photographs"}', '{"descr'):
        path.write_text(text, "utf-8")
        with pytest.raises(DataError, match="it is not replaced"):
            preparation.claim(tmp_path, NOTE)
        (tmp_path / preparation.NOTE_FILE).unlink(missing_ok=True)


def _write(directory):
    preparation.claim(directory, NOTE)
    (directory / preparation.REFERENCE_FILE).write_text(TEXT, "utf-8")


def _check(directory):
    path = directory / preparation.REFERENCE_FILE
    return json_records.read(path, small_data.Reference, "mend it")


def test_data_are_made_where_they_are_not_whole_and_left_where_they_are(tmp_path, capfd):
    with pytest.raises(DataError, match=r"reference\.json cannot be read"):
        preparation.prepare_once(tmp_path / "nothing", _check, lambda directory: None)
    data = preparation.prepare_once(tmp_path / "new", _check, _write)
    assert capfd.readouterr().err == ""
    (data / preparation.REFERENCE_FILE).write_text('{"note": ')
    preparation.prepare_once(data, _check, _write)
    [line] = capfd.readouterr().err.splitlines()
    assert str(data / preparation.REFERENCE_FILE) in line
    assert "mend it" not in line
    (data / ".prepare.lock").unlink()
    (data / ".prepare.lock").mkdir()  # to open it for writing would now fail
    preparation.prepare_once(data, _check, None)
    assert capfd.readouterr().err == ""
    assert _check(data) == REFERENCE


@pytest.mark.parametrize("content", ['{"note": ', "\xff"])
def test_a_reference_that_cannot_be_read_is_named_and_made_again(content, tmp_path):
    for damaged in ("[]", '{"note": ""}', '{"rows": []}', content):
        (tmp_path / preparation.REFERENCE_FILE).write_text(damaged, "latin-1")
        with pytest.raises(DataError, match=r"reference\.json cannot be read.*\n.*mend it"):
            _check(tmp_path)
    (tmp_path / preparation.NOTE_FILE).write_text(NOTE, "utf-8")
    preparation.prepare_once(tmp_path, _check, _write)
    assert _check(tmp_path) == REFERENCE


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(number, tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "data"
    prepares = [
        lambda: preparation.prepare_once(folder, _check, _write),
        lambda: C4.prepare(folder, tmp_path),
    ]
    for prepare in prepares:
        with pytest.raises(DataError, match=rf"{tmp_path}/\w+/.prepare.lock cannot be locked"):
            prepare()
    _write(folder)  # what is whole needs no lock
    assert preparation.prepare_once(folder, _check, None) == folder


def test_two_preparations_at_once_wait_for_each_other(tmp_path):
    with (tmp_path / ".prepare.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = pool.submit(preparation.prepare_once, tmp_path, _check, None)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        _write(tmp_path)  # the other one ends
        fcntl.flock(lock, fcntl.LOCK_UN)
        waiting.result(timeout=60)
