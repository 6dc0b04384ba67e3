"""AlgoPerf's own runner with our attention: `python -m workloads algoperf`.

The real submission_runner.py is executed unmodified; the one thing replaced, in memory, is
`algoperf.workloads.workloads.import_workload`, whose object gets the variant.
"""

import functools
import importlib
import runpy
import sys
from collections.abc import Callable
from typing import Any

from workloads.algoperf import failures, installation, preflight


def run(request: preflight.Request, algoperf_dir: str | None = None) -> None:
    """Runs submission_runner.py with the variant; returns when it has ended.

    Its flags are `request.arguments` as given; `attention`, `attention_tau` and `attnperf_tiny`
    are defined beside them, so that flags_0.json holds them. Everything is checked first
    (`door.check`), before JAX or TensorFlow load.

    Raises ValueError for what the checks refuse, the submission's batches on fabricated data
    (known once it is imported) among it, AlgoPerfMissingError without AlgoPerf, SystemExit where
    its runner exits, with status 1 where evaluations failed (`failures`).
    """
    found = installation.find(algoperf_dir)
    admitted = preflight.check(request, found)
    for note in filter(None, (found.remark, *admitted.notes)):
        print(f"python -m workloads algoperf: note: {note}", file=sys.stderr)
    module = found.workloads_module()
    failed: list[str] = []
    _hook(module, functools.partial(_prepared, request, admitted, failed, module))
    # AlgoPerf imports `a/b.py` as `a.b`; the directory it was found in comes first.
    sys.path.insert(0, str(admitted.import_root))
    script = str(found.directory / "submission_runner.py")
    sys.argv = [script, *request.arguments, *_define_flags(request)]
    with failures.reported(failed), found.missing_named():
        runpy.run_path(script, run_name="__main__")


def _hook(module: Any, prepare: Callable[[Any], Any]) -> None:
    """Has `import_workload` hand every workload object (classes too: not) to `prepare`."""
    original = module.import_workload

    @functools.wraps(original)
    def import_workload(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        return made if isinstance(made, type) else prepare(made)

    module.import_workload = import_workload


def _prepared(
    request: preflight.Request,
    admitted: preflight.Admitted,
    failed: list[str],
    module: Any,
    workload: Any,
) -> Any:
    from attention import registry
    from workloads.algoperf import injected, tiny_sizes

    if admitted.sizes is not None:
        workload = tiny_sizes.with_sizes(workload, admitted.sizes)
        _check_batches(admitted.workload, admitted.sizes, module, workload)
    variant = registry.get(request.attention, **request.hyperparameters)
    return failures.recorded(injected.with_variant(workload, variant), failed)


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
