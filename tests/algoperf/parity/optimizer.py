"""Parity of training: our NAdamW submission, its schedule and the Halton points."""

import collections
import functools
import json
import runpy
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sweeps.algoperf import submission as our_submission
from sweeps.study import space
from sweeps.training import optimizers
from tests.algoperf.parity.workload_pairs import Row, largest, norm_ratio
from workloads.algoperf.installation import Installation

_THEIRS = "algorithms/baselines/external_tuning/jax_nadamw_full_budget.py"
_SPACE = "paper_nadamw"
STEPS = 50
# The first point, and one of a larger rate; without clipping, and with one that clips.
CASES = ((0, None), (7, None), (0, 0.5), (7, 0.5))
# A short one, an odd one, and the step hints of librispeech_conformer and imagenet_vit.
HORIZONS = (100, 7919, 76_000, 167_999)
_BATCH, _WIDTH, _CLASSES = 8, 12, 5
# Sums of float32's roundings, 6e-8 each; Halton points are float64.
_SINGLE, _DOUBLE = 1e-6, 1e-12


class Regression:
    """What a submission sees of a workload: two layers, cross entropy, batches made from a key."""

    metrics_logger = None

    def __init__(self, step_hint: int = 100) -> None:
        self.step_hint = step_hint
        self.param_shapes: Any = None

    def init(self) -> Any:
        """Returns the first parameters, and leaves their shapes where AlgoPerf looks for them."""
        from algoperf import param_utils

        keys = jax.random.split(jax.random.PRNGKey(0), 2)
        shapes = {"first": (_WIDTH, 16), "second": (16, _CLASSES)}
        params = {
            name: {"kernel": jax.random.normal(key, shape) / 4, "bias": jnp.zeros(shape[1])}
            for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        self.param_shapes = param_utils.jax_param_shapes(params)
        return params

    def model_fn(
        self,
        params: Any,
        batch: Any,
        model_state: Any,
        mode: Any,
        rng: Any,
        update_batch_norm: bool,
        dropout_rate: Any,
    ) -> tuple[Any, Any]:
        """Returns logits [B, 5] and no model state; dropout after the first layer."""
        from algoperf import spec

        assert mode is spec.ForwardPassMode.TRAIN
        assert update_batch_norm
        hidden = jnp.tanh(batch["inputs"] @ params["first"]["kernel"] + params["first"]["bias"])
        kept = jax.random.bernoulli(rng, 1 - dropout_rate, hidden.shape)
        hidden = jnp.where(kept, hidden / (1 - dropout_rate), 0)
        return hidden @ params["second"]["kernel"] + params["second"]["bias"], None

    def loss_fn(
        self, label_batch: Any, logits_batch: Any, mask_batch: Any, label_smoothing: Any
    ) -> dict[str, Any]:
        """Returns the cross entropy as AlgoPerf's workloads do; nothing is masked."""
        smoothed = label_smoothing / _CLASSES
        targets = (1 - label_smoothing) * jax.nn.one_hot(label_batch, _CLASSES) + smoothed
        losses = -(targets * jax.nn.log_softmax(logits_batch)).sum(-1)
        return {"summed": losses.sum(), "n_valid_examples": len(losses), "per_example": losses}


def update_rows(installation: Installation) -> Iterator[Row]:
    """Yields the parameters after 50 updates by both submissions, the leaf that differs most."""
    for number, clip in CASES:
        point = space.points(space.load(_SPACE), number + 1)[number]
        if clip:
            point["grad_clip"] = clip
        ours, (_, update) = _train(our_submission, point)
        theirs, _ = _train(_baseline(installation), point)
        difference = float(np.max(jax.tree.leaves(jax.tree.map(norm_ratio, ours, theirs))))
        about = f"Halton point {number}, " + (f"clipping at {clip}" if clip else "no clipping")
        yield Row("NAdamW", f"parameters after {STEPS} updates, {about}", difference, _SINGLE)
        yield Row("NAdamW", "compilations of the step beyond one", update.compilations - 1, 0)


def _baseline(installation: Installation) -> Any:
    """Returns AlgoPerf's submission, executed anew from its file."""
    return types.SimpleNamespace(**runpy.run_path(str(installation.directory / _THEIRS)))


def _train(submission: Any, point: dict[str, float]) -> tuple[Any, Any]:
    """Returns parameters and optimizer state after `STEPS` updates, as the runner makes them."""
    hyperparameters = _named(point)
    workload = Regression()
    params: Any = workload.init()
    model_state: Any = {}
    state = submission.init_optimizer_state(workload, params, model_state, hyperparameters, None)
    for step in range(STEPS):
        key = jax.random.fold_in(jax.random.PRNGKey(1), step)
        inputs = jax.random.normal(key, (_BATCH, _WIDTH))
        targets = jax.random.randint(key, (_BATCH,), 0, _CLASSES)
        batch = {"inputs": inputs, "targets": targets}
        state, params, model_state = submission.update_params(
            workload, params, None, model_state, hyperparameters, batch, None, state, [], step, key
        )
    return jax.device_get(params), state


def _named(point: dict[str, float]) -> Any:
    return collections.namedtuple("Hyperparameters", point)(**point)


def schedule_rows(installation: Installation) -> Iterator[Row]:
    """Yields the learning rate of every update of a horizon, and of ten beyond, over its peak."""
    for horizon in HORIZONS:
        point = space.points(space.load(_SPACE), 1)[0]
        steps = jnp.arange(horizon + 10)
        theirs = jax.vmap(_schedule(installation, point, horizon))(steps)
        ours = jax.vmap(functools.partial(_our_rate, point=point, horizon=horizon))(steps)
        difference = float(np.abs(ours - theirs).max() / point["learning_rate"])
        yield Row("learning rate", f"{horizon:,} updates and 10 more", difference, _SINGLE)


def _schedule(installation: Installation, point: dict[str, float], horizon: int) -> Any:
    """Returns AlgoPerf's learning rate, which its submission passes to its optimizer alone."""
    submission = _baseline(installation)
    settings: dict[str, Any] = {}
    workload = Regression(horizon)
    workload.init()

    def nadamw(**named: Any) -> Any:
        settings.update(named)
        return original(**named)

    namespace = submission.init_optimizer_state.__globals__
    original, namespace["nadamw"] = namespace["nadamw"], nadamw
    submission.init_optimizer_state(workload, None, None, _named(point), None)
    return settings["learning_rate"]


def _our_rate(step: jax.Array, point: dict[str, float], horizon: int) -> jax.Array:
    values = our_submission.scalars_of(_named(point), horizon)
    scalars = {name: jnp.float32(value) for name, value in values.items()}
    return optimizers.learning_rate(step, scalars)


def point_rows(installation: Installation) -> Iterator[Row]:
    """Yields the search's points as a set: AlgoPerf shuffles them without a seed."""
    halton = installation.module("algoperf.halton")
    raw = space.load(_SPACE)
    for count in (5, 50):
        # Theirs changes the space it is given.
        drawn = halton.generate_search(json.loads(json.dumps(raw)), count)
        theirs = _sorted([point._asdict() for point in drawn])
        ours = _sorted(space.points(raw, count))
        difference = largest(
            jax.tree.map(np.divide, ours, theirs), jax.tree.map(np.ones_like, ours)
        )
        yield Row("Halton", f"{count} points of {_SPACE}, as a set", difference, _DOUBLE)


def _sorted(points: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Returns the values of each hyperparameter, by name; points in the order of their values."""
    names = sorted(points[0])
    values = sorted([point[name] for name in names] for point in points)
    return dict(zip(names, np.asarray(values).T, strict=True))
