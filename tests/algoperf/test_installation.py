"""AlgoPerf is found, recognised, and its workloads made by name."""

import runpy
import subprocess
import sys

import pytest

from workloads.algoperf import installation

STAND_INS = 7


def test_directory_by_argument_and_by_environment(stand_in, monkeypatch):
    monkeypatch.setenv(installation.DIRECTORY_VARIABLE, str(stand_in.directory))
    assert installation.find() == stand_in
    monkeypatch.setenv(installation.DIRECTORY_VARIABLE, "/nowhere")
    assert installation.find(stand_in.directory) == stand_in


def test_directory_that_is_not_algoperf_says_what_it_lacks_and_what_to_do(tmp_path):
    (tmp_path / "submission_runner.py").touch()
    with pytest.raises(installation.AlgoPerfMissingError) as raised:
        installation.find(tmp_path)
    message = str(raised.value)
    assert "lacks algoperf/spec.py, algoperf/workloads/workloads.py." in message
    for advice in ("GETTING_STARTED", "f364a0b", "--algoperf_dir", "[algoperf]"):
        assert advice in message


def test_nothing_installed_says_what_to_do(monkeypatch):
    monkeypatch.delenv(installation.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(installation.AlgoPerfMissingError, match="not installed. Install AlgoPerf"):
        installation.find()


def test_commit_from_git_and_the_remark_about_it(stand_in, tmp_path):
    for name in installation.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    found = installation.find(tmp_path)
    assert len(found.commit) == 40
    assert "is at commit" in found.remark
    assert "2c90454" in found.remark
    assert "not known" in stand_in.remark
    tested = installation.Installation(tmp_path, "0.6.0", installation.TESTED_COMMITS[0])
    assert tested.remark is None


def test_commit_from_the_version_that_setuptools_scm_wrote(tmp_path):
    for name in installation.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    written = "version: str\n__version__ = version = '0.5.1.dev706+g2c90454fc'\n"
    (tmp_path / "algoperf/_version.py").write_text(written)
    found = installation.find(tmp_path)
    assert (found.version, found.commit) == ("0.5.1.dev706+g2c90454fc", "2c90454fc")
    assert found.remark is None


def test_workloads_by_name(stand_in):
    names = stand_in.workload_names()
    assert len(names) == STAND_INS
    assert type(stand_in.make_workload("wmt")).__name__ == "WmtWorkload"
    made = stand_in.make_workload("librispeech_conformer", tokenizer_vocab_path="x")
    assert made.tokenizer_vocab_path == "x"
    with pytest.raises(ValueError, match="no workload 'bert'; it has .*imagenet_vit"):
        stand_in.make_workload("bert")


def test_second_algoperf_in_one_process_is_refused(stand_in, tmp_path):
    stand_in.workload_names()
    other = installation.Installation(tmp_path, None, None)
    with pytest.raises(installation.AlgoPerfMissingError, match="can hold one AlgoPerf"):
        other.activate()


def test_missing_library_is_named(stand_in, monkeypatch):
    stand_in.activate()
    monkeypatch.setitem(sys.modules, "algoperf.spec", None)
    monkeypatch.delitem(sys.modules, "algoperf.workloads.base", raising=False)
    with pytest.raises(
        installation.AlgoPerfMissingError, match=r"cannot be imported.*\[algoperf\]"
    ):
        stand_in.module("algoperf.workloads.base")


def test_importing_the_plugin_loads_nothing_heavy():
    code = (
        "import sys, workloads.__main__, workloads.algoperf.door, workloads.algoperf.runner\n"
        "assert not {'jax', 'algoperf', 'tensorflow', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_real_registry_has_what_we_support(algoperf):
    from workloads.algoperf import supported

    assert set(supported.SUPPORTED) <= set(algoperf.workload_names())
    registry = algoperf.workloads_module().WORKLOADS
    for name, entry in supported.SUPPORTED.items():
        assert registry[name]["workload_class_name"] == entry.class_name
    for name in set(algoperf.workload_names()) - set(supported.SUPPORTED):
        with pytest.raises(ValueError, match="its model has no attention|cannot run it"):
            supported.support(name)


def test_a_library_that_its_files_lack_is_named_and_that_of_a_submission_is_not(tmp_path):
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for directory in (theirs, mine):
        directory.mkdir()
        (directory / "needs.py").write_text("import surely_absent\n")
    found = installation.Installation(theirs, None, None)
    missing = pytest.raises(installation.AlgoPerfMissingError, match="needs surely_absent, which")
    with missing, found.missing_named():
        runpy.run_path(str(theirs / "needs.py"))
    with pytest.raises(ModuleNotFoundError), found.missing_named():
        runpy.run_path(str(mine / "needs.py"))
