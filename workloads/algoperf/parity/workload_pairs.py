"""Pairs for the parity table: a workload of ours, and AlgoPerf's of the same name.

Both are driven by AlgoPerf's interface alone (`model_fn`, `loss_fn`), from the same parameters and
batches. Small pairs have the same classes at fewer layers, which compile in seconds.
"""

import contextlib
import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention import inject
from workloads import registry
from workloads.algoperf.installation import Installation
from workloads.base import spec

VITS = ("imagenet_vit", "imagenet_vit_glu", "imagenet_vit_map")
CONFORMERS = (
    "librispeech_conformer",
    "librispeech_conformer_gelu",
    "librispeech_conformer_layernorm",
    "librispeech_conformer_attention_temperature",
)
_SMALL_VIT = {"width": 48, "depth": 2, "mlp_dim": 96, "num_heads": 4}
# AlgoPerf's initialisation takes a batch of two utterances of 320,000 samples.
_SECOND = 16_000


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two: a workload object, and its word for training and evaluation."""

    workload: Any
    modes: Any
    variant: Any = None

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Puts the variant into AlgoPerf's model; ours has it built in."""
        if self.variant is None:
            return contextlib.nullcontext()
        return inject.injected(self.variant, depth=_depth)

    def initial(self, key: jax.Array, *example: jax.Array) -> tuple[Any, Any]:
        """Returns parameters and model state of the model as it is, small ones included.

        The key is split as both workloads' `init_model_fn` do it.
        """
        params_key, _ = jax.random.split(key)
        model = self.workload._model

        def init() -> Any:
            with self.context():
                return model.init({"params": params_key}, *example, train=False)

        state = dict(jax.jit(init)())
        return state.pop("params"), state

    def outputs(self, params: Any, state: Any, batch: Any, key: Any, **settings: Any) -> Any:
        """Returns loss, gradient, logits and model state of a training step, or of a forward pass.

        settings: `train`, `dropout_rate`, `update_batch_norm` (default: train), `gradient`.
        """
        return jax.jit(functools.partial(self._outputs, **settings))(params, state, batch, key)

    def _outputs(
        self,
        params: Any,
        state: Any,
        batch: Any,
        key: Any,
        train: bool = False,
        dropout_rate: float = 0.0,
        update_batch_norm: bool | None = None,
        gradient: bool = False,
    ) -> Any:
        mode = self.modes.TRAIN if train else self.modes.EVAL
        update = train if update_batch_norm is None else update_batch_norm

        def loss(params: Any) -> Any:
            with self.context():
                logits, new_state = self.workload.model_fn(
                    params, batch, state, mode, key, update, dropout_rate=dropout_rate
                )
            losses = self.workload.loss_fn(batch["targets"], logits)
            return losses["summed"] / losses["n_valid_examples"], (logits, new_state)

        if not gradient:
            return loss(params)
        return jax.value_and_grad(loss, has_aux=True)(params)


def valid(outputs: Any) -> Any:
    """Returns logits, of speech those of frames that are there, 0 elsewhere.

    With a variant, padded frames see no key and get 0 in our models, in AlgoPerf's what its own
    softmax gives, the mean of all frames; neither reaches another frame or the loss.
    """
    if not isinstance(outputs, tuple):
        return outputs
    logits, paddings = outputs
    return np.where(np.asarray(paddings)[..., None] > 0, 0, logits), paddings


@dataclasses.dataclass(frozen=True)
class Pair:
    """Ours and AlgoPerf's of one name."""

    name: str
    ours: Side
    theirs: Side

    @property
    def is_speech(self) -> bool:
        return self.name in CONFORMERS

    def examples(self) -> tuple[jax.Array, ...]:
        """Returns what models are initialised on; no parameter depends on its size."""
        if self.is_speech:
            return (jnp.zeros((1, _SECOND)), jnp.zeros((1, _SECOND)))
        return (jnp.ones((1, 32, 32, 3)),)

    def batch(self, size: int = 224) -> dict[str, Any]:
        """Returns two examples: images of `size` pixels, or padded speech of 3 and 2 seconds."""
        return _speech_batch() if self.is_speech else _image_batch(size)


def make(
    name: str, installation: Installation, *, variant: Any = None, small: bool = False
) -> Pair:
    """Returns the pair; AlgoPerf's model is built by its own `init_model_fn`, traced only."""
    ours = registry.make(name, variant)
    theirs = installation.make_workload(name)
    jax.eval_shape(theirs.init_model_fn, jax.random.PRNGKey(0))
    if small:
        shrink = _shrink_conformer if name in CONFORMERS else _shrink_vit
        shrink(ours, theirs)
    modes = importlib.import_module("algoperf.spec").ForwardPassMode
    return Pair(name, Side(ours, spec.ForwardPassMode), Side(theirs, modes, variant))


def _shrink_vit(ours: Any, theirs: Any) -> None:
    ours._model = ours._model.clone(**_SMALL_VIT)
    theirs._model = theirs._model.clone(**_SMALL_VIT)


def _shrink_conformer(ours: Any, theirs: Any) -> None:
    small = dataclasses.replace(ours._model.config, encoder_dim=64, num_heads=4, num_layers=2)
    ours._model = ours._model.clone(config=small)
    config = theirs._model.config.replace(
        encoder_dim=64, num_attention_heads=4, num_encoder_layers=2
    )
    theirs._model = theirs._model.clone(config=config)


def _depth(path: str) -> int:
    """A layer's index from its module's path, in AlgoPerf's names; the pooling head comes last."""
    numbers = [part.rpartition("_")[2] for part in path.split("/") if "block_" in part.lower()]
    return int(numbers[0]) if numbers else _SMALL_VIT["depth"]


def moved(params: Any, key: jax.Array) -> Any:
    """Returns parameters away from where they start: norms' factors, biases and heads too."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    noise = [0.05 * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [a + n for a, n in zip(leaves, noise, strict=True)])


def _image_batch(size: int) -> dict[str, Any]:
    images = jax.random.normal(jax.random.key(5), (2, size, size, 3))
    return {"inputs": images, "targets": jnp.asarray([3, 997])}


def _speech_batch() -> dict[str, Any]:
    draw = np.random.default_rng(6)
    audio = draw.integers(-3000, 3000, (2, 3 * _SECOND)).astype(np.float32)
    paddings = (np.arange(audio.shape[1]) >= np.asarray([[3 * _SECOND], [2 * _SECOND]])) * 1.0
    ids = draw.integers(1, 1024, (2, 256)) * 1.0
    beyond = (np.arange(256) >= np.asarray([[9], [5]])) * 1.0
    inputs = (jnp.asarray(audio * (1 - paddings)), jnp.asarray(paddings))
    return {"inputs": inputs, "targets": (jnp.asarray(ids * (1 - beyond)), jnp.asarray(beyond))}
