"""A study's directory, made by hand: every number in it is chosen by the test that uses it."""

import collections
import dataclasses
import functools
import gzip
import hashlib
import html.parser
import json
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from analysis.compare import error_table
from analysis.load.studies import read_study
from analysis.render import charts
from sweeps.records import layout
from sweeps.study import keys


def columns(*metrics: str) -> tuple[str, ...]:
    return (
        "global_step",
        *(f"{split}/{name}" for split in layout.SPLITS for name in metrics),
        "validation/num_examples",
        *layout.TIME_COLUMNS,
        "preemption_count",
    )


COLUMNS = columns("accuracy", "loss")
VARIANTS = tuple(
    mixer + modifier
    for mixer in ("standard", "laser")
    for modifier in ("", "+temp", "+qk_norm", "+per_dim_temp")
)
Row = Mapping[str, float]


def csv_text(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
    lines = [",".join(columns)]
    lines += [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    return "\n".join(lines) + "\n"


def evaluation(step: int, error: float, **more: float) -> Row:
    """Train, validation and test errors that are tenths apart unless given."""
    errors = {"train": error - 0.01, "validation": error, "test": error + 0.01} | more
    accuracies = {f"{split}/accuracy": 1 - value for split, value in errors.items()}
    return {"global_step": step, "preemption_count": 0, **accuracies}


def measured(step: int, metric: str, value: float, apart: float = 0.01) -> Row:
    """Any metric: train below and test above validation, `apart` from it."""
    values = dict(zip(layout.SPLITS, (value - apart, value, value + apart), strict=True))
    return {"global_step": step} | {f"{split}/{metric}": x for split, x in values.items()}


@dataclass
class HandMadeStudy:
    """Writes the files of a study below `root`; `finish` writes its lists."""

    root: pathlib.Path
    config: dict[str, Any]
    points: list[dict[str, Any]]
    metric: str = "accuracy"
    record: dict[str, Any] = field(default_factory=dict)
    workload: str = "imagenet_vit"
    planned: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    stages: tuple[str, ...] = ("tune", "compare")

    evaluation = staticmethod(evaluation)
    measured = staticmethod(measured)
    csv_text = staticmethod(csv_text)

    def trial(
        self,
        stage: str,
        variant: str,
        point: int,
        seed: int,
        rows: Sequence[Row] | None,
        state: str = "done",
        reason: str | None = None,
        steps: int = 400,
        meta: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> pathlib.Path:
        """Plans a trial; `rows=None` leaves it without measurements, `meta` is what its first
        attempt recorded, and `keys` are laid over its record. Of the stage `compare` point 0 is
        selected."""
        path = layout.trial_path(stage, variant, self.workload, point, seed)
        entry = {
            "path": path,
            "id": hashlib.sha256(f"{self.config['name']}/{path}".encode()).hexdigest()[:12],
            "variant": variant,
            "workload": self.workload,
            "point": point,
            "seed": seed,
            "steps": steps,
        }
        self.planned.setdefault(stage, []).append(entry)
        directory = self.root / path
        directory.mkdir(parents=True, exist_ok=True)
        tau = {"tau": self.config["tau"]} if "temp" in variant.split("+") else {}
        record = (
            entry
            | {
                "study": self.config["name"],
                "stage": stage,
                "variant_hyperparameters": tau,
                "hyperparameters": self.points[point],
                "eval_every": steps,
                "batch_size": 64,
                "step_hint": steps,
                "targets": {"metric": self.metric, "validation": 0.9, "test": 0.9},
            }
            | keys
        )
        layout.write_json(directory / layout.TRIAL, record)
        layout.write_json(directory / layout.HPARAMS, self.points[point])
        layout.write_json(directory / layout.STATUS, {"state": state, "reason": reason})
        if meta is not None:
            layout.write_json(directory / "meta_data_0.json", dict(meta))
        if rows is not None:
            text = csv_text(rows, COLUMNS if self.metric == "accuracy" else columns(self.metric))
            (directory / layout.EVAL_MEASUREMENTS).write_text(text)
            (directory / layout.MEASUREMENTS).write_text(text)
        if stage == "compare":
            self.select({entry["variant"]: 0 for entry in self.planned["compare"]})
        return directory

    def row(self, step: int, value: float) -> Row:
        """An evaluation of the study's metric (of accuracy: an error): `value` on validation, train
        0.01 below and test above it."""
        is_error = self.metric == "accuracy"
        return evaluation(step, value) if is_error else measured(step, self.metric, value)

    def add_seeds(
        self,
        variant: str,
        values: Sequence[float],
        stage: str = "compare",
        point: int = 0,
        first: int = 0,
        **more: Any,
    ) -> None:
        """A trial of one evaluation, at step 400, per seed from `first`."""
        for seed, value in enumerate(values, first):
            self.trial(stage, variant, point, seed, [self.row(400, value)], **more)

    def change(self, variant: str, seed: int, file: str = layout.TRIAL, /, **record: Any) -> None:
        """Lays keys over a record of a trial of `compare` at point 0."""
        path = self.root / layout.trial_path("compare", variant, self.workload, 0, seed) / file
        layout.write_json(path, layout.read_json(path) | record)

    def leave_pending(self, variant: str, seed: int) -> None:
        """Takes a trial of `compare` back to its state before its first step."""
        self.change(variant, seed, layout.STATUS, state="pending")
        trial = self.root / layout.trial_path("compare", variant, self.workload, 0, seed)
        for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
            (trial / name).unlink(missing_ok=True)

    def select(self, points: Mapping[str, int]) -> None:
        layout.write_json(
            self.root / layout.SELECTION,
            {
                "metric": f"validation/{self.metric}",
                "mode": "max" if self.metric == "accuracy" else "min",
                "from_stage": "tune",
                "points": dict(points),
                "trials": {},
            },
        )

    def reference(self, rows: list[dict[str, Any]], note: str) -> None:
        layout.write_json(
            self.root / layout.REFERENCE, {self.workload: {"note": note, "rows": rows}}
        )

    def plans(self) -> list[dict[str, Any]]:
        """What `run` would have planned: the variants and seeds of the last stage's list, in a
        later call fewer seeds of those that have fewer."""
        seeds = collections.defaultdict(set)
        for entry in self.planned.get(self.stages[-1], []):
            seeds[entry["variant"]].add(entry["seed"])
        counts = {len(each) for each in seeds.values()} or {self.config["seeds"]}
        return [
            {
                "date": self.record.get("date"),
                "git_commit": self.record.get("git_commit"),
                "hypothesis": self.config.get("hypothesis"),
                "seeds": count,
                "variants": [name for name, each in seeds.items() if len(each) >= count]
                or self.config["variants"],
            }
            for count in sorted(counts, reverse=True)
        ]

    def finish(self) -> pathlib.Path:
        for stage, trials in self.planned.items():
            (self.root / stage).mkdir(parents=True, exist_ok=True)
            layout.write_json(self.root / stage / layout.TRIALS, {"stage": stage, "trials": trials})
        record = {
            "format": layout.FORMAT,
            "name": self.config["name"],
            "config": self.config,
            "points": self.points,
            "stages": list(self.stages),
            "paper_table": "",
            "paper_note": "",
            "versions": {},
            "git_commit": None,
            "runs": self.plans(),
        } | self.record
        (self.root / layout.STUDY).write_text(json.dumps(record))
        return self.root

    def table(self, **options: Any) -> error_table.ErrorTable:
        """Returns the error table of the study, finished."""
        return error_table.build(read_study(self.finish()), **options)


def begin_study_in(
    folder: pathlib.Path,
    variants: Sequence[str] = ("standard", "laser"),
    points: Sequence[dict[str, Any]] = ({"learning_rate": 0.001},),
    name: str = "tiny",
    config: Mapping[str, Any] | None = None,
    seeds: Mapping[str, Sequence[float]] | None = None,
    **more: Any,
) -> HandMadeStudy:
    """Begins a study in `experiments/name` below a folder; `seeds` gives variants' values, which
    `add_seeds` adds."""
    settings = {
        "name": name,
        "workload": more.get("workload", "imagenet_vit"),
        "variants": list(variants),
        "protocol": "tune_then_compare",
        "tuning_variant": "standard",
        "baseline": "standard",
        "seeds": 3,
        "tau": 0.9,
    }
    root = folder / "experiments" / name
    root.mkdir(parents=True)
    made = HandMadeStudy(root, settings | dict(config or {}), list(points), **more)
    for variant, values in (seeds or {}).items():
        made.add_seeds(variant, values)
    return made


@pytest.fixture
def hand_made(tmp_path: pathlib.Path) -> Callable[..., HandMadeStudy]:
    """Returns a function that begins a study in a directory of its own."""
    return functools.partial(begin_study_in, tmp_path)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have no figures: drawing them takes the most of a report's time."""
    monkeypatch.setattr(charts, "embed", lambda plot, shown, names: None)


EDGES = [-12 + 0.5 * step for step in range(25)]


def diagnostics_line(step: int, index: int, attempt: int = 0, **changes: Any) -> dict[str, Any]:
    """A layer at a step: 1,000 probabilities, of which (100 + step) lie below 1e-7 and as many
    more below 1e-3; gradients that fall with depth."""
    few = min(100 + step, 400)
    histogram = [0] * len(EDGES)
    histogram[EDGES.index(-7)] = few
    histogram[EDGES.index(-3)] = few
    histogram[EDGES.index(-1)] = 1000 - 2 * few
    return {
        "global_step": step,
        "preemption_count": attempt,
        "layer": f"encoderblock_{index}/attention",
        "index": index,
        "share_below_1e-3": 2 * few / 1000,
        "share_below_1e-7": few / 1000,
        "histogram": histogram,
        "entropy": 2.0 - 0.1 * index,
        "entropy_share": 0.5,
        "jacobian_mean": 0.1,
        "jacobian_max": 0.5,
        "logit_grad_norm": 1e-2 * 0.5**index,
        "query_grad_norm": 3e-3,
        "key_grad_norm": 4e-3,
        "value_grad_norm": 5e-2,
        "value_range_min": 1.0,
        "value_range_median": 2.0,
        "value_range_max": 3.0 + index,
        "channels": 64,
        "floored_channels": index,
    } | changes


def diagnostics_text(lines: Sequence[Mapping[str, Any]], **header: Any) -> str:
    first = {"format": "attnperf-diagnostics-1", "histogram_edges_log10": EDGES, "examples": 8}
    return "".join(json.dumps(line) + "\n" for line in (first | header, *lines))


def write_diagnostics(
    trial: pathlib.Path, steps: Sequence[int], layers: int, **changes: Any
) -> None:
    lines = [diagnostics_line(s, i, **changes) for s in steps for i in range(layers)]
    (trial / "diagnostics.jsonl").write_text(diagnostics_text(lines))


@pytest.fixture
def diagnosed() -> Any:
    """Returns functions that make lines and files of diagnostics: `.line`, `.text`, `.write`."""
    return types.SimpleNamespace(
        line=diagnostics_line, text=diagnostics_text, write=write_diagnostics
    )


VOID = {"meta", "img", "source", "br", "link", "input"}


class Page(html.parser.HTMLParser):
    """Reads a page and fails where its tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def parse_page() -> type[Page]:
    """Returns what reads a page's text: its tags, their attributes and its words."""
    return Page


@pytest.fixture
def other_experiments() -> Callable[[Any], dict[str, Any]]:
    """Returns a function that makes copies of a table, each with another value of one key that
    results depend on, by the key: every key of role RESULT, the space and the start."""
    others = {bool: lambda x: not x, int: lambda x: x + 7, float: lambda x: x + 0.5}

    def copies(table: Any) -> dict[str, Any]:
        made = {}
        for name, key in keys.OWN.items():
            if key.role is not keys.Role.RESULT and name not in ("space", "finetune_from"):
                continue
            value = others.get(type(key.default), lambda x: f"{x}_other")(key.default)
            group, _, inner = name.rpartition(".")
            config = table.study.config | ({group: {inner: value}} if group else {name: value})
            study = dataclasses.replace(table.study, config=config)
            workload = value if name == "workload" else table.workload
            made[name] = dataclasses.replace(table, study=study, workload=workload)
        return made

    return copies


@pytest.fixture
def study(hand_made: Callable[..., HandMadeStudy]) -> HandMadeStudy:
    """Returns three seeds of two variants, whose differences are -0.1, -0.2 and -0.3."""
    return hand_made(seeds={"standard": (0.3, 0.5, 0.7), "laser": (0.2, 0.3, 0.4)})


def sample(task: str, question: int, correct: Mapping[str, bool], **more: Any) -> dict[str, Any]:
    """A line of samples.jsonl.gz, with as much of its choices as any reader could want."""
    choice = {"loglikelihood": -1.5, "unconditional": None, "tokens": 2, "bytes": 9, "greedy": True}
    line = {"task": task, "question": question, "gold": question % 2, "choices": [choice] * 2}
    return line | {"truncated": 0, "correct": dict(correct)} | more


@pytest.fixture
def answered() -> Any:
    """Returns functions that write what a suite says of a trial's checkpoint: `.lines` of tasks,
    each a metric to its right and wrong answers, and `.write`, all of it."""

    class Made:
        @staticmethod
        def lines(tasks: Mapping[str, Mapping[str, Sequence[int]]], **more: Any) -> list[dict]:
            return [
                sample(task, question, {m: bool(of[question]) for m, of in metrics.items()}, **more)
                for task, metrics in tasks.items()
                for question in range(len(next(iter(metrics.values()))))
            ]

        @staticmethod
        def put(folder: pathlib.Path, lines: Sequence[Any]) -> None:
            texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
            content = "".join(f"{text}\n" for text in texts).encode()
            (folder / layout.SAMPLES).write_bytes(gzip.compress(content, 1))

        @classmethod
        def write(
            cls,
            trial: pathlib.Path,
            tasks: Mapping[str, Mapping[str, Sequence[int]]],
            step: int = 400,
            suite: str = "pydoc",
            task: Mapping[str, Any] | None = None,
            line: Mapping[str, Any] | None = None,
        ) -> pathlib.Path:
            """`task` and `line` are laid over every task of results.json and every line."""
            folder = trial / layout.downstream_path(step, suite)
            folder.mkdir(parents=True, exist_ok=True)
            own = layout.read_json(trial / layout.TRIAL)
            stated = {
                name: {
                    "primary": next(iter(metrics)),
                    "n": len(next(iter(metrics.values()))),
                    "shots": 0,
                    "metrics": {m: sum(of) / len(of) for m, of in metrics.items()},
                    "majority": None,
                    "references": {"chance": 0.25},
                    "truncated": 0,
                    "data_sha256": "ab",
                    "published_n": None,
                }
                | dict(task or {})
                for name, metrics in tasks.items()
            }
            record = {
                "format": layout.DOWNSTREAM_FORMAT,
                "suite": suite,
                "step": step,
                "trial_id": own["id"],
                **{key: own[key] for key in ("variant", "workload", "seed")},
                "harness": "lm-eval 0.4.13",
                "tasks": stated,
            }
            layout.write_json(folder / layout.RESULTS, record)
            cls.put(folder, cls.lines(tasks, **dict(line or {})))
            return folder

    return Made
