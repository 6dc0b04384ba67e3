"""The driver's progress: what it says, and that an event costs the same in a large study."""

import itertools
import timeit

import pytest

from sweeps.monitoring import progress
from sweeps.records import status
from sweeps.study import study_directory


@pytest.fixture
def trials(make_study):
    """Four trials of 12 steps on disk, the first done and the last at step 4."""
    resolved = make_study(protocol="grid", points=4, variants="standard")
    study_directory.prepare(resolved)
    found = resolved.trials("grid")
    study_directory.materialise(resolved, "grid", found)
    status.write(resolved.directory / found[0].path, "done", global_step=12)
    status.write(resolved.directory / found[3].path, "pending", global_step=4)
    return resolved.directory, found


def _evaluation(step, seconds):
    return {
        "global_step": step,
        "validation/accuracy": 0.5,
        "accumulated_submission_time": 1.0,
        "total_duration": seconds,
    }


def test_what_is_said(trials, capsys):
    directory, (_, second, third, fourth) = trials
    shown = progress.Progress()
    shown.stage("grid", [*trials[1]], directory)
    shown.started(second, 1)
    shown.started(third, "slurm job 12_3")
    shown.evaluated(second, _evaluation(8, 24.0))
    shown.ended(second, "done", None)  # 12 + 8 steps left at 3 s, two trials at a time
    shown.looked(third, {"global_step": 6, "step_seconds": 5.0})
    shown.looked(third, {"global_step": 6, "step_seconds": 5.0})  # the same again counts once
    shown.ended(third, "failed, will be tried again", "KeyError: 'x'")  # 6 + 8 steps at 4 s, by two
    shown.looked(fourth, {"global_step": 4})
    shown.ended(third, "failed", "KeyError: 'x'", ["last line"])  # 8 steps at 4 s, by one
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "stage grid: 4 trials, 1 already finished",
        f"{second.path} started on worker 1",
        f"{third.path} started on slurm job 12_3",
        f"{second.path} done (step 8/12, validation accuracy 0.5000) [2/4]"
        ", about 30 s left in this stage",
        f"{third.path} failed, will be tried again: KeyError: 'x' [2/4]"
        ", about 28 s left in this stage",
        f"{third.path} failed: KeyError: 'x' [3/4], about 32 s left in this stage",
        "    last line",
    ]


def test_live_figures_are_shown_and_give_a_first_estimate(trials, capsys, monkeypatch):
    directory, (_, second, third, fourth) = trials
    shown = progress.Progress()
    shown.stage("grid", [*trials[1]], directory)
    monkeypatch.setattr(progress, "_QUIET_S", -1.0)
    shown.started(second, 1)
    logged = {"global_step": 3, "loss": 2.5, "grad_norm": 1.0, "step_seconds": 3.0}
    shown.logged(second, {**logged, "tokens_per_second": 12345.6, "model_flop_utilisation": 0.431})
    capsys.readouterr()
    shown.tick()  # 8 + 12 + 8 steps left at 3 s
    said = "step 4/12, loss 2.5000, 3.00 s a step, 12,346 tokens/s, 43.1 % of the peak FLOP/s"
    assert capsys.readouterr().out.endswith(
        f"about 84 s left in this stage. {second.path}: {said}\n"
    )
    shown.evaluated(second, _evaluation(8, 8.0))  # 1 s a step, evaluations in it: it counts alone
    figures = {"loss": 0.125, "step_seconds": 0.0125, "model_flop_utilisation": None}
    shown.looked(third, {"global_step": 4, "figures": figures})
    shown.looked(fourth, {"global_step": 5, "figures": "damaged"})
    shown.tick()
    text = capsys.readouterr().out
    assert "about 19 s left" in text  # 4 + 8 + 7 steps
    assert f"{third.path}: step 4/12, loss 0.1250, 12.5 ms a step;" in text
    assert f"{fourth.path}: step 5/12\n" in text


def test_the_time_left_in_all_goes_by_the_machine_s_own_pace(trials, capsys):
    directory, (_, second, *_) = trials
    for later, said in (
        ({"grid": 600.0}, "about 60 s left in this stage, 21 min in all"),  # 20 · 3 s + 2 · 600 s
        ({"grid": 0.0}, "left in this stage"),
        ({"compare": 600.0}, "left in this stage"),
    ):
        shown = progress.Progress(progress.Later(later, 1.5))
        shown.stage("grid", [*trials[1]], directory)
        shown.started(second, 1)
        shown.evaluated(second, _evaluation(8, 24.0))
        shown.ended(second, "done", None)
        assert capsys.readouterr().out.rstrip().endswith(said)


def test_a_thousand_running_trials_are_not_listed(trials, capsys, monkeypatch):
    directory, found = trials
    shown = progress.Progress()
    shown.stage("grid", found, directory)
    for number in range(25):
        shown.started(_copy(found[0], number), number)
    capsys.readouterr()
    monkeypatch.setattr(progress, "_QUIET_S", -1.0)
    shown.tick()
    line = capsys.readouterr().out
    assert line.count("trial_") == 20
    assert "and 5 more" in line


def _copy(trial, point):
    import dataclasses

    return dataclasses.replace(trial, point=point)


def test_an_event_costs_the_same_in_a_large_study(trials, tmp_path):
    def seconds(count):
        shown = progress.Progress()
        many = [_copy(trials[1][2], point) for point in range(count)]
        shown.stage("grid", many, tmp_path / "empty")
        shown.started(many[0], 0)
        steps = itertools.cycle(range(1, 12))

        def event():
            shown.evaluated(many[0], _evaluation(next(steps), 24.0))
            shown._eta()

        return min(timeit.repeat(event, number=100, repeat=5))

    # A sum over the trials would make it 20 times as long.
    assert seconds(20_000) < 5 * seconds(100)


def test_durations_as_people_say_them():
    given = (80, 300, 7200, 200_000)
    assert [progress.duration(s) for s in given] == ["80 s", "5 min", "2.0 h", "2.3 days"]
