"""AlgoPerf's own runner with our attention: `python -m workloads algoperf`.

The real submission_runner.py is executed unmodified; the one thing replaced, in memory, is
`algoperf.workloads.workloads.import_workload`, whose object gets the variant.

Of evaluations that failed AlgoPerf logs a RuntimeError, trains on, and ends with status 0. What JAX
raises, out of memory or a shape that does not fit, is a RuntimeError; the row is missing from
eval_measurements.csv, and without any row so is the file (submission_runner.train_once).
"""

import contextlib
import functools
import importlib
import runpy
import sys
from collections.abc import Iterator
from typing import Any

from absl import flags

from attention import table
from workloads.algoperf import installation, preflight, tiny_sizes


def run(request: preflight.Request, algoperf_dir: str | None = None, tiny: bool = False) -> None:
    """Runs submission_runner.py with the variant; returns when it has ended.

    Its flags are `request.arguments`; `attention`, `attention_tau` and `attnperf_tiny`
    are defined beside them, so that flags_0.json holds them. Everything is checked first
    (`preflight.check`), before JAX or TensorFlow load.

    Raises ValueError for what the checks refuse, the submission's batches on fabricated data
    (known once it is imported) among it, MissingError without AlgoPerf, SystemExit where
    its runner exits, with status 1 where evaluations failed.
    """
    checkout = installation.find(algoperf_dir)
    checked = preflight.check(request, checkout, tiny)
    print(f"python -m workloads algoperf: {checkout}", file=sys.stderr)
    for note in filter(None, (checkout.remark, *checked.notes)):
        print(f"python -m workloads algoperf: note: {note}", file=sys.stderr)
    module: Any = checkout.module("algoperf.workloads.workloads")
    errors: list[str] = []
    original = module.import_workload

    @functools.wraps(original)
    def import_workload(*args: Any, **kwargs: Any) -> Any:
        workload = original(*args, **kwargs)
        _prepare(workload, request, checked, checkout)
        _record_errors(workload, errors)
        return workload

    module.import_workload = import_workload
    # AlgoPerf imports `a/b.py` as `a.b`; the directory of the submission comes first.
    sys.path.insert(0, str(checked.import_root))
    script = str(checkout.directory / "submission_runner.py")
    sys.argv = [script, *request.arguments, *_define_flags(request, tiny)]
    with _reported(errors), checkout.missing_named():
        runpy.run_path(script, run_name="__main__")


def _prepare(
    workload: Any,
    request: preflight.Request,
    checked: preflight.CheckedRun,
    checkout: installation.Installation,
) -> None:
    """Puts the variant into the workload; what its attributes say reaches meta_data_0.json."""
    from attention import registry
    from workloads.algoperf import injected

    submission = flags.FLAGS.submission_path
    if checked.sizes is not None:
        tiny_sizes.with_sizes(workload, checked.sizes)
        check_batch(checked.workload, checked.sizes, submission, checkout)
    # Its path in flags_0.json is relative to one of three directories.
    workload.submission_file = str(checked.import_root / submission)
    for name, value in checkout.record().items():
        setattr(workload, name, value)
    variant = registry.get(request.attention, **request.hyperparameters)
    injected.with_variant(workload, checked.workload, variant)


def check_batch(
    name: str, sizes: dict[str, int], path: str, checkout: installation.Installation
) -> None:
    """Raises ValueError where a batch of the submission in `path` does not fit fabricated data.

    Asked as the runner will ask (score_submission_on_workload), and before it makes a directory.
    """
    module: Any = checkout.module("algoperf.workloads.workloads")
    submission = importlib.import_module(module.convert_filepath_to_module(path))
    try:
        batch = submission.get_batch_size(name)
    except ValueError:
        batch = submission.get_batch_size(module.get_base_workload_name(name))
    ours = path.endswith("sweeps/algoperf/submission.py")
    lever = "set ATTNPERF_BATCH_SIZE" if ours else f"change get_batch_size of {path}"
    tiny_sizes.check_batch(batch, sizes, f"{lever} to {sizes['train']} or fewer")


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


def _define_flags(request: preflight.Request, tiny: bool) -> list[str]:
    """Defines our flags beside AlgoPerf's; returns them as arguments."""
    flags.DEFINE_string("attention", "standard", "attnperf: the attention variant.")
    flags.DEFINE_float("attention_tau", 1.0, "attnperf: the variant's temperature.")
    flags.DEFINE_boolean("attnperf_tiny", False, "attnperf: evaluates fabricated data only.")
    return [
        f"--attention={table.canonical(request.attention)}",
        f"--attention_tau={request.tau or 1.0}",
        f"--attnperf_tiny={str(tiny).lower()}",
    ]
