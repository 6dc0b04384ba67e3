"""`python -m sweeps status`: what is pending, running and finished, read from files alone."""

import pathlib
from collections import Counter

from sweeps import attempts, layout, status

_COLUMNS = (*layout.STATES,)


def render(study_directory: pathlib.Path) -> str:
    """Returns a table stage × variant of states, then every trial that needs a person.

    Raises ValueError where the directory holds no study.
    """
    record = layout.read_json_if_there(study_directory / layout.STUDY)
    if record is None:
        raise ValueError(f"{study_directory} is no study: it has no {layout.STUDY}")
    text = [f"study {record['name']} in {study_directory}"]
    text.append(f"{'stage':<9}{'variant':<24}" + "".join(f"{name:>10}" for name in _COLUMNS))
    troubles: list[str] = []
    for stage in record["stages"]:
        planned = layout.read_json_if_there(study_directory / stage / layout.TRIALS)
        if planned is None:
            text.append(f"{stage:<9}not begun")
            continue
        text += _stage(study_directory, stage, planned["trials"], troubles)
    return "\n".join([*text, *troubles])


def _stage(
    root: pathlib.Path, stage: str, trials: list[dict[str, object]], troubles: list[str]
) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for trial in trials:
        directory = root / str(trial["path"])
        found = status.read(directory)
        counts.setdefault(str(trial["variant"]), Counter())[found["state"]] += 1
        if found["state"] in ("failed", "diverged") or found.get("reason"):
            troubles.append(f"{trial['path']} {found['state']}: {found['reason']}")
        if found["state"] == "failed":
            troubles += [f"    {line}" for line in attempts.log_tail(directory)]
    return [
        f"{stage:<9}{variant:<24}" + "".join(f"{count[name]:>10}" for name in _COLUMNS)
        for variant, count in counts.items()
    ]
