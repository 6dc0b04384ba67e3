"""Connectionist temporal classification: the loss per example, and greedy decoding.

Symbol 0 is the blank. Axes: B batch, T frames, U targets, V vocabulary.
"""

import jax
import jax.numpy as jnp
import optax

Array = jax.Array

BLANK = 0


def losses(logits: Array, logit_paddings: Array, targets: Array, target_paddings: Array) -> Array:
    """Returns -log p(targets | logits) in nats per example, float32 [B].

    logits [B, T, V]; targets [B, U]; paddings are 1 beyond the end. An example whose targets do
    not fit into its frames has no path: optax gives it about 1e5 instead of infinity.
    """
    per_example: Array = optax.ctc_loss(
        jax.nn.log_softmax(logits.astype(jnp.float32)),
        logit_paddings.astype(jnp.float32),
        targets.astype(jnp.int32),
        target_paddings.astype(jnp.float32),
        blank_id=BLANK,
    )
    return per_example


def greedy_decode(logits: Array, logit_paddings: Array) -> tuple[Array, Array]:
    """Returns the best symbol of every frame with repeats merged and blanks dropped.

    logits [B, T, V], logit_paddings [B, T], all padding at the end. The result is symbols int32
    [B, T], left-aligned and 0 beyond their lengths int32 [B].
    """
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    before = jnp.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=BLANK)
    kept = (best != before) & (best != BLANK) & (logit_paddings == 0)
    order = jnp.argsort(~kept, axis=-1, stable=True)
    lengths = jnp.sum(kept, axis=-1, dtype=jnp.int32)
    symbols = jnp.take_along_axis(best, order, axis=-1)
    return jnp.where(jnp.arange(best.shape[1]) < lengths[:, None], symbols, BLANK), lengths
