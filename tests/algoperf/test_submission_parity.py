"""Our submission against AlgoPerf's own NAdamW; skips where AlgoPerf is not installed."""

import collections
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps import optimizers, space
from workloads.algoperf import installation

try:
    ALGOPERF = installation.find()
    ALGOPERF.module("algoperf.spec")
except installation.AlgoPerfMissingError as missing:
    pytest.skip(f"AlgoPerf is not installed: {missing}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and its libraries' own

HORIZON = 100


class Regression:
    """A workload's part that a submission sees: two layers, cross entropy, fixed batches."""

    step_hint = HORIZON
    metrics_logger = None

    def init(self):
        keys = jax.random.split(jax.random.PRNGKey(0), 2)
        shapes = {"first": (12, 16), "second": (16, 5)}
        params = {
            name: {"kernel": jax.random.normal(key, shape) / 4, "bias": jnp.zeros(shape[1])}
            for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        from algoperf import param_utils

        self.param_shapes = param_utils.jax_param_shapes(params)
        return params

    def model_fn(self, params, batch, model_state, mode, rng, update_batch_norm, dropout_rate):
        from algoperf import spec

        assert mode is spec.ForwardPassMode.TRAIN
        assert update_batch_norm
        hidden = jnp.tanh(batch["inputs"] @ params["first"]["kernel"] + params["first"]["bias"])
        kept = jax.random.bernoulli(rng, 1 - dropout_rate, hidden.shape)
        hidden = jnp.where(kept, hidden / (1 - dropout_rate), 0)
        return hidden @ params["second"]["kernel"] + params["second"]["bias"], None

    def loss_fn(self, label_batch, logits_batch, mask_batch, label_smoothing):
        targets = (1 - label_smoothing) * jax.nn.one_hot(label_batch, 5) + label_smoothing / 5
        losses = -(targets * jax.nn.log_softmax(logits_batch)).sum(-1)
        return {"summed": losses.sum(), "n_valid_examples": len(losses), "per_example": losses}


def _theirs():
    path = ALGOPERF.directory / "algorithms/baselines/external_tuning/jax_nadamw_full_budget.py"
    spec = importlib.util.spec_from_file_location("nadamw_of_algoperf", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _train(submission, point, steps):
    hyperparameters = collections.namedtuple("Hyperparameters", point)(**point)
    workload = Regression()
    params, model_state = workload.init(), {}
    state = submission.init_optimizer_state(workload, params, model_state, hyperparameters, None)
    for step in range(steps):
        key = jax.random.fold_in(jax.random.PRNGKey(1), step)
        inputs = jax.random.normal(key, (8, 12))
        batch = {"inputs": inputs, "targets": jax.random.randint(key, (8,), 0, 5)}
        state, params, model_state = submission.update_params(
            workload, params, None, model_state, hyperparameters, batch, None, state, [], step, key
        )
    return params, state


@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_fifty_steps_give_algoperfs_parameters(number, clip):
    from sweeps import algoperf_submission

    point = space.points(space.load("paper_nadamw"), 8)[number]
    if clip:
        point["grad_clip"] = clip
    expected, _ = _train(_theirs(), point, 50)
    found, (_, update) = _train(algoperf_submission, point, 50)
    assert update.compilations == 1
    for (path, one), two in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        difference = np.linalg.norm(one - two) / np.linalg.norm(two)
        assert difference <= 1e-6, path


@pytest.mark.parametrize("horizon", [100, 7919, 76_000, 167_999])
def test_the_learning_rate_over_the_whole_horizon(horizon):
    import optax

    factor, peak = 0.05, 3e-3
    warmup = int(factor * horizon)
    theirs = optax.join_schedules(
        [
            optax.linear_schedule(0.0, peak, warmup),
            optax.cosine_decay_schedule(peak, max(horizon - warmup, 1)),
        ],
        [warmup],
    )
    steps = jnp.arange(horizon + 10)
    scalars = {"learning_rate": jnp.float32(peak), "warmup_steps": jnp.float32(warmup),
               "step_hint": jnp.float32(horizon)}  # fmt: skip
    ours = jax.vmap(lambda step: optimizers.learning_rate(step, scalars))(steps)
    difference = np.abs(ours - jax.vmap(theirs)(steps)).max() / peak
    assert difference <= 1e-6


@pytest.mark.parametrize("count", [5, 50])
def test_the_papers_points_are_algoperfs_as_a_set(count):
    from algoperf import halton

    raw = space.load("paper_nadamw")
    theirs = halton.generate_search(json.loads(json.dumps(raw)), count)
    expected = sorted(tuple(sorted(point._asdict().items())) for point in theirs)
    found = sorted(tuple(sorted(point.items())) for point in space.points(raw, count))
    assert [[name for name, _ in point] for point in found] == [
        [name for name, _ in point] for point in expected
    ]
    np.testing.assert_allclose(
        [[value for _, value in point] for point in found],
        [[value for _, value in point] for point in expected],
        rtol=1e-12,
    )
