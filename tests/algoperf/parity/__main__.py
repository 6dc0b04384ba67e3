"""`make parity`: our workloads and our optimizer against AlgoPerf's own, as a table.

    python -m tests.algoperf.parity [--algoperf_dir=DIR] [--parts=optimizer,...] [--workloads=...]

Every difference is measured anew. Exit status 1 where a difference exceeds its tolerance.
"""

import argparse
import contextlib
import importlib.metadata
import sys

from tests.algoperf.parity import inputs, metrics, models, optimizer, variants
from workloads import algoperf_specs
from workloads.algoperf import installation
from workloads.base import host_checkout

WORKLOADS = (*algoperf_specs.IMAGES, *algoperf_specs.SPEECH)
# Functions from AlgoPerf to rows, which depend on no chosen workload.
GENERAL = {
    "optimizer": (optimizer.update_rows, optimizer.schedule_rows, optimizer.point_rows),
    "metrics": (metrics.accuracy_rows, metrics.decoding_rows, metrics.wer_rows),
    "inputs": (inputs.speech_rows, inputs.image_rows, inputs.mixup_rows),
}
# Functions from AlgoPerf and the names of workloads to rows. `models`, `variants` and `double` run
# few layers; `full_size` takes minutes for each model on CPU cores.
OF_WORKLOADS = {
    "models": models.rows,
    "variants": variants.rows,
    "double": models.rows_in_double,
    "full_size": models.rows_of_full_size,
}
PARTS = (*GENERAL, *OF_WORKLOADS)
# Libraries that the numbers may depend on.
_LIBRARIES = ("jax", "flax", "optax", "numpy", "tensorflow", "tensorflow_cpu", "tensorflow-text")

HEADER = ("| subject | quantity | difference | tolerance | |", "|---|---|--:|--:|---|")


def prepared(directory=None):
    """Returns AlgoPerf imported, with the flag `framework` that its random numbers read.

    Raises host_checkout.MissingError as `installation.find`.
    """
    checkout = installation.find(directory)
    checkout.workloads_module()
    installation.define_framework()
    return checkout


def measured(checkout, parts, workloads=WORKLOADS):
    """Yields the rows of the named parts; `workloads` restricts the parts about models."""
    for part in parts:
        for rows in GENERAL.get(part, ()):
            yield from rows(checkout)
        if part in OF_WORKLOADS:
            yield from OF_WORKLOADS[part](checkout, workloads)


def show(checkout, table):
    """Prints the table, each row as it is measured; returns how many rows passed and failed."""
    print("; ".join(filter(None, (str(checkout), checkout.remark, versions()))))
    print("\n" + "\n".join(HEADER), flush=True)
    passed = failed = 0
    for row in table:
        print(line(row), flush=True)
        passed, failed = passed + row.passed, failed + (not row.passed)
    print(f"\n{passed + failed} quantities, {failed} beyond their tolerance")
    return passed, failed


def versions():
    """Returns the versions of the installed libraries, in one line."""
    installed = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return ", ".join(f"{name} {version}" for name, version in installed.items())


def line(row):
    """Returns a row of the Markdown table."""
    verdict = "pass" if row.passed else "**FAIL**"
    remark = f"{row.quantity}; {row.remark}" if row.remark else row.quantity
    figures = f"{row.difference:.2g} | {row.tolerance:.2g}"
    return f"| {row.subject} | {remark} | {figures} | {verdict} |"


def main(arguments=None):
    """Returns 0, 1 where a difference is too large, 2 where nothing could be compared."""
    parser = argparse.ArgumentParser(prog="python -m tests.algoperf.parity", allow_abbrev=False)
    parser.add_argument("--algoperf_dir", help="a checkout; default: the installed AlgoPerf")
    for name, known in (("parts", PARTS), ("workloads", WORKLOADS)):
        text = f"some of {','.join(known)}; default: all"
        parser.add_argument(f"--{name}", default=",".join(known), help=text)
    options = parser.parse_args(arguments)
    parts, workloads = options.parts.split(","), options.workloads.split(",")
    for flag, names, known in (("parts", parts, PARTS), ("workloads", workloads, WORKLOADS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"--{flag}={unknown[0]}: use {', '.join(known)}")
    try:
        checkout = prepared(options.algoperf_dir)
    except host_checkout.MissingError as error:
        parser.error(str(error))
    passed, failed = show(checkout, measured(checkout, parts, workloads))
    if not passed + failed:
        parser.error(f"{options.parts} compare nothing of {options.workloads}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
