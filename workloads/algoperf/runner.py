"""AlgoPerf's own runner with our attention: `python -m workloads algoperf`.

The real submission_runner.py is executed unmodified; the one thing replaced, in memory, is
`algoperf.workloads.workloads.import_workload`, whose object gets the variant.

If an evaluation raises a RuntimeError, AlgoPerf logs it, trains on, and ends with status 0. JAX
raises one for exhausted memory and for shapes that do not fit. eval_measurements.csv then lacks the
row, and without any row there is no file (submission_runner.train_once).
"""

import contextlib
import functools
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from attention import table
from workloads.algoperf import installation, preflight


def run(
    variant: str, tau: float | None, arguments: Sequence[str], algoperf_dir: str | None
) -> None:
    """Runs submission_runner.py with the variant; returns when it has ended.

    Its flags are `arguments`; `attention` and `attention_tau` are defined beside them, so that
    flags_0.json holds them. Everything is checked first (`preflight.check`), before JAX or
    TensorFlow load.

    Raises ValueError for what the checks refuse, MissingError without AlgoPerf, and SystemExit if
    its runner exits, with status 1 if evaluations failed.
    """
    checkout = installation.find(algoperf_dir)
    import_root = preflight.check(variant, tau, arguments, checkout)
    print(f"python -m workloads algoperf: {checkout}", file=sys.stderr)
    if checkout.remark:
        print(f"python -m workloads algoperf: note: {checkout.remark}", file=sys.stderr)
    module: Any = checkout.module("algoperf.workloads.workloads")
    errors: list[str] = []
    original = module.import_workload

    @functools.wraps(original)
    def import_workload(*args: Any, **kwargs: Any) -> Any:
        workload = original(*args, **kwargs)
        _prepare(workload, variant, tau, import_root, checkout)
        _record_errors(workload, errors)
        return workload

    module.import_workload = import_workload
    # AlgoPerf imports `a/b.py` as `a.b`; the directory of the submission comes first.
    sys.path.insert(0, str(import_root))
    flags.DEFINE_string("attention", "standard", "attnperf: the attention variant.")
    flags.DEFINE_float("attention_tau", 1.0, "attnperf: the variant's temperature.")
    script = str(checkout.directory / "submission_runner.py")
    sys.argv = [
        script,
        *arguments,
        f"--attention={table.canonical(variant)}",
        f"--attention_tau={tau or 1.0}",
    ]
    with _reported(errors), checkout.missing_named():
        runpy.run_path(script, run_name="__main__")


def _prepare(
    workload: Any,
    variant: str,
    tau: float | None,
    import_root: Path,
    checkout: installation.Installation,
) -> None:
    """Puts the variant into the workload; what its attributes say reaches meta_data_0.json."""
    from attention import registry
    from workloads.algoperf import injected

    # Its path in flags_0.json is relative to one of three directories.
    workload.submission_file = str(import_root / flags.FLAGS.submission_path)
    for name, value in checkout.record().items():
        setattr(workload, name, value)
    chosen = registry.get(variant, **preflight.hyperparameters(tau))
    injected.with_variant(workload, flags.FLAGS.workload, chosen)


def _record_errors(workload: Any, errors: list[str]) -> None:
    """Has the workload's `eval_model` append what it raises to `errors`."""
    original = workload.eval_model

    @functools.wraps(original)
    def eval_model(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            raise

    workload.eval_model = eval_model


@contextlib.contextmanager
def _reported(errors: list[str]) -> Iterator[None]:
    """Around a run: prints what `errors` holds, and raises SystemExit(1) for it.

    A run that ends otherwise than with success keeps its own exception or exit status.
    """
    try:
        yield
    except SystemExit as end:
        if end.code or not errors:
            raise
    if errors:
        first = errors[0].strip().splitlines()[0]
        print(
            f"python -m workloads algoperf: evaluations that failed: {len(errors)}; AlgoPerf "
            f"logged them and went on, without rows in eval_measurements.csv. The first: {first}",
            file=sys.stderr,
        )
        raise SystemExit(1)
