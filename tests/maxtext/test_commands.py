"""Runs of MaxText with a variant: what is refused, and how the runs are read; without MaxText."""

import importlib.util
import json

import pytest

from analysis.load import measurements, records, studies
from workloads import __main__ as command
from workloads.maxtext import runner

WITHOUT = importlib.util.find_spec("maxtext") is None


def _run(folder, variant, seed, *, steps=4, losses=(3.0, 2.0, 1.5, 1.25)):
    """Writes a run's folder, its lines as MaxText 0.2.5 writes them."""
    folder.mkdir(parents=True)
    record = {
        "attention": variant,
        "attention_tau": None,
        "workload": "maxtext:default_synthetic",
        "rng_seed": seed,
        "num_train_steps": steps,
        "metrics_file": "metrics.jsonl",
        "hyperparameters": {"learning_rate": "0.01"},
    }
    (folder / runner.RECORD).write_text(json.dumps(record))
    lines = []
    for step, loss in enumerate(losses):
        lines.append({"learning/loss": loss, "perf/step_time_seconds": 0.5, "step": float(step)})
        if step % 2:
            evaluation = {"eval/avg_loss": loss + 0.125, "step": 0.0}
            lines += [evaluation, evaluation | {"eval/total_loss": 64.0, "step": float(step)}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_runs_are_read_as_variants_and_seeds(tmp_path):
    for variant in ("standard", "laser+qk_norm"):
        for seed in (0, 1):
            _run(tmp_path / f"{variant}-{seed}", variant, seed)
    (study,) = studies.read_each(tmp_path)
    assert {(run.variant, run.seed) for run in study.runs} == {
        (variant, seed) for variant in ("standard", "laser+qk_norm") for seed in (0, 1)
    }
    for run in study.runs:
        assert (run.state, run.steps, run.point, run.metric) == ("done", 4, 0, "loss")
        assert run.evals["global_step"].tolist() == [2, 4]
        assert run.evals["validation/loss"].tolist() == [2.125, 1.375]
        assert run.evals["accumulated_submission_time"].tolist() == [1.0, 2.0]
        assert run.losses()["loss"].tolist() == [3.0, 2.0, 1.5, 1.25]
        assert measurements.splits_of_nothing(run.evals) == ["train", "test"]
        assert not run.problems
    assert study.shares_seeds


@pytest.mark.parametrize(
    ("losses", "state", "kind"),
    [
        ((3.0, 2.0), "running", "unfinished"),
        ((3.0, 2.0, 1.5, float("nan")), "diverged", "diverged"),
    ],
)
def test_a_run_that_did_not_end_well_is_named(tmp_path, losses, state, kind):
    _run(tmp_path / "run", "laser", 0, losses=losses)
    (study,) = studies.read_each(tmp_path)
    (run,) = study.runs
    assert run.state == state
    assert kind in {problem.kind for problem in run.problems}


def test_the_reader_looks_for_the_file_that_the_command_writes():
    assert records.MAXTEXT_FILE == runner.RECORD


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--attention=lasr", "--", "base.yml"], "laser"),
        (["--attention=laser", "--"], "CONFIG"),
        (["--attention=laser", "--", "steps=3"], "CONFIG"),
        (["--attention=laser", "--tau=2", "--", "base.yml"], "tau"),
        (["--attention=value_residual", "--", "base.yml"], "value_residual"),
        (["--attention=standard+value_residual", "--", "base.yml"], "value_residual"),
        (["--attention=diff", "--", "base.yml"], "diff"),
        (["--attention=standard+rope", "--", "base.yml"], "rope"),
        pytest.param(
            ["--attention=laser", "--", "base.yml"],
            "pip install",
            marks=pytest.mark.skipif(not WITHOUT, reason="MaxText is installed"),
        ),
    ],
)
def test_what_cannot_run_is_refused(capsys, arguments, named):
    assert command.main(["maxtext", *arguments]) == 2
    assert named in capsys.readouterr().err
