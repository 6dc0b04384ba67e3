"""The bf16 reconstruction experiment: its numbers by hand and its files, whole or damaged."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from attention import __main__ as command
from attention.verification import cached_tensors, reconstruction, reference
from attention.verification.cached_tensors import Tensors
from attention.verification.reconstruction import Case

BF16 = "bfloat16"
# One shape throughout: a measurement compiles a dozen programs.
SHAPE = (8, 2, 8)


def _one(tensors, **settings):
    return reconstruction.measure(tensors, **settings)


def _draw(shape=SHAPE, scales=(1.0, 1.0), seed=0):
    return next(cached_tensors.draw(shape, 1, {"layer": scales}, seed))


@pytest.mark.parametrize("mixer", ["standard", "laser"])
@pytest.mark.parametrize("kind", ["none", "causal", "padded", "wide"])
def test_the_reference_s_output_alone_is_that_with_gradients(mixer, kind):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 9, 2, 4))
    masks = {"causal": np.tril(np.ones((9, 9), bool)), "padded": np.arange(9)[None] < 5}
    value = value * 500 if kind == "wide" else value
    whole = reference.attend(mixer, query, key, value, np.ones_like(query), mask=masks.get(kind))
    alone = reference.output(mixer, query, key, value, mask=masks.get(kind))
    np.testing.assert_allclose(alone, whole.output, rtol=1e-12, atol=1e-12)


def test_errors_by_hand():
    """All keys and values equal: the output is the value, so only its roundings are left."""
    value = np.float32(1 + 2**-8 + 2**-20)  # rounds to 1 + 2⁻⁷ in bfloat16
    tensors = Tensors("", *(np.full(SHAPE, x, np.float32) for x in (1, 1, value)))
    errors = _one(tensors)
    rounding = (1 + 2**-7) / float(value) - 1
    assert errors[Case("Standard", BF16)].value == 0
    assert errors[Case("Standard", "bfloat16 products")].value == pytest.approx(rounding)
    assert errors[Case("Standard", "float32")].value == 0
    # exp(1 + 2⁻⁷) = 2.7396 is stored as 2.734375, whose logarithm as 1.0078125 again.
    assert errors[Case("LASER vanilla", BF16)].value == 0
    # exp(0) = 1 and log 1 = 0.
    assert errors[Case("LASER+log-weighted-sum-exp", BF16)].value == 0
    assert errors[Case("LASER, ours", BF16)].value == 0


def test_the_paper_s_snippet_is_as_far_off_as_was_measured():
    """9.7e-3 at qs 1, vs 1 and the paper's shape; shorter rows of fewer heads: a little less."""
    errors = _one(_draw((512, 1, 256)))
    assert errors[Case("LASER+log-weighted-sum-exp", BF16)].value == pytest.approx(9.2e-3, rel=0.1)
    assert errors[Case("LASER, ours", BF16)].value < 1.9e-3
    assert errors[Case("Standard", BF16)].value == pytest.approx(2.3e-3, rel=0.1)
    for row in reconstruction.METHODS:
        assert errors[Case(row.name, "float32")].value < 2e-6


def test_the_future_does_not_count_where_it_is_hidden():
    """A future key or value of any size changes nothing but by the paper's own maximum."""
    first = _draw()
    key, value = first.key.copy(), first.value.copy()
    key[-1], value[-1] = 5, 5
    outputs = []
    for tensors in (first, Tensors("", first.query, key, value)):
        mask = reconstruction._mask(tensors, True)
        outputs.append(
            reference.output("laser", first.query, tensors.key, tensors.value, mask=mask)
        )
    np.testing.assert_allclose(outputs[0][:-1], outputs[1][:-1], rtol=1e-12)
    for is_causal in (False, True):
        errors = _one(first, is_causal=is_causal)
        assert errors[Case("LASER, ours", "float32")].value < 1e-6


def test_rows_that_see_nothing_do_not_count():
    drawn = _draw()
    seen = np.tril(np.ones((1, 8, 8), bool))
    seen[:, 4:] = False
    for key, error in _one(Tensors("", drawn.query, drawn.key, drawn.value, seen)).items():
        assert error.nonfinite == 0, key
        assert error.value < (1e-6 if key.dtype == "float32" else 5e-2), key


def test_heads_in_blocks_give_what_they_give_together(monkeypatch):
    tensors = _draw()
    together = _one(tensors, is_causal=True)
    monkeypatch.setattr(reconstruction, "_LOGITS", 8 * 8)
    sizes = [arrays[0].shape[1] for arrays, _ in reconstruction._blocks(tensors, None)]
    assert sizes == [1, 1]
    for key, error in _one(tensors, is_causal=True).items():
        within = pytest.approx(together[key].value, rel=1e-3, abs=3e-7)
        assert error.value == within, key


def test_outputs_that_are_not_finite_are_counted_and_left_out_of_the_mean():
    """exp(100) is ∞ in float32 and bfloat16: LASER without a maximum has no number there."""
    fine, huge = _draw(), _draw(seed=1)
    huge.value[0] = 100
    rows = reconstruction.rows([fine, huge], is_causal=False)
    vanilla = [row for row in rows if row["method"] == "LASER vanilla" and row["layer"] is None]
    for row in vanilla:
        assert (row["n"], row["nonfinite"], row["nonfinite_values"]) == (1, 1, 128)
        assert row["sd"] is None
    (ours,) = (
        row
        for row in rows
        if (row["method"], row["dtype"], row["layer"]) == ("LASER, ours", BF16, None)
    )
    assert (ours["n"], ours["nonfinite"]) == (2, 0)
    text = reconstruction.text({"rows": rows}, by_layer=False)
    assert "1, 1 NOT FINITE" in text


def test_mean_sd_and_worst_over_tensors_and_layers():
    key = Case("Standard", BF16)
    errors = [reconstruction.Error(value, 0) for value in (0.001, 0.002, 0.006)]
    row = reconstruction._row(key, "a/b", errors)
    assert (row["mean"], row["worst"], row["n"]) == (pytest.approx(0.003), 0.006, 3)
    assert row["sd"] == pytest.approx(np.sqrt((4 + 1 + 9) / 2) * 1e-3)
    assert row["layer"] == "a/b"
    with pytest.raises(ValueError, match="no cached tensors"):
        reconstruction.rows([], is_causal=False)


def _file(tmp_path, **changes):
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((2, *SHAPE)) for name in cached_tensors.NAMES}
    layers = {f"block_{index}/attention": arrays | changes for index in range(2)}
    cached_tensors.write(tmp_path / "qkv.npz", layers, {"dtype": "bfloat16"})
    return tmp_path / "qkv.npz", arrays


def test_a_file_gives_back_what_was_written(tmp_path):
    seen = np.ones((2, 1, 1, 8), bool)
    seen[1, ..., 5:] = False
    path, arrays = _file(tmp_path, visibility=seen, key=jnp.ones((2, *SHAPE), jnp.bfloat16))
    read = list(cached_tensors.read(path))
    assert [one.layer for one in read] == ["block_0/attention"] * 2 + ["block_1/attention"] * 2
    np.testing.assert_array_equal(read[1].query, arrays["query"][1].astype(np.float32))
    assert read[1].key.dtype == np.float32
    assert (read[0].mask.sum(), read[1].mask.sum()) == (8, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["qkv.npz"]


def test_a_file_without_batch_or_layer_is_one_tensor(tmp_path):
    np.savez(tmp_path / "one.npz", **{name: np.ones((4, 1, 2)) for name in cached_tensors.NAMES})
    (one,) = cached_tensors.read(tmp_path / "one.npz")
    assert (one.layer, one.query.shape, one.mask) == ("", (4, 1, 2), None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a/query": np.ones((2, 1, 4)), "a/key": np.ones((2, 1, 4))}, "lacks a/value"),
        ({name: np.ones((2, 4)) for name in cached_tensors.NAMES}, r"wanted floats of \[T, H, D\]"),
        ({name: np.ones((2, 1, 4), int) for name in cached_tensors.NAMES}, "int64"),
        (
            {name: np.ones((2, 1, 4)) for name in cached_tensors.NAMES}
            | {"visibility": np.ones((1, 3, 2), bool)},
            "visibility is bool",
        ),
        ({}, "holds no layer"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, content, message):
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(ValueError, match=message) as raised:
        list(cached_tensors.read(tmp_path / "bad.npz"))
    assert "bad.npz" in str(raised.value)


def test_a_file_cut_short_or_absent_is_said(tmp_path):
    path, _ = _file(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="cut short"):
        list(cached_tensors.read(path))
    with pytest.raises(ValueError, match="no such file"):
        list(cached_tensors.read(tmp_path / "absent.npz"))


def test_the_command_writes_strict_json_in_the_format(tmp_path, capsys):
    path, _ = _file(tmp_path)
    out = tmp_path / "reconstruction.json"
    assert command.main(["reconstruct", str(path), "--causal", f"--out={out}"]) == 0
    record = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert record["format"] == "attnperf-reconstruction-2"
    assert record["source"] == str(path)
    assert (record["shape"], record["causal"]) == ([8, 2, 8], True)
    assert record["versions"]["jax"]
    over_all = [row for row in record["rows"] if row["layer"] is None]
    assert len(over_all) == 4 * 3
    assert {row["n"] for row in over_all} == {4}
    assert {row["layer"] for row in record["rows"]} == {
        None,
        "block_0/attention",
        "block_1/attention",
    }
    assert "LASER, ours" in capsys.readouterr().out


def test_drawn_tensors_are_a_function_of_the_seed(tmp_path):
    drawn = ["reconstruct", "--shape=8,2,8", "--count=2", "--scales=1:1,4:0.1"]
    records = []
    for seed in (0, 0, 1):
        out = tmp_path / "r.json"
        assert command.main([*drawn, f"--seed={seed}", f"--out={out}"]) == 0
        records.append(json.loads(out.read_text())["rows"])
    assert records[0] == records[1] != records[2]
    assert {row["layer"] for row in records[0]} == {
        None,
        "normal, qs 1, vs 1",
        "normal, qs 4, vs 0.1",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape=8,1"], "three positive numbers"),
        (["--scales=1"], "pairs of positive numbers"),
        (["--scales=1:0"], "pairs of positive numbers"),
        (["--count=0"], "from 1"),
        (["qkv.npz", "--seed=1"], "for tensors that are drawn"),
        (["--out=/nowhere/at/all.json"], "is no directory"),
    ],
)
def test_bad_input_says_what_is_allowed(arguments, message, capsys):
    assert command.main(["reconstruct", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_values_wider_than_a_head_are_computed_in_parts():
    """Differential mixers give both heads of a pair the values of both."""
    drawn = _draw()
    wide = Tensors("", drawn.query, drawn.key, np.concatenate([drawn.value, drawn.key], axis=-1))
    halves = [Tensors("", drawn.query, drawn.key, half) for half in (drawn.value, drawn.key)]
    key = Case("Standard", BF16)
    errors = [_one(half)[key].value for half in halves]
    assert min(errors) <= _one(wide)[key].value <= max(errors)
