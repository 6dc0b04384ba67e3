"""`python -m sweeps algoperf_parity`: what is ours against AlgoPerf's own, as a table."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from workloads.algoperf import installation
from workloads.algoperf.installation import Installation
from workloads.algoperf.parity import table_of_rows

if TYPE_CHECKING:
    from workloads.algoperf.parity.rows import Row


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the parser of `python -m sweeps`."""
    command = commands.add_parser(
        "algoperf_parity",
        help="workloads and optimizer against AlgoPerf's own: the table of differences",
        description="Measures every difference anew. Exit status 1 where one is too large.",
    )
    command.add_argument("--algoperf_dir", help="AlgoPerf's checkout; default: the installed one")
    command.add_argument(
        "--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; default: all"
    )
    command.add_argument(
        "--workloads", default="", help="parts about models: of these workloads alone"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        found = table_of_rows.prepared(options.algoperf_dir)
        workloads = options.workloads.split(",") if options.workloads else ()
        return _print(found, options.parts.split(","), workloads)
    except installation.AlgoPerfMissingError as error:
        raise ValueError(str(error)) from error


def _print(found: Installation, parts: Sequence[str], workloads: Sequence[str]) -> int:
    from workloads.algoperf.parity import rows

    version = found.commit[:12] if found.commit else found.version or "of unknown version"
    print(f"AlgoPerf {version}; {rows.versions()}", flush=True)
    header, rule = rows.table(())
    print(f"\n{header}\n{rule}", flush=True)
    failed = total = 0
    for row in table_of_rows.rows(found, parts, workloads, PARTS):
        print(rows.table((row,))[-1], flush=True)
        total, failed = total + 1, failed + (not row.passed)
    if not total:
        raise ValueError(
            f"nothing was compared: {', '.join(parts)} have nothing of {', '.join(workloads)}; "
            "leave --workloads out, or name other parts"
        )
    print(f"\n{total} quantities, {failed} beyond their tolerance")
    return 1 if failed else 0


def _optimizer(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    del names
    from sweeps.algoperf import parity_optimizer

    yield from parity_optimizer.update_rows(found)
    yield from parity_optimizer.schedule_rows(found)
    yield from parity_optimizer.point_rows(found)


PARTS: Mapping[str, table_of_rows.Maker] = {"optimizer": _optimizer, **table_of_rows.PARTS}
