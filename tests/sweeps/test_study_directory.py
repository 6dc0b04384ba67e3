"""A study's directory: one plan, whoever changes it; what is refused leaves it as it was."""

import contextlib
import dataclasses
import errno
import functools
import os
import signal
import socket

import pytest

from sweeps import commands
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, lease, provenance, status, submissions
from sweeps.scheduling import driver, engines, preflight
from sweeps.scheduling.scheduler import Interrupted
from sweeps.study import study, study_directory
from tests.sweeps.conftest import (
    answer_data,
    begin_attempt,
    begin_stage,
    change_lease,
    finish_stage,
)


@pytest.fixture
def make_study(make_study):
    """`make_study`, of three seeds."""
    return functools.partial(make_study, seeds=3)


# --- two drivers


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeds": 5}, "seeds: 5 there, 3 here"),
        ({"seeds": 1}, "seeds: 1 there, 3 here"),
        ({"variants": "standard,laser,diff"}, "variants: "),
        ({"points": 1}, "points: 1 there, 2 here"),
        ({"tuning_seeds": 2}, "tuning_seeds: 2 there, 1 here"),
        ({"mesh.data": 1}, "mesh: "),
        ({"looks": "3,6"}, r"looks: \[3, 6\] there, \[\] here"),
        ({"keep_checkpoints": 2}, "keep_checkpoints: 2 there, 1 here"),
        ({}, ""),
        ({"hypothesis": "h", "local.workers": 1, "max_attempts": 9}, ""),
    ],
    ids=str,
)
def test_a_driver_whose_study_was_changed_ends_and_writes_nothing(make_study, changes, named):
    older, newer = make_study(), make_study(**changes)
    study_directory.prepare(older)
    study_directory.prepare(newer)
    study_directory.plan(newer, "tune")
    content = (older.directory / "tune" / layout.TRIALS).read_bytes()
    refused = pytest.raises(ValueError, match=f"changed since this driver began.*{named}")
    for act in (study_directory.check_plan, lambda made: study_directory.plan(made, "tune")):
        with refused if named else contextlib.nullcontext():
            act(older)
    assert (older.directory / "tune" / layout.TRIALS).read_bytes() == content


def test_the_lock_of_a_driver_that_was_killed_is_taken_over(tmp_path):
    for changes in ({"pid": 2**22 - 1}, {"boot_id": "another", "expires_after_s": 0.0}):
        change_lease(lease.claim(tmp_path / layout.LOCK), **changes)
        with study_directory.locked(tmp_path) as lock:
            assert not lease.is_alive(lock.directory.with_name("0"))
    assert layout.numbered(tmp_path / layout.LOCK / layout.ATTEMPTS) == [lock.number]


@pytest.fixture
def at_third_wait(monkeypatch):
    """Returns a function that has `act` called when a lock is waited for a third time."""

    def install(act):
        waits = []

        def sleep(seconds):
            waits.append(seconds)
            assert len(waits) < 5
            if len(waits) == 3:
                act()

        monkeypatch.setattr("sweeps.records.clock.clock.sleep", sleep)

    return install


def test_a_lock_that_is_held_is_waited_for(tmp_path, at_third_wait):
    with study_directory.locked(tmp_path) as first:
        at_third_wait(lambda: first.end("done"))
        with study_directory.locked(tmp_path) as second:
            assert second.number == first.number + 1


@pytest.mark.parametrize(
    ("begin", "order", "end"),
    [
        ("run", "cancel", Interrupted),
        ("run", "signal", Interrupted),
        ("prepare", "cancel", KeyboardInterrupt),
    ],
)
def test_a_driver_that_waits_for_the_lock_names_its_holder_and_obeys(
    make_study, at_third_wait, capsys, begin, order, end
):
    made = make_study(protocol="grid")
    study_directory.prepare(made)
    orders = {
        "cancel": lambda: engines.cancel(made.directory),
        "signal": lambda: signal.raise_signal(signal.SIGTERM),
    }
    begins = {
        "run": lambda: driver.run(made, Progress()),
        "prepare": lambda: study_directory.prepare(made),
    }
    with study_directory.locked(made.directory):
        at_third_wait(orders[order])
        with pytest.raises(end):
            begins[begin]()
    printed = "".join(capsys.readouterr())
    assert printed.count(f"process {os.getpid()} of host {socket.gethostname()}") == 1


def test_a_driver_ends_where_another_one_compares_new_points(make_study):
    made = _begun_at_point_2(make_study)
    older = study_directory.plan(made, "compare")[1]
    finish_stage(made, values={1: 0.9})
    study_directory.plan(made, "compare")
    study_directory.check_plan(made, older)
    (made.directory / layout.SELECTION).unlink()
    study_directory.plan(made, "compare")
    with pytest.raises(ValueError, match="points compared: .* 1.* there, .* 2.* here"):
        study_directory.check_plan(made, older)


# --- a first run that was refused


def _refuse(made, handles):
    """Plans a study whose engine had a batch, with handles as recorded."""
    trials = begin_stage(made, made.stages[0])
    paths = tuple(trial.path for trial in trials)
    submissions.new(made.directory, "slurm", [paths], {}).record(handles)
    return trials


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 24},
        {"batch_size": 8},
        {"optimizer": "adamw"},
        {"protocol": "tune_each"},
        {"points": 1},
    ],
    ids=str,
)
def test_a_study_of_which_nothing_began_is_replaced(make_study, changes):
    made = make_study(protocol="grid", variants="standard")
    _refuse(made, [])
    corrected = make_study(**{"protocol": "grid", "variants": "standard", **changes})
    study_directory.prepare(corrected)
    trials, _ = study_directory.plan(corrected, corrected.stages[0])
    assert trials == corrected.trials(corrected.stages[0])
    for trial in trials:
        assert layout.read_json(corrected.directory / trial.path / layout.TRIAL)["id"] == trial.id
    if "points" not in changes:
        with pytest.raises(ValueError, match="changed since this driver began"):
            study_directory.check_plan(made)


@pytest.mark.parametrize("began", ["attempt", "queued", "unsure"])
def test_a_study_of_which_something_began_is_not_replaced(make_study, began):
    made = make_study(protocol="grid", variants="standard")
    trials = _refuse(made, ["4711_0"] if began == "queued" else [])
    if began == "attempt":
        begin_attempt(made.directory / trials[-1].path)
    if began == "unsure":
        submissions.new(made.directory, "slurm", [(trials[0].path,)], {})
    with pytest.raises(ValueError, match="holds another study of that name"):
        study_directory.prepare(make_study(protocol="grid", variants="standard", steps=24))


def _end_lease(directory):
    """Has the lease of a plan's lock pass, so that another host's driver may take it over."""
    lock = lease.Attempt(directory / layout.LOCK, lease.latest(directory / layout.LOCK))
    change_lease(lock, boot_id="another", expires_after_s=0.0)


def test_a_driver_that_lost_the_lock_plans_again(make_study, monkeypatch):
    """It slept, and another one has planned since: it writes nothing before it has looked again."""
    made = make_study()
    study_directory.prepare(made)
    real = study_directory.check_plan

    def slept(made):
        real(made)
        _end_lease(made.directory)
        with study_directory.locked(made.directory):
            pass

    monkeypatch.setattr(study_directory, "check_plan", slept)
    with pytest.raises(OSError, match="a later attempt has taken") as raised:
        study_directory.plan(made, "tune")
    assert raised.value.errno == errno.EAGAIN
    assert not (made.directory / "tune" / layout.TRIALS).exists()
    monkeypatch.setattr(study_directory, "check_plan", real)
    assert study_directory.plan(made, "tune")


@pytest.mark.parametrize("begins", [True, False], ids=["new", "there"])
@pytest.mark.parametrize("seeds", [5, 1, 3])
def test_a_prepare_that_lost_the_lock_leaves_the_newer_plan(make_study, monkeypatch, seeds, begins):
    older, newer = make_study(), make_study(seeds=seeds)
    if not begins:
        study_directory.prepare(older)
    code = provenance.code

    def slept():
        monkeypatch.setattr(provenance, "code", code)
        _end_lease(older.directory)
        study_directory.prepare(newer)
        study_directory.plan(newer, "tune")
        return code()

    monkeypatch.setattr(provenance, "code", slept)
    refused = pytest.raises(ValueError, match=f"seeds: {seeds} there, 3 here")
    with refused if seeds != 3 else contextlib.nullcontext():
        study_directory.prepare(older)
    assert layout.study_record(older.directory)["config"]["seeds"] == seeds
    study_directory.check_plan(newer)


def test_every_write_of_a_plan_is_checked_first(make_study, monkeypatch):
    made = make_study()
    finish_stage(made)
    write, acts = layout.write_json, []

    def note(path, record):
        acts.append(path.name)
        write(path, record)

    monkeypatch.setattr(layout, "write_json", note)
    chosen = study_directory.select(made, beat=lambda: acts.append("beat"))
    trials = made.trials("compare", chosen)
    study_directory.materialise(made, "compare", trials, lambda: acts.append("beat"))
    changed = [dataclasses.replace(trial, remat=not trial.remat) for trial in trials]
    study_directory.materialise(made, "compare", changed, lambda: acts.append("beat"))
    # hparams.json and flags_0.json come with a trial.json that is new.
    writes = [number for number, act in enumerate(acts) if act not in ("beat", "flags_0.json")]
    unchecked = [acts[number] for number in writes if acts[number - 1] != "beat"]
    assert unchecked == [layout.TRIAL] * len(trials)
    assert acts.count(layout.TRIAL) == 2 * len(trials)


# --- a run that is refused


def _begun_at_point_2(make_study):
    made = make_study(points=3)
    finish_stage(made, values={2: 0.9})
    study_directory.plan(made, "compare")
    assert layout.read_json(made.directory / layout.SELECTION)["points"]["laser"] == 2
    return made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": 2}, "points {.*: 2} and the study has . points now"),
        ({"points": 1, "seeds": 9}, "points {.*: 2} and the study has . points now"),
        ({"points": 3, "tuning_seeds": 2}, "tuning_seeds: 1 there, 2 now"),
        ({"points": 3, "optimizer": "adamw"}, "optimizer"),
        ({"points": 3, "hypothesis": "after"}, "other data"),
    ],
    ids=str,
)
def test_a_refused_run_leaves_the_study_as_it_was(make_study, monkeypatch, changes, message):
    made = _begun_at_point_2(make_study)
    trials = made.directory / "tune" / layout.TRIALS
    digest = "0" * 64 if message == "other data" else ""
    rows = [{**row, "data_digest": digest} for row in layout.planned(made.directory, "tune")]
    layout.write_json(trials, {"stage": "tune", "trials": rows})
    layout.write_json(made.directory / submissions.CANCELLED, {"cancelled_at": 1.0})
    records = made.directory.rglob("*.json")
    before = {path: path.read_bytes() for path in records if layout.LOCK not in path.parts}
    answer_data(monkeypatch, "1" * 64)
    with pytest.raises(ValueError, match=message):
        commands._drive(make_study(**changes))
    assert {path: path.read_bytes() for path in before} == before
    record = layout.study_record(made.directory)
    assert len(study.from_record(record, made.directory).points) == 3


# --- seeds, provenance, data


@pytest.mark.parametrize(
    ("lacking", "lacking_in_run"),
    [((), ()), (("runs",), ()), ((), ("points", "baseline", "margin"))],
)
def test_a_study_remembers_its_start_and_the_runs_that_differ(
    make_study, monkeypatch, lacking, lacking_in_run
):
    """Records of earlier versions lack keys."""
    code = {"git_commit": "aaa", "versions": {"jax": "1"}}
    monkeypatch.setattr(provenance, "code", lambda: dict(code))
    made = make_study(hypothesis="before")
    study_directory.prepare(made)
    start = layout.study_record(made.directory)
    first = {"date": start["date"], "git_commit": "aaa", "hypothesis": "before", "seeds": 3}
    first |= {"variants": ["standard", "laser"], "points": 2, "baseline": "standard"} | {
        "looks": [],
        "margin": "",
    }
    assert start["runs"] == [first]
    start["runs"] = [{key: value for key, value in first.items() if key not in lacking_in_run}]
    record = {key: value for key, value in start.items() if key not in lacking}
    layout.write_json(made.directory / layout.STUDY, {**record, "date": "2020-01-01"})
    study_directory.prepare(made)
    assert len(layout.study_record(made.directory)["runs"]) == 1
    study_directory.prepare(make_study(hypothesis="before", margin="1%"))
    assert layout.study_record(made.directory)["runs"][-1]["margin"] == "1%"
    code |= {"git_commit": "bbb", "versions": {"jax": "2"}}
    for changes in ({}, {}, {"hypothesis": "after"}, {"hypothesis": "after", "seeds": 5}):
        study_directory.prepare(make_study(**{"hypothesis": "before", **changes}))
    after = layout.study_record(made.directory)
    kept = [after[key] for key in ("date", "git_commit", "versions")]
    assert kept == ["2020-01-01", "aaa", {"jax": "1"}]
    named = [(run["git_commit"], run["hypothesis"], run["seeds"]) for run in after["runs"]]
    expected = [("aaa", "before", 3)] * 2 + [("bbb", "before", 3), ("bbb", "after", 3)]
    assert named == [*expected, ("bbb", "after", 5)]


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("planned", "read"), [("a", "a"), ("a", "b"), ("a", ""), ("", "a"), ("", "")]
)
def test_trials_are_trained_on_the_data_they_were_planned_on(
    make_study, monkeypatch, planned, read, here
):
    """Where both are known. The driver (`here` False) and a node ask the same."""
    made = make_study(data_dir="/first", protocol="grid", points=1)
    study_directory.prepare(made)
    first = dataclasses.replace(made, data_digest=planned)
    assert first.trials("grid")[0].id == made.trials("grid")[0].id
    trials, _ = study_directory.plan(first, "grid")
    assert {trial.data_digest for trial in trials} == {planned}
    # A study of which nothing has begun may be planned anew.
    lease.claim(made.directory / trials[0].path).end("preempted")
    moved = make_study(data_dir="/second", protocol="grid", points=1, seeds=4)
    answer_data(monkeypatch, read)
    if (planned, read) == ("a", "b"):
        with pytest.raises(ValueError, match="other data, those of /first.*/second holds b"):
            preflight.check_data(moved, here=here)
        return
    assert preflight.check_data(moved, here=here) == read
    moved = dataclasses.replace(moved, data_digest=read)
    study_directory.prepare(moved)
    trials, _ = study_directory.plan(moved, "grid")
    for trial in trials:
        record = layout.read_json(moved.directory / trial.path / layout.TRIAL)
        is_new = trial.seed == 3
        assert trial.data_digest == record["data_digest"] == (read if is_new else read or planned)


@pytest.mark.parametrize("protocol", ["tune_each", "grid"])
def test_a_point_of_a_study_without_the_tuning_variant_is_refused(make_study, protocol):
    made = make_study(variants="laser,diff", baseline="laser", protocol=protocol)
    study_directory.prepare(made)
    match = f"protocol {protocol} .*laser, diff, .*no point for its tuning variant 'standard'"
    with pytest.raises(ValueError, match=match):
        make_study(name="next", space=f"selected:{made.name}")


def test_a_point_of_a_tuning_variant_that_lost_its_seeds_is_refused(make_study):
    """Another run of the study would select none again."""
    changes = {"variants": "laser,standard", "baseline": "laser", "protocol": "tune_each"}
    made = make_study(**changes)
    for trial in finish_stage(made):
        if trial.variant == "standard":
            status.write(made.directory / trial.path, "diverged", reason="not finite")
    study_directory.plan(made, "compare")
    assert layout.read_json(made.directory / layout.SELECTION)["points"].keys() == {"laser"}
    with pytest.raises(ValueError, match="'standard' lost") as error:
        make_study(name="next", space=f"selected:{made.name}")
    assert "resume" not in str(error.value)
