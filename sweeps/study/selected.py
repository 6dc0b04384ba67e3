"""Points taken from another study: the space 'selected:<study>' is the point that study chose."""

import difflib
import pathlib
from typing import Any

from sweeps.records import layout
from sweeps.study import config as configs
from sweeps.study import space

PREFIX = "selected:"


class NotSelectedError(ValueError):
    """The other study has not selected its point yet."""


def is_selected(space_name: str) -> bool:
    """Returns whether a study's space is another study's selection."""
    return space_name.startswith(PREFIX)


def points(space_name: str, experiment_dir: str) -> list[space.Point]:
    """Returns the one point that study `<experiment_dir>/<study>` selected for its tuning variant.

    Raises NotSelectedError where it has not got that far, ValueError where it never will: there is
    no such study, it selects nothing, or its files are damaged.
    """
    name = space_name.removeprefix(PREFIX)
    directory = pathlib.Path(experiment_dir) / name
    study = layout.read_json_if_there(directory / layout.STUDY) if name else None
    if study is None and name not in configs.shipped_names():
        raise ValueError(_unknown(space_name, name, experiment_dir))
    selection = layout.read_json_if_there(directory / layout.SELECTION)
    try:
        return _chosen(space_name, name, experiment_dir, study, selection)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"space {space_name!r}: {layout.STUDY} or {layout.SELECTION} in {directory} is damaged "
            f"({type(error).__name__}: {error}); `python -m sweeps resume {directory}` writes "
            f"{layout.SELECTION} anew, or give the point in a file: --config.space=FILE.json"
        ) from error


def _unknown(space_name: str, name: str, experiment_dir: str) -> str:
    there = sorted(path.parent.name for path in pathlib.Path(experiment_dir).glob("*/study.json"))
    shipped = configs.shipped_names()
    nearest = difflib.get_close_matches(name, [*there, *shipped], n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return (
        f"space {space_name!r}: there is no study {name!r} in {experiment_dir} (it has "
        f"{', '.join(there) or 'none'}), and none of that name ships ({', '.join(shipped)}).{hint}"
    )


def _chosen(
    space_name: str, name: str, experiment_dir: str, study: Any, selection: Any
) -> list[space.Point]:
    directory = pathlib.Path(experiment_dir) / name
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
    chosen = selection["points"][tuned]
    if not 0 <= chosen < len(study["points"]):
        raise IndexError(f"point {chosen} of {len(study['points'])}")
    point: space.Point = study["points"][chosen]
    return [point]


def keeps_paper_table(space_name: str, experiment_dir: str) -> bool:
    """Returns whether the selecting study still is the paper's: False where it was changed."""
    directory = pathlib.Path(experiment_dir) / space_name.removeprefix(PREFIX)
    study = layout.read_json_if_there(directory / layout.STUDY)
    return not isinstance(study, dict) or bool(study.get("paper_table"))
