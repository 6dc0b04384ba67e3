"""Which trials a study consists of, by stage. Standard library only."""

import dataclasses
from collections.abc import Mapping
from typing import Any


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

    def variants_in(self, stage: str) -> list[str]:
        """Returns the variants that a stage trains."""
        return list(dict.fromkeys(self.tuned.values())) if stage == "tune" else self.variants

    def points_in(self, stage: str) -> int:
        """Returns how many points a variant has in a stage."""
        return 1 if stage == "compare" else self.points

    def seeds_in(self, stage: str) -> range:
        """Returns the seeds of a point."""
        count = self.tuning_seeds if stage == "tune" else self.seeds
        return range(self.first_seed, self.first_seed + count)

    def trials_of_a_variant(self, stage: str) -> int:
        """Returns how many trials a variant has in a stage."""
        return self.points_in(stage) * len(self.seeds_in(stage))

    @property
    def trials(self) -> int:
        """How many trials the study has."""
        return sum(
            len(self.variants_in(stage)) * self.trials_of_a_variant(stage) for stage in self.names
        )

    @property
    def pairs(self) -> list[tuple[str, int]]:
        """Every variant with every seed that it is trained with, each pair once."""
        pairs = [
            (variant, seed)
            for stage in reversed(self.names)
            for variant in self.variants_in(stage)
            for seed in self.seeds_in(stage)
        ]
        return list(dict.fromkeys(pairs))


def of(settings: Mapping[str, Any]) -> Stages:
    """Returns the stages of a study's settings.

    Raises KeyError where one is missing.
    """
    return Stages(**{field.name: settings[field.name] for field in dataclasses.fields(Stages)})
