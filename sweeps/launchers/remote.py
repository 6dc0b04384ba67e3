"""What launchers of engines on other hosts share: keys, variables, names of jobs, programs."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from sweeps.launchers.config_keys import Key, Range
from sweeps.launchers.protocol import EngineError
from sweeps.records.submissions import JOBS, Batch

# What a terminal takes for colours, its window's title and the like (ECMA-48).
_CONTROLS = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[ -/]*[0-~])")

# What max_jobs, workers and poll_seconds may be.
COUNT = Range(1, 1_000_000)
PROCESSES = Range(1, 1024)
SECONDS = Range(1, 3600)
TRIALS_PER_JOB = Key(1, "trials that one job runs", COUNT)


def variables(text: str) -> dict[str, str]:
    """Returns {"A": "1", "B": "2 3"} of "A=1 B='2 3'".

    Raises ValueError for anything else, and for PYTHONPATH, by which a job finds its study's code.
    """
    values = {}
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; give NAME=VALUE NAME='VALUE WITH SPACES'") from error
    for part in parts:
        match = re.fullmatch(r"(?s)([A-Za-z_][A-Za-z0-9_]*)=(.*)", part)
        if match is None:
            raise ValueError(f"{part!r} is no variable; give NAME=VALUE NAME='VALUE WITH SPACES'")
        values[match[1]] = match[2]
    if "PYTHONPATH" in values:
        raise ValueError("PYTHONPATH is the code's; install what it is to find")
    return values


def job_name(batch: Batch, index: int) -> str:
    """Returns a job's name, which is also its handle: the same whenever it is submitted."""
    return f"{batch.name}-{index}"


def job_names(batch: Batch) -> list[str]:
    """Returns the names of a batch's jobs, in order."""
    return [job_name(batch, index) for index in range(batch.size)]


def sample(settings: dict[str, Any]) -> Batch:
    """Returns a batch of one job as the study of a config could have it: to see what it becomes."""
    study = os.path.join(settings["experiment_dir"], settings["name"])
    root = pathlib.Path(os.path.realpath(study))
    return Batch(root / JOBS / "sample.json", ((),), {"PYTHONPATH": str(root / "code")})


def run(
    command: list[str], absent: str, timeout_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Returns an engine's program when it has ended, with what it printed, in plain text.

    It cannot ask a person. Sites print greetings around an answer, also on standard output: read
    what has the answer's form, not the whole.

    Raises EngineError, saying `absent`, if this host does not have it, and where it does not
    answer.
    """
    program = shutil.which(command[0])
    if program is None:
        raise EngineError(absent)
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a script may hold paths that are not UTF-8
            timeout=timeout_s,
            **{"input": "", **options},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        words = " ".join(part for part in command[:3] if not part.startswith("-"))
        raise EngineError(f"{words} did not answer: {error}") from error
    done.stdout, done.stderr = _plain(done.stdout), _plain(done.stderr)
    return done


def _plain(text: str) -> str:
    return _CONTROLS.sub("", text.encode(errors="replace").decode())


def json_values(text: str) -> Iterator[Any]:
    """Yields the JSON objects and arrays that begin at the start of a line of a program's answer.

    Lines that are no JSON are passed over, and what is cut short is.
    """
    for start in re.finditer(r"^[\[{]", text, re.MULTILINE):
        with contextlib.suppress(ValueError):
            yield json.JSONDecoder().raw_decode(text, start.start())[0]


def last_line(text: str) -> str:
    """Returns the last line that says something, of what a program printed."""
    lines = [line for line in text.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[-1].strip()) if lines else "no message"
