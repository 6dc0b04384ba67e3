"""One contract over every registry entry, and the door's answers to bad input."""

import inspect
import json
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import __main__ as command
from attention import inject, records, registry, table
from attention.call import Call, LayerIndex
from attention.kernels import core
from attention.verification import check, reference
from tests.attention import no_ops

ALL = registry.names()
# Every mixer alone, and each modifier with one; then many modifiers together.
CHOSEN = [
    *table.MIXERS,
    *(f"laser+{modifier}" for modifier in table.MODIFIERS),
    "diff+gate+per_dim_temp+qk_norm+rope+sink+softcap+temp+value_residual+window",
    "diff2_laser+alibi+gate+qk_rms_norm+sink+ssmax+xsa",
]


def _variant(name, **settings):
    tau = {"tau": 0.8} if "temp" in table.parse(name)[1] else {}
    width = {"width": 3} if "window" in table.parse(name)[1] else {}
    return registry.get(name, **tau, **width, **settings)


class _Host(nn.Module):
    """One layer, the second of a model, and what its variant needs."""

    variant: object
    settings: tuple = ()

    @nn.compact
    def __call__(self, inputs, mask=None):
        settings = dict(self.settings)
        values = jnp.ones((*inputs.shape[:-1], 2, inputs.shape[-1] // 2), inputs.dtype)
        memory = self.variant.empty_memory(values.astype(settings.get("dtype", inputs.dtype)))
        memory = {name: array + 1 for name, array in memory.items()}
        function = inject.AttentionFunction(self.variant, 1, inputs, memory)
        layer = nn.MultiHeadDotProductAttention(
            num_heads=2, attention_fn=function, name="layer", **settings
        )
        return layer(inputs, mask=mask)


def _host(variant, **settings):
    return _Host(variant, tuple(settings.items()))


@pytest.fixture
def inputs():
    return jnp.asarray(np.random.default_rng(0).standard_normal((3, 7, 16)), jnp.float32)


def test_names_are_canonical_unique_and_hold_the_paper_rows():
    normalised = sum(entry.normalised for entry in table.MIXERS.values())
    takers = sum(entry.takes_weight for entry in table.MODIFIERS.values())
    refused = (len(table.MIXERS) - normalised) * takers
    assert len(ALL) == len(set(ALL)) == len(table.MIXERS) * (1 + len(table.MODIFIERS)) - refused
    assert all(table.canonical(name) == name for name in ALL)
    assert set(table.PAPER_ROWS) <= set(ALL)
    assert len(table.PAPER_ROWS) == 8
    assert table.DIFF_ROWS == ("diff", "diff_laser")


@pytest.mark.parametrize("name", CHOSEN)
def test_contract(name, inputs):
    """Every entry: identity, what each part of it changes, shape, dtype, mask, gradients, vmap."""
    assert no_ops.find(name) == []
    variant = _variant(name)
    assert variant.name == name
    assert variant == _variant(name)
    assert hash(variant) == hash(_variant(name))
    assert registry.get(variant.name, **variant.hyperparameters) == variant
    with pytest.raises(AttributeError):
        variant.tau = 2.0
    host = _host(variant)
    params = host.init(jax.random.key(0), inputs)
    mask = jnp.tril(jnp.ones((7, 7), bool))

    def loss(params, inputs):
        return jnp.sum(jnp.sin(host.apply(params, inputs, mask=mask)))

    output = host.apply(params, inputs, mask=mask)
    assert output.shape == inputs.shape
    assert output.dtype == inputs.dtype
    changed = host.apply(params, inputs.at[:, 4:].add(1.0), mask=mask)
    np.testing.assert_allclose(output[:, :4], changed[:, :4], atol=1e-6)
    assert np.abs(output - changed)[:, 4:].max() > 1e-3
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.grad(loss)(params, inputs)):
        assert np.isfinite(leaf).all(), path
        # A key's bias shifts all logits of a row alike, which a softmax of them alone does not see.
        if "['key']['bias']" not in jax.tree_util.keystr(path):
            assert np.abs(leaf).max() > 0, path
    mapped = jax.vmap(lambda x: host.apply(params, x[None], mask=mask)[0])(inputs)
    np.testing.assert_allclose(mapped, output, atol=1e-6)
    bf16 = _host(variant, dtype=jnp.bfloat16).apply(params, inputs, mask=mask)
    assert bf16.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(bf16, np.float32), output, atol=0.05)


@pytest.mark.parametrize("name", CHOSEN)
def test_direct_attention_fn_and_injection_agree(name, inputs):
    """Of a first layer; injected, its input, index and memory come by themselves."""
    variant = _variant(name)
    function = inject.AttentionFunction(variant, 0, inputs, {})
    direct = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=function)
    params = direct.init(jax.random.key(0), inputs)
    function.memory = {}
    expected = direct.apply(params, inputs)
    plain = nn.MultiHeadDotProductAttention(num_heads=2)
    with inject.injected(variant, layer=lambda path: 0):
        injected_params = plain.init(jax.random.key(0), inputs)
        output = plain.apply(injected_params, inputs)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, injected_params))
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("mixer", ["standard", "laser"])
def test_learned_modifiers_start_where_they_should(mixer, inputs):
    """per_dim_temp is exactly its mixer at initialisation; qk_norm normalises to unit variance."""
    plain = _host(_variant(mixer))
    params = plain.init(jax.random.key(1), inputs)
    temp = _host(_variant(f"{mixer}+per_dim_temp"))
    temp_params = temp.init(jax.random.key(1), inputs)
    own, added = params["params"]["layer"], temp_params["params"]["layer"]
    assert set(added) - set(own) == {"per_dim_temp"}
    assert added["per_dim_temp"]["scale"].shape == (8,)
    np.testing.assert_allclose(
        temp.apply(temp_params, inputs), plain.apply(params, inputs), rtol=1e-6, atol=1e-7
    )
    normed = _host(_variant(f"{mixer}+qk_norm")).init(jax.random.key(1), inputs)["params"]["layer"]
    assert set(normed) - set(own) == {"query_ln", "key_ln"}
    for name in ("query_ln", "key_ln"):
        assert list(normed[name]) == ["scale"]
        np.testing.assert_array_equal(normed[name]["scale"], np.zeros(8))


def test_qk_norm_by_hand():
    """Head (3, 1): mean 2, sd 1, so ±1/√(1 + 1e-6), times 1 + scale."""
    head = jnp.asarray([3.0, 1.0]).reshape(1, 1, 2)
    leaves = {"query_ln/scale": jnp.asarray([0.0, 1.0]), "key_ln/scale": jnp.zeros(2)}
    normed = records.modifier("qk_norm").apply(Call(head, head, head), leaves)
    expected = np.array([[1.0, -2.0], [1.0, -1.0]]) / np.sqrt(1 + 1e-6)
    np.testing.assert_allclose(normed.query[0, 0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(normed.key[0, 0], expected[1], rtol=1e-6)


def test_per_dim_temp_by_hand():
    """Factor 1.442695041·ln(1 + e^p): 1 at p = 0, 1.8946 at p = 1."""
    call = Call(*(jnp.ones((1, 1, 2)) for _ in "qkv"))
    leaves = {"per_dim_temp/scale": jnp.asarray([0.0, 1.0])}
    factor = records.modifier("per_dim_temp").apply(call, leaves).query[0, 0]
    np.testing.assert_allclose(factor, [1.0, np.log(1 + np.e) / np.log(2)], rtol=1e-6)


def test_temperature_divides_the_logits(inputs):
    """τ = 2 with doubled queries is τ = 1."""
    query = inputs.reshape(3, 7, 2, 8)
    double = registry.get("laser+temp", tau=2.0)(2 * query, query, query)
    np.testing.assert_allclose(double, registry.get("laser")(query, query, query), atol=1e-6)
    assert registry.get("laser+temp").tau == 1.0
    assert registry.get("laser+temp", tau=0.9) != registry.get("laser+temp")


def test_order_of_modifiers_does_not_matter():
    assert registry.get("laser+temp+qk_norm", tau=0.5) == registry.get(
        "laser+qk_norm+temp", tau=0.5
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: registry.get("lazer"), "unknown mixer 'lazer'.*standard, laser.*'laser'"),
        (lambda: registry.get("laser+qknorm"), "unknown modifier 'qknorm'.*'qk_norm'"),
        (lambda: registry.get("fox"), r"'fox' is a modifier.*'standard\+fox'\?"),
        (lambda: registry.get("gate+fox"), r"'gate' is a modifier.*'standard\+fox\+gate'\?"),
        (lambda: registry.get("temp+laser"), r"'temp' is a modifier.*'laser\+temp'\?"),
        (lambda: registry.get("standard+laser"), "'laser' is an attention mechanism[^?]*$"),
        (lambda: registry.get("sink+sigmoid"), "'sink' is a modifier[^?]*$"),
        (lambda: registry.get("LASER"), "unknown mixer 'LASER'.*'laser'\\?"),
        (lambda: registry.get("laser,Gate"), r"unknown mixer 'laser,Gate'.*'laser\+gate'\?"),
        (lambda: registry.get("laser+temp+temp"), "twice"),
        (lambda: registry.get("laser+"), "unknown modifier ''"),
        (lambda: registry.get(7), "string"),
        (lambda: registry.get("laser", tau=0.9), r"unknown hyperparameter 'tau'.*goes with \+temp"),
        (lambda: registry.get("laser+temp", tao=0.9), "unknown hyperparameter 'tao'.*'tau'"),
        (lambda: registry.get("laser+temp", tau=0.0), "> 0"),
        (lambda: registry.get("laser+temp", tau=-1), "> 0"),
        (lambda: registry.get("laser+temp", tau=float("nan")), "a number > 0"),
        (lambda: registry.get("laser+temp", tau=10**400), "a number > 0"),
        (lambda: registry.get("laser+temp", tau=1e-320), "1e-30 to 1e30"),
        (lambda: registry.get("laser+temp", tau=1e300), "1e-30 to 1e30"),
        (lambda: registry.get("laser+temp", tau="0.9"), "not a Python number"),
        (lambda: registry.get("laser+temp", tau=True), "not a Python number"),
        (lambda: registry.get("laser+temp", tau=jnp.ones(())), "compiled in"),
        (lambda: registry.get("laser", head_norm=False), "head_norm goes with diff and diff_laser"),
        (lambda: registry.get("diff", head_norm=1), "head_norm=1: .*on or off; give True or False"),
        (lambda: registry.get("diff", tau=0.9), r"Known: head_norm"),
        (lambda: registry.get("sigmoid+sink"), "no variant 'sigmoid.sink'.*no normaliser"),
        (lambda: registry.get("laser+softcap", cap=0.0), "between −cap and cap; give a number"),
        (lambda: registry.get("laser+softcap", cap=None), "cap=None is not a Python number"),
        (
            lambda: registry.get("sigmoid", kernel="jax_xla"),
            "no weights other than the softmax's.*use kernel='xla'",
        ),
        (
            lambda: registry.get("laser+softcap", kernel="cudnn"),
            "no soft-capped logits.*use kernel='xla'",
        ),
        (lambda: registry.get("laser+sink", kernel="splash"), "kernel='xla' or kernel='fused'"),
        (lambda: registry.get("laser", kernel="flash"), "unknown kernel 'flash'.*xla, jax_xla"),
    ],
)
def test_bad_input_is_answered(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_variant_refuses_what_it_has_not(inputs):
    query = inputs.reshape(3, 7, 2, 8)
    with pytest.raises(ValueError, match="inside a Flax module"):
        registry.get("laser+qk_norm")(query, query, query)
    with pytest.raises(ValueError, match="already has what laser.qk_norm adds"):
        _host(registry.get("laser+qk_norm"), normalize_qk=True).init(jax.random.key(0), inputs)
    layer = nn.MultiHeadDotProductAttention(2, attention_fn=registry.get("laser"))
    with pytest.raises(ValueError, match="sow_weights"):
        layer.init(jax.random.key(0), inputs, sow_weights=True)


BOUND = table.Hyperparameter(30.0, 5.0, "a bound")


class AnyValue(table.Hyperparameter):
    def check(self, name, given):
        return given


@pytest.fixture
def new_modifier(monkeypatch):
    """Returns a function that adds a line for modifier `new`, and code for it."""

    def add(apply=None, **hyperparameters):
        entry = table.ModifierEntry("new", "x", "a test", hyperparameters=hyperparameters)
        monkeypatch.setitem(table.MODIFIERS, "new", entry)
        module = types.ModuleType("attention.modifiers.new")
        if apply is not None:
            module.MODIFIER = records.Modifier("inputs", apply, apply)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return add


def test_the_check_knows_a_new_line_of_the_table(toy, new_modifier):
    """Without arguments: every mixer, and each modifier of the two that have one another's."""
    new_modifier(lambda call, leaves: call)
    names = command.default_variants()
    assert len(set(names)) == len(names)
    assert {toy, "sigmoid", "standard+new", "laser+new", "laser+sink", "diff_laser"} <= set(names)
    assert set(table.PAPER_ROWS) | set(table.DIFF_ROWS) <= set(names)
    assert all(table.parse(name) for name in names)


def _penalty(queries, keys):
    """ALiBi's slope of one head: −|t − s| on the logits of whatever keys there are."""
    return -jnp.abs(jnp.arange(queries)[:, None] - jnp.arange(keys)).astype(jnp.float32)


def _with_penalty(call, leaves):
    penalty = _penalty(call.query.shape[-3], call.key.shape[-3])
    return call._replace(bias=call.bias._replace(dense=penalty))


def test_a_sink_comes_last_wherever_its_line_stands(new_modifier, monkeypatch):
    """A modifier below it would penalise the sink by its distance, and the reference would too."""
    new_modifier(_with_penalty)

    def formula(call, leaves):
        return call._replace(bias=call.bias + _penalty(*call.bias.shape[1:]))

    record = records.Modifier("inputs", _with_penalty, formula)
    monkeypatch.setattr(sys.modules["attention.modifiers.new"], "MODIFIER", record)
    assert list(table.MODIFIERS)[-1] == "new"
    names = ("query", "key", "value", "cotangent")
    arrays = dict(zip(names, jax.random.normal(jax.random.key(0), (4, 5, 2, 4)), strict=True))
    cotangent = arrays.pop("cotangent")
    leaves = {"sink": {"scale": np.asarray([0.5, -1.0], np.float32)}}

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, *qkv):
            return registry.get("laser+sink")(*qkv, bias=_penalty(5, 5))

    expected = Plain().apply({"params": leaves}, *arrays.values())
    variant = registry.get("laser+sink+new")
    ours = check.Host(variant, 0).apply({"params": leaves}, **arrays)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    exact = reference.compute(variant, leaves, arrays, cotangent)
    np.testing.assert_allclose(exact.output, expected, atol=3e-6)


def test_a_line_of_the_table_without_code_is_refused(monkeypatch, new_modifier):
    monkeypatch.setitem(table.MIXERS, "linear", table.MixerEntry("Linear", "QKᵀ·V", "a test"))
    with pytest.raises(ValueError, match=r"mixer 'linear' has no code.*mixers\.linear:MIXER"):
        registry.get("linear")
    new_modifier()
    with pytest.raises(ValueError, match=r"modifier 'new' has no code.*modifiers\.new:MODIFIER"):
        registry.get("laser+new")
    new_modifier(lambda call, leaves: call, bound=BOUND)
    with pytest.raises(ValueError, match="bound='banana'"):
        registry.get("laser+new", bound="banana")
    with pytest.raises(ValueError, match=r"no code reads 'bound' of 'new'"):
        registry.get("laser+new", bound=3.0)


def test_what_changes_nothing_is_found(new_modifier):
    """A modifier that returns what it got, and a hyperparameter that it does not read."""
    new_modifier(lambda call, leaves: call)
    assert no_ops.find("laser+new") == ["laser+new: modifier 'new' changes nothing"]
    lax = AnyValue(True, False, "a factor")
    new_modifier(lambda call, leaves, *, bound: call._replace(query=2 * call.query), bound=lax)
    assert no_ops.find("laser+new") == [
        "laser+new: hyperparameter 'bound' changes nothing",
        "laser+new: hyperparameter 'bound' takes any value: it refuses none",
    ]


def _declared(part, entry):
    """Returns whether a part learns something, of a call that has all it may need."""
    array = jnp.ones((3, 2, 4))
    call = Call(array, array, array, jnp.ones((3, 6)), LayerIndex(1), {})
    given = {key: one.default for key, one in entry.hyperparameters.items()}
    return any(leaf.is_learned for leaf in part.leaves(call, **given))


@pytest.mark.parametrize("mixer", table.MIXERS)
def test_line_and_record_of_a_mixer_agree(mixer):
    line, record = table.MIXERS[mixer], records.mixer(mixer)
    assert (line.parameters != "none") == _declared(record, line)
    assert ("weighting" in line.needs) == (record.weighting is not core.SOFTMAX)
    assert line.label
    assert line.source
    value = jnp.ones((3, 2, 4))
    wide = value if record.values is None else record.values(value)
    assert wide.shape[-1] == 4 * line.value_width


@pytest.mark.parametrize("modifier", table.MODIFIERS)
def test_line_and_record_of_a_modifier_agree(modifier):
    """Leaves, hyperparameters, memory, and whether it stays outside of a model's softmax."""
    line, record = table.MODIFIERS[modifier], records.modifier(modifier)
    keys = inspect.signature(record.apply).parameters.values()
    assert {key.name for key in keys if key.kind is key.KEYWORD_ONLY} == {*line.hyperparameters}
    assert (line.parameters != "none") == _declared(record, line)
    assert ("memory" in line.needs) == (record.keeps is not None)
    if record.acts_on == "score":
        assert {"softcap", "score"} & {*line.needs}
        assert "inside" in line.needs
    if record.acts_on == "inputs" and "inside" not in line.needs:
        array = jnp.ones((3, 2, 4))
        call = Call(array, array, array, jnp.ones((3, 6)), LayerIndex(0), {})
        given = {key: one.other for key, one in line.hyperparameters.items()}
        leaves = {leaf.path: jnp.ones(leaf.shape) for leaf in record.leaves(call, **given)}
        after = record.apply(call, leaves, **given)
        assert (after.bias, after.mask) == (call.bias, call.mask)


@pytest.mark.parametrize("name", CHOSEN)
def test_kernels_of_the_table_can_and_others_refuse(name):
    """Either by the line of mixer or modifier, or by the width of the values."""
    size = table.value_size(name, 64)
    where = {"dtype": "bfloat16", "head_size": 64, "value_size": size}

    def check_both(kernel):
        table.check(name, {}, kernel)
        platform, *_ = table.KERNELS[kernel].platforms or ("cpu",)
        table.check_kernel(kernel, platform=platform, **where)

    for kernel in table.KERNELS:
        if kernel in table.kernels_of(name):
            check_both(kernel)
        else:
            with pytest.raises(ValueError, match="use kernel='xla'"):
                check_both(kernel)


@pytest.mark.parametrize("shape", ["1,4,8", "99999999,99,99", "4,4", "4,4,x", "-4,4,4", "0,4,4"])
def test_shapes_that_cannot_be_checked_are_refused(shape, capsys):
    assert command.main(["check", "laser", f"--shape={shape}"]) == 2
    assert "--shape" in capsys.readouterr().err


def test_names_are_checked_without_loading_jax():
    code = (
        "import sys; from attention import registry; registry.names();"
        "from attention import table; table.check('laser+temp', {'tau': 0.9});"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_head_norm_is_part_of_the_identity_and_survives_json():
    """What a trial's JSON holds makes the same variant again."""
    for name in ("diff", "diff_laser+temp"):
        for head_norm in (True, False):
            given = table.hyperparameters(name, 0.9, head_norm)
            variant = registry.get(name, **json.loads(json.dumps(given)))
            assert variant.head_norm is head_norm
            assert variant.hyperparameters == given
    assert registry.get("diff") == registry.get("diff", head_norm=True)
    assert registry.get("diff") != registry.get("diff", head_norm=False)
    assert table.hyperparameters("laser+temp", 0.9) == {"tau": 0.9}
    assert table.hyperparameters("standard", 0.9, False) == {}


def test_is_causal_is_a_triangular_mask_and_layers_are_unused(inputs):
    query = inputs.reshape(3, 7, 2, 8)
    for name in ("standard", "laser"):
        variant = registry.get(name)
        np.testing.assert_allclose(
            variant(query, query, query, is_causal=True, layer=3),
            variant(query, query, query, mask=jnp.tril(jnp.ones((7, 7), bool))),
            atol=1e-6,
        )
