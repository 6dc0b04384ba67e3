"""Where trials would run, what must fit there, and data that this host does not see."""

import pytest

from sweeps import __main__ as command
from sweeps.launchers.ray import launcher as ray
from sweeps.monitoring import plan
from sweeps.records import layout
from sweeps.scheduling import preflight
from sweeps.study import config, study, study_directory
from workloads import catalog


def _slurm(make_study, **changes):
    keys = {f"slurm.{key}": value for key, value in changes.items()}
    return make_study(launcher="slurm", **keys)


def test_jobs_and_wall_time_by_hand():
    where = plan.Resources("slurm", "gpu", 2, trials_per_job=4, jobs=3, side_by_side=2)
    assert where.at_once == 6
    assert [where.jobs_for(count) for count in (1, 4, 5, 13)] == [1, 1, 2, 4]
    # 13 trials, six at a time, are three rounds of 100 steps.
    assert [where.wall_steps(count, 100) for count in (1, 6, 7, 13)] == [100, 100, 200, 300]
    assert (
        "at most 3 jobs at a time, each of up to 4 trials, 2 at a time, 2 gpu" in where.describe()
    )
    unknown = plan.Resources("slurm", "gpu", 2, 4, None, 2, "no sbatch on this host")
    assert unknown.wall_steps(1, 100) is None
    assert unknown.describe().endswith("jobs at a time unknown: no sbatch on this host")


def test_the_plan_of_this_host(make_study, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    resolved = make_study(points=5, variants="standard,laser", seeds=2, **{"local.workers": 2})
    found = plan.resources_of(resolved)
    assert found == plan.Resources("local", "cpu", 1, 1, 2, 1)
    tune, compare = plan.lines(resolved, found, step_seconds=300.0)
    # 5 trials of 12 steps of 5 minutes are an hour each; two at a time.
    assert (tune.jobs, tune.hours, tune.wall_hours) == (5, 5.0, 3.0)
    assert (compare.jobs, compare.hours, compare.wall_hours) == (4, 4.0, 2.0)
    text = plan.render(resolved, step_seconds=300.0)
    assert "launcher local: 2 workers, a trial each at a time, 1 cpu device per trial" in text
    assert "total            9       9                     108      9.00      5.00" in text


def test_an_engine_that_is_not_here_can_be_planned_for(make_study, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch
    resolved = _slurm(make_study, trials_per_job=2, gpus=2)
    text = plan.render(resolved, step_seconds=300.0)
    assert (
        "launcher slurm: 2 gpu devices per trial; jobs at a time unknown: launcher slurm: no"
        in text
    )
    (tune, *_) = plan.lines(resolved, plan.resources_of(resolved), 300.0)
    assert (tune.jobs, tune.hours, tune.wall_hours) == (1, 2.0, None)
    for workers, side_by_side in ((0, 1), (2, 2), (8, 4)):
        found = plan.resources_of(_slurm(make_study, trials_per_job=4, workers=workers))
        assert found.side_by_side == side_by_side


def test_kernel_and_devices_are_the_engine_s(make_study, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    changes = {"kernel": "cudnn", "compute_dtype": "bfloat16"}
    with pytest.raises(ValueError, match="needs an NVIDIA GPU and JAX runs on 'cpu'"):
        preflight.check_kernel(make_study(**changes))
    with pytest.raises(ValueError, match="needs an NVIDIA GPU and JAX runs on 'cpu'"):
        preflight.check_kernel(make_study(launcher="slurm", **changes))
    preflight.check_kernel(make_study(launcher="slurm", **{"slurm.gpus": 1}, **changes))
    splash = {
        **{"kernel": "splash", "launcher": "kubernetes"},
        **{"kubernetes.image": "i", "kubernetes.volume_claim": "v"},
    }
    with pytest.raises(ValueError, match="needs a TPU and JAX runs on 'gpu' here; use kernel="):
        preflight.check_kernel(make_study(**{"kubernetes.gpus": 1}, **splash))
    tpu = {"kubernetes.tpu_type": "tpu-v5-lite-podslice", "kubernetes.tpu_topology": "2x4"}
    preflight.check_kernel(make_study(**tpu, **splash))
    preflight.check_devices(_slurm(make_study, gpus=8))
    with pytest.raises(ValueError, match="batch_size 16 cannot be divided over 3 devices"):
        preflight.check_devices(_slurm(make_study, gpus=3))
    overrides = ["--config.launcher=slurm", "--config.slurm.gpus=8", "--config.mesh.fsdp=16"]
    large = study.resolve(config.parse("c4_lm_paper", overrides), planning=True)
    with pytest.raises(ValueError, match=r"launcher slurm.*the 8 device.*keys of --config.slurm"):
        preflight.check_devices(large)


def test_data_that_this_host_does_not_see(make_study, tmp_path, capsys):
    away = tmp_path / "away"
    resolved = make_study(launcher="slurm", data_dir=away)
    study_directory.prepare(resolved)
    preflight.DataCheck(resolved).finish()
    assert f"{away} is not on this host, so the data is not checked here" in capsys.readouterr().err
    assert not away.exists()
    assert not (resolved.directory / layout.REFERENCE).exists()
    # What is here is checked here, whoever runs the trials.
    away.mkdir()
    overrides = ["--config.launcher=slurm", f"--config.data_dir={away}"]
    with pytest.raises(ValueError, match=f"{away}/imagenet2012/5.1.0: does not exist"):
        preflight.DataCheck(study.resolve(config.parse("imagenet_vit_paper", overrides))).finish()
    # This host's own trials need it here.
    with pytest.raises(ValueError, match="/nowhere/imagenet2012"):
        preflight.DataCheck(
            study.resolve(config.parse("imagenet_vit_paper", ["--config.data_dir=/nowhere"]))
        ).finish()


def test_a_job_checks_its_node(make_study, data_dir, tmp_path, capsys):
    resolved = make_study()
    study_directory.prepare(resolved)
    preflight.check_data_here(resolved)
    reference = layout.read_json(resolved.directory / layout.REFERENCE)
    assert reference["digits_vit"]["rows"]
    absent = study.resolve(config.parse("imagenet_vit_paper", ["--config.data_dir=/nowhere"]))
    with pytest.raises(ValueError, match=r"(?s)/nowhere.*To repair: .*python -m workloads prepare"):
        preflight.check_data_here(absent)
    check = preflight.DataCheck(resolved)
    check.finish()
    check.finish()
    assert capsys.readouterr().out.count("data: ") == 1
    preflight.DataCheck(resolved).close()


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


def test_a_mesh_gives_way_to_the_devices_that_are_asked_about():
    for mesh, devices, expected in (
        ((0, 16, 1), 8, (0, 8, 1)),
        ((0, 16, 1), 32, (0, 16, 1)),
        ((0, 16, 1), 7, (0, 1, 1)),
        ((2, 4, 2), 8, (0, 4, 2)),
        ((0, 1, 8), 4, (0, 1, 4)),
    ):
        assert plan._mesh_for(mesh, devices) == expected


def test_a_run_begins_with_the_whole_study_s_cost(make_study, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    resolved = make_study(points=5, variants="standard,laser", seeds=2, **{"local.workers": 2})
    # 0.04 s a step of 32 (workloads/images/specs.py), 0.02 of 16: 3 + 2 rounds of 12 steps.
    assert plan.summary(resolved).startswith("whole study: 9 trials, 108 steps, about 1 s (")


def test_cores_that_the_input_needs(make_study):
    """1,024 images in 0.1 s, at 2.3 ms of a core each, are 23.6 cores."""
    entry = catalog.get("imagenet_vit")
    settings = {"batch_size": 1024, "loader_workers": 16}
    said = plan._input(entry, settings, 0.1)
    assert said.startswith("input: 10,240 images/s at 2.3 ms of a CPU core each take 23.6 cores")
    assert said.endswith("loader_workers is 16: too few, training will wait for its input")
    assert plan._input(entry, {**settings, "loader_workers": 24}, 0.1).endswith("is 24")
    assert "input:" not in plan.render(make_study(), step_seconds=1.0)


def test_cores_that_eight_h100s_need():
    """Of no GPU a time is known but its least: 26.47 ms are 38,685 images/s, 89 cores."""
    a_study = study.resolve(config.parse("imagenet_vit_paper", []), planning=True)

    def told(**settings):
        lines = plan.render(a_study, **settings).splitlines()
        return [line for line in lines if line.startswith("input")]

    budget, least = told()
    assert budget.startswith("input: 2,466 images/s at 2.3 ms")  # by AlgoPerf's budget
    assert least.startswith("input on h100:1x1x8, were a step no longer than its bytes take")
    assert least.endswith(
        "(0.0265 s): 38,685 images/s at 2.3 ms of a CPU core each take 89.0 cores of a trial's "
        "hosts"
    )
    too_few = "; loader_workers is 32: too few if steps were as short as that"
    assert told(topology="h100:1x1x8") == [least + too_few]
    assert [line[:13] for line in told(topology="v5e:2x4")] == ["input: 10,638"]
    assert [line[:13] for line in told(step_seconds=0.05)] == ["input: 20,480"]


SIZED = {name: entry.train_examples for name, entry in catalog.WORKLOADS.items()}


@pytest.mark.parametrize("name", [name for name, size in SIZED.items() if 0 < size < 1_048_576])
def test_a_batch_larger_than_the_training_split_is_refused(name):
    settings = {"workload": name, "steps": 2, "eval_every": 1, "variants": "standard"}
    for planning in (True, False):
        for size in (SIZED[name], SIZED[name] + 1):
            overrides = [f"--config.{key}={value}" for key, value in settings.items()]
            parsed = config.parse("digits_vit_quick", [*overrides, f"--config.batch_size={size}"])
            if size == SIZED[name]:
                study.resolve(parsed, planning=planning)
                continue
            with pytest.raises(ValueError, match=f"batch_size={SIZED[name]}"):
                study.resolve(parsed, planning=planning)


def test_the_time_of_a_step_is_in_proportion_to_its_batch(make_study):
    entry = catalog.get("digits_vit")
    hours = {}
    for size in (16, 32, 64):
        made = make_study(batch_size=size)
        text = plan.render(made)
        assert (f"scaled to {size}" in text) == (size != entry.batch_size)
        seconds, _ = entry.step_time(size)
        costs = plan.lines(made, plan.resources_of(made), seconds)
        hours[size] = sum(cost.hours for cost in costs)
        later = plan.later(made, [])
        assert later.step_seconds == seconds
        assert later.seconds["tune"] == pytest.approx(3600 * costs[1].wall_hours)
    assert hours[64] == pytest.approx(2 * hours[32]) == pytest.approx(4 * hours[16])
    assert catalog.get("c4_lm").step_time(512) == (None, "")


@pytest.mark.parametrize(
    ("name", "keys", "word"),
    [
        ("imagenet_vit_paper", {"data_dir": "/nowhere"}, "/nowhere"),
        ("algoperf_imagenet_vit_paper", {"algoperf_dir": "/nowhere"}, "/nowhere. Install AlgoPerf"),
        ("init2winit_vit_demo", {"init2winit_dir": "/nowhere", "data_dir": "/"}, "init2winit"),
        ("digits_vit_quick", {"data_dir": "/proc/x"}, "data_dir=/proc/x"),
        ("digits_vit_quick", {"experiment_dir": "/proc/x"}, "experiment_dir=/proc/x"),
        ("digits_vit_quick", {"kernel": "splash"}, "kernel"),
        ("digits_vit_quick", {"mesh.data": 3}, "(3, 1, 1) does not fit"),
    ],
)
def test_a_plan_says_what_run_would_refuse(name, keys, word, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    given = {"experiment_dir": str(tmp_path), **keys}
    overrides = [f"--config.{key}={value}" for key, value in given.items()]
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
    [other] = preflight.refusals(make_study(steps=8))
    assert "holds another study of that name" in other
    away = make_study(launcher="slurm", data_dir="/nowhere")
    assert any("not on this host" in line for line in preflight.refusals(away))
    # Other devices are asked about: this host's are no matter.
    assert preflight.refusals(make_study(**{"mesh.data": 3}), elsewhere=True) == []
