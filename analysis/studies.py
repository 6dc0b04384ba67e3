"""Every study of a directory, each with one workload: what `table` and `plots` take in turn."""

import dataclasses
import pathlib

from analysis.records import Study
from analysis.runs import read_study
from sweeps import layout


def read_each(directory: str | pathlib.Path) -> tuple[Study, ...]:
    """Returns the studies in `directory`, by name, one for each workload that they hold.

    `directory` is a study's, one of AlgoPerf's logs, or one that holds studies' directories.
    Raises NotAStudyError where there is none, or where one of them cannot be used.
    """
    root = pathlib.Path(directory)
    inside = sorted(path.parent for path in root.glob(f"*/{layout.STUDY}"))
    several = inside and not (root / layout.STUDY).is_file()
    studies = [read_study(path) for path in inside] if several else [read_study(root)]
    return tuple(part for study in studies for part in by_workload(study))


def by_workload(study: Study) -> tuple[Study, ...]:
    """Returns the study itself where all its runs are of one workload, else one for each, in the
    order of their first runs."""
    names = tuple(dict.fromkeys(run.workload for run in study.runs))
    return (study,) if len(names) < 2 else tuple(_part(study, name) for name in names)


def _part(study: Study, workload: str) -> Study:
    runs = tuple(run for run in study.runs if run.workload == workload)
    others = [run for run in study.runs if run.workload != workload]
    elsewhere = {text for run in others for text in (*run.problems, *run.notes)}
    # A metric that was chosen by holds for one workload: the runs' own takes its place.
    chosen = study.selection and {**study.selection, "metric": None}
    return dataclasses.replace(
        study,
        config={**study.config, "workload": workload},
        runs=runs,
        problems=tuple(problem for problem in study.problems if problem not in elsewhere),
        notes=tuple(note for note in study.notes if note not in elsewhere),
        selection=chosen,
    )
