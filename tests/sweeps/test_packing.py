"""Packs: the same measurements as unpacked trials within rounding, and one trial's end is its own.

The models have one layer, for compilation is nearly all the time here; everything else is real.
"""

import dataclasses
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from attention import registry as variants
from sweeps.records import layout, lease, measurements, status
from sweeps.study import config, study, study_directory
from sweeps.training import loop, packed_step, packed_training, packs, train_step
from workloads import catalog
from workloads.base.options import Options
from workloads.images import image_workload, presets, vit
from workloads.text import language_models
from workloads.text import presets as text_presets
from workloads.text.specs import SIZES

pytestmark = pytest.mark.slow

# Relative. Largest measured over six steps: 4e-7 on images and text, 9e-7 on speech. That is
# rounding: first parameters that are one unit in the last place larger (2^-23) move the same
# numbers by 2e-7 (standard) to 5e-6 (laser).
TOLERANCE = 1e-5


def tiny_vit(variant="standard", **hyperparameters):
    """Returns the train step of digits_vit with one layer of width 16 on 16 tokens."""
    model = vit.ViT(
        num_classes=10,
        patch_size=8,
        width=16,
        depth=1,
        mlp_dim=32,
        num_heads=2,
        variant=variants.get(variant, **hyperparameters),
    )
    row = catalog.get("digits_vit")
    workload = image_workload.ImageWorkload(row, presets.DIGITS, model, Options())
    return train_step.TrainStep(workload, "nadamw")


def tiny_lm():
    options = Options(scan_layers=True)
    size = dataclasses.replace(SIZES["pydoc_lm"], width=32, vocabulary=64)
    row = catalog.get("pydoc_lm")
    workload = language_models.LMWorkload(
        row, variants.get("laser"), options, size, text_presets.PYDOC
    )
    return train_step.TrainStep(workload, "adamw")


def tiny_conformer():
    from workloads.speech import conformer, presets
    from workloads.speech.speech_workload import SpeechWorkload

    row, whole = catalog.get("spoken_digits_conformer"), presets.DIGITS
    sizes = {"encoder_dim": 16, "num_heads": 2, "num_layers": 1, "feed_forward_factor": 1}
    model = conformer.Config(
        vocab_size=whole.vocab_size,
        subsampling_channels=4,
        masks=presets._MASKS,
        **sizes,
    )
    data = dataclasses.replace(whole, max_audio=4000, max_targets=4)
    workload = SpeechWorkload(row, data, model, variants.get("laser"), Options())
    return train_step.TrainStep(workload, "nadamw")


# Made once: what the disk's tests compile is what the first case has compiled.
standard_vit = functools.cache(tiny_vit)
CASES = {
    "standard": standard_vit,
    "laser+qk_norm+temp": lambda: tiny_vit("laser+qk_norm+temp", tau=0.9),
    "diff": lambda: tiny_vit("diff"),
    "pydoc_lm laser, scanned": tiny_lm,
    "spoken_digits_conformer laser": tiny_conformer,
}


def _scalars(rate, dropout):
    point = {
        "learning_rate": rate,
        "one_minus_beta1": 0.1,
        "beta2": 0.99,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
        "label_smoothing": 0.1,
        "dropout_rate": dropout,
        "grad_clip": np.inf,
        "warmup_steps": 2.0,
        "step_hint": 20.0,
    }
    return {name: jax.numpy.float32(value) for name, value in point.items()}


def _batch(workload, seed, step):
    """Returns a batch of a seed and step: examples of the workload's shapes, in another order."""
    order = np.random.default_rng((seed, step)).integers(0, 4, 4)
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[order]), _examples(workload))


@functools.cache
def _examples(workload):
    return workload.example_batch(4)


POINTS = ((1e-3, 0.1), (3e-3, 0.0), (1e-2, 0.3))


def _unpacked(step_function, seeds, steps=6):
    """Returns losses and norms, [members, steps, 2]."""
    curves = []
    for seed, point in zip(seeds, POINTS, strict=True):
        state = step_function.first_state(seed)
        key = train_step.seed_key(seed, train_step.DROPOUT)
        curve = []
        for step in range(steps):
            arguments = _batch(step_function.workload, seed, step), _scalars(*point), key
            state, measured = step_function.compile(state, *arguments)(state, *arguments)
            curve.append([float(value) for value in measured])
        curves.append(curve)
    return np.asarray(curves)


def _packed(step_function, seeds, steps=6):
    packed = packed_step.of(step_function)
    state = packed.pack([step_function.first_state(seed) for seed in seeds])
    scalars = packed.stack([_scalars(*point) for point in POINTS])
    key = packed.keys(seeds)
    curve = []
    for step in range(steps):
        batches = [_batch(step_function.workload, seed, step) for seed in seeds]
        batch = batches[0] if len(set(seeds)) == 1 else packed.stack(batches)
        state, measured = packed.compile(state, batch, scalars, key)(state, batch, scalars, key)
        curve.append(np.stack(jax.device_get(measured), -1))
    return np.stack(curve, 1)


@pytest.mark.parametrize("case", CASES)
def test_packed_steps_equal_unpacked_ones(case):
    step_function = CASES[case]()
    seeds = (3, 5, 3)
    expected, got = _unpacked(step_function, seeds), _packed(step_function, seeds)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE)
    # Nobody was given another's seed or point: after an update all members differ.
    assert len({tuple(curve[1]) for curve in got}) == 3
    assert step_function.compilations == 2


def test_members_of_one_seed_share_its_batch_and_key():
    step_function = standard_vit()
    expected, got = _unpacked(step_function, (4, 4, 4)), _packed(step_function, (4, 4, 4))
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE)
    assert packed_step.of(step_function).keys((4, 4, 4)).shape == ()


class Folder:
    """Trials of a small study on disk by (point, seed): points 0 and 1 learn, 2 diverges."""

    def __init__(self, root, data_dir, name):
        self.data_dir = data_dir
        points = [{"learning_rate": rate} for rate in (1e-3, 3e-3, 1e30)]
        common = {"one_minus_beta1": 0.1, "beta2": 0.99, "weight_decay": 0.1, "warmup_factor": 0.0}
        space = root / "space.json"
        space.write_text(json.dumps([{**common, **point, "dropout_rate": 0.1} for point in points]))
        settings = {
            "name": name,
            "experiment_dir": root,
            "data_dir": data_dir,
            "protocol": "grid",
            "variants": "standard",
            "space": space,
            "points": 3,
            "seeds": 2,
            "batch_size": 4,
            "steps": 8,
            "eval_every": 4,
            "log_every": 1,
        }
        overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        resolved = study.resolve(config.parse("digits_vit_quick", overrides))
        study_directory.prepare(resolved)
        found = resolved.trials("grid")
        study_directory.materialise(resolved, "grid", found)
        self.records = {(trial.point, trial.seed): trial for trial in found}
        self.root = resolved.directory

    def path(self, place):
        return self.root / self.records[place].path

    def pack(self, places, report=lambda *_, **__: None, stop=lambda: False):
        """Runs a pack as a worker does; returns the outcomes."""
        claims = [lease.claim(self.path(place)) for place in places]
        outcomes = packed_training.PackedTraining(
            [self.records[place] for place in places],
            claims,
            standard_vit(),
            self.data_dir,
            report,
            stop,
        ).run()
        for claim, outcome in zip(claims, outcomes, strict=True):
            claim.end(outcome if isinstance(outcome, str) else "failed")
        return outcomes

    def single(self, place, stop=lambda: False):
        """Runs an unpacked trial; returns the outcome."""
        claim = lease.claim(self.path(place))
        run = loop.Training(
            self.records[place], claim, standard_vit(), self.data_dir, lambda *_, **__: None, stop
        )
        try:
            outcome = run.run()
        except loop.Preempted:
            outcome = "preempted"
        claim.end(outcome)
        return outcome

    def rows(self, place):
        """Returns the trial's measurements without times."""
        judged = ("kind", "global_step", "loss", "grad_norm", "train/", "validation/", "test/")
        return [
            {name: value for name, value in row.items() if name.startswith(judged)}
            for row in measurements.curve(self.path(place))
        ]


LEARNING = [(0, 0), (1, 1), (0, 1)]


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory, data_dir):
    return lambda name: Folder(tmp_path_factory.mktemp(name), data_dir, name)


@pytest.fixture(scope="module")
def alone(make_folder):
    """The trials, unpacked."""
    folder = make_folder("alone")
    for place in LEARNING:
        assert folder.single(place) == "done"
    assert folder.single((2, 0)) == "diverged"
    return folder


@pytest.fixture(scope="module")
def together(make_folder):
    """The learning trials as one pack, never interrupted."""
    folder = make_folder("together")
    assert folder.pack(LEARNING) == ["done"] * 3
    return folder


def _assert_equal_within_rounding(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert list(one) == list(other)
        assert one["kind"] == other["kind"]
        for name in set(one) - {"kind"}:
            # A rounding may turn one of 400 images over.
            tolerance = {"abs": 1 / 400} if "accuracy" in name else {"rel": TOLERANCE}
            assert one[name] == pytest.approx(other[name], **tolerance), (name, one, other)


def test_a_pack_leaves_what_unpacked_trials_leave(alone, together):
    for place in LEARNING:
        _assert_equal_within_rounding(together.rows(place), alone.rows(place))
        mine, theirs = (status.read(folder.path(place)) for folder in (together, alone))
        assert mine.keys() == theirs.keys()
        assert (mine["state"], mine["global_step"]) == ("done", 8)
        files = [
            sorted(path.name for path in folder.path(place).iterdir())
            for folder in (together, alone)
        ]
        assert files[0] == files[1]
        for file in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
            columns = [
                (folder.path(place) / file).read_text().splitlines()[0].split(",")
                for folder in (together, alone)
            ]
            assert sorted(columns[0]) == sorted([*columns[1], "packed_with"])
    curves = {json.dumps(together.rows(place)) for place in LEARNING}
    assert len(curves) == 3


def test_a_member_that_diverges_does_not_disturb_the_others(make_folder, alone, together):
    folder = make_folder("diverging")
    places = [(0, 0), (1, 1), (2, 0)]
    assert folder.pack(places) == ["done", "done", "diverged"]
    for place in places[:2]:
        assert folder.rows(place) == together.rows(place)
        evals = [row for row in measurements.curve(folder.path(place)) if row["kind"] == "eval"]
        assert [row["packed_with"] for row in evals] == [3, 2]
    mine, theirs = (status.read(one.path((2, 0))) for one in (folder, alone))
    assert (mine["state"], mine["reason"]) == (theirs["state"], theirs["reason"])
    assert mine["global_step"] == theirs["global_step"]


def test_a_packs_time_is_divided_among_those_that_still_train(make_folder, monkeypatch):
    """By a clock that moves 300 s at each look: 100 each for three, then 150 for two."""
    looks = itertools.count(0, 300)
    clock = types.SimpleNamespace(perf_counter=lambda: next(looks))
    monkeypatch.setattr(packed_training, "time", clock)
    folder = make_folder("divided")
    places = [(0, 0), (1, 1), (2, 0)]
    folder.pack(places)
    for place, seconds in zip(places, (250, 250, 100), strict=True):
        last = measurements.curve(folder.path(place))[-1]
        # A member's own is the copying of its slice.
        assert last["accumulated_submission_time"] == pytest.approx(seconds, abs=40)


@pytest.fixture
def sigterm():
    """Returns [asked to stop]; SIGTERM to this process sets it."""
    asked = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    yield asked
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def stopped(make_folder, sigterm, request):
    """The learning trials stopped by SIGTERM as a pack after the first evaluation: at step 5."""
    folder = make_folder(request.node.name.translate(str.maketrans(" []", "___")))
    last = str(folder.path(LEARNING[-1]))

    def report(name, event, **_):
        if (name, event) == (last, "eval"):
            os.kill(os.getpid(), signal.SIGTERM)

    outcomes = folder.pack(LEARNING, report, lambda: bool(sigterm))
    assert [type(outcome) for outcome in outcomes] == [loop.Preempted] * 3
    for place in LEARNING:
        found = status.read(folder.path(place))
        assert (found["state"], found["global_step"]) == ("pending", 5)
        assert found["reason"] == "preempted at step 5"
    return folder


def test_a_stopped_pack_goes_on_packed_or_unpacked(stopped, alone, together, tmp_path):
    kept = tmp_path / "kept"
    shutil.copytree(stopped.path((1, 1)), kept)
    assert stopped.pack(LEARNING) == ["done"] * 3
    for place in LEARNING:
        assert stopped.rows(place) == together.rows(place)  # bit for bit
    shutil.rmtree(stopped.path((1, 1)))
    shutil.copytree(kept, stopped.path((1, 1)))
    assert stopped.single((1, 1)) == "done"
    _assert_equal_within_rounding(stopped.rows((1, 1)), alone.rows((1, 1)))


def test_members_at_other_steps_run_apart(stopped, alone, together):
    """Three stand at step 5, one was stopped unpacked at step 1, one has not begun."""
    asked = iter([True])
    assert stopped.single((1, 0), lambda: next(asked)) == "preempted"
    steps = {}

    def report(name, event, **fields):
        if event == "compiled":
            steps[name] = fields["step"]

    places = [(1, 0), LEARNING[0], (2, 0), *LEARNING[1:]]
    assert stopped.pack(places, report) == ["done", "done", "diverged", "done", "done"]
    assert [steps[str(stopped.path(place))] for place in places] == [1, 5, 0, 5, 5]
    for place in LEARNING:
        assert stopped.rows(place) == together.rows(place)
    assert [row["global_step"] for row in stopped.rows((1, 0)) if row["kind"] == "eval"] == [4, 8]


def test_unpacked_trials_go_on_as_a_pack(make_folder, alone):
    folder = make_folder("resumed")
    for place in LEARNING:
        asked = iter([False, True])
        assert folder.single(place, lambda asked=asked: next(asked)) == "preempted"
    assert folder.pack(LEARNING) == ["done"] * 3
    for place in LEARNING:
        _assert_equal_within_rounding(folder.rows(place), alone.rows(place))


def test_a_stop_before_the_first_update_saves_nothing_and_loses_nothing(make_folder):
    folder = make_folder("unstarted")
    outcomes = folder.pack(LEARNING, stop=lambda: True)
    assert {type(outcome) for outcome in outcomes} == {loop.Preempted}
    assert status.read(folder.path((0, 0)))["reason"] == "preempted at step 0"


def _lose_the_lease(directory):
    shutil.copytree(directory / "attempts/1", directory / "attempts/2")


def _break_the_disk(directory):
    (directory / layout.STATUS).unlink()
    (directory / layout.STATUS).mkdir()


@pytest.mark.parametrize(
    ("fault", "problem"), [(_lose_the_lease, lease.LostError), (_break_the_disk, OSError)]
)
def test_one_members_fault_is_its_own(make_folder, together, fault, problem):
    folder = make_folder(fault.__name__)
    victim = str(folder.path((1, 1)))

    def report(name, event, **_):
        if (name, event) == (victim, "compiled"):
            fault(folder.path((1, 1)))

    first, broken, last = folder.pack(LEARNING, report)
    assert (first, last) == ("done", "done")
    assert isinstance(broken, problem)
    for place in ((0, 0), (0, 1)):
        assert folder.rows(place) == together.rows(place)


def test_a_checkpoint_of_another_model_is_its_trials_alone(make_folder, stopped, together):
    other = make_folder("other")
    shutil.copytree(stopped.path((1, 0)).parent, other.path((1, 0)).parent, dirs_exist_ok=True)
    shutil.copytree(
        stopped.path((0, 0)) / "checkpoints", other.path((1, 0)) / "checkpoints", dirs_exist_ok=True
    )
    *fine, broken = other.pack([*LEARNING, (1, 0)])
    assert fine == ["done"] * 3
    assert "belongs to trial" in str(broken)
    for place in LEARNING:
        assert other.rows(place) == together.rows(place)


def test_what_all_share_ends_all(make_folder, monkeypatch):
    folder = make_folder("shared")

    def broken(*_, **__):
        raise OSError("the data is gone")

    monkeypatch.setattr(standard_vit().workload, "_build_input_queue", broken)
    outcomes = folder.pack(LEARNING)
    assert [str(outcome) for outcome in outcomes] == ["the data is gone"] * 3


def _trials(make_study, **changes):
    return make_study(protocol="grid", points=3, seeds=4, **changes).trials("grid")


def test_packs_are_of_one_program_and_budget_even_and_in_order(make_study):
    trials = _trials(make_study)
    packed = packs.group(trials, 8)
    assert [len(pack) for pack in packed] == [6, 6, 6, 6]
    assert [trial for pack in packed for trial in pack] == trials
    assert all(len({trial.program for trial in pack}) == 1 for pack in packed)
    assert [len(pack) for pack in packs.group(trials[:12], 5)] == [4, 4, 4]
    assert [len(pack) for pack in packs.group(trials[:7], 5)] == [3, 4]
    assert packs.group(trials[:2], 1) == [(trials[0],), (trials[1],)]
    assert packs.group([], 8) == []
    for field in ("steps", "eval_every", "log_every", "checkpoint_every", "batch_size"):
        other = dataclasses.replace(trials[0], **{field: 1000})
        assert packs.group([trials[0], other], 8) == [(trials[0],), (other,)]
    # The schedule's horizon is traced.
    other = dataclasses.replace(trials[0], step_hint=1000, seed=9)
    assert packs.group([trials[0], other], 8) == [(trials[0], other)]
    with pytest.raises(ValueError, match="a pack of 0 trials"):
        packs.group(trials, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": "cudnn"}, "pack=8: unknown kernel 'cudnn'. Known: xla, jax_xla"),
        ({"mesh.fsdp": 2}, "mesh.fsdp=2.* divides one trial over several"),
        ({"pack": 0}, "pack is 0"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(changes, message):
    settings = {"pack": 8, "kernel": "xla", "mesh": {"data": 0, "fsdp": 1, "tensor": 1}}
    packs.check(settings)
    for key, value in changes.items():
        *outer, inner = key.split(".")
        (settings[outer[0]] if outer else settings)[inner] = value
    with pytest.raises(ValueError, match=message):
        packs.check(settings)


def test_a_process_with_several_devices_is_refused():
    mesh = types.SimpleNamespace(size=2)
    workload = types.SimpleNamespace(layout=types.SimpleNamespace(mesh=mesh))
    with pytest.raises(ValueError, match="a pack shares one device, and this process has 2"):
        packed_step.PackedStep(train_step.TrainStep(workload, "nadamw"))


def test_the_driver_groups_without_jax(environment):
    code = (
        "import sys; from sweeps.training import packs;"
        "assert not {'jax', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
