"""Our workloads against AlgoPerf's, measured, part by part: the rows of the parity table.

The command that prints it is `sweeps.algoperf.parity`, which adds what lies above workloads.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from workloads import algoperf_specs
from workloads.algoperf import installation
from workloads.algoperf.installation import Installation

if TYPE_CHECKING:
    from workloads.algoperf.parity.rows import Row

WORKLOADS = (*algoperf_specs.IMAGES, *algoperf_specs.SPEECH)
# 'module:function' of each part, from AlgoPerf and the names of workloads, for the parts that are
# about models, to the rows. `models`, `variants` and `double` run few layers; `full_size` takes
# minutes for each model on CPU cores.
PARTS: Mapping[str, str] = {
    "metrics": "workloads.algoperf.parity.metrics:rows",
    "inputs": "workloads.algoperf.parity.inputs:rows",
    "models": "workloads.algoperf.parity.models:rows",
    "variants": "workloads.algoperf.parity.variants:rows",
    "double": "workloads.algoperf.parity.models:rows_in_double",
    "full_size": "workloads.algoperf.parity.models:rows_of_full_size",
}


def prepared(directory: str | None = None) -> Installation:
    """Returns AlgoPerf ready to be imported, with the flag that its random numbers ask for.

    Raises host_checkout.MissingError as `installation.find`.
    """
    found = installation.find(directory)
    found.workloads_module()
    installation.define_framework()
    return found


def rows(
    found: Installation,
    parts: Sequence[str],
    workloads: Sequence[str] = (),
    makers: Mapping[str, str] = PARTS,
) -> Iterator["Row"]:
    """Yields the rows of the named parts as they are measured.

    workloads: for the parts that are about models; all where none is named. makers: the parts
    there are, as in PARTS. Raises ValueError for a part or workload that is not there.
    """
    for part in parts:
        if part not in makers:
            raise ValueError(f"--parts={part}: there is no such part; use {', '.join(makers)}")
    for name in workloads:
        if name not in WORKLOADS:
            raise ValueError(f"--workloads={name}: not compared; use {', '.join(WORKLOADS)}")
    for part in parts:
        module, _, function = makers[part].partition(":")
        make = getattr(importlib.import_module(module), function)
        yield from make(found, workloads or WORKLOADS)
