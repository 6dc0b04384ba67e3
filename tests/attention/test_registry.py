"""Names and identity of variants, their leaves, and answers to bad input."""

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
from attention import backends, entries, inject, records, registry, table
from attention.call import Call, LayerIndex
from attention.kernels import core
from attention.verification import check
from tests.attention import no_ops

ALL = registry.names()
# Every mixer alone, and each modifier with one; then many modifiers together.
CHOSEN = [
    *table.MIXERS,
    *(f"laser+{modifier}" for modifier in table.MODIFIERS),
    "diff+gate+per_dim_temp+qk_norm+rope+sink+softcap+temp+value_residual+window",
    "diff2_laser+alibi+gate+qk_rms_norm+sink+ssmax+xsa",
]


UNNORMALISED = [name for name, entry in table.MIXERS.items() if not entry.normalised]


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
def test_identity(name):
    """What each part of a name changes, and that a variant is what its values say."""
    inert = [f"{name}: modifier 'control' changes nothing"] if "control" in name else []
    assert no_ops.find(name) == inert
    variant = check.make_variant(name)
    assert variant.name == name
    assert registry.get(name, **variant.hyperparameters) == variant
    assert hash(registry.get(name, **variant.hyperparameters)) == hash(variant)
    with pytest.raises(AttributeError):
        variant.kernel = "fused"


@pytest.mark.parametrize(
    "name", ["laser+temp", "diff", "laser+gate+sink+value_residual", "diff2_laser+fox+qk_norm"]
)
def test_direct_attention_fn_and_injection_agree(name, inputs):
    """Of a first layer; injected, its input, index and memory come by themselves."""
    variant = check.make_variant(name)
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


# By name: learned leaves with their shapes, for 4 heads of size 8 and an input of 16; all are 0 at
# start but those of `DRAWN`, by their standard deviation, and of `STARTS`.
LEAVES = {
    "standard": {},
    "laser+temp": {},
    "sigmoid+softcap": {},
    "laser+alibi+rope+window+xsa": {},
    "diff": {
        **{f"diff_lambda/scale_{part}": (8,) for part in ("q1", "k1", "q2", "k2")},
        "head_norm/scale": (16,),
    },
    "diff2": {"diff2/scale_query": (16, 4, 8), "diff2/scale_lambda": (16, 4)},
    "laser+qk_norm": {"query_ln/scale": (8,), "key_ln/scale": (8,)},
    "laser+qk_rms_norm": {"query_rms/scale": (8,), "key_rms/scale": (8,)},
    "laser+per_dim_temp": {"per_dim_temp/scale": (8,)},
    "laser+sink": {"sink/scale": (4,)},
    "laser+gate": {"gate/scale": (16, 4, 8)},
    "laser+value_residual": {"value_residual/scale_own": (), "value_residual/scale_first": ()},
    "laser+fox": {"fox/scale": (16, 4), "fox/scale_bias": (4,)},
    "laser+ssmax": {"ssmax/scale": (4,)},
    "laser+control": {"control/scale": (1,)},
}
DRAWN = {"diff_lambda": 0.1, "diff2/scale_query": 16**-0.5}
STARTS = {"ssmax/scale": 1 / np.log(7), "control/scale": 0.1}


@pytest.mark.parametrize("name", LEAVES)
def test_leaves_and_their_start(name, inputs):
    """Beside the projections of a model; draws by their standard deviation."""
    layer = nn.MultiHeadDotProductAttention(
        4, qkv_features=32, attention_fn=inject.AttentionFunction(registry.get(name), 0, inputs, {})
    )
    params = jax.jit(layer.init)(jax.random.key(1), inputs)["params"]
    assert {*params} >= {"query", "key", "value", "out"}
    leaves = {
        f"{module}/{leaf}": array
        for module in {*params} - {"query", "key", "value", "out"}
        for leaf, array in params[module].items()
    }
    assert {path: leaf.shape for path, leaf in leaves.items()} == LEAVES[name]
    for path, leaf in leaves.items():
        drawn = DRAWN.get(path, DRAWN.get(path.partition("/")[0]))
        if drawn:
            np.testing.assert_allclose(np.sqrt(np.square(leaf).mean()), drawn, rtol=0.5)
        else:
            np.testing.assert_allclose(leaf, STARTS.get(path, 0), rtol=1e-6)


# Mean 2 and variance 1; then a variance of 1e-6 beside ε = 1e-6; a mean square of 5, then of 1e-6;
# 1.442695041·ln(1 + e^p), 1 at p = 0.
@pytest.mark.parametrize(
    ("modifier", "heads", "scale", "query"),
    [
        ("qk_norm", [3.0, 1.0], [0.0, 1.0], [1.0, -2.0]),
        ("qk_norm", [3e-3, 1e-3], [0.0, 0.0], [0.5**0.5, -(0.5**0.5)]),
        ("qk_rms_norm", [3.0, 1.0], [1.0, 0.0], [6 / 5**0.5, 5**-0.5]),
        ("qk_rms_norm", [1e-3, -1e-3], [0.0, 0.0], [0.5**0.5, -(0.5**0.5)]),
        ("per_dim_temp", [1.0, 1.0], [0.0, 1.0], [1.0, 1.894636]),
    ],
)
def test_new_queries_by_hand(modifier, heads, scale, query):
    head = jnp.asarray(heads).reshape(1, 1, 2)
    record, call = records.modifier(modifier), Call(head, head, head)
    leaves = {leaf.path: jnp.asarray(scale) for leaf in record.leaves(call)}
    np.testing.assert_allclose(record.apply(call, leaves).query[0, 0], query, rtol=1e-6)


def test_exclusive_output_by_hand():
    """Value (0.001, 0) of square 1e-6, beside ε = 1e-6: half of the part along it is taken out."""
    value = jnp.asarray([1e-3, 0.0]).reshape(1, 1, 2)
    out = jnp.asarray([1.0, 2.0]).reshape(1, 1, 2)
    changed = records.modifier("xsa").apply(out, Call(value, value, value), {})
    np.testing.assert_allclose(changed[0, 0], [0.5, 2.0], rtol=1e-6)


def test_a_late_position_is_turned_exactly():
    """Position 32,767; as products of float32 numbers angles are off by 4e-4 there."""
    heads = jnp.tile(jnp.asarray([1.0, 0.0], jnp.float32), (32_768, 1, 32))
    turned = records.modifier("rope").apply(Call(heads, heads, heads), {}, base=1e4).query[-1, 0]
    angles = 32_767 * 1e4 ** -(np.arange(0, 64, 2) / 64)
    expected = np.stack([np.cos(angles), np.sin(angles)], axis=-1).ravel()
    np.testing.assert_allclose(turned, expected, atol=4e-5)


def test_defaults_of_hyperparameters():
    defaults = {
        key: setting.default
        for entry in (*table.MIXERS.values(), *table.MODIFIERS.values())
        for key, setting in entry.hyperparameters.items()
    }
    numbers = {"tau": 1.0, "cap": 50.0, "base": 10_000.0, "width": 256}
    assert defaults == {**numbers, "learned": True, "head_norm": True, "per": "channel"}


def test_order_of_modifiers_does_not_matter():
    assert registry.get("laser+temp+qk_norm", tau=0.5) == registry.get(
        "laser+qk_norm+temp", tau=0.5
    )


@pytest.mark.parametrize(
    ("name", "hyperparameters", "message"),
    [
        ("lazer", {}, "'lazer'.*'laser'"),
        ("laser+qknorm", {}, "'qknorm'.*'qk_norm'"),
        ("fox", {}, r"'fox'.*'standard\+fox'\?"),
        ("gate+fox", {}, r"'gate'.*'standard\+fox\+gate'\?"),
        ("temp+laser", {}, r"'temp'.*'laser\+temp'\?"),
        ("standard+laser", {}, "'laser'[^?]*$"),
        ("sink+sigmoid", {}, "'sink'[^?]*$"),
        ("sigmoid_laser", {}, "'sigmoid_laser'.*may sum to 0"),
        ("LASER", {}, r"'LASER'.*'laser'\?"),
        ("laser,Gate", {}, r"'laser,Gate'.*'laser\+gate'\?"),
        ("laser+temp+temp", {}, "twice"),
        ("laser+", {}, "''"),
        (7, {}, "string"),
        ("laser", {"tau": 0.9}, r"'tau'.*\+temp"),
        ("laser+temp", {"tao": 0.9}, "'tao'.*'tau'"),
        *[("laser+temp", {"tau": tau}, "> 0") for tau in (0.0, -1, float("nan"), 10**400)],
        *[("laser+temp", {"tau": tau}, "1e-30 to 1e30") for tau in (1e-320, 1e300)],
        *[("laser+temp", {"tau": tau}, "number") for tau in ("0.9", True)],
        ("laser+temp", {"tau": jnp.ones(())}, "compiled in"),
        ("laser", {"head_norm": False}, "head_norm.*diff and diff_laser"),
        ("diff", {"head_norm": 1}, "head_norm=1.*True or False"),
        ("diff", {"tau": 0.9}, "head_norm"),
        ("laser+softcap", {"cap": 0.0}, "cap"),
        ("laser+softcap", {"cap": None}, "cap=None"),
        *[("laser+window", {"width": width}, f"width={width}") for width in (0, 2.0, True)],
        ("laser+gate", {"per": "token"}, "per='token'.*'channel' or 'head'"),
        ("laser+sink", {"learned": 1}, "learned=1.*True or False"),
        ("laser+rope", {"base": 0.0}, "base=0.0"),
        *[(f"{mixer}+sink", {}, f"{mixer!r}.*normaliser") for mixer in UNNORMALISED],
        *[(f"{mixer}_laser", {}, f"{mixer!r}.*sum to 0") for mixer in UNNORMALISED],
        *[("sigmoid", {"kernel": kernel}, "'xla'") for kernel in ("jax_xla", "cudnn", "splash")],
        ("softpick", {"kernel": "cudnn"}, "'xla'"),
        ("laser+softcap", {"kernel": "cudnn"}, "'xla'"),
        ("laser+sink", {"kernel": "splash"}, "'xla' or kernel='fused'"),
        ("laser+alibi", {"kernel": "splash"}, "'xla'"),
        ("laser+fox", {"kernel": "splash"}, "'xla' or kernel='jax_xla'"),
        ("laser", {"kernel": "flash"}, "'flash'.*xla, jax_xla"),
    ],
)
def test_bad_input_is_answered(name, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        registry.get(name, **hyperparameters)


def test_a_bare_variant_gets_flaxs_keywords(inputs):
    """flax filters them by the signature: dropout and its key are those of flax's function."""
    settings = {"num_heads": 2, "dropout_rate": 0.5, "deterministic": False}
    outputs = []
    for function in (nn.dot_product_attention, registry.get("standard")):
        layer = nn.MultiHeadDotProductAttention(attention_fn=function, **settings)
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        outputs.append(layer.init_with_output(keys, inputs)[0])
    np.testing.assert_allclose(*outputs, atol=1e-6)


def test_variant_refuses_what_it_has_not(inputs):
    query = inputs.reshape(3, 7, 2, 8)
    with pytest.raises(ValueError, match="outside a Flax module"):
        registry.get("laser+qk_norm")(query, query, query)
    layer = nn.MultiHeadDotProductAttention(2, attention_fn=registry.get("laser"))
    with pytest.raises(ValueError, match="sow_weights"):
        layer.init(jax.random.key(0), inputs, sow_weights=True)


BOUND = entries.Hyperparameter(30.0, 5.0, "a bound")


@pytest.fixture
def new_modifier(monkeypatch):
    """Returns a function that adds a line for modifier `new`, and code for it."""

    def add(apply=None, **hyperparameters):
        entry = entries.ModifierEntry("new", "x", "a test", hyperparameters=hyperparameters)
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


def test_a_line_of_the_table_without_code_is_refused(monkeypatch, new_modifier):
    monkeypatch.setitem(table.MIXERS, "linear", entries.MixerEntry("Linear", "QKᵀ·V", "a test"))
    with pytest.raises(ValueError, match=r"mixer 'linear' has no code.*mixers\.linear:MIXER"):
        registry.get("linear")
    new_modifier()
    with pytest.raises(ValueError, match=r"modifier 'new' has no code.*modifiers\.new:MODIFIER"):
        registry.get("laser+new")
    new_modifier(lambda call, leaves: call, bound=BOUND)
    with pytest.raises(ValueError, match="bound='banana'"):
        registry.get("laser+new", bound="banana")


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
        platform, *_ = backends.KERNELS[kernel].platforms or ("cpu",)
        backends.check_kernel(kernel, platform=platform, **where)

    for kernel in backends.KERNELS:
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


def test_a_variant_with_its_leaves_runs_without_importing_flax():
    code = """
import sys
import jax
from attention import flex, inject, registry, variant
from attention.kernels.inputs import make_call

heads = jax.numpy.ones((5, 2, 4))
call = make_call(heads, heads, heads, x=jax.numpy.ones((5, 8)), layer=0, memory={}, is_causal=True)
for name in ("laser", "diff2_laser+fox+gate+qk_norm+value_residual"):
    chosen = registry.get(name)
    jax.eval_shape(lambda: chosen.attend(call, leaves=chosen.leaves(call, jax.random.key(0))))
assert not [name for name in sys.modules if name.split(".")[0] == "flax"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_signature_is_that_of_the_installed_flax():
    def parameters(function):
        listed = inspect.signature(function).parameters.values()
        return [(each.name, each.kind, each.default) for each in listed]

    flax = parameters(nn.dot_product_attention)
    variant = registry.get("laser")
    assert parameters(inject.AttentionFunction(variant)) == flax
    assert parameters(variant)[: len(flax)] == flax


def test_head_norm_is_part_of_the_identity_and_survives_json():
    """What a trial's JSON holds makes the same variant again."""
    for name in ("diff", "diff_laser+temp"):
        for head_norm in (True, False):
            given = table.hyperparameters(name, 0.9, head_norm)
            assert registry.get(name, **json.loads(json.dumps(given))).hyperparameters == given
    assert table.hyperparameters("laser+temp", 0.9) == {"tau": 0.9}
    assert table.hyperparameters("standard", 0.9, False) == {}
