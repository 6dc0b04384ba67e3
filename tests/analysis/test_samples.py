"""Answers to a suite: tasks whose samples bear out results.json; files that cannot be read are in
test_damaged_files.py."""

import pytest

from analysis.load import samples
from sweeps.records import layout

TASKS = {
    "next": {"acc": [1, 0, 1, 1], "acc_norm": [0, 0, 1, 1]},
    "swap": {"acc": [0, 1, 1, 0, 1]},
}


@pytest.fixture
def trial(study):
    study.finish()
    return study.root / study.planned["compare"][0]["path"]


@pytest.fixture
def folder(trial, answered):
    return answered.write(trial, TASKS)


def read(trial):
    (evaluation,), problems = samples.of_trial(trial, "T")
    assert problems == []
    return evaluation


def kinds_of(trial, *tasks):
    """Returns the problems' kinds; `tasks` are those that can be used."""
    evaluation = read(trial)
    assert tuple(evaluation.tasks) == tasks
    assert {problem.trial for problem in evaluation.problems} <= {"T/downstream/400/pydoc"}
    return [problem.kind for problem in evaluation.problems]


def change(folder, **changes):
    record = layout.read_json(folder / layout.RESULTS)
    layout.write_json(folder / layout.RESULTS, record | changes)


def change_task(folder, name, **changes):
    tasks = layout.read_json(folder / layout.RESULTS)["tasks"]
    change(folder, tasks=tasks | {name: tasks[name] | changes})


def test_a_whole_evaluation(trial, folder, answered) -> None:
    answered.put(folder, answered.lines(TASKS)[::-1])  # in any order
    evaluation = read(trial)
    assert (evaluation.suite, evaluation.step, evaluation.problems) == ("pydoc", 400, ())
    task = evaluation.tasks["next"]
    assert (task.primary, task.n, task.undecodable, task.majority) == ("acc", 4, None, None)
    assert task.right("acc_norm").tolist() == [False, False, True, True]
    assert task.references == {"chance": 0.25}
    assert evaluation.tasks["swap"].right("acc").tolist() == [False, True, True, False, True]


def test_generated_answers_have_a_share_that_is_undecodable(trial, answered) -> None:
    tasks = {"returns": {"exact_match": [1, 0, 1, 0], "acc": [1, 1, 1, 0]}}
    folder = answered.write(trial, tasks)
    *lines, last = answered.lines(tasks, decodable=True, gold="True")
    answered.put(folder, [*lines, last | {"decodable": False, "answer": "x"}])
    assert kinds_of(trial, "returns") == []
    assert read(trial).tasks["returns"].undecodable == 0.25
    answered.put(folder, [*lines, last | {"decodable": None}])
    assert kinds_of(trial) == ["missing"]


def test_identity_tells_questions_golds_data_and_shots(trial, folder, answered) -> None:
    first = read(trial).tasks["swap"].identity
    answered.write(trial, {"swap": {"acc": [1, 1, 1, 1, 1]}})
    assert read(trial).tasks["swap"].identity == first  # the answers given are none of it
    swap = {"swap": TASKS["swap"]}
    for changed in ({"task": {"shots": 1}}, {"task": {"data_sha256": "cd"}}, {"line": {"gold": 1}}):
        answered.write(trial, swap, **changed)
        assert read(trial).tasks["swap"].identity != first


def test_metrics_of_all_questions_together_are_not_held_against_each(trial, folder) -> None:
    change_task(folder, "swap", metrics={"acc": 0.6, "f1": 0.7})
    assert kinds_of(trial, "next", "swap") == []
    assert read(trial).tasks["swap"].metrics["f1"] == 0.7
    assert list(read(trial).tasks["swap"].bits) == ["acc"]


def test_an_unfinished_evaluation_is_named_until_it_is_done(trial, folder, answered) -> None:
    (folder / layout.RESULTS).unlink()
    assert kinds_of(trial) == ["unfinished"]
    answered.write(trial, TASKS)
    whole = read(trial)
    assert read(trial) is whole  # many views ask for it
    answered.write(trial, {"swap": {"acc": [1] * 6}})
    assert read(trial).tasks["swap"].n == 6


def test_a_directory_of_no_step_is_named(trial, folder) -> None:
    folder.parent.rename(folder.parents[1] / "last")
    found, (problem,) = samples.of_trial(trial, "T")
    assert found == []
    assert (problem.kind, problem.trial, problem.file) == (
        "unreadable",
        "T",
        "downstream/last/pydoc",
    )


@pytest.mark.parametrize(
    ("content", "kind"),
    [("", "unreadable"), ('{"format": "att', "unreadable"), ("[1]", "unreadable"),
     ("{}", "mismatch")],
)  # fmt: skip
def test_damaged_results(trial, folder, content, kind) -> None:
    (folder / layout.RESULTS).write_text(content)
    assert kinds_of(trial) == [kind]


@pytest.mark.parametrize(
    ("key", "value", "kinds"),
    [
        ("format", "attnperf downstream 9", ["mismatch"]),
        ("suite", "other", ["mismatch"]),
        ("step", 300, ["mismatch"]),
        ("trial_id", "feed", ["mismatch"]),
        ("variant", "laser", ["mismatch"]),
        ("seed", 2, ["mismatch"]),
        ("tasks", {}, ["unreadable", "mismatch", "mismatch"]),
    ],
)
def test_results_of_another_place_or_without_tasks(trial, folder, key, value, kinds) -> None:
    change(folder, **{key: value})
    assert kinds_of(trial) == kinds


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"primary": "f1"}, "unreadable"),
        ({"n": "four"}, "unreadable"),
        ({"metrics": None}, "unreadable"),
        ({"n": 3}, "mismatch"),
        ({"n": 5}, "missing"),
    ],
)
def test_a_task_that_its_samples_do_not_bear_out_is_left_out(trial, folder, changes, kind) -> None:
    change_task(folder, "next", **changes)
    assert kinds_of(trial, "swap") == [kind]
    assert "next" in read(trial).problems[0].text


@pytest.mark.parametrize(
    ("change_lines", "kind"),
    [
        (lambda lines: [*lines, lines[2]], "duplicated"),
        (lambda lines: [*lines, lines[2] | {"question": 9}], "mismatch"),
        (lambda lines: lines[1:], "missing"),
        (lambda lines: [lines[0] | {"correct": {"acc": True}}, *lines[1:]], "missing"),
    ],
)
def test_questions_that_are_lost_or_superfluous(
    trial, folder, answered, change_lines, kind
) -> None:
    answered.put(folder, change_lines(answered.lines(TASKS)))
    assert kinds_of(trial, "swap") == [kind]


def test_tasks_that_only_one_of_the_files_has(trial, folder, answered) -> None:
    answered.put(folder, answered.lines({"next": TASKS["next"], "sig": {"acc": [1]}}))
    assert kinds_of(trial, "next") == ["mismatch", "missing"]
    (folder / layout.SAMPLES).unlink()
    assert kinds_of(trial) == ["missing"]


def test_golds_of_two_kinds_and_infinite_choices_are_no_damage(trial, folder, answered) -> None:
    """JSON has no infinity; Python writes and reads one."""
    lines = answered.lines(TASKS)
    lines[0]["choices"][0]["loglikelihood"] = float("-inf")
    answered.put(folder, [*lines[:-1], lines[-1] | {"gold": "True"}])
    assert kinds_of(trial, "next", "swap") == []
