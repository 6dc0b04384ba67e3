"""Points taken from another study: the space 'selected:<study>' is the point that study chose."""

import pathlib

from sweeps import layout, space

PREFIX = "selected:"


class NotSelectedError(ValueError):
    """The other study has not selected its point yet."""


def is_selected(space_name: str) -> bool:
    """Returns whether a study's space is another study's selection."""
    return space_name.startswith(PREFIX)


def points(space_name: str, experiment_dir: str) -> list[space.Point]:
    """Returns the one point that study `<experiment_dir>/<study>` selected for its tuning variant.

    Raises NotSelectedError where it has not got that far, ValueError where it never will.
    """
    name = space_name.removeprefix(PREFIX)
    directory = pathlib.Path(experiment_dir) / name
    study = layout.read_json_if_there(directory / layout.STUDY)
    selection = layout.read_json_if_there(directory / layout.SELECTION)
    if study is not None and study["config"]["protocol"] == "grid":
        raise ValueError(
            f"space {space_name!r}: study {name} is a grid and selects nothing; name a study with "
            "another protocol, or give the point in a file: --config.space=FILE.json"
        )
    if study is None or selection is None:
        have = "has selected no point yet" if study is not None else "is not there"
        raise NotSelectedError(
            f"space {space_name!r}: study {directory} {have}. Run it first: python -m sweeps run "
            f"--config={name} --config.experiment_dir={experiment_dir}; or give the point itself "
            "in a file: --config.space=FILE.json"
        )
    tuned = study["config"]["tuning_variant"]
    if tuned not in selection["points"]:
        known = ", ".join(selection["points"])
        raise ValueError(
            f"space {space_name!r}: {directory} selected for {known}, not for its tuning variant "
            f"{tuned!r}; give the point in a file: --config.space=FILE.json"
        )
    point: space.Point = study["points"][selection["points"][tuned]]
    return [point]


def keeps_paper_table(space_name: str, experiment_dir: str) -> bool:
    """Returns whether the selecting study still is the paper's: False where it was changed."""
    directory = pathlib.Path(experiment_dir) / space_name.removeprefix(PREFIX)
    study = layout.read_json_if_there(directory / layout.STUDY)
    return study is None or bool(study.get("paper_table"))
