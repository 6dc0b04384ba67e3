"""Questions of a driver that need JAX or data libraries.

A driver never loads those. A process of its own, started anew (never forked), computes the answer.
"""

import multiprocessing
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from attention.common import extras, messages
from sweeps.records import layout

_LAST_LINES = 12


class SubprocessCall:
    """A call under way in a process of its own.

    `with SubprocessCall(function, **arguments) as call:` ends the process if an error leaves it.
    """

    def __init__(self, function: Callable[..., Any], **arguments: Any) -> None:
        """Starts a function of a module; returns at once."""
        self._name = function.__name__
        self._stderr = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed by `__exit__`)
        context = multiprocessing.get_context("spawn")
        self._answer, connection = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_respond, args=(connection, self._stderr.name, function, arguments)
        )
        self.process.start()
        connection.close()  # so that the pipe ends when the process dies

    def result(self, limit_s: float | None = None) -> Any:
        """Waits; returns what the function returned.

        Raises TimeoutError if that takes longer than `limit_s`, ValueError and OSError with the
        function's own message, and ChildProcessError with the last lines that the process wrote
        where it ended in any other way.
        """
        if not self._answer.poll(limit_s):
            raise TimeoutError(
                f"the process that computes {self._name!r} gave no answer in {limit_s:.0f} s"
            )
        try:
            answer = self._answer.recv()
        except (EOFError, OSError):  # the latter amid an answer
            self.process.join()
            lines = self._written().splitlines()[-_LAST_LINES:]
            raise ChildProcessError(
                f"the process that computes {self._name!r} ended with code "
                f"{self.process.exitcode} and gave no answer; its last lines:\n" + "\n".join(lines)
            ) from None
        sys.stderr.write(self._written())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _written(self) -> str:
        return pathlib.Path(self._stderr.name).read_text("utf-8", errors="replace")

    def __enter__(self) -> "SubprocessCall":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.process.kill()  # JAX, several processes connected, does not end on SIGTERM
        self.process.join()
        self._answer.close()
        self._stderr.close()


def call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Returns function(**arguments), computed in a process of its own; see SubprocessCall."""
    with SubprocessCall(function, **arguments) as under_way:
        return under_way.result()


def _respond(
    connection: Connection, stderr: str, function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    """Sends what the function returns, or an error that is an answer, as one any process has.

    What this process writes to standard error, from C++ too, goes to a file.
    """
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND), 2)
    try:
        with extras.explained("sweeps"):
            answer = function(**arguments)
    except OSError as error:
        answer = OSError(messages.message(error))
    except ValueError as error:
        answer = ValueError(str(error))
    connection.send(answer)


def data(
    workload: str, data_dir: str, extra_paths: dict[str, str] | None = None, suite: str = ""
) -> dict[str, Any]:
    """Checks a workload's data, which embedded workloads make where it is absent.

    extra_paths: where else things lie, by the names in `WorkloadSpec.extra_paths` (workloads.base).
    suite: that the trained models are evaluated by, '' for none.
    Returns {"lines": what was found, "reference": {"note", "rows"} of simple methods or None,
    "digest": the SHA-256 of the content, of full-size data that of their description (`describe`
    of their module), '' where a host's own pipeline reads them}. Raises ValueError naming the
    directory, the file and the command that repairs it.
    """
    from workloads import catalog

    entry = catalog.get(workload)
    module = catalog.data_module(workload)
    lines: list[str] = []
    if suite:
        check_suite(suite, workload, data_dir)
    if entry.embedded:
        module.prepare(data_dir)
    else:
        paths = extra_paths or {}
        needed = {name: path for name, path in paths.items() if name in entry.extra_paths}
        lines = list(module.check(data_dir, **needed))
    reference, digest = None, ""
    if hasattr(module, "read_reference"):
        record = module.read_reference(data_dir)
        reference = {"note": record.note, "rows": record.rows}
        digest = record.sha256
    elif hasattr(module, "describe"):
        digest = layout.digest(module.describe(data_dir))
    return {"lines": lines, "reference": reference, "digest": digest}


def model(workload: str) -> str:
    """Returns `workloads.registry.check_model` of a workload of a user's module, or raises so."""
    from workloads import registry

    return registry.check_model(workload)


def check_suite(suite: str, workload: str, data_dir: str) -> dict[str, Any]:
    """Checks what a suite needs beside a model of a workload: its data, the tokenizer, lm-eval.

    Embedded workloads make what is absent. Returns what `data` does, without reference and digest.
    Raises ValueError as `data`.
    """
    from workloads import catalog
    from workloads.downstream import pydoc_questions, suites

    suites.check_harness()
    questions = suites.get(suite)
    if catalog.get(workload).embedded:
        catalog.data_module(workload).prepare(data_dir)
        if questions.embedded:
            pydoc_questions.prepare(data_dir)
    suites.check(questions, data_dir)
    return {
        "lines": [f"{data_dir}: suite {suite}, {len(questions.tasks)} tasks"],
        "reference": None,
        "digest": "",
    }


def check_laws(variants: dict[str, dict[str, Any]], laws: tuple[str, ...]) -> None:
    """Raises ValueError naming the variants that break a law of attention, and what to do.

    variants: their hyperparameters by name. laws: of `attention.verification.laws`.
    """
    import jax

    from attention import registry
    from attention.verification import laws as measured
    from sweeps.launchers import local

    # The devices are for trials, which may run already.
    jax.config.update("jax_platforms", "cpu")
    # Variants share most operations: 2.7 CPU-s for two more, 5.2 for the first two.
    local.cache_programs(str(local.compilation_cache()))
    broken = {
        name: problem
        for name, hyperparameters in variants.items()
        if (problem := measured.problem(registry.get(name, **hyperparameters), laws))
    }
    if broken:
        text = " ".join(f"Variant {name!r}: {problem}." for name, problem in broken.items())
        raise ValueError(
            f"{text} Its losses cannot be compared with those of other variants. Repair it (python "
            f"-m attention check {' '.join(broken)}), or leave it out of --config.variants"
        )
