"""One contract over every registry entry, and the door's answers to bad input."""

import dataclasses
import functools
import inspect
import json
import subprocess
import sys
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import __main__ as command
from attention import inject, records, registry, table
from attention.kernels import core
from attention.verification import check, oracle

ALL = registry.names()
MOST = {
    mixer: max(name.count("+") for name in ALL if table.mixer(name) == mixer)
    for mixer in table.MIXERS
}
# Every mixer alone, with one modifier, and with all of them.
CHOSEN = [name for name in ALL if name.count("+") in (0, 1, MOST[table.mixer(name)])]
# Compiling a gradient takes 1.5 s, its operations are compiled once for all: with all modifiers.
COMPILED = [name for name in CHOSEN if name.count("+") == MOST[table.mixer(name)]]


def _variant(name, **settings):
    tau = {"tau": 0.8} if "temp" in table.parse(name)[1] else {}
    return registry.get(name, **tau, **settings)


def _host(variant, depth=1, **settings):
    function = functools.partial(variant, depth=depth)
    return nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=function, **settings)


@pytest.fixture
def inputs():
    return jnp.asarray(np.random.default_rng(0).standard_normal((3, 7, 16)), jnp.float32)


def test_names_are_canonical_unique_and_hold_the_paper_rows():
    normalised = sum(entry.normalised for entry in table.MIXERS.values())
    takers = sum(entry.takes_weight for entry in table.MODIFIERS.values())
    rest = (len(table.MIXERS) - normalised) * 2 ** (len(table.MODIFIERS) - takers)
    assert len(ALL) == len(set(ALL)) == normalised * 2 ** len(table.MODIFIERS) + rest
    assert all(table.canonical(name) == name for name in ALL)
    assert set(table.PAPER_ROWS) <= set(ALL)
    assert len(table.PAPER_ROWS) == 8
    assert table.DIFF_ROWS == ("diff", "diff_laser")


@pytest.mark.parametrize("name", CHOSEN)
def test_contract(name, inputs):
    """Every entry: identity, what each part of it changes, shape, dtype, mask, gradients, vmap."""
    assert check.unheard(name) == []
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
    heard = any(part in name for part in ("qk_norm", "softcap", "sink", "sigmoid"))
    gradient = jax.grad(loss)
    gradients = (jax.jit(gradient) if name in COMPILED else gradient)(params, inputs)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), path
        # A key's bias shifts all logits of a row alike, which a softmax of them alone does not see.
        if "['key']['bias']" not in jax.tree_util.keystr(path) or heard:
            assert np.abs(leaf).max() > 0, path
    mapped = jax.vmap(lambda x: host.apply(params, x[None], mask=mask)[0])(inputs)
    np.testing.assert_allclose(mapped, output, atol=1e-6)
    bf16 = _host(variant, dtype=jnp.bfloat16).apply(params, inputs, mask=mask)
    assert bf16.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(bf16, np.float32), output, atol=0.05)


@pytest.mark.parametrize("name", CHOSEN)
def test_direct_attention_fn_and_injection_agree(name, inputs):
    variant = _variant(name)
    direct = _host(variant)
    params = direct.init(jax.random.key(0), inputs)
    plain = nn.MultiHeadDotProductAttention(num_heads=2)
    with inject.injected(variant, depth=lambda path: 1):
        injected_params = plain.init(jax.random.key(0), inputs)
        output = plain.apply(injected_params, inputs)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, injected_params))
    np.testing.assert_array_equal(output, direct.apply(params, inputs))


@pytest.mark.parametrize("mixer", ["standard", "laser"])
def test_learned_modifiers_start_where_they_should(mixer, inputs):
    """per_dim_temp is exactly its mixer at initialisation; qk_norm normalises to unit variance."""
    plain = _host(_variant(mixer))
    params = plain.init(jax.random.key(1), inputs)
    temp = _host(_variant(f"{mixer}+per_dim_temp"))
    temp_params = temp.init(jax.random.key(1), inputs)
    assert set(temp_params["params"]) - set(params["params"]) == {"per_dim_temp"}
    assert temp_params["params"]["per_dim_temp"]["scale"].shape == (8,)
    np.testing.assert_allclose(
        temp.apply(temp_params, inputs), plain.apply(params, inputs), rtol=1e-6, atol=1e-7
    )
    normed = _host(_variant(f"{mixer}+qk_norm")).init(jax.random.key(1), inputs)["params"]
    assert set(normed) - set(params["params"]) == {"query_ln", "key_ln"}
    for name in ("query_ln", "key_ln"):
        assert list(normed[name]) == ["scale"]
        np.testing.assert_array_equal(normed[name]["scale"], np.zeros(8))


def test_qk_norm_by_hand():
    """Head (3, 1): mean 2, sd 1, so ±1/√(1 + 1e-6), times 1 + scale."""
    from attention.modifiers.qk_norm import QKNorm

    head = jnp.asarray([3.0, 1.0]).reshape(1, 1, 2)
    params = {"params": {"scale": jnp.asarray([0.0, 1.0])}}
    np.testing.assert_allclose(
        QKNorm().apply(params, head)[0, 0], np.array([1.0, -2.0]) / np.sqrt(1 + 1e-6), rtol=1e-6
    )


def test_per_dim_temp_by_hand():
    """Factor 1.442695041·ln(1 + e^p): 1 at p = 0, 1.8946 at p = 1."""
    from attention.modifiers.per_dim_temp import PerDimTemp

    params = {"params": {"scale": jnp.asarray([0.0, 1.0])}}
    factor = PerDimTemp().apply(params, jnp.ones((1, 1, 2)))[0, 0]
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
        (lambda: registry.get("laser+temp+temp"), "twice"),
        (lambda: registry.get("laser+"), "unknown modifier ''"),
        (lambda: registry.get(7), "string"),
        (lambda: registry.get("laser", tau=0.9), r"unknown hyperparameter 'tau'.*goes with \+temp"),
        (lambda: registry.get("laser+temp", tao=0.9), "unknown hyperparameter 'tao'.*'tau'"),
        (lambda: registry.get("laser+temp", tau=0.0), "> 0"),
        (lambda: registry.get("laser+temp", tau=-1), "> 0"),
        (lambda: registry.get("laser+temp", tau=float("nan")), "finite"),
        (lambda: registry.get("laser+temp", tau=10**400), "finite"),
        (lambda: registry.get("laser+temp", tau=1e-320), "1e-30 to 1e30"),
        (lambda: registry.get("laser+temp", tau=1e300), "1e-30 to 1e30"),
        (lambda: registry.get("laser+temp", tau="0.9"), "not a Python number"),
        (lambda: registry.get("laser+temp", tau=True), "not a Python number"),
        (lambda: registry.get("laser+temp", tau=jnp.ones(())), "compiled in"),
        (lambda: registry.get("laser", head_norm=False), "head_norm goes with diff and diff_laser"),
        (lambda: registry.get("diff", head_norm=1), "head_norm=1: .*on .True. or off"),
        (lambda: registry.get("diff", tau=0.9), r"Known: head_norm"),
        (lambda: registry.get("sigmoid+sink"), "no variant 'sigmoid.sink'.*no normaliser"),
        (lambda: registry.get("laser+softcap", cap=0.0), "between −cap and cap, so it must be"),
        (lambda: registry.get("laser+softcap", cap=None), "cap=None is not a Python number"),
        (lambda: registry.get("sigmoid", kernel="jax_xla"), "has no sigmoid; use kernel='xla'"),
        (lambda: registry.get("laser+softcap", kernel="cudnn"), "no softcap; use kernel='xla'"),
        (lambda: registry.get("laser+sink", kernel="cudnn"), "kernel='xla' or kernel='jax_xla'"),
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
    with pytest.raises(ValueError, match="sow_weights"):
        _host(registry.get("laser")).init(jax.random.key(0), inputs, sow_weights=True)


def _refuses(given):
    if not isinstance(given, float):
        raise ValueError(f"bound={given!r}")
    return given


BOUND = table.Hyperparameter(_refuses, default=30.0, other=5.0)


@pytest.fixture
def new_modifier(monkeypatch):
    """Returns a function that adds a line for modifier `new`, and code for it."""

    def add(apply=None, **hyperparameters):
        entry = table.ModifierEntry("new", "x", "a test", hyperparameters=hyperparameters)
        monkeypatch.setitem(table.MODIFIERS, "new", entry)
        module = types.ModuleType("attention.modifiers.new")
        if apply is not None:
            module.MODIFIER = records.Modifier("inputs", apply, lambda given, leaves: None)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return add


def test_the_check_knows_a_new_line_of_the_table(toy, new_modifier):
    """Without arguments: every mixer, and each modifier of the two that have one another's."""
    new_modifier(lambda inputs: inputs)
    names = command.default_variants()
    assert len(set(names)) == len(names)
    assert {toy, "sigmoid", "standard+new", "laser+new", "laser+sink", "diff_laser"} <= set(names)
    assert set(table.PAPER_ROWS) | set(table.DIFF_ROWS) <= set(names)
    assert all(table.parse(name) for name in names)


def _distance_penalty(inputs):
    """ALiBi's slope of one head: −|t − s| on the logits of whatever keys there are."""
    queries, keys = inputs.query.shape[-3], inputs.key.shape[-3]
    bias = -jnp.abs(jnp.arange(queries)[:, None] - jnp.arange(keys)).astype(jnp.float32)
    return inputs._replace(bias=bias if inputs.bias is None else inputs.bias + bias)


def test_a_sink_comes_last_wherever_its_line_stands(new_modifier, monkeypatch):
    """A modifier below it would penalise the sink by its distance, and the reference would too."""
    new_modifier(_distance_penalty)

    def formula(inputs, leaves):
        penalised = inputs._replace(bias=np.asarray(_distance_penalty(inputs).bias, np.float64))
        return penalised, lambda bars: (bars, {})

    record = records.Modifier("inputs", _distance_penalty, formula)
    monkeypatch.setattr(sys.modules["attention.modifiers.new"], "MODIFIER", record)
    assert list(table.MODIFIERS)[-2:] == ["sink", "new"]
    arrays = list(jax.random.normal(jax.random.key(0), (4, 5, 2, 4)))
    leaves = {"sink": {"scale": np.asarray([0.5, -1.0], np.float32)}}
    penalty = np.asarray(_distance_penalty(records.Inputs(*arrays[:3])).bias)

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, *qkv):
            return registry.get("laser+sink")(*qkv, bias=penalty)

    expected = Plain().apply({"params": leaves}, *arrays[:3])
    variant = registry.get("laser+sink+new")
    ours = check.Host(variant, 0).apply({"params": leaves}, *arrays[:3], None)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    exact = oracle.compute(variant, leaves, arrays, None)
    np.testing.assert_allclose(exact.output, expected, atol=3e-6)


def test_a_line_of_the_table_without_code_is_refused(monkeypatch, new_modifier):
    monkeypatch.setitem(table.MIXERS, "linear", table.MixerEntry("Linear", "QKᵀ·V", "a test"))
    with pytest.raises(ValueError, match=r"mixer 'linear' has no code.*mixers\.linear:MIXER"):
        registry.get("linear")
    new_modifier()
    with pytest.raises(ValueError, match=r"modifier 'new' has no code.*modifiers\.new:MODIFIER"):
        registry.get("laser+new")
    new_modifier(lambda inputs: inputs, bound=BOUND)
    with pytest.raises(ValueError, match="bound='banana'"):
        registry.get("laser+new", bound="banana")
    with pytest.raises(ValueError, match=r"no code reads 'bound' of 'new'"):
        registry.get("laser+new", bound=3.0)


def test_the_contract_fails_for_what_changes_nothing(new_modifier, capsys):
    """A modifier that returns what it got, and a hyperparameter that it does not read."""
    new_modifier(lambda inputs: inputs)
    assert check.unheard("laser+new") == ["laser+new: modifier 'new' changes nothing"]
    assert command.main(["check", "laser+new"]) == 1
    assert "'new' changes nothing" in capsys.readouterr().out
    lax = table.Hyperparameter(lambda given: given, default=True, other=False)
    new_modifier(lambda inputs, *, bound: inputs._replace(query=2 * inputs.query), bound=lax)
    assert check.unheard("laser+new") == [
        "laser+new: hyperparameter 'bound' changes nothing",
        "laser+new: hyperparameter 'bound' takes any value: its check refuses none",
    ]


@pytest.mark.parametrize("mixer", table.MIXERS)
def test_line_and_record_of_a_mixer_agree(mixer):
    line, record = table.MIXERS[mixer], records.mixer(mixer)
    assert line.weights == (record.weighting is not None)
    assert line.normalised == (record.weighting is not None and record.weighting.normalised)
    assert line.host_mean == (record.host_mean is not None)
    assert (line.parameters != "none") == (record.learned is not None)
    assert (record.learned is None) == (record.learned_formula is None)
    assert line.needs_depth == ("depth" in inspect.signature(record.learned or _nothing).parameters)
    assert line.label
    assert line.source
    widths = set()
    monkeyed = core.KERNEL.call
    array = jnp.ones((3, 2, 4))

    def call(problem, value):
        widths.add(value.shape[-1])
        return monkeyed(problem, value)

    settings = {"lambda_": 0.5} if record.learned else {}
    with mock.patch.object(core, "KERNEL", dataclasses.replace(core.KERNEL, call=call)):
        record.attend(array, array, array, **settings)
    assert widths == {4 * line.value_width}


def _nothing():
    pass


@pytest.mark.parametrize("modifier", table.MODIFIERS)
def test_line_and_record_of_a_modifier_agree(modifier, inputs):
    """Leaves, hyperparameters, and whether it stays outside of a host's softmax."""
    line, record = table.MODIFIERS[modifier], records.modifier(modifier)
    keys = inspect.signature(record.apply).parameters
    assert set(line.hyperparameters) == set(list(keys)[1:])
    host = _host(_variant(f"standard+{modifier}"))
    plain = _host(_variant("standard"))
    count = [
        len(jax.tree.leaves(jax.eval_shape(h.init, jax.random.key(0), inputs)))
        for h in (host, plain)
    ]
    assert (line.parameters != "none") == (count[0] > count[1])
    if line.host and record.acts_on == "inputs":
        query = inputs.reshape(3, 7, 2, 8)
        given = records.Inputs(query, query, query)
        keys = {key: one.other for key, one in line.hyperparameters.items()}

        class Host(nn.Module):
            @nn.compact
            def __call__(self):
                after = record.apply(given, **keys)
                assert after.value is given.value
                assert (after.bias, after.mask) == (None, None)
                return after.key

        assert Host().init_with_output(jax.random.key(0))[0].shape == query.shape
    else:
        assert not line.host or record.acts_on == "output"


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


def test_is_causal_is_a_triangular_mask_and_depth_is_unused(inputs):
    query = inputs.reshape(3, 7, 2, 8)
    for name in ("standard", "laser"):
        variant = registry.get(name)
        np.testing.assert_allclose(
            variant(query, query, query, is_causal=True, depth=3),
            variant(query, query, query, mask=jnp.tril(jnp.ones((7, 7), bool))),
            atol=1e-6,
        )
