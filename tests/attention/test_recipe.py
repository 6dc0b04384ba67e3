"""docs/extending.md's recipe for a mixer and a modifier, word for word: a file and a line each.

Beside them a modifier of the score, with a leaf of one number per head.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import probe, registry, table
from attention.verification import check, layer_statistics
from tests.attention import no_ops
from workloads import registry as workload_registry

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def _recipe():
    """Returns the page's files by their path, and lines by the table that they belong to."""
    text = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")
    section = text[text.index("## An attention mechanism") : text.index("## A workload")]
    blocks = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", section, re.S))
    files, lines = {}, {}
    for block in blocks:
        place, code = block.split("\n", 1)
        path, _, table_name = place.removeprefix("# ").partition(": ")
        if table_name:
            lines.setdefault(table_name, []).append(code)
        else:
            files[path] = code
    return files, lines


RECENCY = '''\
"""A learned penalty of distance: logits_ij − s_h·|i − j|."""

import jax.numpy as jnp

from attention.records import Leaf, Modifier


def leaves(call):
    return (Leaf("recency/scale", call.query.shape[-2:-1]),)


def apply(logits, query_index, key_index, leaves):
    return logits - leaves["recency/scale"] * jnp.abs(query_index - key_index)


def formula(logits, leaves):  # [H, T, S]
    position = jnp.arange(logits.shape[-1])
    distance = jnp.abs(position[:, None] - position)
    return logits - leaves["recency/scale"][:, None, None] * distance


MODIFIER = Modifier("score", apply, formula, leaves)
'''
RECENCY_LINE = """\
"recency": ModifierEntry("recency", "−s·|i−j|", "a test", "H (s)", needs=("score", "inside")),
"""

FILES, LINES = _recipe()
FILES["attention/modifiers/recency.py"] = RECENCY
LINES["MODIFIERS"].append(RECENCY_LINE)


def test_the_recipe_is_one_file_and_one_line_each():
    assert list(FILES) == [
        "attention/mixers/relu.py",
        "attention/modifiers/headgate.py",
        "attention/modifiers/recency.py",
    ]
    lines = [line for place in LINES.values() for line in place]
    assert len(lines) == len(FILES)
    assert all(len(line.splitlines()) == 1 for line in lines)
    # Gated attention with its reference.
    assert len(FILES["attention/modifiers/headgate.py"].splitlines()) <= 30


@pytest.fixture
def added(monkeypatch):
    """The recipe done in this process."""
    for place, code in FILES.items():
        name = place.removesuffix(".py").replace("/", ".")
        module = types.ModuleType(name)
        exec(compile(code, place, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    for where, lines in LINES.items():
        for name, entry in eval(f"{{{''.join(lines)}}}", vars(table)).items():
            monkeypatch.setitem(getattr(table, where), name, entry)


def test_everything_knows_what_was_added(added):
    assert {"relu", "relu+headgate", "diff_laser+recency"} <= set(registry.names())
    assert "relu+sink" not in registry.names()
    assert table.label("relu+headgate") == "ReLU + gate"
    assert table.order("relu+headgate") > table.order("sigmoid+temp")
    assert no_ops.find("relu+headgate+recency") == []
    for name, dtype in (
        ("relu+headgate", "bfloat16"),
        ("laser+headgate+recency+sink", "float32"),
    ):
        case = check.Case(name, "xla", dtype, "none", 1, 1)
        row = check.measure(case, shape=(96, 2, 40), seed=7)
        assert row.passed, row
    query = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 2, 4)), jnp.float32)
    with probe.probed() as seen:
        registry.get("relu")(query, query, query)
    statistics = layer_statistics.summary(layer_statistics.measure(seen.layers[0]), {})
    assert (statistics["entropy"], statistics["jacobian_mean"]) == (None, None)
    assert sum(statistics["histogram"]) == 2 * 2 * 5 * 5
    with pytest.raises(ValueError, match="kernel='jax_xla'.*'relu\\+headgate', whose relu"):
        registry.get("relu+headgate", kernel="jax_xla")
    with pytest.raises(ValueError, match="a model cannot have 'relu'"):
        table.check_model("relu", {"inside": "keeps its own softmax"}, "a model")


@pytest.mark.parametrize(
    "name", ["digits_vit", "spoken_digits_conformer", "pydoc_lm", "pydoc_bert"]
)
def test_a_gate_of_the_users_own_in_every_domain(added, name):
    """Its leaf lies beside each layer's projections, its gradient is there."""
    workload = workload_registry.make(name, registry.get("laser+headgate"))
    plain = workload_registry.make(name, registry.get("laser"))

    def leaves(one):
        params, _ = jax.eval_shape(one.init_model_fn, jax.random.key(0))
        return {
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)
        }

    assert leaves(plain) < leaves(workload)
    assert all("headgate" in path for path in leaves(workload) - leaves(plain))


@pytest.mark.slow
def test_a_copy_of_the_tree_trains_with_what_was_added(tmp_path):
    """Three files and three lines, then a study of new names beside the baseline."""
    copy = tmp_path / "copy"
    for room in ("attention", "workloads", "sweeps", "analysis"):
        shutil.copytree(
            REPOSITORY / room, copy / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    for place, code in FILES.items():
        (copy / place).write_text(code, encoding="utf-8")
    lines = copy / "attention/table.py"
    text = lines.read_text(encoding="utf-8")
    for where, added in LINES.items():
        for line in added:
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

    assert "all within limits" in run("attention", "check", "relu+headgate", "--shape=96,2,40")
    run(
        *("sweeps", "run", "--config=digits_vit_quick", "--config.steps=20", "--config.seeds=1"),
        "--config.variants=standard,relu+headgate",
        f"--config.experiment_dir={tmp_path}",
        f"--config.data_dir={tmp_path / 'data'}",
    )
    table_text = run("analysis", "table", str(tmp_path / "digits_vit_quick"))
    assert "relu" in table_text.lower()
    assert "gate" in table_text
