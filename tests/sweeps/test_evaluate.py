"""`sweeps evaluate`: what is refused, handed out, resumed and told; models and lm-eval stand in."""

import contextlib
import re
import shutil
import types
from unittest import mock

import pytest

from sweeps import __main__ as command
from sweeps.job import job, trainer
from sweeps.records import layout, lease, status, submissions
from sweeps.scheduling import downstream
from sweeps.study import jax_calls
from sweeps.study import trial as trials
from sweeps.training import checkpoints
from tests.sweeps.conftest import begin_stage, resolve
from workloads.downstream import harness, suites


def _made(folder, **changes):
    """Returns a grid of two variants of pydoc_lm, written to disk as if it were trained."""
    settings = {
        **{"experiment_dir": folder, "steps": 60, "eval_every": 10, "seeds": 1},
        **{"name": "trained", "keep_checkpoints": 3, "variants": "standard,laser", **changes},
    }
    made = resolve("pydoc_lm_quick", **settings)
    for trial in begin_stage(made, "grid"):
        directory = made.directory / trial.path
        status.write(directory, "done", global_step=60, steps=60)
        for step in (40, 50, 55, 60):
            (directory / layout.CHECKPOINTS / str(step)).mkdir(parents=True)
    return made


@pytest.fixture
def trained(tmp_path):
    return _made(tmp_path)


def _first(made):
    return made.directory / made.trials("grid")[0].path


class Harness:
    """Replaces lm-eval: results of 0.5, after tasks at which it dies or is told to stop."""

    def __init__(self, monkeypatch):
        self.evaluated, self.dies, self.stops = [], False, False
        self.trainer = trainer.Trainer()
        monkeypatch.setattr(harness, "evaluate", self._evaluate)
        monkeypatch.setattr(checkpoints, "restore_trained", lambda *given: (float(given[2]), None))
        program = types.SimpleNamespace(workload=None)
        monkeypatch.setattr(self.trainer, "_program", lambda *given: program)

    def _evaluate(self, workload, parameters, suite, data_dir, directory, about, progress):
        self.evaluated.append(parameters)
        (directory / harness.TASKS).mkdir(exist_ok=True)
        (directory / harness.TASKS / "next.jsonl.gz").touch()
        if self.dies:
            raise RuntimeError("killed")
        if self.stops:
            self.trainer.stop()
        progress("another", 1, 2)
        tasks = {task.name: {"primary": "acc", "metrics": {"acc": 0.5}} for task in suite.tasks}
        layout.write_json(directory / harness.RESULTS, {**about, "tasks": tasks})

    def run(self, directory):
        self.trainer.stopping = False
        return self.trainer.run(directory, "/data").outcome


@pytest.fixture
def asked(monkeypatch):
    return Harness(monkeypatch)


def _begin(made, checkpoint=60):
    """Returns the directory of an evaluation."""
    trial = trials.read(_first(made))
    return made.directory / downstream.Evaluation(trial, checkpoint, "pydoc").path


def test_a_job_evaluates_and_says_of_what(trained, asked):
    directory = _begin(trained)
    assert directory == _first(trained) / "downstream/60/pydoc"
    assert asked.run(directory) == "done"
    about = {"trial_id": trials.read(_first(trained)).id, "variant": "standard", "seed": 0}
    about |= {"workload": "pydoc_lm", "step": 60}
    assert about.items() <= layout.read_json(directory / layout.RESULTS).items()
    assert status.read(directory)["state"] == "done"
    assert asked.run(directory) == trainer.FINISHED
    (directory / layout.RESULTS).unlink()
    assert asked.run(directory) == "done"
    assert asked.evaluated == [60.0, 60.0]


def test_an_evaluation_goes_on_after_a_death_and_an_order_to_stop(trained, asked):
    """The trial itself is left alone."""
    before = status.recorded(_first(trained))
    directory = _begin(trained)
    asked.dies = True
    assert asked.run(directory) == "failed"
    asked.dies, asked.stops = False, True
    assert asked.run(directory) == "preempted"
    record = status.read(directory)
    assert (record["state"], record["global_step"]) == ("pending", 1)
    asked.stops = False
    assert asked.run(directory) == "done"
    assert lease.latest(directory) == 3
    assert status.recorded(_first(trained)) == before
    assert lease.latest(_first(trained)) == 0


def test_a_trained_trial_is_evaluated_by_its_job(tmp_path, asked, monkeypatch):
    directory = _first(_made(tmp_path, downstream="pydoc"))
    status.write(directory, "pending")
    monkeypatch.setattr(asked.trainer, "_train", lambda *given: "done")
    assert asked.run(directory) == "done"
    assert (directory / "downstream/60/pydoc" / layout.RESULTS).exists()
    assert [path.name for path in sorted((directory / layout.CHECKPOINTS).iterdir())] == [
        *("40", "50", "60")  # 55 goes with no evaluation
    ]


def test_a_job_evaluates_where_and_on_what_mesh_its_batch_says(trained, asked, monkeypatch):
    settings = {"data_dir": "/there", "mesh": {"data": 0, "fsdp": 2, "tensor": 1}}
    path = str(_begin(trained).relative_to(trained.directory))
    batch = submissions.new(trained.directory, "slurm", [(path,)], {}, settings=settings)
    one = job.Job(batch.file, 0)
    assert (one._suite, one.study.data_dir) == ("pydoc", "/there")
    program = mock.Mock(return_value=types.SimpleNamespace(workload=None))
    monkeypatch.setattr(one.trainer, "_program", program)
    assert one.trainer.run(trained.directory / path, one.study.data_dir).outcome == "done"
    assert [call.args[0].mesh for call in program.call_args_list] == [(0, 2, 1)]


def _refusal(capsys, *arguments):
    assert command.main(["evaluate", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_evaluated_is_refused_at_the_door(trained, tmp_path, capsys, monkeypatch):
    """By name, with the remedy, and before anything is written or loaded."""
    call = "sweeps.study.jax_calls.SubprocessCall"
    monkeypatch.setattr(call, lambda *given, **more: pytest.fail("it was asked"))
    where = trained.directory
    for arguments, words in (
        (("--suite=pydok",), "unknown suite 'pydok'"),
        (("--suite=pydoc", "--checkpoints=4"), "3 checkpoints and 4 are asked"),
        (("--suite=pydoc", "--config.seeds=2"), "seeds is what the study was trained with"),
        (("--suite=pydoc", "--config.sead=2"), "unknown config key 'sead'"),
        (("--suite=pydoc", "--stage=tune"), "no stage 'tune'"),
        (("--suite=pydoc", "--config.mesh.fsdp=3"), "does not fit the 1 device"),
        (
            ("--suite=pydoc", "--config.launcher=slurm", "--config.slurm.nodes=2"),
            "slurm.nodes is 2, and a suite is put to a model by one process",
        ),
    ):
        assert words in _refusal(capsys, where, *arguments)
    assert "is no study" in _refusal(capsys, tmp_path, "--suite=pydoc")
    status.write(_first(trained), "failed")
    (where / trained.trials("grid")[1].path / layout.STATUS).unlink()
    assert "(1 failed, 1 pending); train it" in _refusal(capsys, where, "--suite=pydoc")
    status.write(_first(trained), "done", global_step=60)
    shutil.rmtree(_first(trained) / layout.CHECKPOINTS)
    assert "has no checkpoint, so its model is lost" in _refusal(capsys, where, "--suite=pydoc")
    assert not list(where.glob("grid/*/*/*/downstream"))


def test_models_that_are_no_decoders_are_refused(make_trial, capsys):
    message = _refusal(capsys, make_trial().parents[3], "--suite=pydoc")
    assert re.search("digits_vit is no decoder.*pydoc_lm", message)
    with pytest.raises(ValueError, match="digits_vit is no decoder"):
        make_trial(downstream="pydoc")


def test_missing_data_and_lm_eval_are_named_before_a_worker_starts(trained, monkeypatch, capsys):
    monkeypatch.setattr(downstream.scheduler, "of_study", lambda *given: pytest.fail("it began"))
    module = types.SimpleNamespace(prepare=lambda data_dir: None)
    monkeypatch.setattr("workloads.catalog.data_module", lambda name: module)
    monkeypatch.setattr("workloads.downstream.pydoc_questions.prepare", lambda data_dir: None)

    def start(function, **arguments):
        return contextlib.nullcontext(types.SimpleNamespace(result=lambda: function(**arguments)))

    monkeypatch.setattr(jax_calls, "SubprocessCall", start)
    folder = trained.directory.parent / "nothing"
    folder.mkdir()
    more = (trained.directory, "--suite=pydoc", f"--data_dir={folder}")
    assert re.search("(?s)tasks.json is missing.*prepare downstream", _refusal(capsys, *more))
    monkeypatch.setattr(suites.importlib.metadata, "version", lambda name: "0.4.2")
    assert "lm-eval 0.4.13, which has the prompts, is not installed" in _refusal(capsys, *more)


def test_evaluations_go_through_the_schedulers_of_trials(trained, asked):
    """What has results is not handed out, and what got none is told."""
    wanted = downstream.Evaluate(trained.directory, "pydoc", checkpoints=2).wanted
    assert len({one.program for one in wanted}) == 2
    asked.run(_begin(trained, 50))
    scheduler = mock.Mock(root=trained.directory)
    scheduler.run.side_effect = lambda left: asked.run(trained.directory / left[0].path)
    assert downstream.run(scheduler, wanted) == wanted[2:]
    scheduler.run.assert_called_once_with(wanted[1:])


def test_both_rooms_name_the_files_alike():
    """`workloads` writes them and may not import `sweeps`, where `analysis` finds the names."""
    ours = (layout.SAMPLES, layout.RESULTS, layout.DOWNSTREAM_TASKS, layout.DOWNSTREAM_FORMAT)
    assert ours == (harness.SAMPLES, harness.RESULTS, harness.TASKS, harness.FORMAT)
