"""docs/extending.md's recipe for a mixer and a modifier, word for word: a file and a line each."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import types

import jax.numpy as jnp
import numpy as np
import pytest

from attention import records, registry, table
from attention.hosts import probe
from attention.verification import check, diagnostics, oracle

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def _recipe():
    """Returns the code of the page's section, by the place that its first line names."""
    text = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")
    section = text[text.index("- **A mixer**") : text.index("- **A workload.**")]
    blocks = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", section, re.S))
    places = {}
    for block in blocks:
        place, code = block.split("\n", 1)
        places[place.removeprefix("# ")] = code
    return places


RECIPE = _recipe()
FILES = {place: code for place, code in RECIPE.items() if ":" not in place}
LINES = {place.split(": ")[1]: code for place, code in RECIPE.items() if ":" in place}


def test_the_recipe_is_one_file_and_one_line_each():
    assert list(FILES) == ["attention/mixers/relu.py", "attention/modifiers/gain.py"]
    assert list(LINES) == ["MIXERS", "MODIFIERS"]
    assert all(len(line.splitlines()) == 1 for line in LINES.values())


@pytest.fixture
def added(monkeypatch):
    """The recipe done in this process."""
    for place, code in FILES.items():
        name = place.removesuffix(".py").replace("/", ".")
        module = types.ModuleType(name)
        exec(compile(code, place, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    for where, line in LINES.items():
        for name, entry in eval(f"{{{line}}}", vars(table)).items():
            monkeypatch.setitem(getattr(table, where), name, entry)


def test_everything_knows_what_was_added(added):
    assert {"relu", "relu+gain", "diff_laser+gain+sink"} <= set(registry.names())
    assert "relu+sink" not in registry.names()
    assert table.label("relu+gain") == "ReLU + gain"
    assert table.order("relu+gain") > table.order("sigmoid+temp")
    assert check.unheard("relu+gain") == []
    for name, dtype in (
        ("relu+gain", "float32"),
        ("relu+gain", "bfloat16"),
        ("laser+gain", "bfloat16"),
        ("relu+softcap", "float32"),
    ):
        case = check.Case(name, "xla", dtype, "none", 1, 1)
        row = check.measure(case, shape=(96, 2, 40), seed=7)
        assert row.passed, row
    query = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 2, 4)), jnp.float32)
    with probe.probed() as seen:
        registry.get("relu")(query, query, query)
    found = diagnostics.summary(diagnostics.measure(seen.layers[0]), {})
    assert found["entropy"] is None
    assert 0 < found["jacobian_mean"] <= 5**-0.5
    with pytest.raises(ValueError, match="kernel='jax_xla' cannot compute 'relu\\+gain'"):
        registry.get("relu+gain", kernel="jax_xla")
    with pytest.raises(ValueError, match="a host cannot have 'relu'"):
        table.check_host_mean("relu", "a host")


@pytest.mark.parametrize("acts_on", ["inputs", "logits", "output"])
def test_a_modifier_acts_where_it_says(monkeypatch, acts_on):
    """Doubling the values and the output is twice the output; doubled logits are τ = 1/2."""
    twice = {
        "inputs": lambda given: given._replace(value=2 * given.value),
        "logits": lambda given: 2 * given,
        "output": lambda given: 2 * given,
    }[acts_on]
    module = types.ModuleType("attention.modifiers.twice")
    module.MODIFIER = records.Modifier(acts_on, twice, lambda given, leaves: None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(table.MODIFIERS, "twice", table.ModifierEntry("twice", "2·x", "a test"))
    query = jnp.asarray(np.random.default_rng(0).standard_normal((5, 2, 4)), jnp.float32)
    found = registry.get("standard+twice")(query, query, query)
    if acts_on == "logits":
        expected = registry.get("standard+temp", tau=0.5)(query, query, query)
    else:
        expected = 2 * registry.get("standard")(query, query, query)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_mixer_without_leaves_is_given_its_hyperparameters(added, monkeypatch):
    """ReLU times a constant: its line names it, its attend and its formula read it."""
    relu = records.mixer("relu")

    def attend(query, key, value, *, gain, **settings):
        return gain * relu.attend(query, key, value, **settings)

    def formula(logits, mask, value, cotangent, *, gain):
        exact = relu.formula(logits, mask, value, gain * cotangent)
        return exact._replace(output=gain * exact.output)

    module = types.ModuleType("attention.mixers.gained")
    module.MIXER = dataclasses.replace(relu, attend=attend, formula=formula)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    one = table.Hyperparameter(lambda given: float(given), default=1.0, other=2.0)
    line = table.MIXERS["relu"]._replace(hyperparameters={"gain": one})
    monkeypatch.setitem(table.MIXERS, "gained", line)
    query = jnp.asarray(np.random.default_rng(0).standard_normal((5, 2, 4)), jnp.float32)
    twice = registry.get("gained", gain=2)
    assert twice.gain == 2
    assert twice != registry.get("gained")
    expected = 2 * registry.get("relu")(query, query, query)
    np.testing.assert_allclose(twice(query, query, query), expected)
    exact = oracle.compute(twice, {}, [query, query, query, query], None)
    np.testing.assert_allclose(exact.output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_copy_of_the_tree_trains_with_what_was_added(tmp_path):
    """Two files and two lines, then a study of the two new names beside the baseline."""
    copy = tmp_path / "copy"
    for room in ("attention", "workloads", "sweeps", "analysis"):
        shutil.copytree(
            REPOSITORY / room, copy / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    for place, code in FILES.items():
        (copy / place).write_text(code, encoding="utf-8")
    lines = copy / "attention/table.py"
    text = lines.read_text(encoding="utf-8")
    for where, line in LINES.items():
        text, count = re.subn(rf"(?m)^({where}: .*\n)", rf"\g<1>    {line}", text)
        assert count == 1
    lines.write_text(text, encoding="utf-8")

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=copy,
            capture_output=True,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""},
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    assert "all within limits" in run("attention", "check", "relu+gain", "--shape=96,2,40")
    run(
        *("sweeps", "run", "--config=digits_vit_quick", "--config.steps=20", "--config.points=1"),
        "--config.variants=standard,relu+gain",
        f"--config.experiment_dir={tmp_path}",
        f"--config.data_dir={tmp_path / 'data'}",
    )
    table_text = run("analysis", "table", str(tmp_path / "digits_vit_quick"))
    assert "relu" in table_text.lower()
    assert "gain" in table_text
