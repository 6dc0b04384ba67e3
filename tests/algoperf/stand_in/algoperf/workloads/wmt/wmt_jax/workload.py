"""An encoder and a decoder with cached decoding, called beside model_fn as AlgoPerf's are."""

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
    cached: bool

    @nn.compact
    def __call__(self, hidden, encoded, mask, cross_mask):
        attend = nn.MultiHeadDotProductAttention(num_heads=2, decode=self.cached)
        hidden = hidden + attend(hidden, hidden, mask=mask)
        return hidden + nn.MultiHeadDotProductAttention(num_heads=2)(
            hidden, encoded, mask=cross_mask
        )


class Transformer(nn.Module):
    """Token 0 is padding."""

    cached: bool

    def setup(self):
        self.embed = nn.Embed(CLASSES, WIDTH)
        self.encoder_block = EncoderBlock(name="encoderblock_0")
        self.decoder_block = DecoderBlock(self.cached, name="encoderdecoderblock_0")

    def encode(self, inputs):
        mask = nn.make_attention_mask(inputs > 0, inputs > 0)
        return self.encoder_block(self.embed(inputs.astype("int32")), mask)

    def decode(self, encoded, inputs, targets):
        targets = targets.astype("int32")
        if self.cached:
            mask = None
            cross = nn.make_attention_mask(jnp.ones_like(targets) > 0, inputs > 0)
        else:
            mask = nn.combine_masks(
                nn.make_attention_mask(targets > 0, targets > 0), nn.make_causal_mask(targets)
            )
            cross = nn.make_attention_mask(targets > 0, inputs > 0)
            targets = jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        hidden = self.decoder_block(self.embed(targets), encoded, mask, cross)
        return self.embed.attend(hidden)

    def __call__(self, inputs, targets):
        return self.decode(self.encode(inputs), inputs, targets)


class WmtWorkload(TinyWorkload):
    target_metric_name = "bleu"

    def make_model(self):
        return Transformer(cached=False)

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

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def initialize_cache(self, inputs, max_decode_len=LENGTH):
        model = Transformer(cached=True)
        ones = jnp.ones((inputs.shape[0], max_decode_len))
        return model.init(jax.random.PRNGKey(0), jnp.ones(inputs.shape), ones)["cache"]

    def predict_step(self, inputs, params, cache, eos_id, max_decode_len, beam_size=1):
        """The most likely words (0 to 2 are none), one after another."""
        model = Transformer(cached=True)
        encoded = model.apply({"params": params}, inputs, method=Transformer.encode)

        def step(state, _):
            token, cache = state
            logits, new = model.apply(
                {"params": params, "cache": cache},
                encoded,
                inputs,
                token,
                mutable=["cache"],
                method=Transformer.decode,
            )
            token = jnp.argmax(logits[..., 3:], -1) + 3
            return (token, new["cache"]), (token[:, 0], logits[:, 0])

        start = (jnp.zeros((inputs.shape[0], 1), jnp.int32), cache)
        _, (tokens, logits) = jax.lax.scan(step, start, None, length=max_decode_len)
        return jnp.swapaxes(tokens, 0, 1), jnp.swapaxes(logits, 0, 1)

    def _eval_model_on_split(self, split, batch_size, params, model_state, rng, data_dir):
        batch = next(self._build_input_queue(rng, split, data_dir, batch_size))
        cache = self.initialize_cache(batch["inputs"])
        self.predict_step(batch["inputs"], params, cache, 2, LENGTH)
        return self.eval_step(params, batch)
