"""What needs JAX or data libraries, done in a process of its own: the driver never loads them.

    python -m sweeps.training.subprocesses FUNCTION --reply=FD

reads the arguments, a JSON object, from standard input and writes one line of JSON to the file
descriptor FD: {"result": ...}, or {"error": "ValueError", "message": ...}. What the function prints
goes where this process prints.
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Any

from workloads.base import errors

FUNCTIONS = {
    "memory": "sweeps.training.jax_calls:memory",
    "data": "sweeps.training.jax_calls:data",
}
# Errors that are answers: they come back as what they were. Any other one is a crash.
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "OSError": OSError}
_LAST_LINES = 12


class Call:
    """A call under way. `with Call(name, **arguments) as call:` ends the process if left early."""

    def __init__(self, name: str, **arguments: Any) -> None:
        """Starts FUNCTIONS[name] with arguments that JSON can hold; returns at once."""
        self._name = name
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `result`)
        read, write = os.pipe()
        self._reply = open(read, encoding="utf-8")  # noqa: SIM115  (closed by `result`)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sweeps.training.subprocesses", name, f"--reply={write}"],
                stdin=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=(write,),
                env=_environment(),
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(write)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(json.dumps(arguments).encode())

    def result(self) -> Any:
        """Waits; returns what the function returned, as JSON gives it back.

        Raises ValueError and OSError with the function's own message, and ChildProcessError with
        the last lines that the process wrote where it ended in any other way.
        """
        try:
            line = self._reply.read()
            code = self._process.wait()
            written = self._written()
        finally:
            self._close()
        try:
            reply = json.loads(line)
        except ValueError:
            tail = "\n".join(written.splitlines()[-_LAST_LINES:])
            raise ChildProcessError(
                f"python -m sweeps.training.subprocesses {self._name} ended with code {code} "
                f"and no answer; its last lines:\n{tail}"
            ) from None
        sys.stderr.write(written)
        if "error" in reply:
            raise _ERRORS[reply["error"]](reply["message"])
        return reply["result"]

    def _written(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def _close(self) -> None:
        self._reply.close()
        self._stderr.close()

    def __enter__(self) -> "Call":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._close()


def call(name: str, **arguments: Any) -> Any:
    """Returns FUNCTIONS[name](**arguments), computed in a process of its own; see Call."""
    with Call(name, **arguments) as under_way:
        return under_way.result()


def _environment() -> dict[str, str]:
    """The code of this checkout, wherever the driver was started and whatever lies there."""
    root = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module, function = FUNCTIONS[name].split(":")
    try:
        return {"result": getattr(importlib.import_module(module), function)(**arguments)}
    except ValueError as error:
        return {"error": "ValueError", "message": str(error)}
    except OSError as error:
        return {"error": "OSError", "message": errors.told(error)}


def main() -> int:
    """Answers one call. Returns 0; an error that is no answer ends the process with its trace."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.training.subprocesses", allow_abbrev=False
    )
    parser.add_argument("function", choices=sorted(FUNCTIONS))
    parser.add_argument("--reply", type=int, required=True, help="file descriptor of the answer")
    options = parser.parse_args()
    # A process that the function leaves behind must not keep the driver waiting for more.
    os.set_inheritable(options.reply, False)
    answer = _answer(options.function, json.load(sys.stdin))
    with os.fdopen(options.reply, "w", encoding="utf-8") as reply:
        reply.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
