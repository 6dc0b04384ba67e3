"""What a person sees of a study: states, time left, failures, jobs; damage named, never a crash."""

import io
import os
import re

import pytest

from sweeps.monitoring import status as status_view
from sweeps.records import layout, lease, status, study_reader, submissions
from sweeps.records.study_reader import StageRow
from sweeps.study import keys, study_directory


@pytest.fixture
def begun(make_study):
    """Returns a function that puts a study's first stage on disk: the study, its trials' folders.

    Two points of 12 steps on 'standard', then standard and laser with one seed each.
    """

    def make(**changes):
        resolved = make_study(**changes)
        study_directory.prepare(resolved)
        trials = resolved.trials(resolved.stages[0])
        study_directory.materialise(resolved, resolved.stages[0], trials)
        return resolved, [resolved.directory / trial.path for trial in trials]

    return make


def _write(directory, state, step=0, **fields):
    status.write(directory, state, global_step=step, steps=12, **fields)


def _render(directory):
    return status_view.render(study_reader.StudyReader(directory).look())


def _counts(text, stage, variant):
    row = re.search(rf"^{stage} +{re.escape(variant)} +([\d ]+)$", text, re.M)[1]
    return dict(zip(study_reader.COLUMNS, map(int, row.split()), strict=True))


def test_states_per_stage_and_variant(begun):
    resolved, trials = begun(points=6, protocol="grid", variants="standard")
    for directory, state, reason in zip(
        trials,
        ("done", "diverged", "failed", "pending", "running"),
        (None, "the loss of update 3 was not finite", "KeyError: 'x'", "preempted at step 4", None),
        strict=False,
    ):
        _write(directory, state, reason=reason, preemption_count=2)
    attempt = lease.claim(trials[4])
    text = _render(resolved.directory)
    expected = dict.fromkeys(study_reader.COLUMNS, 1)  # the sixth was never begun
    assert _counts(text, "grid", "standard") == expected
    assert "preemptions and other new attempts so far: 10" in text
    assert f"{_path(resolved, trials[2])} failed: KeyError: 'x'" in text
    assert f"{_path(resolved, trials[3])} preempted: preempted at step 4" in text
    assert f"{_path(resolved, trials[1])} diverged: the loss of update 3" in text
    attempt.end("failed")
    after = _counts(_render(resolved.directory), "grid", "standard")
    assert (after["running"], after["preempted"]) == (0, 2)  # interrupted: its worker is gone


def _path(resolved, directory):
    return directory.relative_to(resolved.directory)


def test_time_left_by_hand(begun):
    resolved, trials = begun(points=2)
    text = _render(resolved.directory)
    assert "time left: tune unknown, compare unknown; study unknown: no step time measured" in text
    assert f"python -m sweeps resume {resolved.directory}" in text
    _write(trials[0], "done", 12, step_seconds=2.0)
    _write(trials[1], "running", 4, step_seconds=4.0)
    attempt = lease.claim(trials[1])
    text = _render(resolved.directory)
    # Median of 2 and 4 is 3 s; 8 steps of 'tune', then 2 trials of 12; one at a time.
    expected = (
        "time left: tune about 24 s, compare about 72 s; study about 2 min, 1 trial at a time"
    )
    assert expected in text
    assert _counts(text, "compare", "laser")["pending"] == 1
    attempt.end("done")
    _write(trials[1], "done", 12, step_seconds=4.0)
    assert "study unknown: no trial is running" in _render(resolved.directory)


def test_estimate_by_hand():
    row = StageRow("grid", "standard")
    for step in (20, 0, 90):
        row.add("preempted", {**status.NEW, "global_step": step}, 100)
    assert (row.steps_left, row.longest, row.unfinished) == (80 + 100 + 10, 100, 3)
    for seconds in (float("nan"), float("inf"), -1.0, "fast", [2.0], None, 2):
        row.add("done", {**status.NEW, "global_step": 100, "step_seconds": seconds}, 100)
    assert row.step_seconds == [2.0]
    rows = [
        StageRow("grid", "standard", {"pending": 3, "running": 1}, 350, 100, [1.0, 3.0, 2.0]),
        StageRow("grid", "laser", {"pending": 1}, 100, 100, []),
    ]
    rates = status_view.seconds_per_step(rows)
    assert rates == {"standard": 2.0, "laser": 2.0}
    assert status_view.seconds_left(rows, rates, 1) == 900
    assert status_view.seconds_left(rows, rates, 3) == 300
    # Five trials of at most 100 steps: no faster than one of them, however many run at a time.
    assert status_view.seconds_left(rows, rates, 64) == 200
    assert status_view.seconds_left(rows, rates, 0) is None
    assert status_view.seconds_left(rows, {}, 4) is None
    assert status_view.seconds_left([StageRow("grid", "standard", {"done": 3})], rates, 0) == 0


@pytest.mark.parametrize("protocol", keys.PROTOCOLS)
def test_stages_to_come_are_counted_as_the_study_counts_them(make_study, protocol):
    resolved = make_study(protocol=protocol, points=3, seeds=4, tuning_seeds=2)
    study_directory.prepare(resolved)
    record = layout.read_json(resolved.directory / layout.STUDY)
    selection = {"points": dict.fromkeys(resolved.settings["variants"], 0)}
    for stage in resolved.stages:
        trials = resolved.trials(stage, selection)
        for row in study_reader.not_begun(record, stage):
            own = [trial for trial in trials if trial.variant == row.variant]
            assert row.counts == {"pending": len(own)}
            assert row.steps_left == sum(trial.steps for trial in own)
        planned = {row.variant for row in study_reader.not_begun(record, stage)}
        assert planned == {trial.variant for trial in trials}


def test_running_trials_and_failures_are_shown(begun):
    resolved, trials = begun(points=2)
    attempt = lease.claim(trials[0])
    _write(trials[0], "running", 4)
    assert f"running on {os.uname().nodename}: step 4/12" in _render(resolved.directory)
    _write(trials[0], "running", 4, figures={"loss": 0.5, "images_per_second": 1234.5})
    assert "step 4/12, loss 0.5000, 1,234 images/s" in _render(resolved.directory)
    _write(trials[0], "running", 4, figures=None)
    (trials[0] / layout.EVAL_MEASUREMENTS).write_text(
        "global_step,validation/accuracy\n4,0.25\n8,0.5\n"
    )
    assert "step 4/12, validation accuracy 0.5000" in _render(resolved.directory)
    lost = lease.claim(trials[1])
    (lost.directory / "log.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    _write(trials[1], "failed", 0, reason="RuntimeError: boom")
    lost.end("failed")
    text = _render(resolved.directory)
    assert text.endswith("failed: RuntimeError: boom" + "".join(
        f"\n    line {n}" for n in range(12, 20)
    ))  # fmt: skip
    attempt.end("done")


def test_many_failures_do_not_fill_the_screen(begun):
    resolved, trials = begun(points=25, protocol="grid", variants="standard")
    for directory in trials:
        _write(directory, "failed", reason="RuntimeError: boom")
    text = _render(resolved.directory)
    assert text.count("RuntimeError: boom") == 20
    assert "and 5 more failed" in text
    assert "\ncomplete\n" in text


def test_damaged_files_are_named(begun):
    resolved, trials = begun(points=4)
    for directory in trials[1:]:
        lease.claim(directory)
        _write(directory, "running", 4)
    text = (trials[0] / layout.TRIAL).read_text()
    (trials[0] / layout.STATUS).write_text('{"state": "do')
    (trials[1] / "attempts/1" / lease.LEASE).write_text('{"host": "el')
    # Of another host, whose heartbeat is gone: nobody can say whether it lives.
    path = trials[2] / "attempts/1"
    record = layout.read_json(path / lease.LEASE)
    layout.write_json(path / lease.LEASE, {**record, "boot_id": "another"})
    (path / lease.HEARTBEAT).unlink()
    (trials[3] / layout.EVAL_MEASUREMENTS).write_text("global_step,validation/accuracy\n4,0.")
    (trials[3] / layout.EVAL_MEASUREMENTS).write_text("global_step,valid")
    text = _render(resolved.directory)
    assert f"damaged: {trials[0] / layout.STATUS}: not valid JSON" in text
    assert re.search(rf"damaged: {trials[2]} says running.*{lease.HEARTBEAT}", text)
    assert f"damaged: {trials[3] / layout.EVAL_MEASUREMENTS}: no evaluation" in text
    counts = _counts(text, "tune", "standard")
    assert counts == {
        **dict.fromkeys(study_reader.COLUMNS, 0),
        "pending": 1,
        "preempted": 1,
        "running": 2,
    }
    for content in (
        b"\xff\xfe",
        b"[]",
        b'{"state": "asleep"}',
        b'{"state": "done", "global_step": "x"}',
    ):
        (trials[0] / layout.STATUS).write_bytes(content)
        assert f"damaged: {trials[0] / layout.STATUS}" in _render(resolved.directory)
        assert status.read(trials[0])["state"] == "pending"
    # The trial's next word repairs it.
    _write(trials[0], "running", 4)
    assert status.recorded(trials[0])["reason"] is None
    (resolved.directory / "tune" / layout.TRIALS).write_text('{"trials": [{"path"')
    text = _render(resolved.directory)
    assert f"damaged: {resolved.directory / 'tune' / layout.TRIALS}: not valid JSON" in text
    assert _counts(text, "tune", "standard")["pending"] == 4
    for content in ("{", "[]"):
        (resolved.directory / layout.STUDY).write_text(content)
        with pytest.raises(ValueError, match=layout.STUDY):
            _render(resolved.directory)


def test_jobs_are_counted_by_their_trials(begun):
    resolved, trials = begun(points=4)
    paths = [str(_path(resolved, directory)) for directory in trials]
    first = submissions.new(
        resolved.directory, "slurm", [(paths[0], paths[1]), (paths[2],), (paths[3],)], {}
    )
    first.record(["7_0", "7_1", "7_2"])
    submissions.new(resolved.directory, "slurm", [(paths[0],)], {}).record([])  # refused whole
    text = _render(resolved.directory)
    assert "jobs: 3 given to slurm in 1 batches: 0 running, 3 waiting, 0 over" in text
    lease.claim(trials[1])
    _write(trials[1], "running")
    _write(trials[2], "done", 12)
    # The second trial's job was lost, and another one got that trial.
    again = submissions.new(resolved.directory, "slurm", [(paths[1],)], {})
    record = layout.read_json(again.file)
    layout.write_json(again.file, {**record, "created_at": 9e9})
    text = _render(resolved.directory)
    assert "jobs: 4 given to slurm in 2 batches: 1 running, 2 waiting, 1 over" in text
    first.file.write_text("{")
    text = _render(resolved.directory)
    assert f"damaged: {first.file}: " in text
    assert "jobs: 1 given to slurm in 1 batches: 1 running, 0 waiting, 0 over" in text


def test_file_operations_per_trial_stay_constant(tmp_path, monkeypatch):
    """As the docstring of sweeps.records.study_reader counts them; a second look spares those that
    are done."""

    def operations(directory):
        count = 0

        def counted(function):
            def call(*arguments, **keywords):
                nonlocal count
                count += not str(arguments[0]).startswith("/proc")
                return function(*arguments, **keywords)

            return call

        with monkeypatch.context() as patched:
            for module, name in _OPERATIONS:
                patched.setattr(module, name, counted(getattr(module, name)))
            found = study_reader.StudyReader(directory)
            found.look()
            first, count = count, 0
            found.look()
        return first, count

    few, many = _study_of(tmp_path / "few", 52), _study_of(tmp_path / "many", 200)
    (few_first, few_again), (first, again) = operations(few), operations(many)
    # Of four trials one is pending, one done, one failed, one says that it runs.
    assert (first - few_first) / 148 == (1 + 1 + 3 + 9) / 4
    assert (again - few_again) / 148 == (1 + 0 + 3 + 9) / 4


# What pathlib and layout call; a probe of the file server's clock is made by os.open (touch).
_OPERATIONS = ((io, "open"), *((os, name) for name in ("open", "stat", "listdir", "unlink")))


def _study_of(directory, count):
    """Writes a study of `count` trials, in equal parts pending, done, failed and running."""
    rows = []
    for number in range(count):
        path = f"grid/standard/digits_vit_jax/trial_{number + 1}"
        rows.append(
            {"path": path, "variant": "standard", "steps": 12, "targets": {"metric": "accuracy"}}
        )
        (directory / path).mkdir(parents=True)
        state = ("pending", "done", "failed", "running")[number % 4]
        if state in ("failed", "running"):
            attempt = lease.claim(directory / path)
        if state == "failed":
            attempt.end("failed")
        if state != "pending":
            _write(directory / path, state)
    settings = {"variants": ["standard"], "seeds": 1, "steps": 12, "protocol": "grid"}
    record = {"name": directory.name, "stages": ["grid"], "config": settings, "points": []}
    layout.write_json(directory / layout.STUDY, record)
    layout.write_json(directory / "grid" / layout.TRIALS, {"trials": rows})
    return directory
