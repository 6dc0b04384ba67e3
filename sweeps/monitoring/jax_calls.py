"""What a driver wants to know and only JAX or data libraries can tell.

A driver never loads them: they answer from a process of their own, started anew (never forked).
"""

import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from workloads.base import errors

_LAST_LINES = 12


class Call:
    """A call under way. `with Call(function, **arguments) as call:` ends it if left early."""

    def __init__(self, function: Callable[..., Any], **arguments: Any) -> None:
        """Starts a function of a module in a process of its own; returns at once."""
        self._name = function.__name__
        self._stderr = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed by `__exit__`)
        earlier = multiprocessing.active_children()
        self._pool = futures.ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_send_stderr_to,
            initargs=(self._stderr.name,),
        )
        self._future = self._pool.submit(_in_words, function, arguments)
        [self.process] = set(multiprocessing.active_children()) - set(earlier)

    def result(self, limit_s: float | None = None) -> Any:
        """Waits; returns what the function returned.

        Raises TimeoutError where that takes longer than `limit_s`, ValueError and OSError with the
        function's own message, and ChildProcessError with the last lines that the process wrote
        where it ended in any other way.
        """
        try:
            error, trace = self._future.exception(limit_s), ""
        except TimeoutError:
            raise TimeoutError(
                f"the process that computes {self._name!r} gave no answer in {limit_s:.0f} s"
            ) from None
        written = pathlib.Path(self._stderr.name).read_text("utf-8", errors="replace")
        if error is None or isinstance(error, ValueError | OSError):
            sys.stderr.write(written)
            return self._future.result()
        if isinstance(error, BrokenProcessPool):
            self.process.join()
            # The pool's thread may have been told how it ended, and not noted it yet.
            late = time.monotonic() + 5
            while self.process.exitcode is None and time.monotonic() < late:
                time.sleep(0.01)
            what = f"ended with code {self.process.exitcode}"
        else:
            what, trace = "failed", str(error.__cause__)
        tail = "\n".join((written + trace).splitlines()[-_LAST_LINES:])
        raise ChildProcessError(
            f"the process that computes {self._name!r} {what} and gave no answer; its last lines:\n"
            f"{tail}"
        )

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._future.done():
            self.process.kill()  # JAX, several processes connected, does not end on SIGTERM
        self._pool.shutdown()
        self._stderr.close()


def call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Returns function(**arguments), computed in a process of its own; see Call."""
    with Call(function, **arguments) as under_way:
        return under_way.result()


def _send_stderr_to(path: str) -> None:
    """Has what this process writes to standard error, from C++ too, go to a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _in_words(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Returns what the function does; errors that are answers become ones that any process has."""
    try:
        return function(**arguments)
    except ValueError as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        raise OSError(errors.message(error)) from None


def costs(
    workload: str,
    variants: dict[str, dict[str, Any]],
    options: dict[str, Any],
    batch_size: int,
    microbatches: int,
    devices: int,
    kernel: str,
) -> dict[str, dict[str, dict[str, float]]]:
    """Returns `workloads.text.costs.per_device`, bytes and FLOP by part, of every variant.

    variants: their hyperparameters by name. options: the fields of
    workloads.base.options.Options. Raises ValueError where mesh or batch do not fit.
    """
    from attention import registry, table
    from workloads.base.options import Options
    from workloads.text import costs

    return {
        name: costs.per_device(
            workload,
            Options(**options),
            batch_size=batch_size,
            microbatches=microbatches,
            devices=devices,
            variant=registry.get(name, **hyperparameters),
            # Kernels of any platform are XLA's own operations.
            keeps_scores=not table.KERNELS[kernel].platforms,
        )
        for name, hyperparameters in variants.items()
    }


def data(
    workload: str, data_dir: str, extra_paths: dict[str, str] | None = None, suite: str = ""
) -> dict[str, Any]:
    """Checks a workload's data, which embedded workloads make where it is absent.

    extra_paths: where else things lie, by the names in `WorkloadSpec.extra_paths` (workloads.base).
    suite: that the trained models are evaluated by, '' for none.
    Returns {"lines": what was found, "reference": {"note", "rows"} of simple methods or None}.
    Raises ValueError naming the directory, the file and the command that repairs it.
    """
    from workloads import catalog
    from workloads.downstream import suites

    entry = catalog.get(workload)
    module = catalog.data_module(workload)
    lines: list[str] = []
    if suite:
        suites.check_harness()
    if entry.embedded:
        _prepare(workload, suite, data_dir)
    else:
        paths = extra_paths or {}
        given = {name: where for name, where in paths.items() if name in entry.extra_paths}
        lines = list(module.check(data_dir, **given))
    reference = None
    if hasattr(module, "read_reference"):
        found = module.read_reference(data_dir)
        reference = {name: found[name] for name in ("note", "rows")}
    if suite:
        suites.check(suites.get(suite), data_dir)
    return {"lines": lines, "reference": reference}


def suite(suite: str, workload: str, data_dir: str) -> dict[str, Any]:
    """Checks what a suite needs beside a model of a workload: its data, the tokenizer, lm-eval.

    Embedded workloads make what is absent. Returns {"lines": what was found, "reference": None}.
    Raises ValueError as `data`.
    """
    from workloads.downstream import suites

    suites.check_harness()
    _prepare(workload, suite, data_dir)
    found = suites.get(suite)
    suites.check(found, data_dir)
    return {"lines": [f"{data_dir}: suite {suite}, {len(found.tasks)} tasks"], "reference": None}


def _prepare(workload: str, suite: str, data_dir: str) -> None:
    """Makes embedded data, and a suite's questions on it, where they are absent."""
    from workloads import catalog
    from workloads.downstream import embedded, suites

    if catalog.get(workload).embedded:
        catalog.data_module(workload).prepare(data_dir)
        if suite and suites.get(suite).embedded:
            embedded.prepare(data_dir)
