"""Which trials a study consists of, by stage, from its settings. Standard library only.

Settings that are missing raise KeyError.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class TrialGroup(NamedTuple):
    """A variant's trials in a stage: one for each of its points and seeds."""

    variant: str
    points: int
    seeds: range

    @property
    def trials(self) -> int:
        """How many trials these are."""
        return self.points * len(self.seeds)


def names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the stages, in order."""
    return ("grid",) if settings["protocol"] == "grid" else ("tune", "compare")


def tuned(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns each variant's name to that of the variant whose trials choose its point."""
    if settings["protocol"] == "tune_then_compare":
        return dict.fromkeys(settings["variants"], settings["tuning_variant"])
    return {variant: variant for variant in settings["variants"]}


def groups(settings: Mapping[str, Any], stage: str) -> list[TrialGroup]:
    """Returns the trials of a stage by variant.

    Seeds of 'compare' begin behind those of 'tune': a seed that chose a point would favour it.
    """
    is_tuning = stage == "tune"
    variants = dict.fromkeys(tuned(settings).values()) if is_tuning else settings["variants"]
    points = 1 if stage == "compare" else settings["points"]
    first, count = settings["first_seed"], settings["tuning_seeds" if is_tuning else "seeds"]
    if stage == "compare":
        first += settings["tuning_seeds"]
    return [TrialGroup(variant, points, range(first, first + count)) for variant in variants]
