"""Where trials would run, what must fit there, data and laws that are checked before they do."""

import contextlib
import math
import re

import jax.numpy as jnp
import pytest

from attention import entries, records, table
from sweeps import __main__ as command
from sweeps.launchers.ray import launcher as ray
from sweeps.records import layout, lease
from sweeps.scheduling import plan, preflight
from sweeps.study import jax_calls, study_directory
from tests.sweeps.conftest import resolve
from workloads import catalog
from workloads.images import digits


@pytest.fixture(autouse=True)
def _of_cpus(monkeypatch):
    """This host has no accelerators."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def _slurm(make_study, **changes):
    keys = {f"slurm.{key}": value for key, value in changes.items()}
    return make_study(launcher="slurm", **keys)


_GRID = {"protocol": "grid", "points": 10, "seeds": 1, "steps": 500, "variants": "standard,laser"}
_PODS = {"launcher": "kubernetes", "kubernetes.image": "i", "kubernetes.volume_claim": "v"}


@pytest.mark.parametrize(
    ("changes", "jobs", "rounds"),
    [
        # Ten trials of each variant: jobs of 8, 2, 8 and 2 trials, all at a time.
        ({**_PODS, "kubernetes.trials_per_job": 8}, 4, 8),
        ({**_PODS, "kubernetes.trials_per_job": 8, "kubernetes.workers": 3}, 4, 3),
        ({**_PODS, "kubernetes.trials_per_job": 8, "kubernetes.max_jobs": 2}, 4, 10),
        ({**_PODS, "kubernetes.trials_per_job": 20}, 2, 10),
        ({"launcher": "slurm"}, 20, 1),
        ({"launcher": "slurm", "slurm.at_once": 2}, 20, 10),
        ({"launcher": "slurm", "slurm.at_once": 7, "slurm.max_jobs": 3}, 20, 7),
        ({"launcher": "slurm", "slurm.at_once": 2, "slurm.trials_per_job": 3}, 8, 10),
        ({"launcher": "ray", "ray.max_jobs": 6, "ray.trials_per_job": 2}, 10, 4),
        ({"local.workers": 3}, 3, 7),
    ],
)
def test_wall_time_is_that_of_jobs_and_rounds(make_study, monkeypatch, changes, jobs, rounds):
    """A job's trials run one after the other, as many jobs at a time as its engine runs."""
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    monkeypatch.setattr(ray, "_NEEDED", ())
    resolved = make_study(**_GRID, **changes)
    [cost] = plan.lines(resolved, plan.resources_of(resolved))
    assert (cost.trials, cost.jobs, cost.wall_steps) == (20, jobs, rounds * 500)


def test_the_time_beside_the_steps(make_study):
    """A start and a compilation for each job of a slot, an evaluation at each tenth of steps."""
    start, compiled, evaluated = plan.START_S, plan.COMPILE_S, plan.EVALUATE_S * 10
    resolved = make_study(**_GRID, eval_every=50, **{"local.workers": 2})
    [cost] = plan.lines(resolved, plan.resources_of(resolved))
    assert cost.beside_s == start + 2 * compiled + 10 * evaluated
    where = plan.Resources("slurm", "cpu", 1, trials_per_job=5, jobs=2, side_by_side=1)
    [cost] = plan.lines(resolved, where)
    assert cost.beside_s == 2 * (start + compiled + 5 * evaluated)


def test_an_engine_that_runs_an_unknown_number_of_jobs(make_study):
    unknown = plan.Resources("slurm", "gpu", 2, 4, None, 2, "no sbatch on this host")
    [cost] = plan.lines(make_study(**_GRID), unknown)
    assert math.isnan(cost.wall_steps)
    assert math.isnan(cost.beside_s)
    assert unknown.describe().endswith("jobs at a time unknown: no sbatch on this host")
    known = plan.Resources("slurm", "gpu", 2, trials_per_job=4, jobs=3, side_by_side=2)
    assert "at most 3 jobs at a time, each of up to 4 trials, 2 at a time" in known.describe()


def test_the_plan_of_this_host(make_study):
    resolved = make_study(points=5, variants="standard,laser", seeds=2, **{"local.workers": 2})
    assert plan.resources_of(resolved) == plan.Resources("local", "cpu", 1, None, 2, 1)
    text = plan.render(resolved, step_seconds=300.0)
    assert "launcher local: 2 workers, a trial each at a time, 1 cpu device per trial" in text
    # 5 trials of 12 steps of 5 minutes are an hour each; two at a time.
    tune, compare, total = (line.split()[1:-1] for line in text.splitlines()[7:10])
    assert tune == ["5", "2", "1", "60", "5.00", "3.00", "0.00"]
    assert compare == ["4", "2", "2", "48", "4.00", "2.00", "0.01"]
    assert total == ["9", "4", "108", "9.00", "5.00", "0.01"]
    # 0.04 s a step of 32 (workloads/images/image_specs.py), 0.02 of 16: 3 + 2 rounds of 12 steps.
    # Two starts, three compilations, five rounds of three evaluations.
    assert plan.summary(resolved).startswith("whole study: 9 trials, 108 steps, about 34 s: 1 s")


def test_an_engine_that_is_not_here_can_be_planned_for(make_study, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch
    text = plan.render(_slurm(make_study, trials_per_job=2, gpus=2), step_seconds=300.0)
    assert (
        "launcher slurm: 2 gpu devices per trial; jobs at a time unknown: launcher slurm: no"
        in text
    )
    assert re.search(r"tune +2 +1 +1 +24 +2.00 +\? ", text)
    for at_once, max_jobs, jobs in ((2, 1000, 2), (5, 3, 3), (0, 3, None)):
        made = _slurm(make_study, at_once=at_once, max_jobs=max_jobs)
        assert plan.resources_of(made).jobs == jobs
    for workers, side_by_side in ((0, 1), (2, 2), (8, 4)):
        where = plan.resources_of(_slurm(make_study, trials_per_job=4, workers=workers))
        assert where.side_by_side == side_by_side


_CUDNN = {"kernel": "cudnn", "compute_dtype": "bfloat16"}
_TPU = {"kubernetes.tpu_type": "tpu-v5-lite-podslice", "kubernetes.tpu_topology": "2x4"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (_CUDNN, "needs an NVIDIA GPU and JAX runs on 'cpu'"),
        ({**_CUDNN, "launcher": "slurm"}, "needs an NVIDIA GPU and JAX runs on 'cpu'"),
        ({**_CUDNN, "launcher": "slurm", "slurm.gpus": 1}, None),
        (
            {"kernel": "splash", **_PODS, "kubernetes.gpus": 1},
            "needs a TPU",
        ),
        ({"kernel": "splash", **_PODS, **_TPU}, None),
    ],
)
def test_the_kernel_is_one_of_the_engine_s_devices(make_study, changes, message):
    resolved = make_study(**changes)
    refused = pytest.raises(ValueError, match=message) if message else contextlib.nullcontext()
    with refused:
        preflight.check_kernel(resolved)


@pytest.mark.parametrize(
    ("name", "gpus", "changes", "message"),
    [
        ("digits_vit_quick", 8, {}, None),
        ("digits_vit_quick", 3, {}, "batch_size 32 cannot be divided over 3 devices"),
        ("pydoc_lm_quick", 8, {"microbatches": 4}, "4 microbatches over 8 devices"),
        ("c4_lm_paper", 8, {"mesh.fsdp": 16}, "the 8 device.*keys of --config.slurm"),
        ("c4_lm_paper", 0, {"mesh.fsdp": 8}, None),
        ("c4_lm_paper", 0, {"mesh.fsdp": 2, "mesh.tensor": 4}, None),
        ("c4_lm_paper", 0, {"mesh.data": 4, "mesh.fsdp": 2}, None),
        ("c4_lm_paper", 0, {"mesh.fsdp": 16}, "does not fit the 8 device.*--config.mesh.fsdp"),
        ("c4_lm_paper", 0, {"mesh.data": 3}, "does not fit the 8 device"),
    ],
)
def test_the_batch_and_the_mesh_fit_the_devices(monkeypatch, name, gpus, changes, message):
    """All eight of this host, or those of an engine's job, are for one trial."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    if gpus:
        changes = {**changes, "launcher": "slurm", "slurm.gpus": gpus}
    resolved = resolve(name, planning=True, **changes)
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        preflight.check_devices(resolved)


def test_data_that_this_host_does_not_see(make_study, tmp_path, capsys):
    away = tmp_path / "away"
    resolved = make_study(launcher="slurm", data_dir=away)
    study_directory.prepare(resolved)
    preflight.check_data(resolved)
    assert f"{away} is not on this host, so the data is not checked here" in capsys.readouterr().err
    assert not away.exists()
    assert not (resolved.directory / layout.REFERENCE).exists()
    # What is here is checked here, whoever runs the trials.
    away.mkdir()
    absent = resolve("imagenet_vit_paper", launcher="slurm", data_dir=away)
    with pytest.raises(ValueError, match=f"{away}/imagenet2012/5.1.0: does not exist"):
        preflight.check_data(absent)


def test_a_job_checks_its_node(make_study, data_dir, tmp_path, capsys):
    resolved = make_study()
    study_directory.prepare(resolved)
    assert preflight.check_data(resolved, here=True) == digits.DIGITS.content_sha256
    assert layout.read_json(resolved.directory / layout.REFERENCE)["digits_vit"]["rows"]
    absent = resolve("imagenet_vit_paper", data_dir="/nowhere")
    with pytest.raises(ValueError, match=r"(?s)/nowhere.*To repair: .*python -m workloads prepare"):
        preflight.check_data(absent, here=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("launcher", "keys", "expected"),
    [
        ("slurm", {"gpus": 2}, ["sbatch --nodes=1", "-m sweeps job"]),
        (
            "ray",
            {"cpus": 2},
            ['"entrypoint_num_cpus": 2.0', "-m sweeps job"],
        ),
        (
            "kubernetes",
            {"image": "i", "volume_claim": "v"},
            ["kind: JobSet", "- sweeps", "- job"],
        ),
    ],
)
def test_the_plan_shows_a_job_without_its_engine(
    make_study, monkeypatch, tmp_path, launcher, keys, expected
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ray, "_NEEDED", ("no_such_module",))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    keys = {f"{launcher}.{key}": value for key, value in keys.items()}
    text = plan.render(make_study(launcher=launcher, **keys)).partition("as it would be submitted")
    for part in expected:
        assert part in text[2]


def test_hours_of_an_unknown_step(capsys):
    """Of a language model no step was timed; the compiler's figure is the user's to give."""
    assert command.main(["plan", "--config=c4_lm_8b_paper", "--config.space=paper_adamw"]) == 0
    assert "no step time known; give --step_seconds" in capsys.readouterr().out
    assert command.main(["plan", "--config=digits_vit_quick", "--topology=v5e:8x8"]) == 2


SIZED = {name: entry.train_examples for name, entry in catalog.WORKLOADS.items()}


@pytest.mark.parametrize("name", [name for name, size in SIZED.items() if 0 < size < 1_048_576])
def test_a_batch_larger_than_the_training_split_is_refused(name):
    settings = {"workload": name, "steps": 2, "eval_every": 1, "variants": "standard"}
    for planning in (True, False):
        resolve("digits_vit_quick", planning=planning, batch_size=SIZED[name], **settings)
        with pytest.raises(ValueError, match=f"batch_size={SIZED[name]}"):
            resolve("digits_vit_quick", planning=planning, batch_size=SIZED[name] + 1, **settings)


def test_the_time_of_a_step_is_in_proportion_to_its_batch(make_study):
    entry = catalog.get("digits_vit")
    steps_s = {}
    for size in (16, 32, 64):
        made = make_study(batch_size=size)
        assert (f"scaled to {size}" in plan.render(made)) == (size != entry.batch_size)
        steps_s[size], _ = entry.step_time(size)
    assert steps_s[64] == pytest.approx(2 * steps_s[32]) == pytest.approx(4 * steps_s[16])
    assert catalog.get("c4_lm").step_time(512) == (None, "")


@pytest.mark.parametrize(
    ("name", "keys", "word"),
    [
        ("imagenet_vit_paper", {"data_dir": "/nowhere"}, "/nowhere"),
        ("algoperf_imagenet_vit_paper", {"algoperf_dir": "/nowhere"}, "/nowhere. Install AlgoPerf"),
        ("digits_vit_quick", {"data_dir": "/proc/x"}, "data_dir=/proc/x"),
        ("digits_vit_quick", {"experiment_dir": "/proc/x"}, "experiment_dir=/proc/x"),
        ("digits_vit_quick", {"kernel": "splash"}, "kernel"),
        ("digits_vit_quick", {"mesh.data": 3}, "(3, 1, 1) does not fit"),
    ],
)
def test_a_plan_says_what_run_would_refuse(name, keys, word, capsys, tmp_path):
    keys = {"experiment_dir": str(tmp_path), **keys}
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    assert command.main(["plan", f"--config={name}", *overrides]) == 0
    printed = capsys.readouterr()
    assert "total" in printed.out
    [line] = [line for line in printed.err.splitlines() if "run would refuse this" in line]
    assert word in line
    assert not list(tmp_path.iterdir())


def test_a_plan_of_a_study_that_can_run_warns_of_nothing(make_study, capsys):
    made = make_study()
    assert preflight.refusals(made) == []
    study_directory.prepare(made)
    assert preflight.refusals(made) == []
    lease.claim(made.directory / "tune/standard/digits_jax/trial_1")
    [other] = preflight.refusals(make_study(steps=8))
    assert "holds another study of that name" in other
    away = make_study(launcher="slurm", data_dir="/nowhere")
    assert any("not on this host" in line for line in preflight.refusals(away))


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Variants and laws of each question; nothing is measured."""
    questions = []

    def call(function, *, variants, laws):
        assert function is jax_calls.check_laws
        questions.append((sorted(variants), laws))

    monkeypatch.setattr(jax_calls, "call", call)
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path / "cache"))
    return questions


def test_laws_are_asked_once_for_each_variant_and_state_of_the_code(make_study, monkeypatch, asked):
    preflight.check_laws(make_study(variants="standard,standard+temp"))
    preflight.check_laws(make_study(variants="standard,standard+temp"))
    preflight.check_laws(make_study(variants="standard,standard+temp", tau=0.5))
    monkeypatch.setattr(preflight, "_mechanisms", lambda: ["another"])
    preflight.check_laws(make_study(variants="standard,standard+temp"))
    both = ["standard", "standard+temp"]
    assert asked == [(both, ("batch",)), (["standard+temp"], ("batch",)), (both, ("batch",))]


@pytest.mark.parametrize(
    ("settings", "laws"),
    [
        ({"workload": "pydoc_lm"}, ("batch", "causality")),
        ({"workload": "pydoc_lm", "document_mask": True}, ("batch", "causality", "segments")),
        ({"workload": "pydoc_finewebedu"}, ("batch", "causality")),
        ({"workload": "pydoc_bert"}, ("batch",)),
        ({"workload": "spoken_digits_conformer"}, ("batch",)),
    ],
)
def test_what_a_model_hides_is_asked(make_study, asked, settings, laws):
    preflight.check_laws(make_study(**settings, variants="standard"))
    assert asked == [(["standard"], laws)]


def test_a_cache_that_cannot_be_written_is_asked_again(make_study, monkeypatch, tmp_path, asked):
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    for _ in range(2):
        preflight.check_laws(make_study(variants="standard"))
    assert len(asked) == 2


@pytest.fixture
def leaky(monkeypatch):
    """A modifier of the score that reads the next key."""
    roll = lambda logits, *_: logits + jnp.roll(logits, -1, -1)  # noqa: E731
    record = records.Modifier("score", roll, roll)
    monkeypatch.setattr(records, "modifier", lambda name: record)
    monkeypatch.setitem(table.MODIFIERS, "leaky", entries.ModifierEntry("leaky", "f", "a test"))
    return "standard+leaky"


def test_a_leak_is_refused_by_name(leaky):
    jax_calls.check_laws({leaky: {}}, ("batch",))
    with pytest.raises(
        ValueError, match=r"'standard\+leaky'.* later keys.*attention check"
    ) as error:
        jax_calls.check_laws({"standard": {}, leaky: {}}, ("batch", "causality"))
    assert "'standard'" not in str(error.value)


def test_a_study_is_refused_before_its_data_and_goes_on_without_the_variant(
    monkeypatch, tmp_path, leaky, capsys
):
    """The refusal is not remembered as an answer."""

    def check_data(study):
        raise ValueError("data")

    monkeypatch.setattr(jax_calls, "call", lambda function, **arguments: function(**arguments))
    monkeypatch.setattr(preflight, "check_data", check_data)
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path / "cache"))
    common = ["run", "--config=pydoc_lm_quick", f"--config.experiment_dir={tmp_path}"]
    for variants, named in ((f"standard,{leaky}", leaky),) * 2 + (("standard", "data"),):
        assert command.main([*common, f"--config.variants={variants}"]) == 2
        assert named in capsys.readouterr().err
