"""Damaged files of every reader: a problem of the right kind names each, what is whole is read, and
nothing raises."""

import gzip
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import cli
from analysis.load import diagnostics, measurements, samples
from analysis.load.studies import read_study
from sweeps.records import layout

TRIAL = "compare/standard/imagenet_vit_jax/trial_1"


class Reader(NamedTuple):
    """A file of a `header`, if any, and three rows; `read` returns which of them were read, and the
    kinds of the problems."""

    header: list[str]
    rows: list[str]
    read: Callable[[bytes], tuple[list[int], list[str]]]


def read_csv(content: bytes) -> tuple[list[int], list[str]]:
    table = measurements.parse(content, "T", "file.csv")
    assert {(problem.trial, problem.file) for problem in table.problems} <= {("T", "file.csv")}
    kinds = [problem.kind for problem in table.problems]
    return [int(step) - 1 for step in table.columns.get("global_step", ())], kinds


def read_diagnostics(content: bytes) -> tuple[list[int], list[str]]:
    records = diagnostics.parse(content)
    assert {problem.file for problem in records.problems} <= {diagnostics.FILE}
    return records.steps.tolist(), [problem.kind for problem in records.problems]


def samples_reader(trial: pathlib.Path, answered: Any) -> Reader:
    """Each row is the one question of a task of its own, which is missing without it."""
    tasks = {f"task {row}": {"acc": [1]} for row in range(3)}
    folder = answered.write(trial, tasks)

    def read(content: bytes) -> tuple[list[int], list[str]]:
        is_packed = content[:2] == b"\x1f\x8b"
        (folder / layout.SAMPLES).write_bytes(content if is_packed else gzip.compress(content))
        ((found,), _) = samples.of_trial(trial, "T")
        lost = 3 - len(found.tasks)
        kinds = [problem.kind for problem in found.problems]
        assert kinds[len(kinds) - lost :] == ["missing"] * lost
        return [int(name[-1]) for name in found.tasks], kinds[: len(kinds) - lost]

    return Reader([], [json.dumps(line) for line in answered.lines(tasks)], read)


@pytest.fixture
def readers(study, diagnosed, answered) -> dict[str, Reader]:
    study.finish()
    header, *rows = diagnosed.text([diagnosed.line(step, 0) for step in range(3)]).splitlines()
    return {
        "csv": Reader(
            ["global_step,validation/loss,preemption_count"],
            ["1,0.5,0", "2,0.7,0", "3,0.8,0"],
            read_csv,
        ),
        "diagnostics": Reader([header], rows, read_diagnostics),
        "samples": samples_reader(study.root / study.planned["compare"][0]["path"], answered),
    }


NAMES = ("csv", "diagnostics", "samples")
WITH_HEADER = NAMES[:2]


def content_of(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


CHANGED = {  # a JSON object's line by the keys that are changed
    "diagnostics": [
        {"global_step": -1},
        {"global_step": 1.5},
        {"index": True},
        {"layer": 3},
        {"entropy": "2"},
        {"entropy": float("nan")},
        {"histogram": [1, 2]},
        {"histogram": [-1] * 25},
    ],
    "samples": [
        {"question": "1"},
        {"question": -1},
        {"task": None},
        {"gold": [1]},
        {"correct": {"acc": 1}},
        {"correct": None},
    ],
}
ROWS = {
    "csv": ["2,0.7", "2,0.7,0,9", "2,0.x7,0", "2.5,0.7,0", "nan,0.7,0", "-1,0.7,0", ",0.7,0",
            "2,0.7,0.5", "2,1_0,0", "2,٣,0", '2,"1""5",0', '2,"1,5",0', '2,"1,0', "2,1 5,0",
            "9007199254740993,0.7,0", "true,0.7,0", "2,2020-01-01,0"],
    "diagnostics": [],
    "samples": [],
}  # fmt: skip
ANYWHERE = ["", "\0\0\0", "\r\0", "\ufffd", "[1, 2]", '{"global_step": 1, "task":', "[" * 2000]


@pytest.mark.parametrize(
    ("name", "damage"),
    [(name, damage) for name in NAMES for damage in (*ROWS[name], *ANYWHERE)]
    + [(name, damage) for name, all_of_them in CHANGED.items() for damage in all_of_them],
)
def test_a_damaged_row_is_named_and_the_others_are_read(readers, name, damage) -> None:
    header, rows, read = readers[name]
    line = damage if isinstance(damage, str) else json.dumps(json.loads(rows[1]) | damage)
    assert read(content_of([*header, rows[0], line, rows[2]])) == ([0, 2], ["damaged"])


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_utf_8_is_named(readers, name) -> None:
    header, rows, read = readers[name]
    damaged = rows[1].replace("0", "\xff", 1).replace("task", "\xff", 1).encode("latin-1")
    lines = [line.encode() for line in (*header, rows[0])]
    content = b"\n".join([*lines, damaged, rows[2].encode(), b""])
    assert read(content) == ([0, 2], ["damaged"])


@pytest.mark.parametrize("name", WITH_HEADER)
def test_headers_that_are_missing_or_repeated(readers, name) -> None:
    header, rows, read = readers[name]
    assert read(content_of(rows)) == ([], ["unreadable"])
    assert read(content_of([*header, rows[0], *header, rows[2]])) == ([0, 2], ["damaged"])
    assert read(content_of(header)) == ([], [])


@pytest.mark.parametrize(
    ("name", "first", "kinds"),
    [
        ("csv", "step,validation/loss\n", ["unreadable"]),
        ("csv", "global_step,valid", ["truncated"]),
        ("csv", "", ["truncated"]),
        ("csv", "global_step,loss,loss\n", ["duplicated"]),
        ("diagnostics", "", ["unreadable"]),
        ("diagnostics", '{"format": "other"}\n', ["unreadable"]),
        ("diagnostics", '{"format": "attnperf-diagnostics-1"}\n', ["unreadable"]),
        (
            "diagnostics",
            '{"format": "attnperf-diagnostics-1", "histogram_edges_log10": [0, -1]}\n',
            ["unreadable"],
        ),
        ("samples", "", []),
    ],
)
def test_a_file_of_another_header_has_no_rows(readers, name, first, kinds) -> None:
    assert readers[name].read(first.encode()) == ([], kinds)


@pytest.mark.parametrize("name", WITH_HEADER)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_at_any_byte_keeps_its_complete_rows(readers, name, data) -> None:
    """A last number may have lost digits: `2,0.75,0` may have been `2,0.75,01`."""
    header, rows, read = readers[name]
    whole = content_of(header + rows)
    content = whole[: data.draw(st.integers(0, len(whole)))]
    found, kinds = read(content)
    assert found == list(range(max(0, content.count(b"\n") - 1)))
    assert bool(kinds) == (content[-1:] != b"\n")


def test_compressed_samples_are_read_up_to_their_damage(readers, answered) -> None:
    _, rows, read = readers["samples"]
    packed = gzip.compress(content_of(rows))
    assert read(packed[:-1]) == ([0, 1, 2], ["truncated"])
    assert read(packed[:10] + b"no gzip") == ([], ["damaged"])
    assert read(packed[:-6] + bytes([packed[-6] ^ 255]) + packed[-5:])[1] == ["damaged"]


@pytest.mark.parametrize("name", NAMES)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rest=st.binary(max_size=300) | st.text("0123456789.,-+einfaNx_(\r\n \t\0é\"'{}[]:"))
def test_any_bytes_are_read_without_an_error(readers, name, rest) -> None:
    header, _, read = readers[name]
    rest = rest if isinstance(rest, bytes) else rest.encode()
    for content in (rest, content_of(header) + rest):
        found, _ = read(content)
        assert sorted(set(found)) == found


def test_files_that_cannot_be_opened_are_named(tmp_path) -> None:
    (tmp_path / "a.csv").mkdir()
    found = measurements.read(tmp_path / "a.csv", "T")
    assert [problem.kind for problem in found.problems] == ["unreadable"]
    assert measurements.read(tmp_path / "b.csv") is None


# JSON records


@pytest.fixture
def root(hand_made) -> pathlib.Path:
    """Returns a study of two seeds at one point, which was selected."""
    made = hand_made(("standard",), seeds={"standard": [0.3, 0.4]})
    made.stages = ("compare",)
    layout.write_json(made.root / layout.REFERENCE, {"imagenet_vit": {"rows": []}})
    return made.finish()


def change(path: pathlib.Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("file", "values", "key"),
    [
        (f"{TRIAL}/trial.json", {"steps": "3000"}, "steps"),
        (f"{TRIAL}/trial.json", {"steps": float("nan")}, "steps"),
        (f"{TRIAL}/trial.json", {"steps": True}, "steps"),
        (f"{TRIAL}/trial.json", {"steps": 2**53}, "steps"),
        (f"{TRIAL}/trial.json", {"eval_every": "600"}, "eval_every"),
        (f"{TRIAL}/trial.json", {"step_hint": "3k"}, "step_hint"),
        (f"{TRIAL}/trial.json", {"targets": {"metric": 5}}, "targets.metric"),
        (f"{TRIAL}/trial.json", {"targets": {"validation": "x"}}, "targets.validation"),
        (f"{TRIAL}/trial.json", {"hyperparameters": [1]}, "hyperparameters"),
        (f"{TRIAL}/trial.json", {"hyperparameters": {"warmup_factor": "x"}},
         "hyperparameters.warmup_factor"),
        (f"{TRIAL}/trial.json", {"hyperparameters": {"b": float("inf")}}, "hyperparameters.b"),
        (f"{TRIAL}/trial.json", {"hyperparameters": {"b": [float("inf")]}}, "hyperparameters.b"),
        (f"{TRIAL}/trial.json", {"variant_hyperparameters": "x"}, "variant_hyperparameters"),
        ("study.json", {"points": [1]}, "points"),
        ("study.json", {"points": {"a": 1}}, "points"),
        ("study.json", {"name": 5}, "name"),
        ("selection.json", {"metric": 5}, "metric"),
        ("selection.json", {"points": {"standard": 0, "laser": "0"}}, "points.laser"),
        ("reference.json", {"imagenet_vit": {"rows": 5}}, "imagenet_vit.rows"),
        ("reference.json", {"imagenet_vit": {"rows": [{"test/loss": "x"}]}},
         "imagenet_vit.rows[0].test/loss"),
    ],
)  # fmt: skip
def test_a_key_of_another_type_is_named_and_the_rest_is_used(root, file, values, key) -> None:
    change(root / file, **values)
    study = read_study(root)
    (problem,) = study.problems
    assert (problem.kind, str(pathlib.PurePath(problem.trial, problem.file))) == (
        "unreadable",
        file,
    )
    assert problem.text.startswith(f"{key} is ")
    assert [(run.state, run.steps, run.last_step) for run in study.runs] == [("done", 400, 400)] * 2


@pytest.mark.parametrize(
    ("file", "content", "kinds"),
    [
        (f"{TRIAL}/trial.json", '{"id": ', ["unreadable"]),
        (f"{TRIAL}/trial.json", "[]", ["unreadable"]),
        (f"{TRIAL}/trial.json", '{"steps": 400, "steps": 500}', ["unreadable"]),
        (f"{TRIAL}/trial.json", None, ["missing"]),
        (f"{TRIAL}/status.json", '{"state": "do', ["unreadable", "unfinished"]),
        (f"{TRIAL}/measurements.csv", None, ["missing"]),
        (f"{TRIAL}/eval_measurements.csv", None, ["missing"]),
        # A file of which nothing can be read is named once.
        (f"{TRIAL}/eval_measurements.csv", "", ["truncated"]),
        (f"{TRIAL}/eval_measurements.csv", "epoch,accuracy\n1,0.5", ["unreadable"]),
        ("selection.json", "[]", ["unreadable"]),
        ("selection.json", '{"points": {"laser": 0, "laser": 1}}', ["unreadable"]),
        ("compare/trials.json", None, ["missing"]),
        ("compare/trials.json", '{"trials": 5}', ["unreadable"]),
        ("compare/trials.json", '{"trials": [5]}', ["unreadable"]),
    ],
)
def test_a_file_that_is_damaged_or_lost_is_named(root, file, content, kinds) -> None:
    if content is None:
        (root / file).unlink()
    else:
        (root / file).write_text(content)
    study = read_study(root)
    assert [problem.kind for problem in study.problems] == kinds
    assert all(problem.trial in (file, TRIAL, "compare", "") for problem in study.problems)


def test_points_of_a_damaged_list_are_nobodys_hyperparameters(hand_made) -> None:
    """Without its first item, the second would be taken for point 0."""
    made = hand_made(("standard",), points=({"learning_rate": 0.1}, {"learning_rate": 0.2}))
    made.trial("tune", "standard", 1, 0, None, state="pending")
    root = made.finish()
    (root / made.planned["tune"][0]["path"] / layout.TRIAL).unlink()
    assert read_study(root).runs[0].hyperparameters == {"learning_rate": 0.2}
    change(root / layout.STUDY, points=[7, {"learning_rate": 0.2}])
    assert read_study(root).runs[0].hyperparameters == {}


@pytest.mark.parametrize(
    ("changed", "in_text"),
    [({"path": "../../elsewhere"}, "../../elsewhere"), ({"seed": "1"}, "seed")],
)
def test_an_entry_that_plans_no_trial_of_the_study_is_named(root, changed, in_text) -> None:
    record = layout.read_json(root / "compare/trials.json")
    record["trials"][0] |= changed
    layout.write_json(root / "compare/trials.json", record)
    study = read_study(root)
    assert [run.is_planned for run in study.runs] == [True, False]
    assert {problem.kind for problem in study.problems} == {"unreadable"}
    assert in_text in study.problems[-1].text


@pytest.mark.parametrize(
    ("file", "values", "kind"),
    [
        (f"{TRIAL}/trial.json", {"id": "another"}, "mismatch"),
        (f"{TRIAL}/trial.json", {"seed": 7}, "mismatch"),
        (layout.SELECTION, {"points": {"standard": 5}}, "missing"),
    ],
)
def test_a_record_that_fits_no_trial_is_named(root, file, values, kind) -> None:
    change(root / file, **values)
    study = read_study(root)
    (problem,) = study.problems
    place = (TRIAL, "") if kind == "mismatch" else ("", file)
    assert (problem.kind, problem.trial, problem.file) == (kind, *place)
    assert (study.runs[0].evals == {}) == (kind == "mismatch")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_json_is_read_in_every_encoding_of_unicode(root, capsys, encoding) -> None:
    """As editors and PowerShell save it, with a byte order mark and other ends of lines."""
    cli.main(["runs", str(root), "--json"])
    before = capsys.readouterr().out
    for path in root.rglob("*.json"):
        path.write_bytes(path.read_text("utf-8").replace("\n", "\r\n").encode(encoding))
    assert cli.main(["runs", str(root), "--json"]) == 0
    assert capsys.readouterr().out == before


def test_an_evaluation_beyond_the_planned_steps_is_a_mismatch(root) -> None:
    path = root / TRIAL / layout.EVAL_MEASUREMENTS
    path.write_text(path.read_text().replace("\n400,", "\n4000,"))
    assert [(p.kind, p.trial) for p in read_study(root).problems] == [("mismatch", TRIAL)]
