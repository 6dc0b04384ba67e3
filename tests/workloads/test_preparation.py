"""A directory is claimed for one data set; what other people put there is never replaced."""

import json

import pytest

from workloads.base.errors import DataError
from workloads.storage import preparation

NOTE = "Small: pictures."


def test_a_claimed_directory_stays_that_of_its_data(tmp_path):
    preparation.claim(tmp_path / "new", NOTE)
    (tmp_path / "new" / "shard").touch()
    preparation.claim(tmp_path / "new", NOTE)
    with pytest.raises(DataError, match=r"NOTE is there, and is of other data; .*\n.*remove"):
        preparation.claim(tmp_path / "new", "Small: sounds.")
    assert (tmp_path / "new" / "NOTE").read_text("utf-8") == f"{NOTE}\n"


def test_a_reference_says_the_same_as_a_note_even_cut_short(tmp_path):
    content = json.dumps({"note": NOTE, "rows": []})
    (tmp_path / preparation.REFERENCE_FILE).write_text(content[:-4], "utf-8")
    preparation.claim(tmp_path, NOTE)
    (tmp_path / preparation.NOTE_FILE).unlink()
    with pytest.raises(DataError, match="it is not replaced"):
        preparation.claim(tmp_path, "Small: sounds.")


@pytest.mark.parametrize("other", ["shard", "folder/file"])
def test_files_of_others_are_not_replaced(other, tmp_path):
    path = tmp_path / other
    path.parent.mkdir(exist_ok=True)
    path.touch()
    for names in (None, ["nothing", other.split("/")[0]]):
        with pytest.raises(DataError, match=f"{other.split('/')[0]} is there"):
            preparation.claim(tmp_path, NOTE, names)
    preparation.claim(tmp_path, NOTE, ["nothing"])


def test_files_that_a_system_lays_beside_data_are_no_data(tmp_path):
    (tmp_path / "folder" / "@eaDir").mkdir(parents=True)
    (tmp_path / "folder" / ".DS_Store").touch()
    preparation.claim(tmp_path, NOTE, ["folder"])
    preparation.claim(tmp_path / "folder", NOTE)
