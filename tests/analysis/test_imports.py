"""What the commands of analysis load: no JAX, and of the rest what they use."""

import subprocess
import sys

from analysis import cli
from tests.floor_plan import ROOT

# Runs commands on a study, and prints after each the modules that are loaded.
LOADED = """
import contextlib, io, sys
from analysis import cli
for command in sys.argv[2:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main([command, sys.argv[1]])
    print(*sys.modules)
"""


def test_no_command_imports_jax_nor_a_table_what_draws(study):
    """The import closure of the most common command is small: it starts at once."""
    others = sorted(cli.COMMANDS.keys() - {"table", "plots"})  # pictures take seconds
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(study.finish()), "table", *others],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    table, *_, everything = (set(line.split()) for line in done.stdout.splitlines())
    assert not {"jax", "jaxlib", "flax", "optax", "orbax", "vl_convert"} & everything
    assert "altair" in everything - table
    ours = [name for name in table if name.startswith("analysis.")]
    assert len(ours) <= 44, ours
