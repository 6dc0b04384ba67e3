"""An encoder and a decoder; methods call the model beside model_fn as AlgoPerf's do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from algoperf.workloads.base import CLASSES, TinyWorkload

LENGTH = 6
WIDTH = 8


class EncoderBlock(nn.Module):
    @nn.compact
    def __call__(self, hidden, mask):
        return hidden + nn.MultiHeadDotProductAttention(num_heads=2)(hidden, hidden, mask=mask)


class DecoderBlock(nn.Module):
    @nn.compact
    def __call__(self, hidden, encoded, mask, cross_mask):
        hidden += nn.MultiHeadDotProductAttention(num_heads=2)(hidden, hidden, mask=mask)
        return hidden + nn.MultiHeadDotProductAttention(num_heads=2)(
            hidden, encoded, mask=cross_mask
        )


class Transformer(nn.Module):
    """Token 0 is padding."""

    @nn.compact
    def __call__(self, inputs, targets):
        inputs, targets = inputs.astype("int32"), targets.astype("int32")
        embed = nn.Embed(CLASSES, WIDTH)
        padding = nn.make_attention_mask(inputs > 0, inputs > 0)
        encoded = EncoderBlock(name="encoderblock_0")(embed(inputs), padding)
        mask = nn.combine_masks(
            nn.make_attention_mask(targets > 0, targets > 0), nn.make_causal_mask(targets)
        )
        cross = nn.make_attention_mask(targets > 0, inputs > 0)
        decoder = DecoderBlock(name="encoderdecoderblock_0")
        shifted = jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        return embed.attend(decoder(embed(shifted), encoded, mask, cross))


class WmtWorkload(TinyWorkload):
    target_metric_name = "bleu"

    def make_model(self):
        return Transformer()

    def example(self):
        return jnp.ones((2, LENGTH)), jnp.ones((2, LENGTH))

    def logits(self, params, batch):
        return self._model.apply({"params": params}, batch["inputs"], batch["targets"])

    def draw(self, draws, size):
        words = draws.integers(3, CLASSES, (size, LENGTH))
        words[:, -1] = 0
        return {"inputs": words, "targets": words, "weights": np.asarray(words > 0, np.float32)}

    @functools.partial(jax.jit, static_argnums=(0,))
    def eval_step(self, params, batch):
        logits = self.logits(params, batch)
        hits = jnp.mean((jnp.argmax(logits, -1) == batch["targets"]) * batch["weights"])
        loss = self.loss_fn(batch["targets"], logits, batch["weights"])["summed"]
        return {"bleu": hits, "loss": loss}

    @functools.partial(jax.jit, static_argnums=(0,))
    def initialize_cache(self, inputs):
        return self._model.init(jax.random.PRNGKey(0), inputs, inputs)

    def predict_step(self, inputs, params):
        return self.logits(params, {"inputs": inputs, "targets": inputs})

    def _eval_model_on_split(self, split, batch_size, params, model_state, rng, data_dir):
        batch = next(self._build_input_queue(rng, split, data_dir, batch_size))
        self.initialize_cache(batch["inputs"])
        self.predict_step(batch["inputs"], params)
        return self.eval_step(params, batch)
