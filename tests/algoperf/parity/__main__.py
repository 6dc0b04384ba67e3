"""`make parity`: our workloads and our optimizer against AlgoPerf's own, as a table.

    python -m tests.algoperf.parity [--algoperf_dir=DIR] [--parts=optimizer,...] [--workloads=...]

Every difference is measured anew. Exit status 1 where a difference exceeds its tolerance.
"""

import argparse
import importlib
import sys

from workloads import algoperf_specs
from workloads.algoperf import installation
from workloads.base import host_checkout

WORKLOADS = (*algoperf_specs.IMAGES, *algoperf_specs.SPEECH)
# 'module:function' of each part, from AlgoPerf and the names of workloads to the rows. `models`,
# `variants` and `double` run few layers; `full_size` takes minutes for each model on CPU cores.
PARTS = {
    "optimizer": "optimizer:rows",
    "metrics": "metrics:rows",
    "inputs": "inputs:rows",
    "models": "models:rows",
    "variants": "variants:rows",
    "double": "models:rows_in_double",
    "full_size": "models:rows_of_full_size",
}


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
        module, _, function = PARTS[part].partition(":")
        make = getattr(importlib.import_module(f"tests.algoperf.parity.{module}"), function)
        yield from make(checkout, workloads)


def show(checkout, table):
    """Prints the table, each row as it is measured; returns how many rows passed and failed."""
    # They load JAX, which the checks of the command line do without.
    from tests.algoperf.parity import rows

    print("; ".join(filter(None, (str(checkout), checkout.remark, rows.versions()))))
    print("\n" + "\n".join(rows.HEADER), flush=True)
    passed = failed = 0
    for row in table:
        print(rows.line(row), flush=True)
        passed, failed = passed + row.passed, failed + (not row.passed)
    print(f"\n{passed + failed} quantities, {failed} beyond their tolerance")
    return passed, failed


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
