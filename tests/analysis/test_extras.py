"""Extras: which library comes with which, and what a command says that lacks one.

Installations are real, into empty environments, from the index that pip is set up for.
"""

import configparser
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

import pytest

from attention import extras
from tests import floor_plan

ROOT = floor_plan.ROOT
# Python imports it at its start, in processes that a command starts, too.
SITE = "import os, sys\nsys.modules.update(dict.fromkeys(os.environ['MISSING'].split()))\n"
# What a command is asked, the libraries that are missing, the extra that it names.
EVERY = sorted({module for modules in extras.MODULES.values() for module in modules})
LACKING = (
    ("attention check standard", EVERY, "attention"),
    ("workloads check digits_vit", EVERY, "workloads"),
    ("workloads bench digits_vit", ["jax"], "workloads"),
    (
        "workloads prepare spoken_digits_conformer --data_dir=DIR",
        ["espeakng_loader"],
        "small-speech",
    ),
    ("sweeps plan --config=digits_vit_quick", EVERY, "sweeps"),
    ("sweeps run --config=digits_vit_quick --config.experiment_dir=DIR", ["jax"], "sweeps"),
    ("analysis table DIR", ["pandas"], "analysis"),
    ("analysis report DIR", ["altair"], "analysis"),
    ("analysis plots DIR", ["vl_convert"], "pictures"),
    ("analysis summary DIR --plot=DIR/x.png", ["vl_convert"], "pictures"),
)
FLEX_AND_INJECT = """
import jax, jax.numpy as jnp
from flax import linen as nn
from attention import inject, registry
from attention.flex import flex
query = jnp.ones((1, 4, 2, 8))
assert jnp.allclose(flex(query, query, query, mask="causal"), 1)
model = nn.MultiHeadDotProductAttention(num_heads=2)
with inject.injected(registry.get("laser+qk_norm")):
    parameters = model.init(jax.random.key(0), jnp.ones((1, 4, 8)))["params"]
assert "query_ln" in str(jax.tree.structure(parameters))
"""


def _run(python, *arguments, directory, **environment):
    return subprocess.run(
        [str(python), *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("command", "missing", "extra"), LACKING)
def test_a_command_names_the_extra_that_it_lacks(command, missing, extra, study, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE, "utf-8")
    directory = study.finish() if "analysis" in command else tmp_path / "data"
    words = command.replace("DIR", str(directory)).split()
    done = _run(
        *(sys.executable, "-m", *words),
        directory=ROOT,
        PYTHONPATH=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path),
        MISSING=" ".join(missing),
    )
    assert done.returncode == 2
    assert re.findall(r"pip install '(.*?)'", done.stderr) == [f"attnperf[{extra}]"]
    assert "Traceback" not in done.stderr


def test_a_broken_import_stays_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such"), extras.explained("analysis"):
        import analysis.no_such  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="no_such"), extras.explained("analysis"):
        import pandas.no_such  # noqa: F401


def test_every_library_comes_with_the_extra_of_what_imports_it() -> None:
    """By setup.cfg: the packages' imports, and the table from which messages are made."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    required = {
        extra: set(re.findall(r"^([\w.-]+)", text, re.MULTILINE))
        for extra, text in config["options.extras_require"].items()
    }
    required = {extra: {name.lower() for name in names} for extra, names in required.items()}
    distributions = importlib.metadata.packages_distributions()
    for extra, modules in extras.MODULES.items():
        for module in {*modules} - {"numpy", "markupsafe"}:  # the base's; Jinja's
            assert {name.lower() for name in distributions[module]} & required[extra], module
    optional = {*extras.MODULES["tensorboard"], *extras.MODULES["kubernetes"], "espeakng_loader"}
    apart = optional | {"vl_convert", "ray", "requests", "torch", "algoperf", "lm_eval", "datasets"}
    apart |= {"tensorflow", *floor_plan.PACKAGES, *sys.stdlib_module_names}
    for package in floor_plan.PACKAGES:
        brought = {package, *extras.INCLUDED.get(package, ())}
        brought = {module for extra in brought for module in extras.MODULES[extra]}
        # Other projects' adapters, whose extras bring all of ours.
        adapters = {ROOT / package / "algoperf", ROOT / package / "init2winit"}
        for path in floor_plan.files(package):
            if path.parent in adapters:
                continue
            roots = {name.split(".")[0] for name in floor_plan.imported(path)}
            assert roots <= brought | apart, path


def _installed(extra: str, directory: pathlib.Path) -> pathlib.Path:
    """Returns the Python of a new environment that has the checkout with one extra."""
    source = directory / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in floor_plan.PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(directory / "environment", symlinks=True)
    python = directory / "environment/bin/python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    done = _run(*pip, "--disable-pip-version-check", f"{source}[{extra}]", directory=directory)
    assert done.returncode == 0, done.stderr[-3000:]
    return python


@pytest.mark.slow
def test_attention_alone_in_an_empty_environment(tmp_path) -> None:
    python = _installed("attention", tmp_path)
    programs = (
        ["-c", FLEX_AND_INJECT],
        ["-m", "attention", "list"],
        ["-m", "attention", "check", "standard", "--shape=16,2,8"],
    )
    for program in programs:
        done = _run(python, *program, directory=tmp_path)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    refused = _run(python, "-m", "analysis", "table", str(tmp_path), directory=tmp_path)
    assert refused.returncode == 2
    assert "attnperf[analysis]" in refused.stderr


@pytest.mark.slow
def test_analysis_without_jax_in_an_empty_environment(study, tmp_path) -> None:
    root = study.finish()
    python = _installed("analysis", tmp_path)
    assert _run(python, "-c", "import jax", directory=tmp_path).returncode == 1
    for command in ("table", "report"):
        done = _run(python, "-m", "analysis", command, str(root), directory=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout
    assert "vegaEmbed" in (root / "report.html").read_text("utf-8")
