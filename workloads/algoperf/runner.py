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

from workloads.algoperf import installation, preflight


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


def run(request: preflight.Request, algoperf_dir: str | None = None) -> None:
    """Runs submission_runner.py with the variant; returns when it has ended.

    Its flags are `request.arguments` as given; `attention`, `attention_tau` and `attnperf_tiny`
    are defined beside them, so that flags_0.json holds them. Everything is checked first
    (`preflight.check`), before JAX or TensorFlow load.

    Raises ValueError for what the checks refuse, the submission's batches on fabricated data
    (known once it is imported) among it, MissingError without AlgoPerf, SystemExit where
    its runner exits, with status 1 where evaluations failed (`reported`).
    """
    checkout = installation.find(algoperf_dir)
    checked = preflight.check(request, checkout)
    print(f"python -m workloads algoperf: {checkout}", file=sys.stderr)
    for note in filter(None, (checkout.remark, *checked.notes)):
        print(f"python -m workloads algoperf: note: {note}", file=sys.stderr)
    module: Any = checkout.workloads_module()
    failed: list[str] = []
    original = module.import_workload

    @functools.wraps(original)
    def import_workload(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)  # a class, too
        if isinstance(made, type):
            return made
        return recorded(_prepared(request, checked, module, checkout, made), failed)

    module.import_workload = import_workload
    # AlgoPerf imports `a/b.py` as `a.b`; the directory it was found in comes first.
    sys.path.insert(0, str(checked.import_root))
    script = str(checkout.directory / "submission_runner.py")
    sys.argv = [script, *request.arguments, *_define_flags(request)]
    with reported(failed), checkout.missing_named():
        runpy.run_path(script, run_name="__main__")


def _prepared(
    request: preflight.Request,
    checked: preflight.CheckedRun,
    module: Any,
    checkout: installation.Installation,
    workload: Any,
) -> Any:
    """Returns the workload with the variant; what its attributes say reaches meta_data_0.json."""
    from absl import flags

    from attention import registry
    from workloads.algoperf import injected, tiny_sizes

    if checked.sizes is not None:
        workload = tiny_sizes.with_sizes(workload, checked.sizes)
        _check_batches(checked.workload, checked.sizes, module, workload)
    # Its path in flags_0.json is relative to one of three directories.
    workload.submission_file = str(checked.import_root / flags.FLAGS.submission_path)
    for name, value in checkout.record().items():
        setattr(workload, name, value)
    variant = registry.get(request.attention, **request.hyperparameters)
    return injected.with_variant(workload, variant)


def _check_batches(name: str, sizes: dict[str, int], module: Any, workload: Any) -> None:
    """Raises ValueError where the submission's batches do not fit fabricated data.

    Asked as the runner will ask (score_submission_on_workload), and before it makes a directory.
    """
    from absl import flags

    from workloads.algoperf import tiny_sizes

    path = flags.FLAGS.submission_path
    submission = importlib.import_module(module.convert_filepath_to_module(path))
    try:
        batch = submission.get_batch_size(name)
    except ValueError:
        batch = submission.get_batch_size(module.get_base_workload_name(name))
    ours = path.endswith("sweeps/algoperf/submission.py")
    lever = "set ATTNPERF_BATCH_SIZE" if ours else f"change get_batch_size of {path}"
    tiny_sizes.check_batch(batch, sizes, f"{lever} to {sizes['train']} or fewer")
    if hasattr(submission, "get_eval_batch_size"):
        batch, count = submission.get_eval_batch_size(name), workload.num_eval_train_examples
        if count % batch:  # it fills the last batch by examples once more and divides by the count
            lever = "ATTNPERF_EVAL_BATCH_SIZE" if ours else "get_eval_batch_size"
            raise ValueError(
                f"evaluation batches of {batch} examples do not divide the {count} fabricated ones "
                f"that --tiny evaluates; leave {lever} out, or make it {count}"
            )


def _define_flags(request: preflight.Request) -> list[str]:
    """Defines our flags beside AlgoPerf's; returns them as arguments."""
    from absl import flags

    from attention import registry

    variant = registry.get(request.attention, **request.hyperparameters)
    flags.DEFINE_string("attention", "standard", "attnperf: the attention variant.")
    flags.DEFINE_float("attention_tau", 1.0, "attnperf: the variant's temperature.")
    flags.DEFINE_boolean("attnperf_tiny", False, "attnperf: evaluates fabricated data only.")
    return [
        f"--attention={variant.name}",
        f"--attention_tau={variant.hyperparameters.get('tau', 1.0)}",
        f"--attnperf_tiny={request.tiny}",
    ]
