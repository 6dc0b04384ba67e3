"""`python -m sweeps status`: how a study stands, read from files alone."""

import csv
import statistics
from collections.abc import Sequence

from attention import files
from sweeps.monitoring.progress import duration, figures
from sweeps.records import attempts, layout, lease, study_reader, submissions

# Of each kind; a study may have 100,000 trials.
_SHOWN = 20


def render(found: study_reader.Survey) -> str:
    """Returns a table stage × variant of states, the time left, then what needs a person."""
    cells: list[tuple[str, ...]] = [("stage", "variant", *study_reader.COLUMNS)]
    for row in found.rows:
        counts = (str(row.counts[name]) for name in study_reader.COLUMNS)
        cells.append((row.stage, row.variant, *counts))
    lines = [f"study {found.record['name']} in {found.directory}"]
    for stage, variant, *rest in cells:
        lines.append(f"{stage:<9}{variant:<24}" + "".join(f"{cell:>10}" for cell in rest))
    return "\n".join([*lines, *below(found)])


def below(found: study_reader.Survey) -> list[str]:
    """Returns the lines below the table."""
    return [*summary(found), *running(found), *troubles(found)]


def summary(found: study_reader.Survey) -> list[str]:
    """Returns lines on the study as a whole: preemptions, jobs, damaged records, time left."""
    text = []
    if preemptions := sum(row.preemptions for row in found.rows):
        text.append(f"preemptions and other new attempts so far: {preemptions}")
    text += job_lines(found)
    if found.complete:
        return [*text, "complete"]
    text.append(time_left(found))
    if not found.running:
        again = f"python -m sweeps resume {files.quoted(found.directory)}"
        cancelled = submissions.is_cancelled(found.directory)
        text.append(
            f"{'cancelled' if cancelled else 'no trial is running'}; to go on, unless it is "
            f"waiting for an engine: {again}"
        )
    return text


def time_left(found: study_reader.Survey) -> str:
    """Returns the time left per stage and for the study, stages one after the other."""
    rates, at_once = seconds_per_step(found.rows), len(found.running)
    parts: list[str] = []
    total: float | None = 0.0
    for stage in found.record["stages"]:
        rows = [row for row in found.rows if row.stage == stage]
        left = seconds_left(rows, rates, at_once)
        total = None if left is None or total is None else total + left
        if left != 0:
            parts.append(f"{stage} {_about(left)}")
    if not rates:
        why = ": no step time measured yet"
    elif not at_once:
        why = ": no trial is running"
    else:
        why = f", {at_once} trial{'s' * (at_once > 1)} at a time"
    return f"time left: {', '.join(parts)}; study {_about(total)}{why}"


def _about(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"about {duration(seconds)}"


def running(found: study_reader.Survey) -> list[str]:
    """Returns a line per running trial: host, step, live figures, metric at its last evaluation."""
    text = [
        f"{seen.path} running{_host(found, seen)}: step {seen.status['global_step']}/{seen.steps}"
        f"{_figures(seen)}{_metric(found, seen)}"
        + (f"; {note}" if (note := seen.status.get("note")) else "")
        for seen in found.running[:_SHOWN]
    ]
    return text + _more(found.running, "running")


def _host(found: study_reader.Survey, seen: study_reader.TrialStatus) -> str:
    try:
        attempt = lease.last(found.directory / seen.path)
        return f" on {layout.read_json(attempt / lease.LEASE)['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # gone meanwhile, or damaged
        return ""


def _figures(seen: study_reader.TrialStatus) -> str:
    shown = figures(seen.status.get("figures"))
    return f", {shown}" if shown else ""


def _metric(found: study_reader.Survey, seen: study_reader.TrialStatus) -> str:
    path = found.directory / seen.path / layout.EVAL_MEASUREMENTS
    try:
        # A row per evaluation; replaced as a whole, so that the last line is a whole one.
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        value = float(rows[-1][f"validation/{found.metric}"])
        return f", validation {found.metric} {value:.4f}"
    except FileNotFoundError:  # not evaluated yet
        return ""
    except (OSError, ValueError, LookupError, TypeError) as error:
        found.damaged.append(f"{path}: no evaluation in its last line ({error!r})")
        return ""


def troubles(found: study_reader.Survey) -> list[str]:
    """Returns what needs a person: trials that ended badly, with their logs, and damaged files."""
    text = []
    for state in ("preempted", "diverged", "failed"):
        those = [seen for seen in found.troubles if seen.state == state]
        for seen in those[:_SHOWN]:
            text.append(f"{seen.path} {state}: {seen.status['reason']}")
            tail = attempts.log_tail(found.directory / seen.path) if state == "failed" else []
            text += [f"    {line}" for line in tail]
        text += _more(those, state)
    text += [f"damaged: {problem}" for problem in found.damaged[:_SHOWN]]
    return text + _more(found.damaged, "damaged")


def _more(things: Sequence[object], state: str) -> list[str]:
    return [f"and {len(things) - _SHOWN:,} more {state}"] if len(things) > _SHOWN else []


def job_lines(found: study_reader.Survey) -> list[str]:
    """Returns how many jobs were given to engines, and how far those are by their trials' files.

    A trial counts for the last job that got it; jobs that lost all their trials to later ones are
    over.
    """
    batches = []
    for path in submissions.files(found.directory):
        try:
            batch = submissions.read(path)
            if batch.handles != []:  # else it was refused whole
                batches.append(batch)
        except (OSError, ValueError, TypeError) as error:
            found.damaged.append(f"{path}: no record of a batch of jobs ({error})")
    if not batches:
        return []
    batches.sort(key=lambda batch: batch.created_at)
    last: dict[str, tuple[str, int]] = {}
    for batch in batches:
        for index, paths in enumerate(batch.jobs):
            last |= dict.fromkeys(paths, (batch.name, index))
    at_work = {last[seen.path] for seen in found.running if seen.path in last}
    waiting = {last[path] for path in found.unfinished if path in last} - at_work
    count = sum(batch.size for batch in batches)
    engines = ", ".join(sorted({batch.launcher for batch in batches}))
    return [
        f"jobs: {count} given to {engines} in {len(batches)} batches: {len(at_work)} running, "
        f"{len(waiting)} waiting, {count - len(waiting) - len(at_work)} over"
    ]


def seconds_per_step(rows: Sequence[study_reader.StageRow]) -> dict[str, float]:
    """Returns the median of the measured times per step for every variant of `rows`.

    A variant that was not measured gets the median of all that were; {} where none was.
    """
    measured: dict[str, list[float]] = {}
    for row in rows:
        measured.setdefault(row.variant, []).extend(row.step_seconds)
    everything = [value for values in measured.values() for value in values]
    items = measured.items() if everything else ()
    return {variant: statistics.median(values or everything) for variant, values in items}


def seconds_left(
    rows: Sequence[study_reader.StageRow], rates: dict[str, float], at_once: int
) -> float | None:
    """Returns how long a stage's `rows` still take with `at_once` trials at a time, seconds.

    The work left divided by the number of trials that share it, but no less than the trial that
    has most left needs. None where that is not known: no time measured, or nothing runs.
    """
    unfinished = sum(row.unfinished for row in rows)
    if not unfinished:
        return 0.0
    if not at_once or not rates:
        return None
    work = sum(row.steps_left * rates[row.variant] for row in rows)
    longest = max(row.longest * rates[row.variant] for row in rows)
    return max(work / min(at_once, unfinished), longest)
