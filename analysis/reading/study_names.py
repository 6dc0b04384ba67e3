"""Names that tell studies apart: two may be called the same in different directories."""

import dataclasses
import pathlib
from collections.abc import Collection, Iterable

from analysis.files.records import Study


def distinguished(studies: Iterable[Study]) -> tuple[Study, ...]:
    """Returns the studies; those of different directories that share a name have it followed by
    as much of their directories' paths as tells them apart: `tiny (a)` and `tiny (b)`."""
    every = tuple(studies)
    places: dict[str, set[pathlib.Path]] = {}
    for study in every:
        places.setdefault(study.name, set()).add(study.directory.resolve())
    return tuple(
        dataclasses.replace(study, name=f"{study.name} ({_tail(study, places[study.name])})")
        if len(places[study.name]) > 1
        else study
        for study in every
    )


def _tail(study: Study, places: Collection[pathlib.Path]) -> str:
    """Returns the last parts of the study's path, as many as all `places` need to differ."""
    own = study.directory.resolve()
    counts = range(1, len(own.parts))
    enough = (n for n in counts if len({place.parts[-n:] for place in places}) == len(places))
    count = next(enough, len(own.parts))
    return pathlib.PurePath(*own.parts[-count:]).as_posix()
