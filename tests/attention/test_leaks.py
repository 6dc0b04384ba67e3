"""Mechanisms that leak break the law that `laws` names; their neighbours that do not break none."""

import dataclasses
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from attention import __main__ as command
from attention import records, registry, table
from attention.functions import Weighting, exponential
from attention.masks import Mask
from attention.mixers import standard
from attention.records import Leaf
from attention.verification import laws
from workloads import catalog

# All that hide a token.
HIDING = set(laws.LAWS) - {"batch"}
NOT_SEGMENTS = HIDING - {"segments"}
# A core may take keys that no query sees for 0, so that these two laws hold.
UNSEEN = {"padding", "head mask"}
SEEN = HIDING - UNSEEN
# Examples differ in what is later.
OTHERS = {"batch", "causality"}


def _last_value(call):
    last = call.value[..., -1:, :, :]
    return (Leaf("leaky/last", last.shape, lambda *_: last, is_learned=False),)


def _scale(start):
    return lambda call: (Leaf("leaky/scale", (), start),)


def _before(array, axis):
    """The array one place on, 0 in front."""
    front = jnp.zeros_like(jnp.take(array, jnp.asarray([0]), axis))
    rest = jnp.take(array, jnp.arange(array.shape[axis] - 1), axis)
    return jnp.concatenate([front, rest], axis)


def _next(array, tokens):
    """The array of the tokens one place on, at some tokens, elsewhere 0."""
    there = tokens(jnp.arange(array.shape[-3]))[:, None, None]
    return jnp.where(there, jnp.roll(array, -1, -3), 0)


def _one_head(mask):
    dense = mask.dense
    if dense is not None and dense.ndim > 2:
        dense = dense.any(-3, keepdims=True)
    return dataclasses.replace(mask, dense=dense)


def _largest(logits):
    return jax.nn.one_hot(logits.argmax(-1), logits.shape[-1])


SCORES = {
    "next key": (lambda s, c: s + 0.5 * jnp.roll(s, -1, -1), SEEN),
    "flipped queries": (lambda s, c: s + jnp.flip(s, -2), HIDING),
    "mean of queries": (lambda s, c: s - s.mean(-2, keepdims=True), HIDING),
    "running sum of queries from the end": (
        lambda s, c: s + jax.lax.cumsum(s, s.ndim - 2, reverse=True),
        HIDING,
    ),
    "largest logit": (lambda s, c: s + _largest(s), SEEN),
    "mean in a temperature": (lambda s, c: s * jnp.exp(s.mean(-1, keepdims=True)), SEEN),
    "key before": (lambda s, c: s + _before(s, s.ndim - 1), {"mask", "segments"}),
    "leaf of 0": (
        lambda s, c: s + c["leaky/scale"] * jnp.roll(s, -1, -1),
        SEEN,
        _scale(jax.nn.initializers.zeros),
    ),
    "leaf of 1": (
        lambda s, c: s + (1 - c["leaky/scale"]) * jnp.flip(s, -1),
        SEEN,
        _scale(jax.nn.initializers.ones),
    ),
    "sorted examples": (lambda s, c: jnp.sort(s, 0), OTHERS),
}
# By the argument of Call that they change.
INPUTS = {
    "sum of keys from the end": (
        "key",
        lambda call: jnp.tanh(jax.lax.cumsum(call.key, call.key.ndim - 3, reverse=True)),
        HIDING,
    ),
    "mean of x": (
        "query",
        lambda call: call.query + call.x.mean((-2, -1))[..., None, None, None],
        {"causality", "padding", "segments"},
        "x",
    ),
    "memory": (
        "value",
        lambda call: call.value + jnp.flip(call.memory["leaky"], -3),
        HIDING,
        "memory",
    ),
    "no gradient": (
        "value",
        lambda call: call.value + jax.lax.stop_gradient(jnp.flip(call.value, -3)),
        HIDING,
    ),
    "signs": ("value", lambda call: call.value * jnp.sign(jnp.roll(call.value, -1, -3)), HIDING),
    "causality alone": ("mask", lambda call: Mask(call.mask.causal), HIDING - {"causality"}),
    "no segments": (
        "mask",
        lambda call: dataclasses.replace(call.mask, segments=None),
        {"segments"},
    ),
    "one mask for all heads": ("mask", lambda call: _one_head(call.mask), {"head mask"}),
    "norm over examples": (
        "key",
        lambda call: call.key / jnp.linalg.norm(call.key, axis=0),
        OTHERS,
    ),
}
OUTPUTS = {
    "next output": (lambda out, call, c: out + jnp.roll(out, -1, -3), HIDING),
    "centred outputs": (lambda out, call, c: out - out.mean(-3, keepdims=True), HIDING),
    "next values of odd tokens from 33 on": (
        lambda out, call, c: out + _next(call.value, lambda t: (t > 32) & (t % 2 == 1)),
        NOT_SEGMENTS,
    ),
    "tiny values": (
        lambda out, call, c: out + (jnp.abs(_next(call.value, lambda t: t < 79)) < 1e-3),
        HIDING,
    ),
    "sorted outputs": (lambda out, call, c: jnp.sort(out, -3), HIDING),
    "sum of values": (lambda out, call, c: out + jnp.cumsum(jnp.flip(call.value, -3), -3), HIDING),
    "constant leaf": (
        lambda out, call, c: out + c["leaky/last"],
        UNSEEN | {"causality"},
        _last_value,
    ),
    "rolled examples": (lambda out, call, c: out + jnp.roll(out, 1, 0), OTHERS),
}


def _weighted(scale):
    """A softmax times a function of its logits."""
    return {"weighting": Weighting(lambda s, top: exponential(s, top) * scale(s), exponential)}


MIXERS = {
    "mean of weights": (_weighted(lambda s: s.mean(-2, keepdims=True)), NOT_SEGMENTS),
    "sorted weights": (_weighted(lambda s: jnp.sort(s, -2)), NOT_SEGMENTS),
    "weights of examples": (_weighted(lambda s: jnp.tanh(s.mean(0))), OTHERS),
    "rolled values": ({"values": lambda value: jnp.roll(value, -1, -3)}, HIDING),
    "mean of values": (
        {"mean": lambda weigh, value, masks, **_: weigh(value) * value.mean(-3, keepdims=True)},
        SEEN,
    ),
    "output of examples": (
        {"output": lambda out, call, leaves: out * call.value.mean(0)},
        OTHERS,
    ),
}


def _add(monkeypatch, record, needs=()):
    """Registers a mixer or modifier as `leaky`. Returns the variant's name."""
    kind = type(record).__name__
    module = types.ModuleType(f"attention.{kind.lower()}s.leaky")
    setattr(module, kind.upper(), record)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    line = getattr(table, f"{kind}Entry")("leaky", "formula", "a test", needs=needs)
    monkeypatch.setitem(getattr(table, f"{kind.upper()}S"), "leaky", line)
    return "leaky" if kind == "Mixer" else "standard+leaky"


def _score(function, *leaves):
    """Returns a modifier of the score by a function of logits and leaves."""

    def apply(logits, query_index, key_index, leaves):
        return function(logits, leaves)

    return records.Modifier("score", apply, apply, *leaves)


def _check(name, expected):
    broken = {leak.law for leak in laws.measure(registry.get(name))}
    assert expected <= broken <= expected | UNSEEN


@pytest.mark.parametrize("name", SCORES)
def test_a_score_that_leaks(monkeypatch, name):
    function, broken, *leaves = SCORES[name]
    _check(_add(monkeypatch, _score(function, *leaves)), broken)


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_leak(monkeypatch, name):
    field, function, broken, *needs = INPUTS[name]
    keeps = jnp.zeros_like if "memory" in needs else None

    def apply(call, leaves):
        return call._replace(**{field: function(call)})

    name = _add(monkeypatch, records.Modifier("inputs", apply, apply, keeps=keeps), needs)
    _check(name, broken)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_leaks(monkeypatch, name):
    function, broken, *leaves = OUTPUTS[name]
    leaky = records.Modifier("output", function, function, *leaves)
    _check(_add(monkeypatch, leaky), broken)


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_that_leaks(monkeypatch, name):
    changes, broken = MIXERS[name]
    _check(_add(monkeypatch, dataclasses.replace(standard.MIXER, **changes)), broken)


def test_a_key_may_hold_the_token_before_in_a_causal_model(monkeypatch):
    """Which no other model is given. It keeps all laws that are asked of it."""

    def apply(call, leaves):
        half = call.key.shape[-1] // 2
        moved = _before(call.key[..., half:], call.key.ndim - 3)
        return call._replace(key=jnp.concatenate([call.key[..., :half], moved], -1))

    shift = records.Modifier("inputs", apply, apply)
    name = _add(monkeypatch, shift, ("self", "causal"))
    assert not laws.measure(registry.get(name))
    assert set(laws.asked(registry.get(name))) == set(laws.LAWS) - {"mask", "segments"}
    assert laws.measure(registry.get(name), ("segments",))  # of a study with document_mask
    with pytest.raises(ValueError, match="digits_vit.*'leaky' needs causal attention"):
        catalog.check_variant("digits_vit", name)
    _add(monkeypatch, shift, ("self",))
    _check(name, {"mask", "segments"})


def test_a_leaf_that_starts_at_1_may_be_one_of_positive_numbers(monkeypatch):
    scale = _scale(jax.nn.initializers.ones)
    name = _add(monkeypatch, _score(lambda s, c: s + jnp.log(c["leaky/scale"]), scale))
    assert not laws.problem(registry.get(name))


@pytest.mark.parametrize("name", ["standard+fox", "stick_breaking"])
def test_what_hides_the_future_itself(name):
    assert laws.hides_future(registry.get(name))
    assert laws.asked(registry.get(name)) == list(laws.LAWS)


def test_the_command_measures_the_laws(monkeypatch, capsys):
    name = _add(monkeypatch, _score(SCORES["next key"][0]))
    assert command.main(["check", name, "standard+temp", "--kernels=xla", "--shape=8,2,4"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"{name}: outputs see later keys: 0.")
    assert lines[2].startswith("standard+temp: keeps ")
    assert not any(line.startswith(f"{name} ") for line in lines)  # no row of errors


def test_a_weighting_that_is_refused_is_a_variant_that_fails(monkeypatch, capsys):
    def weights(logits, s):
        raise ValueError("promise")

    mixer = dataclasses.replace(standard.MIXER, weighting=Weighting(weights, exponential))
    name = _add(monkeypatch, mixer)
    assert command.main(["check", name, "--kernels=xla", "--shape=8,2,4"]) == 1
    assert f"{name}: promise" in capsys.readouterr().out
