"""README and docs: pages that exist, and commands that their parsers take, studies that resolve."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from analysis import cli
from attention import __main__ as attention
from sweeps import __main__ as sweeps
from sweeps.study import config, study
from tests.floor_plan import ROOT
from workloads import __main__ as workloads

PARSERS = {
    "analysis": cli.parser,
    "attention": attention._parser,
    "sweeps": sweeps._parser,
    "workloads": workloads._parser,
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Placeholders of the pages; a launcher's own keys may need more than the line shows.
VARIABLES = {
    "$DATA": "/data",
    "$PWD": "/here",
    "$attention": "laser",
    "$variant": "laser",
    "$ALGOPERF": "/algoperf",
    "gs://NAME": "gs://name",
}


def _commands(page):
    """Yields package and arguments of every `python -m PACKAGE …` in a page's shell blocks."""
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
        lines = iter(block.replace("\\\n", " ").splitlines())
        for line in lines:
            while line.split("#")[0].count("'") % 2:  # a quoted argument goes on
                line += f" {next(lines)}"
            for name, value in VARIABLES.items():
                line = line.replace(name, value)
            command = re.search(r"python -m (analysis|attention|sweeps|workloads) (.*)", line)
            if command and "--help" not in command[2]:
                yield command[1], tuple(shlex.split(command[2], comments=True))


COMMANDS = sorted({(page.name, *command) for page in PAGES for command in _commands(page)})


def test_the_pages_can_be_read_at_once():
    lines = [len(page.read_text("utf-8").splitlines()) for page in PAGES]
    assert lines[0] <= 200
    assert sum(lines[1:]) <= 2700


def test_the_readme_s_mechanism_is_the_one_that_is_tested():
    """tests/attention/test_recipe.py runs the blocks of docs/extending.md."""
    blocks = [
        set(re.findall(r"^```python\n(# attention/.*?)^```", page.read_text("utf-8"), re.S | re.M))
        for page in (ROOT / "README.md", ROOT / "docs/extending.md")
    ]
    assert len(blocks[0]) == 2
    assert blocks[0] <= blocks[1]


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_a_page_begins_with_the_command_one_came_for(page):
    assert re.match(r"# [^\n]+\n\n```", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_make_is_asked_for_is_a_target(page):
    text = (ROOT / "Makefile").read_text("utf-8")
    asked = re.findall(r"(?:^|`)make ([a-z0-9-]+)", page.read_text("utf-8"), re.M)
    for target in asked:
        assert re.search(rf"^{target}:", text, re.M), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_points_to_is_there(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(("page", "package", "arguments"), COMMANDS)
def test_a_command_of_a_page_is_taken(page, package, arguments):
    del page
    known = arguments[: arguments.index("--")] if "--" in arguments else arguments
    options, overrides = PARSERS[package]().parse_known_args(list(known))
    assert all(override.startswith("--config.") for override in overrides), overrides
    if package == "sweeps" and options.command in ("plan", "run", "compile"):
        for name in options.config.split(","):
            study.resolve(config.parse(name, overrides), planning=True)


@pytest.mark.slow
def test_the_readme_s_first_study_runs_as_written(tmp_path):
    """Plan, run, status and table of digits_vit_quick, line by line; then each package's list."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.S | re.M)
    first = next(block for block in blocks if "sweeps status experiments/digits_vit_quick" in block)
    lines = [line for line in first.splitlines() if line.startswith("python -m")]
    assert [line.split()[3] for line in lines] == ["plan", "run", "status", "table"]
    lines += [
        "python -m attention list",
        "python -m workloads list",
        "python -m sweeps studies",
        "python -m analysis table experiments --format=markdown",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for line in lines:
        words = shlex.split(line.replace("python", shlex.quote(sys.executable), 1), comments=True)
        ran = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{line}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        assert ran.stdout.strip(), line
    assert "| LASER | 1 |" in ran.stdout
