"""Processes that share the chips of one TPU host: what libtpu must be told of each.

The variables and grids are those of JAX's own tests (jax/_src/test_multiprocess.py, JAX 0.10.2).
Chips that make a grid have neighbouring numbers.
"""

from collections.abc import Sequence

# Chips of a process: how they lie.
_GRIDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


def check(chips: Sequence[str]) -> None:
    """Raises ValueError if so many chips form no grid."""
    if len(chips) not in _GRIDS:
        raise ValueError(
            f"{len(chips)} TPU chips for each worker; {', '.join(map(str, _GRIDS))} can be "
            "separated: change local.workers"
        )


def variables(
    chips: Sequence[str], ports: Sequence[int], index: int = 0, grid: str = "1,1,1"
) -> dict[str, str]:
    """Returns the environment of process `index` of those that compute together.

    chips: its own, by their numbers on the host, as many as `check` allows. ports: free ones, one
    for each process; one alone if it computes by itself, beside others. grid: how the processes
    lie, 'x,y,z'.
    """
    return {
        "TPU_VISIBLE_CHIPS": ",".join(chips),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _GRIDS[len(chips)],
        "TPU_PROCESS_BOUNDS": grid,
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port}" for port in ports),
        "TPU_PROCESS_PORT": str(ports[index]),
        "CLOUD_TPU_TASK_ID": str(index),
        # Else a second process with four chips, taken for a whole host, ends at libtpu's lock file.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def halves(chips: Sequence[str], kind: str) -> tuple[str, list[Sequence[str]]] | None:
    """Returns the grid of two processes that share all chips of a host, and the chips of each.

    None for hosts of other than 4 or 8 chips. kind: JAX's device_kind. A v5e's 8 chips are taken to
    lie as 4 × 2, others' as 2 × 4.
    """
    if len(chips) not in (4, 8):
        return None
    flat = len(chips) == 4 or kind.startswith("TPU v5 lite")
    half = len(chips) // 2
    return "2,1,1" if flat else "1,2,1", [chips[:half], chips[half:]]
