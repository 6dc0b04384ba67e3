"""Trials on the made-up data with which AlgoPerf's workloads are tried."""

from typing import Any


def problems(name: str, meta: dict[str, Any]) -> tuple[str, ...]:
    """Returns a sentence where the trial's meta_data_0.json says that its data was fabricated."""
    if not meta.get("workload.attnperf_tiny"):
        return ()
    return (f"fabricated: {name}: its data is that of `algoperf_data`; nothing follows from it",)
