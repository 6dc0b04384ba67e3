"""Which trials a study consists of, by stage. Standard library only."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Stages:
    """The settings of a study that its trials are counted by; fields are its keys."""

    protocol: str
    variants: list[str]
    tuning_variant: str
    points: int
    first_seed: int
    seeds: int
    tuning_seeds: int

    @property
    def names(self) -> tuple[str, ...]:
        """The stages, in order."""
        return ("grid",) if self.protocol == "grid" else ("tune", "compare")

    @property
    def tuned(self) -> dict[str, str]:
        """Each variant's name to that of the variant whose trials choose its point."""
        if self.protocol == "tune_then_compare":
            return dict.fromkeys(self.variants, self.tuning_variant)
        return {variant: variant for variant in self.variants}

    def groups(self, stage: str) -> list[TrialGroup]:
        """Returns the trials of a stage by variant."""
        is_tuning = stage == "tune"
        variants = list(dict.fromkeys(self.tuned.values())) if is_tuning else self.variants
        points = 1 if stage == "compare" else self.points
        count = self.tuning_seeds if is_tuning else self.seeds
        seeds = range(self.first_seed, self.first_seed + count)
        return [TrialGroup(variant, points, seeds) for variant in variants]


def of(settings: Mapping[str, Any]) -> Stages:
    """Returns the stages of a study's settings.

    Raises KeyError where one is missing.
    """
    return Stages(**{field.name: settings[field.name] for field in dataclasses.fields(Stages)})
