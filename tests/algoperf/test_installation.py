"""AlgoPerf is found, recognised, and its workloads made by name."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import pytest

from sweeps.records import provenance
from workloads.algoperf import installation
from workloads.base import host_checkout

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def test_directory_by_argument_and_by_environment(stand_in, monkeypatch):
    monkeypatch.setenv(installation.DIRECTORY_VARIABLE, str(stand_in.directory))
    assert installation.find() == stand_in
    monkeypatch.setenv(installation.DIRECTORY_VARIABLE, "/nowhere")
    assert installation.find(stand_in.directory) == stand_in


@pytest.mark.parametrize("named", ["absent", "file", "loop", "~no_such_user/x", "empty", None])
def test_what_is_not_algoperf_is_named_with_what_to_do(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(installation.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/submission_runner.py").touch()
    with pytest.raises(installation.MissingError, match=r"--algoperf_dir.*\[algoperf\]") as raised:
        installation.find(named)
    faults = {None: "not installed", "empty": "lacks algoperf/spec.py, algoperf/workloads/"}
    assert faults.get(named, f"no directory {tmp_path}/{named}.") in str(raised.value)


@pytest.fixture
def repository(tmp_path):
    """A checkout by its files' names only, of one commit."""
    for name in installation.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def test_looking_at_a_checkout_writes_nothing_into_it(repository):
    index = repository / ".git" / "index"
    os.utime(repository / "algoperf/spec.py", (1, 1))  # git would refresh its index
    before = index.read_bytes()
    assert host_checkout.revision(repository).changed == ()
    assert index.read_bytes() == before


def test_commit_and_local_changes_are_recorded_and_remarked(stand_in, repository):
    assert "is at an unknown commit; attnperf was tested with 2c90454 and" in stand_in.remark
    checkout = installation.find(repository)
    commit = checkout.revision.commit
    assert f"is at commit {commit[:12]}; attnperf was tested with" in checkout.remark
    tested = installation.Installation(
        repository, host_checkout.Revision(installation.TESTED_COMMITS[0])
    )
    assert tested.remark is None
    (repository / "mine.py").touch()  # a user's submission, which git does not track
    assert installation.find(repository) == checkout
    spec, registry = repository / "algoperf/spec.py", repository / installation.FILES[2]
    spec.write_text("changed = True\n")
    registry.unlink()
    registry.mkdir()
    (repository / "submission_runner.py").chmod(0o755)
    changed = ("algoperf/spec.py", "algoperf/workloads/workloads.py", "submission_runner.py")
    revision = host_checkout.revision(repository)
    assert revision == host_checkout.Revision(commit, changed)
    dirty = installation.Installation(repository, revision)
    assert dirty.record() == {
        "algoperf_dir": str(repository),
        "algoperf_commit": f"{commit}-dirty",
        "algoperf_changed_files": ", ".join(changed),
        "attnperf_commit": provenance.git_commit(),
    }
    assert "with local changes to algoperf/spec.py" in dirty.remark


def test_the_commit_is_the_directorys_inside_a_hook_of_git_too(repository, monkeypatch):
    """There GIT_DIR names the repository whose hook it is. Without git it is unknown."""
    expected = host_checkout.revision(repository)
    monkeypatch.setenv("GIT_DIR", str(REPOSITORY / ".git"))
    assert host_checkout.revision(repository) == expected
    monkeypatch.setenv("PATH", "")
    assert str(host_checkout.revision(repository)) == "unknown"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a directory away")
def test_the_commit_of_another_users_checkout_is_known(repository):
    """As containers mount one: git itself answers nothing about it."""
    expected = host_checkout.revision(repository)
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 65534, 65534)
    assert host_checkout.revision(repository) == expected
    assert expected.commit


@pytest.mark.parametrize(
    ("version", "revision"),
    [
        ("0.5.1.dev706+g2c90454fc", "2c90454fc"),
        ("0.5.1.dev706+g2c90454fc.d20260102", "2c90454fc-dirty"),  # a tree with local changes
        ("0.6.0", "unknown"),
    ],
)
def test_commit_from_the_version_that_setuptools_scm_wrote(repository, version, revision):
    shutil.rmtree(repository / ".git")
    (repository / "algoperf/_version.py").write_text(f"__version__ = version = '{version}'\n")
    checkout = installation.find(repository)
    assert str(checkout.revision) == revision
    assert (checkout.remark is None) == (revision == "2c90454fc")


def test_second_algoperf_in_one_process_is_refused(stand_in, tmp_path):
    stand_in.module("algoperf.workloads.workloads")
    second = installation.Installation(tmp_path, host_checkout.Revision())
    with pytest.raises(installation.MissingError, match="can hold one AlgoPerf"):
        second.activate()


def test_missing_library_is_named(stand_in, monkeypatch):
    stand_in.activate()
    monkeypatch.setitem(sys.modules, "algoperf.spec", None)
    monkeypatch.delitem(sys.modules, "algoperf.workloads.base", raising=False)
    with pytest.raises(installation.MissingError, match=r"cannot be imported.*\[algoperf\]"):
        stand_in.module("algoperf.workloads.base")


def test_importing_the_plugin_loads_nothing_heavy():
    code = (
        "import sys, workloads.__main__, workloads.algoperf.preflight, workloads.algoperf.runner\n"
        "assert not {'jax', 'algoperf', 'tensorflow', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("scripts", "error"),
    [
        (["theirs/needs.py"], installation.MissingError),
        (["mine/needs.py"], ModuleNotFoundError),
        # AlgoPerf's own runner starts a submission.
        (["theirs/starts.py", "mine/needs.py"], ModuleNotFoundError),
        (["theirs/starts.py", "site-packages/needs.py"], installation.MissingError),
    ],
)
def test_a_library_that_its_files_lack_is_named_and_that_of_a_submission_is_not(
    tmp_path, monkeypatch, scripts, error
):
    for folder in ("theirs", "mine", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "needs.py").write_text("import surely_absent\n")
    starts = "import runpy, sys\nrunpy.run_path(sys.argv[-1])\n"
    (tmp_path / "theirs/starts.py").write_text(starts)
    paths = [str(tmp_path / script) for script in scripts]
    monkeypatch.setattr(sys, "argv", paths)
    checkout = installation.Installation(tmp_path / "theirs", host_checkout.Revision())
    with pytest.raises(ImportError, match="surely_absent") as raised, checkout.missing_named():
        runpy.run_path(paths[0])
    assert type(raised.value) is error
