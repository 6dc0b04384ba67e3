"""Paths among a study's keys: refused, completed, or left to the nodes."""

import shutil

import pytest

from sweeps.__main__ import main
from sweeps.launchers.config_keys import PATH
from sweeps.records import layout
from sweeps.study import config, keys, space, study, study_directory
from tests.sweeps.conftest import resolve

PATH_KEYS = {
    "experiment_dir": "digits_vit_quick",
    "data_dir": "digits_vit_quick",
    "algoperf_dir": "algoperf_imagenet_vit_paper",
    "tokenizer_vocab_path": "algoperf_librispeech_conformer_paper",
    "space": "digits_vit_quick",
}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        *((key, "gs://b/x") for key, entry in keys.every().items() if entry.allowed is PATH),
        *(("data_dir", path) for path in ("$HOME/x", "/x ", "'/x'", "~no-such-user/x")),
    ],
)
def test_an_impossible_path_is_refused_by_its_key(key, path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", f"--config={PATH_KEYS.get(key, 'digits_vit_quick')}", f"--config.{key}={path}"]
    assert main(words) == 2
    assert f"python -m sweeps: {key}: path " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "overrides", "key", "path"),
    [
        *((name, [f"{key}=~/x.json"], key, "x.json") for key, name in PATH_KEYS.items()),
        ("~/mine.py:quick", ["finetune_from=~/other"], "finetune_from", "other"),
        (
            "~/mine.py:quick",
            ["finetune_from=other", "experiment_dir=~/e"],
            *("finetune_from", "e/other"),
        ),
    ],
)
def test_a_path_of_the_home_directory(name, overrides, key, path, tmp_path, monkeypatch):
    """Of a study, of its keys, and of the study that it starts from."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(space.SHIPPED / "paper_adamw.json", tmp_path / "x.json")
    shutil.copy(config.SHIPPED / "digits_vit.py", tmp_path / "mine.py")
    changes = [f"--config.{override}" for override in overrides]
    made = study.resolve(config.parse(name, changes), planning=True)
    assert made.settings[key] == str(tmp_path / path)


def test_data_named_by_a_variable_is_written_down_once(tmp_path, monkeypatch):
    """So that jobs on nodes, and a resume under another environment, read what the driver did."""
    monkeypatch.setenv("ATTNPERF_DATA", str(tmp_path / "all"))
    made = resolve("digits_vit_quick", experiment_dir=tmp_path)
    assert made.settings["data_dir"] == str(tmp_path / "all" / "digits_vit")
    study_directory.prepare(made)
    monkeypatch.setenv("ATTNPERF_DATA", "/elsewhere")
    record = layout.study_record(made.directory)
    assert study.from_record(record, made.directory).data_dir == str(tmp_path / "all/digits_vit")


_KUBERNETES = {"image": "i", "volume_claim": "c", "queue": "q", "gpus": 1}


@pytest.mark.parametrize(("launcher", "required"), [("ray", {}), ("kubernetes", _KUBERNETES)])
@pytest.mark.parametrize(
    ("driver", "nodes", "data_dir"),
    [
        ("", "", ""),  # each node makes it in its cache
        ("/here", "", "/here/digits_vit"),
        ("/here", "ATTNPERF_DATA=/there", "/there/digits_vit"),
        ("/here", "ATTNPERF_DATA=$HOME/there", ""),  # whose home, a node knows
    ],
)
def test_data_of_nodes_with_folders_of_their_own(
    launcher, required, driver, nodes, data_dir, monkeypatch
):
    """The launcher's variable wins, which is what the nodes have."""
    monkeypatch.setenv("ATTNPERF_DATA", driver)
    settings = {**required, "environment": nodes}
    changes = {f"{launcher}.{key}": value for key, value in settings.items()}
    made = resolve("digits_vit_quick", launcher=launcher, **changes)
    assert made.settings["data_dir"] == data_dir
    full = resolve("imagenet_vit_paper", launcher=launcher, **changes).settings["data_dir"]
    assert bool(full) == ("$" not in nodes)  # nothing that a node could make


def test_data_at_an_address_are_refused(monkeypatch):
    monkeypatch.setenv("ATTNPERF_DATA", "gs://bucket")
    with pytest.raises(ValueError, match="ATTNPERF_DATA: path 'gs://bucket'"):
        resolve("digits_vit_quick")
