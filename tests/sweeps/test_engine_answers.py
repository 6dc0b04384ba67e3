"""Answers of engines with other text around them, and settings of the user that alter answers."""

import contextlib
import http.server
import json
import os
import pathlib
import re
import threading
import types

import pytest

from sweeps.launchers import remote
from sweeps.launchers.kubernetes import manifest
from sweeps.launchers.protocol import EngineError, State
from sweeps.launchers.ray.launcher import Ray
from sweeps.launchers.slurm import launcher as slurm
from sweeps.monitoring import progress
from sweeps.records.submissions import Batch
from sweeps.scheduling import driver
from sweeps.study import study_directory
from tests.sweeps import defaults

HERE = pathlib.Path(__file__).parent
BANNER = """
-----------------------------------------------------------------
          Welcome to the Example3 Supercomputer
-----------------------------------------------------------------

No reservation for this job
--> Verifying valid submit host (login4)...OK
JOBID|TASK|NAME|STATE|REASON
----|----|----|----|----
--> Checking allocation (ABC-123)...OK; 3 | 4 | 5 | 6 nodes are free
{"notice": "maintenance on Monday"}
"""
SURROUNDINGS = {
    "banner": (BANNER, BANNER),
    "colours": ("\x1b[31mWelcome\x1b[0m\n\x1b(B\x1b[m", "\x1b[0m\x1b]0;login4\x07\n"),
    "carriage returns": ("Welcome\r\n\r\n", "\r\n"),
    "not UTF-8": ("Willkommen \udce4 bord\n", "\udcfc\n"),
    "numbers": ("42\n17 jobs\n", "3\n"),
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder whose programs answer as a Slurm site's: stand_in_slurm.sh says what it may hold."""
    folder = tmp_path / "site"
    (folder / "bin").mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun"):
        (folder / "bin" / name).symlink_to(HERE / "stand_in_slurm.sh")
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("STAND_IN", str(folder))
    return folder


@pytest.fixture
def make_batch(tmp_path):
    """Returns a function that makes a batch of two jobs."""

    def make(name="s-quick-00000000", **fields):
        return Batch(tmp_path / f"{name}.json", ((), ()), {}, **fields)

    return make


def _replace(program, script):
    program.unlink()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def _slurm(tmp_path):
    return slurm.Slurm({"slurm": defaults.of(slurm.Slurm)}, tmp_path)


def _calls(folder, program):
    lines = (folder / "calls").read_text().splitlines()
    return [line for line in lines if line.split()[0] == program]


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_slurm_jobs_are_known_and_withdrawn_whatever_is_printed_around(
    site, make_batch, tmp_path, name
):
    for file, text in zip(("before", "after"), SURROUNDINGS[name], strict=True):
        (site / file).write_bytes(text.encode(errors="surrogateescape"))
    engine, batch = _slurm(tmp_path), make_batch(avoid=("n1.example.org", "nodes", "login4"))
    assert engine.find(batch) is None
    handles = engine.submit(batch)
    assert handles == ["1000_0", "1000_1"]
    assert set(engine.status(handles).values()) == {State.QUEUED}
    assert engine.find(batch) == engine.submit(batch) == handles
    (call,) = _calls(site, "sbatch")
    assert "--exclude=n1 " in call  # a node, and no word of a greeting
    # Jobs of hidden partitions are listed with --all alone; a cluster is never asked for all jobs.
    patterns = rf".* --all .* --(jobs=1000|name={batch.name})"
    assert all(re.fullmatch(patterns, call) for call in _calls(site, "squeue"))
    engine.cancel(handles)
    assert set(engine.status(["1000_0"]).values()) == {State.GONE}


@pytest.mark.parametrize(
    "answer",
    [
        "1000",
        "1000;cluster",
        "  1000  \n",
        "Submitted batch job 1000\n",
        "Submitted batch job 1000 on cluster a.b\n",
        "",
        "all is well\n",
        "1000_",
        "12\n13\n",
        "job 1000\n",
    ],
)
def test_an_sbatch_without_an_id_has_its_job_found_by_name(site, make_batch, tmp_path, answer):
    (site / "sbatch").write_text(answer)
    assert _slurm(tmp_path).submit(make_batch()) == ["1000_0", "1000_1"]
    assert len(_calls(site, "sbatch")) == 1


@pytest.mark.parametrize("answer", ["", "quota of lab: used up\n"])
def test_an_sbatch_that_submitted_nothing_is_an_error_with_its_answer(
    site, make_batch, tmp_path, answer
):
    (site / "sbatch").write_text(answer)
    (site / "squeue").write_text("7|0|s-other-00000000|RUNNING|None\n")
    with pytest.raises(EngineError, match=answer.strip() or "''"):
        _slurm(tmp_path).submit(make_batch())


def test_a_batch_whose_sbatch_was_cut_off_is_found_once_slurm_answers(site, make_batch, tmp_path):
    engine, batch = _slurm(tmp_path), make_batch()
    (site / "sbatch").write_text("Welcome\n")
    (site / "squeue.code_after_sbatch").write_text("1")
    with pytest.raises(EngineError, match="squeue ended with 1"):
        engine.submit(batch)
    (site / "squeue.code").unlink()
    assert engine.find(batch) == engine.submit(batch) == ["1000_0", "1000_1"]
    assert len(_calls(site, "sbatch")) == 1


@pytest.mark.parametrize(
    "answer",
    ["1000|0|s-quick-00000000|PEND", "1000|0|s-quick-00000000|PENDING|None\n1000|1|s-q", "1000|"],
)
def test_an_answer_of_squeue_that_is_cut_short_tells_nothing(site, tmp_path, answer):
    (site / "squeue").write_text(answer)
    with pytest.raises(EngineError):
        _slurm(tmp_path).status(["1000_0", "1000_1"])


def test_a_squeue_that_lists_less_than_the_controller_has_tells_nothing(site, make_batch, tmp_path):
    """Empty with exit code 0, or of a minute ago."""
    engine = _slurm(tmp_path)
    handles = engine.submit(make_batch()) + engine.submit(make_batch("s-quick-00000001"))
    for listed in ("", "1000|0|s-quick-00000000|RUNNING|None\n"):
        (site / "squeue").write_text(listed)
        with pytest.raises(EngineError):
            engine.status(handles)
    (site / "jobs").write_text("1000 s-quick-00000000\n")
    gone = ["1000_1", "1001_0", "1001_1"]
    running = {"1000_0": State.RUNNING}
    assert engine.status(handles) == {**dict.fromkeys(gone, State.GONE), **running}


def test_slurm_says_why_jobs_wait(site, make_batch, tmp_path):
    engine = _slurm(tmp_path)
    handles = engine.submit(make_batch())
    assert engine.queued(handles) == dict.fromkeys(handles, "Resources")
    assert engine.queued(handles[:1]) == {"1000_0": "Resources"}
    assert engine.queued([]) == engine.queued(["s-never-0_0", "7_0"]) == {}
    states = (
        *("PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-2]", "REQUEUE_HOLD|JobHeldUser"),
        *("RUNNING|None", "CANCELLED|None", "PENDING|Priority"),
    )
    rows = [f"1000|{task}|s-quick-00000000|{row}\n" for task, row in enumerate(states)]
    (site / "squeue").write_text("".join(rows))
    assert engine.queued(["1000_0", "1000_1", "1000_2", "1000_3"]) == {
        "1000_0": "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
        "1000_1": "JobHeldUser",
    }
    (site / "squeue.code").write_text("1")
    with pytest.raises(EngineError):
        engine.queued(handles)


def test_an_error_of_squeue_is_one_even_where_it_ends_with_0(site, tmp_path):
    _replace(site / "bin" / "squeue", "echo 'squeue: error: Invalid user: lab' >&2")
    with pytest.raises(EngineError):
        _slurm(tmp_path).status(["1000_0"])


def test_variables_that_alter_where_jobs_go_or_what_is_answered_stay_here(
    site, make_batch, tmp_path, monkeypatch
):
    kept, altering = (
        {"SBATCH_ACCOUNT", "SLURM_JWT", "SLURM_CONF"},
        {
            *("SBATCH_CLUSTERS", "SLURM_CLUSTERS", "SQUEUE_FORMAT", "SQUEUE_STATES", "SBATCH_WAIT"),
            *("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GRES", "SBATCH_ERROR", "SBATCH_INPUT"),
            "SLURM_BITSTR_LEN",
        },
    )
    for name in kept | altering:
        monkeypatch.setenv(name, "x")
    _slurm(tmp_path).submit(make_batch())
    passed = {line.partition("=")[0] for line in (site / "environment").read_text().splitlines()}
    assert passed & (kept | altering) == kept


def test_scancel_passes_over_what_has_ended_also_behind_a_greeting(site, tmp_path):
    over = "scancel: error: Kill job error on job id 7_0: Invalid job id specified"
    _replace(site / "bin" / "scancel", f"echo 'Welcome' >&2; echo '{over}' >&2; exit 1")
    slurm.scancel(["7_0"])
    for line in ("scancel: error: Access denied", ""):
        _replace(site / "bin" / "scancel", f"echo 'Welcome' >&2; echo '{line}' >&2; exit 1")
        with pytest.raises(EngineError, match="Welcome"):
            slurm.scancel(["7_0"])


def test_a_configuration_without_its_limit_is_shown(site, make_batch, tmp_path):
    _replace(site / "bin" / "scontrol", "echo Please log in again")
    with pytest.raises(EngineError, match="Please log in again"):
        _slurm(tmp_path).find(make_batch())


def test_ray_says_why_jobs_wait(tmp_path, monkeypatch):
    """Of one that Ray has given up the launcher submits the job again: it waits, too."""
    keys = {**defaults.of(Ray), "address": "http://one:8265"}
    monkeypatch.setattr("sweeps.launchers.ray.launcher._NEEDED", ())
    engine = Ray({"ray": keys}, tmp_path)

    def job(status, message, error_type=None):
        return types.SimpleNamespace(status=status, message=message, error_type=error_type)

    jobs = {
        "a-0": job("PENDING", "It may be waiting for resources"),
        "a-1": job("RUNNING", "Job is currently running."),
        "a-2": job("FAILED", "nothing was free", "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"),
        "a-3": job("FAILED", "killed"),
        "b-0": job("PENDING", "somebody else's"),
    }
    monkeypatch.setattr(engine, "_jobs", lambda: jobs)
    assert engine.queued(["a-0", "a-1", "a-2", "a-3", "a-4"]) == {
        "a-0": "It may be waiting for resources",
        "a-2": "nothing was free",
    }


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("$(A)", "$$(A)"),
        ("$$(A)", "$$$$(A)"),
        ("$$$(A)", "$$$$$$(A)"),
        ("a$$b", "a$$$$b"),
        ("$x $(", "$x $$("),
        ("$1 $", "$1 $"),
    ],
)
def test_a_pod_gets_a_text_as_it_is(text, literal):
    """Kubernetes makes $ of $$ and fills in $(NAME) (third_party/forked/golang/expansion)."""
    assert manifest._literal(text) == literal


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_answer_of_a_program_is_read_whatever_is_printed_around(name):
    answer, (before, after) = {"items": [{"name": "a"}]}, SURROUNDINGS[name]
    text = before + json.dumps(answer, indent=4) + "\n" + after
    done = remote.run(["cat"], "absent", 10.0, input=text)
    assert answer in [*remote.json_values(done.stdout)]
    assert [*remote.json_values(json.dumps(answer)[:-3])] == []


def test_a_program_gets_no_terminal_and_scripts_as_they_are(tmp_path):
    """The script's path is not UTF-8."""
    script = "echo caf\udce9; read -r answer; echo got=$answer\n"
    done = remote.run(["sh"], "absent", 10.0, input=script)
    assert done.stdout.splitlines() == ["caf?", "got="]
    assert remote.run(["cat"], "absent", 10.0).stdout == ""


def test_a_directory_that_pythonpath_cannot_hold_is_refused(make_study, tmp_path):
    """Workers would import whatever else is installed, and record the snapshot's hash."""
    study = make_study(experiment_dir=tmp_path / "a:b", protocol="grid", variants="standard")
    study_directory.prepare(study)
    with pytest.raises(ValueError, match="experiment_dir"):
        driver.run(study, progress.Progress())
    assert not list(study.directory.glob("jobs/*"))


class Portal(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's page."""

    def do_GET(self):
        code, page = self.server.page
        if not code:  # the connection closes
            return
        self.send_response(code)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *arguments):
        pass


@pytest.fixture
def portal():
    """A server in the dashboard's place; `page` is what it answers with."""
    pytest.importorskip("ray")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Portal)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "page",
    [
        (0, b""),
        (200, b"<html>Please sign in</html>"),
        (200, b""),
        (200, b'{"login": "https://portal"}'),
        (200, b"[1]"),
        (200, b'[{"type": "x"}]'),
        (200, b"null"),
        (500, b"<html>oops</html>"),
        (403, b"denied"),
        (404, b"default backend - 404"),
    ],
)
def test_pages_in_the_place_of_rays_dashboard_tell_nothing(portal, page, tmp_path, make_batch):
    keys = {**defaults.of(Ray), "address": f"http://127.0.0.1:{portal.server_port}"}
    engine = Ray({"ray": keys}, tmp_path)
    for first in (page, (200, b'{"ray_version": "2.60.0"}')):  # not connected yet, connected
        portal.page = first
        with contextlib.suppress(EngineError), engine._cluster():
            portal.page = page
        for ask in (
            *(engine.find, engine.submit),
            *(lambda batch: engine.status(["a-0"]), lambda batch: engine.cancel(["a-0"])),
        ):
            with pytest.raises(EngineError, match="refuses or does not answer"):
                ask(make_batch(avoid=("n1",)))
        assert engine.capacity() == 1


def test_containers_need_pyxis(site, tmp_path):
    keys = {**defaults.of(slurm.Slurm), "container": "image.sqsh"}
    with pytest.raises(ValueError, match="needs pyxis"):
        slurm.Slurm({"slurm": keys}, tmp_path)
