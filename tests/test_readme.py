"""README and docs: pages that exist, commands that are run or taken, Python that runs."""

import os
import re
import shlex
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from analysis import cli
from attention import __main__ as attention
from attention import table
from sweeps import __main__ as sweeps
from sweeps.study import config, study
from tests.floor_plan import ROOT
from workloads import __main__ as workloads
from workloads import catalog

PACKAGES = {
    "analysis": (cli.parser, cli.main),
    "attention": (attention._parser, attention.main),
    "sweeps": (sweeps._parser, sweeps.main),
    "workloads": (workloads._parser, workloads.main),
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Placeholders of the pages.
VARIABLES = {
    "$DATA": "/data",
    "$PWD": "/here",
    "$attention": "laser",
    "$variant": "laser",
    "$ALGOPERF": "/algoperf",
    "gs://NAME": "gs://name",
    "relu+headgate": "laser+gate",
    "prepare NAME": "prepare digits_vit",
}
OURS = "|".join(PACKAGES)
# Commands that print what there is: they are run.
LISTS = {"attention list", "workloads list", "sweeps studies", "sweeps keys"}
# Programs of others, and words of the shell.
OTHERS = (
    *("apt-get", "cd", "done", "echo", "eval", "export", "for", "git", "kubectl", "ray", "sbatch"),
    *("sinfo", "squeue", "python /algoperf", "python3 -m venv", "RAY_AUTH_MODE=token ray"),
    "python3 datasets/dataset_setup",  # of AlgoPerf
)


def _joined(block):
    """Yields a block's commands, those of several lines on one, without comments."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        while line.split("#")[0].count("'") % 2:  # a quoted argument goes on
            line += f" {next(lines)}"
        yield from re.sub(r"(^|\s)#.*", "", line).split(" && ")


def _commands(page):
    """Yields the commands of a page: of its blocks for a shell, and those in its sentences."""
    text = page.read_text("utf-8")
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
        if language in ("bash", "sh", ""):
            begin = "" if language else r"--config\.|(make|pip|pytest|\S*python3? -m) "
            yield from (line.strip() for line in _joined(block) if re.match(begin, line.strip()))
    sentences = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    program = rf"(?:python -m (?:{OURS}|tests)|make(?= )|pytest|(?:{OURS})(?= [a-z_]+(?:`| -)))"
    for command in re.findall(rf"`({program}[^`]*)`", sentences):
        is_short = command.startswith(tuple(PACKAGES))
        yield f"python -m {command}" if is_short else command


def _of_package(package, text):
    """Parses a command of ours, resolves its study, looks up its names; runs what lists."""
    arguments = shlex.split(text or "")
    parser, main = PACKAGES[package]
    if f"{package} {text}" in LISTS:
        return main(arguments)
    if len(arguments) < 2 or "--help" in arguments:
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([*arguments[:1], "--help"])
        return ended.value.code
    known = arguments[: arguments.index("--")] if "--" in arguments else arguments
    options, overrides = parser().parse_known_args(known)
    assert all(override.startswith("--config.") for override in overrides), overrides
    if package == "sweeps" and options.command in ("plan", "run", "compile"):
        for name in options.config.split(","):
            study.resolve(config.parse(name, overrides), planning=True)
    if package == "attention" and options.command == "check":
        for kernel in options.kernels.split(","):
            assert all(kernel in table.kernels_of(name) for name in options.variants)
    if package == "workloads":
        name = getattr(options, "name", "downstream")
        assert name == "downstream" or catalog.get(name)
        table.canonical(getattr(options, "attention", "standard"))
    return 0


def _makes(target):
    words = ["make", "-n", *shlex.split(target)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode


def _of_tests(module, text):
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
    return [option for option in re.findall(r"--\w+", text) if f'"{option}"' not in source]


def _files(text):
    return [name for name in re.findall(r"\S+\.py", text) if not any(ROOT.glob(name))]


def _extras(text):
    named = re.findall(r"attnperf\[([\w-]+)\]|'\.\[([\w-]+)\]", text)
    known = (ROOT / "setup.cfg").read_text("utf-8")
    return [name for pair in named for name in pair if name and f"\n{name} =" not in known]


# A command is what the first pattern says that fits all of it: the function returns nothing, or 0.
WAYS = {
    rf"(?:\S*/)?python -m ({OURS})(?: +(.*))?": _of_package,
    r"(--config\..*)": lambda keys: _of_package("sweeps", f"run --config=digits_vit_quick {keys}"),
    r"python -m tests\.algoperf\.tiny_run (.*)": lambda text: _of_package("workloads", text),
    r"make (.+)": _makes,
    r"python -m (tests[\w.]+) ?(.*)": _of_tests,
    r"(?:python -m )?pytest (.*)": _files,
    r"(?:\S*python -m )?pip install ([^$]*)": _extras,
    r"\.ci/(\S+) .*": lambda name: not (ROOT / ".ci" / name).exists(),
    rf"(?:{'|'.join(OTHERS)})\b.*": lambda: 0,
}
TEXTS = {page.name: page.read_text("utf-8") for page in PAGES}
COMMANDS = sorted({(page.name, line) for page in PAGES for line in _commands(page) if line})


def test_the_pages_can_be_read_at_once():
    lines = [len(page.read_text("utf-8").splitlines()) for page in PAGES]
    assert lines[0] <= 180
    assert sum(lines[1:]) <= 2500


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
def test_what_a_page_points_to_is_there(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_a_page_is_run_or_taken(page, command, tmp_path, monkeypatch):
    """A study is planned, a list printed; of what needs data, an engine or a device, its parser
    takes the arguments. Modules that the page shows can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", TEXTS[page], re.S | re.M):
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    ways = {pattern: way for pattern, way in WAYS.items() if re.fullmatch(pattern, command)}
    assert ways, f"{page}: nothing here knows {command!r}"
    pattern, way = next(iter(ways.items()))
    assert not way(*re.fullmatch(pattern, command).groups())


class _Model(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.MultiHeadDotProductAttention(num_heads=2)(inputs)


@pytest.mark.parametrize("name", ["README.md", "docs/own_model.md", "docs/flex.md"])
def test_the_python_of_a_page_runs(name):
    """Its blocks one after the other, in one namespace; recipes have tests of their own."""
    names = {"model": _Model(), "inputs": jnp.ones((1, 3, 8)), "jax": jax}
    for block in re.findall(
        r"^```python\n(.*?)^```", (ROOT / name).read_text("utf-8"), re.S | re.M
    ):
        if not block.startswith("# attention/"):
            exec(compile(block, name, "exec"), names)
    if "apply" in names:
        with names["inject"].injected(names["variant"]):
            params = names["model"].init(jax.random.key(0), names["inputs"])["params"]
        assert names["apply"](params, names["inputs"]).shape == (1, 3, 8)


CHECKS = {c for _, c in COMMANDS if re.search(r"attention check \w", c) and "--shape" not in c}


@pytest.mark.nightly
@pytest.mark.parametrize("command", sorted(CHECKS))
def test_a_check_of_a_page_passes(command):
    words = [sys.executable, *shlex.split(command)[1:]]
    environment = {**os.environ, "XLA_FLAGS": ""}  # as users compile
    assert subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode == 0


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
    assert "| LASER | 3 |" in ran.stdout
