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

from attention.common import extras
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
    ("analysis report DIR", ["jinja2"], "analysis"),
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

# Extras that parts of a package need, and modules that are asked for where they are needed.
APART = (
    *("small-speech", "pictures", "kubernetes", "tensorboard"),
    *("datasets", "lm_eval", "ray", "requests", "tensorflow"),
)

# What is run where one extra is installed alone, and its status.
INSTALLED = {
    "attention": (
        (0, "-c", FLEX_AND_INJECT),
        (0, "-m", "attention", "list"),
        (0, "-m", "attention", "check", "standard", "--shape=16,2,8"),
        (2, "-m", "analysis", "table", "DIR"),
    ),
    "analysis": (
        (1, "-c", "import jax"),
        (0, "-m", "analysis", "table", "DIR"),
        (0, "-m", "analysis", "report", "DIR"),
        (0, "-c", "assert 'vegaEmbed' in open('report.html').read()"),
        (2, "-m", "analysis", "plots", "DIR"),
    ),
}


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
        ATTNPERF_CACHE=str(tmp_path),
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
        extra: set(re.findall(r"^([\w.-]+)", text.lower(), re.MULTILINE))
        for extra, text in config["options.extras_require"].items()
    }
    distributions = importlib.metadata.packages_distributions()
    for extra, modules in extras.MODULES.items():
        for module in {*modules} - {"numpy", "markupsafe"}:  # the base's; Jinja's
            assert {name.lower() for name in distributions[module]} & required[extra], module
    for package in floor_plan.PACKAGES:
        parts = {package, *extras.INCLUDED.get(package, ()), *APART}
        brought = {module for extra in parts for module in extras.MODULES.get(extra, (extra,))}
        # Other projects' adapters: their extras bring all of ours.
        adapters = {ROOT / package / name for name in ("algoperf", "init2winit", "maxtext")}
        for path in floor_plan.files(package):
            roots = {name.split(".")[0] for name in floor_plan.imported(path)}
            known = roots <= brought | sys.stdlib_module_names | {*floor_plan.PACKAGES}
            assert known or path.parent in adapters, path


def _installed(extra: str, directory: pathlib.Path) -> pathlib.Path:
    """Returns the Python of a new environment that has the checkout with one extra."""
    source = directory / "source"
    for package in floor_plan.PACKAGES:
        shutil.copytree(ROOT / package, source / package)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(directory / "environment", symlinks=True)
    python = directory / "environment/bin/python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    subprocess.run([*pip, "--disable-pip-version-check", f"{source}[{extra}]"], check=True)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("extra", INSTALLED)
def test_an_extra_alone_in_an_empty_environment(extra, study, tmp_path) -> None:
    root = study.finish()
    python = _installed(extra, tmp_path)
    for status, *words in INSTALLED[extra]:
        arguments = (word.replace("DIR", str(root)) for word in words)
        # Flags of this process's JAX may be unknown to the one that was installed.
        done = _run(python, *arguments, directory=root, XLA_FLAGS="")
        assert done.returncode == status, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
