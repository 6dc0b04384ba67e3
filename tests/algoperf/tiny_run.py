"""`python -m workloads` for the fabricated data of `tests.algoperf.tiny_data`.

`python -m tests.algoperf.tiny_run algoperf ...` is `python -m workloads algoperf ...` with
evaluations of the few examples that `tiny_data` writes: AlgoPerf's divide by 50,000 images or 5,348
utterances.
"""

import sys

from tests.algoperf import tiny_data
from workloads import __main__ as command
from workloads.algoperf import injected

# The number of devices must divide a batch (submission_runner.py): this, rounded up to that.
# AlgoPerf's own are 128 to 2048.
EVAL_BATCH_SIZE = 4
_with_variant = injected.with_variant


def with_variant(workload, name, variant):
    """`workloads.algoperf.injected.with_variant`, of a workload with the sizes of tiny data."""
    return _with_variant(with_sizes(workload, tiny_data.sizes(name)), name, variant)


def with_sizes(workload, sizes):
    """Returns `workload` itself, which now evaluates `sizes` examples instead of the real numbers.

    `sizes` gives the examples of `train`, `validation` and `test`; the training split is evaluated
    on as many as the validation split, as in AlgoPerf, rounded up to whole batches: imagenet_vit
    repeats that split to fill them and divides by the number. `attnperf_tiny` is True, and reaches
    meta_data_0.json with the numbers. Targets, step hint and times stay AlgoPerf's.
    """
    import jax

    devices = jax.local_device_count()
    batch = -(-EVAL_BATCH_SIZE // devices) * devices
    members = {
        "attnperf_tiny": True,
        "eval_batch_size": batch,
        "num_train_examples": sizes["train"],
        "num_eval_train_examples": -(-sizes["validation"] // batch) * batch,
        "num_validation_examples": sizes["validation"],
        "num_test_examples": sizes["test"],
    }
    workload.__class__ = type(type(workload).__name__, (type(workload),), members)
    return workload


if __name__ == "__main__":
    injected.with_variant = with_variant
    sys.exit(command.main())
