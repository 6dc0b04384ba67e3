"""Evaluations that failed: AlgoPerf logs a RuntimeError, trains on, and ends with status 0.

What JAX raises, out of memory or a shape that does not fit, is a RuntimeError; the row is missing
from eval_measurements.csv, and without any row so is the file (submission_runner.train_once).
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any


def recorded(workload: Any, failed: list[str]) -> Any:
    """Returns `workload` itself, whose `eval_model` appends what it raises to `failed`."""
    original = workload.eval_model

    @functools.wraps(original)
    def eval_model(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}")
            raise

    workload.eval_model = eval_model
    return workload


@contextlib.contextmanager
def reported(failed: list[str]) -> Iterator[None]:
    """Around a run: says on standard error what `failed` holds, and raises SystemExit(1) for it.

    A run that ends otherwise than with success keeps its own exception or exit status.
    """
    try:
        yield
    except SystemExit as end:
        if end.code or not failed:
            raise
    if failed:
        first = failed[0].strip().splitlines()[0]
        print(
            f"python -m workloads algoperf: evaluations that failed: {len(failed)}; AlgoPerf "
            f"logged them and went on, without rows in eval_measurements.csv. The first: {first}",
            file=sys.stderr,
        )
        raise SystemExit(1)
