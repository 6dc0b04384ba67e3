"""Which variant a published trial trained, by its own record: its folder may be called anything.

`python -m workloads algoperf` has AlgoPerf write `attention` and `attention_tau` into flags_0.json
(what was asked for) and `workload.attention…` into meta_data_0.json (what trained); an export of
ours has `variant_hyperparameters` in its flags. Logs of AlgoPerf itself have neither.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.load.files.json_records import FLAGS_FILE, META_FILE
from analysis.load.records import Run
from attention import table as variants

NAME = re.compile(r"\w+(\+\w+)*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """`variant` is the canonical name, None where nothing is recorded; `hyperparameters` are the
    variant's own (`tau`)."""

    variant: str | None
    hyperparameters: dict[str, Any]
    problems: tuple[str, ...] = ()


def of_trial(name: str, flags: Mapping[str, Any], meta: Mapping[str, Any]) -> Recorded:
    """Returns what the records of the trial `name` say: meta_data_0.json first."""
    asked, trained = flags.get("attention"), meta.get("workload.attention")
    variant = asked if trained is None else trained
    if variant is None:
        return Recorded(None, {})
    if not NAME.fullmatch(variant):
        damage = f"unreadable: {name}: its attention is {variant[:40]!r}, no variant's name"
        return Recorded(None, {}, (f"{damage}; its folder names it",))
    hyperparameters = dict(flags.get("variant_hyperparameters") or {})
    tau = flags.get("attention_tau") if trained is None else meta.get("workload.attention_tau")
    # Of variants without a temperature the runner records that it is 1.
    if tau is not None and "temp" in variants.modifiers(variant):
        hyperparameters["tau"] = tau
    problem = (
        f"mismatch: {name}: {FLAGS_FILE} says attention {asked}, {META_FILE} {trained}; the "
        "latter is what trained, and counts"
    )
    differs = asked is not None and _canonical(asked) != _canonical(variant)
    return Recorded(_canonical(variant), hyperparameters, (problem,) * differs)


def _canonical(variant: str) -> str:
    return "+".join((variants.mixer(variant), *variants.modifiers(variant)))


def named(runs: Sequence[Run], folders: Mapping[Any, str]) -> tuple[tuple[Run, ...], list[str]]:
    """Returns the runs with names that tell apart what is not the same, and what contradicts them.

    Of one variant on one workload, runs with other hyperparameters have these behind the name, and
    runs of another submission its folder, but for the one that is called as the variant is.
    `folders` is what a run's submission is called, by the run's path.
    """
    alike = collections.defaultdict(set)
    places = collections.defaultdict(set)
    for run in runs:
        alike[run.workload, run.variant].add(_in_words(run))
        places[run.workload, run.variant, _in_words(run)].add(folders[run.path])

    def name(run: Run) -> str:
        folder, words = folders[run.path], _in_words(run)
        several = len(alike[run.workload, run.variant]) > 1
        found = f"{run.variant} ({words})" if several and words else run.variant
        is_shared = len(places[run.workload, run.variant, words]) > 1
        return f"{found} ({folder})" if is_shared and folder != run.variant else found

    known = {run.variant for run in runs if run.variant != folders[run.path]}
    problems = list(_contradictions(runs, folders, known))
    return tuple(dataclasses.replace(run, variant=name(run)) for run in runs), problems


def _in_words(run: Run) -> str:
    values = sorted(run.variant_hyperparameters.items())
    return ", ".join(f"{name} = {value}" for name, value in values)


def _contradictions(
    runs: Sequence[Run], folders: Mapping[Any, str], known: set[str]
) -> Iterable[str]:
    """Names folders that are called like a variant and hold another one, and those in which some
    trials say what they trained and others do not; for each workload, by a trial of it."""
    inside = collections.defaultdict(list)
    for run in runs:
        inside[run.workload, folders[run.path]].append(run)
    for (_, folder), trials in inside.items():
        others = [run for run in trials if run.variant != folder]
        recorded = ", ".join(sorted({run.variant for run in others}))
        if others and _is_variant(folder, known) and _canonical(folder) != recorded:
            yield (
                f"mismatch: {folder}: the folder is called so, and the records of {len(others)} of "
                f"its {len(trials)} trials say attention {recorded}, the first of them "
                f"{others[0].name}; rows are named by the records"
            )
        elif others and len(others) < len(trials):
            silent = next(run for run in trials if run.variant == folder)
            yield (
                f"mismatch: {folder}: {len(trials) - len(others)} of its trials record no "
                f"attention, the first of them {silent.name}, and the others {recorded}; they are "
                f"the row {folder}"
            )


def _is_variant(folder: str, known: set[str]) -> bool:
    parts = variants.mixer(folder) in variants.MIXERS, *(
        name in variants.MODIFIERS for name in variants.modifiers(folder)
    )  # fmt: skip
    return all(parts) or folder in known
