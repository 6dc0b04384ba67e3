"""Reads JSON records by the types of their known keys: what is otherwise is named and left out.

Files are written by programs and mended by hand: `"steps": "3000"` is found here, once, and not by
whoever counts steps later. Keys that nobody reads may hold anything.
"""

import math
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from analysis.load.files.measurements import LARGEST
from sweeps.records import layout

# A user's own files and directories: systems lay .snapshot, .ipynb_checkpoints, ._x, @eaDir beside.
VISIBLE = "[!.@]*"
FLAGS_FILE, META_FILE = "flags_0.json", "meta_data_0.json"
# Keys that stand for all others of an object: those with a `/`, as columns' names have, and any.
COLUMN, ANY = "*/*", "*"


@dataclass(frozen=True)
class Kind:
    """What a key may hold: `words` for the message, a test, and, of an object, what its keys hold
    (`inside`, by name, COLUMN or ANY); of a list, what its items are."""

    words: str
    fits: Callable[[Any], bool]
    inside: Mapping[str, "Kind"] = field(default_factory=dict)
    items: "Kind | None" = None

    def of(self, name: str) -> "Kind | None":
        """Returns what the key `name` may hold, None where anything."""
        others = COLUMN if "/" in name and COLUMN in self.inside else ANY
        return self.inside.get(name, self.inside.get(others))


def of_format(path: pathlib.Path, known: str) -> dict[str, Any]:
    """Returns a file's object. Raises ValueError where it is damaged or says another format."""
    record = layout.read_json(path)
    found = record.get("format") if isinstance(record, dict) else None
    if found != known:
        raise ValueError(f"{path}: its format is {found!r}; {known!r} is known")
    return dict(record)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value is a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < math.inf


def _is_finite(value: Any) -> bool:
    """Whether no nan and no inf is anywhere in the value, which JSON does not have."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _object(**inside: Kind) -> Kind:
    return Kind("an object", lambda value: isinstance(value, dict), inside)


def _all_of(words: str, item: Kind) -> Kind:
    return Kind(f"a list of {words}", lambda value: isinstance(value, list), items=item)


def _or_null(kind: Kind) -> Kind:
    def fits(value: Any) -> bool:
        return value is None or kind.fits(value)

    return Kind(f"{kind.words} or null", fits, kind.inside, kind.items)


TEXT = Kind("text", lambda value: isinstance(value, str))
WHOLE = Kind("a whole number from 0", _is_whole)
POSITIVE = Kind("a whole number from 1", lambda value: _is_whole(value) and value > 0)
NUMBER = Kind("a finite number", is_number)
FINITE = Kind("a value without nan and inf", _is_finite)

HYPERPARAMETERS = _object(**{"warmup_factor": NUMBER, ANY: FINITE})
TARGETS = _object(
    metric=_or_null(TEXT),
    validation=_or_null(NUMBER),
    test=_or_null(NUMBER),
    train=_or_null(NUMBER),
)
# A trial, in trials.json and in its own trial.json.
TRIAL = _object(
    id=TEXT,
    steps=_or_null(POSITIVE),
    step_hint=_or_null(POSITIVE),
    eval_every=_or_null(POSITIVE),
    targets=_or_null(TARGETS),
    hyperparameters=HYPERPARAMETERS,
    variant_hyperparameters=_object(**{ANY: FINITE}),
)
FLAGS = _object(
    max_global_steps=_or_null(POSITIVE),
    tuning_ruleset=_or_null(TEXT),
    attention=_or_null(TEXT),
    attention_tau=_or_null(NUMBER),
    variant_hyperparameters=_object(**{ANY: FINITE}),
)
META = _object(
    **{
        "workload.target_metric_name": _or_null(TEXT),
        "workload.validation_target_value": _or_null(NUMBER),
        "workload.test_target_value": _or_null(NUMBER),
        "workload.step_hint": _or_null(POSITIVE),
        "workload.max_allowed_runtime_sec": _or_null(NUMBER),
        "workload.attention": _or_null(TEXT),
        "workload.attention_tau": _or_null(NUMBER),
    }
)
# init2winit's meta_data.json.
TRAINER_META = _object(
    dataset=TEXT,
    model=TEXT,
    num_train_steps=_or_null(POSITIVE),
    attention=_or_null(TEXT),
    attention_tau=_or_null(NUMBER),
)
CONFIG = _object(
    name=TEXT, workload=TEXT, baseline=TEXT, variants=_all_of("names", TEXT)
)  # fmt: skip
# An item's place is a point's index: a list with another item is of no use.
_POINTS = Kind(
    "a list of objects, one per point",
    lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    items=HYPERPARAMETERS,
)
STUDY = _object(
    name=TEXT,
    config=CONFIG,
    points=_POINTS,
    stages=_all_of("names", TEXT),
    paper_table=_or_null(TEXT),
    paper_note=_or_null(TEXT),
)
SELECTION = _object(
    metric=_or_null(TEXT), from_stage=_or_null(TEXT), points=_object(**{ANY: WHOLE})
)
ROW = _object(**{"name": TEXT, COLUMN: _or_null(NUMBER)})
REFERENCE = _object(**{ANY: _object(note=_or_null(TEXT), rows=_all_of("objects", ROW))})
# What a suite says of a checkpoint; tasks by name.
_FRACTIONS = _object(**{ANY: NUMBER})
RESULTS = _object(
    step=WHOLE,
    tasks=_object(
        **{
            ANY: _object(
                primary=TEXT,
                n=POSITIVE,
                shots=WHOLE,
                metrics=_FRACTIONS,
                majority=_or_null(NUMBER),
                references=_or_null(_FRACTIONS),
                truncated=WHOLE,
                published_n=_or_null(WHOLE),
            )
        }
    ),
)

# What an entry of trials.json cannot do without.
NEEDED = {"path": TEXT, "variant": TEXT, "workload": TEXT, "point": WHOLE, "seed": WHOLE}
# A file's name to what it holds.
KNOWN = {
    layout.STUDY: STUDY,
    layout.SELECTION: SELECTION,
    layout.REFERENCE: REFERENCE,
    layout.TRIAL: TRIAL,
    layout.RESULTS: RESULTS,
    layout.HPARAMS: HYPERPARAMETERS,
    FLAGS_FILE: FLAGS,
    META_FILE: META,
}


def read(path: pathlib.Path, where: str, problems: list[str]) -> dict[str, Any] | None:
    """Returns the JSON object in `path` as `usable` leaves it, None where there is no such file,
    or none that is a JSON object: the latter is named in `problems`."""
    try:
        record = layout.read_json_if_there(path)
    except (ValueError, OSError) as error:
        problems.append(f"unreadable: {where}: {error}")
        return None
    if record is not None and not isinstance(record, dict):
        problems.append(f"unreadable: {where}: not a JSON object")
        return None
    known = KNOWN.get(path.name)
    return usable(record, known, f"{where}: ", problems) if record and known else record


def usable(record: dict[str, Any], kind: Kind, place: str, problems: list[str]) -> dict[str, Any]:
    """Returns `record` without the keys that hold something else than `kind` says; adds a sentence
    to `problems` for each: where (`place`, up to the key's name: `study.json: `), what it holds and
    what was expected."""
    kept = {}
    for name, value in record.items():
        wanted = kind.of(name)
        if wanted is None:
            kept[name] = value
        elif _fits(value, wanted, f"{place}{name}", problems):
            kept[name] = _inside(value, wanted, f"{place}{name}", problems)
    return kept


def _inside(value: Any, kind: Kind, place: str, problems: list[str]) -> Any:
    if isinstance(value, dict) and kind.inside:
        return usable(value, kind, f"{place}.", problems)
    if isinstance(value, list) and kind.items:
        numbered = [(item, kind.items, f"{place}[{n}]") for n, item in enumerate(value)]
        return [_inside(*each, problems) for each in numbered if _fits(*each, problems)]
    return value


def _fits(value: Any, kind: Kind, place: str, problems: list[str]) -> bool:
    if kind.fits(value):
        return True
    given = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
    problems.append(f"unreadable: {place} is {given}, expected {kind.words}; it is left out")
    return False


def planned_trials(
    root: pathlib.Path, stage: str, problems: list[str]
) -> list[dict[str, Any]] | None:
    """Returns the trials that a stage of the study in `root` consists of, None where it has not
    been planned yet. What is damaged, or lost, is named in `problems`."""
    where = f"{stage}/{layout.TRIALS}"
    try:
        entries = layout.planned_entries(root, stage)
    except (ValueError, OSError) as error:
        problems.append(f"unreadable: {where}: {error}")
        return []
    if entries is None:
        # A stage without its list has not begun, unless trials lie there.
        found = trial_directories(root, stage)
        if not found:
            return None
        problems.append(
            f"missing: {where}: {len(found)} directories of trials lie in {stage}, beginning with "
            f"{found[0]}, and nothing says which of them belong to it; none is read"
        )
        return []
    return [
        usable(entry, TRIAL, f"{where}: trials[{number}]: ", problems)
        for number, entry in enumerate(entries)
        if _is_usable(entry, where, problems)
    ]


def trial_directories(root: pathlib.Path, stage: str) -> list[str]:
    """Returns the trial directories of a stage, relative to `root`."""
    found = sorted((root / stage).glob(f"{VISIBLE}/{VISIBLE}_jax/trial_*"))
    return [path.relative_to(root).as_posix() for path in found if path.is_dir()]


def _is_usable(entry: Any, where: str, problems: list[str]) -> bool:
    known = isinstance(entry, dict) and all(
        kind.fits(entry.get(name)) for name, kind in NEEDED.items()
    )
    if not known:
        wanted = ", ".join(f"{name} ({kind.words})" for name, kind in NEEDED.items())
        problems.append(f"unreadable: {where}: an entry without {wanted}: {str(entry)[:200]}")
        return False
    path = pathlib.PurePosixPath(entry["path"])
    if path.is_absolute() or ".." in path.parts:
        problems.append(f"unreadable: {where}: path {entry['path']!r} leads out of the study")
        return False
    return True
