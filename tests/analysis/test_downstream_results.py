"""Reading what suites say of checkpoints: whole files, and the ways in which one is damaged."""

import gzip

import numpy as np
import pytest

from analysis.load.files import downstream
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
    found, problems = downstream.of_trial(trial, "T")
    assert problems == []
    (evaluation,) = found
    return evaluation


def problem_of(trial, *tasks):
    """Returns the only problem; `tasks` are those that can be used."""
    evaluation = read(trial)
    assert tuple(evaluation.tasks) == tasks
    (problem,) = evaluation.problems
    return problem


def change(folder, **changes):
    record = layout.read_json(folder / layout.RESULTS)
    layout.write_json(folder / layout.RESULTS, record | changes)


def change_task(folder, name, **changes):
    tasks = layout.read_json(folder / layout.RESULTS)["tasks"]
    change(folder, tasks=tasks | {name: tasks[name] | changes})


def test_a_whole_evaluation(trial, folder) -> None:
    evaluation = read(trial)
    assert (evaluation.suite, evaluation.step, evaluation.problems) == ("pydoc", 400, ())
    assert evaluation.where == "T/downstream/400/pydoc"
    task = evaluation.tasks["next"]
    assert (task.primary, task.n, task.undecodable, task.majority) == ("acc", 4, None, None)
    assert task.right("acc_norm").tolist() == [False, False, True, True]
    assert task.references == {"chance": 0.25}
    assert evaluation.tasks["swap"].right("acc").tolist() == [False, True, True, False, True]


def test_arrow_and_line_by_line_agree(trial, folder, answered, monkeypatch) -> None:
    fast = read(trial)
    lines = answered.lines(TASKS)
    answered.put(folder, [*lines[::-1], ""])  # another order, and an empty line
    monkeypatch.setattr(downstream, "_by_arrow", lambda *given: None)
    slow = read(trial)
    assert slow.problems == ()
    for name, task in fast.tasks.items():
        assert slow.tasks[name].identity == task.identity
        for metric in task.bits:
            np.testing.assert_array_equal(task.right(metric), slow.tasks[name].right(metric))


def test_generated_answers_have_a_share_that_is_undecodable(trial, answered) -> None:
    tasks = {"returns": {"exact_match": [1, 0, 1, 0], "acc": [1, 1, 1, 0]}}
    folder = answered.write(trial, tasks, line={"decodable": True, "gold": "True"})
    lines = answered.lines(tasks, decodable=True, gold="True")
    answered.put(folder, [*lines[:3], lines[3] | {"decodable": False, "answer": "x"}])
    evaluation = read(trial)
    assert evaluation.problems == ()
    assert evaluation.tasks["returns"].undecodable == 0.25
    answered.put(folder, [*lines[:3], lines[3] | {"decodable": None}])
    assert "does not say of 1 of its 4 answers if it is decodable" in problem_of(trial)


def test_golds_of_two_kinds_are_read(trial, folder, answered) -> None:
    lines = answered.lines(TASKS)
    answered.put(folder, [*lines[:-1], lines[-1] | {"gold": "True"}])
    assert list(read(trial).tasks) == ["next", "swap"]


def test_identity_tells_questions_golds_data_and_shots(trial, folder, answered) -> None:
    first = read(trial).tasks["swap"].identity
    again = answered.write(trial, {"swap": {"acc": [1, 1, 1, 1, 1]}})
    assert read(trial).tasks["swap"].identity == first  # the answers given are none of it
    for changed in ({"shots": 1}, {"data_sha256": "cd"}):
        answered.write(trial, {"swap": TASKS["swap"]}, task=changed)
        assert read(trial).tasks["swap"].identity != first
    answered.write(trial, {"swap": TASKS["swap"]}, line={"gold": 1})
    assert read(trial).tasks["swap"].identity != first
    assert again.is_dir()


def test_metrics_of_all_questions_together_are_not_held_against_each(trial, folder) -> None:
    change_task(folder, "swap", metrics={"acc": 0.6, "f1": 0.7})
    assert read(trial).problems == ()
    assert read(trial).tasks["swap"].metrics["f1"] == 0.7
    assert list(read(trial).tasks["swap"].bits) == ["acc"]


def test_an_unfinished_evaluation_is_named(trial, folder) -> None:
    (folder / layout.RESULTS).unlink()
    tasks = folder / layout.DOWNSTREAM_TASKS
    tasks.mkdir()
    (tasks / "next.jsonl.gz").write_bytes(b"")
    said = problem_of(trial)
    assert said.startswith("unfinished: T/downstream/400/pydoc: no results.json, 1 task is fini")
    assert "sweeps evaluate STUDY --suite=pydoc" in said


def test_a_directory_of_no_step_is_named(trial, folder) -> None:
    folder.parent.rename(folder.parents[1] / "last")
    found, problems = downstream.of_trial(trial, "T")
    assert found == []
    assert problems == ["unreadable: T/downstream/last/pydoc: 'last' is no step of a checkpoint"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "unreadable: T/downstream/400/pydoc/results.json: "),
        ('{"format": "attnperf downs', "was it cut short?"),
        ("[1]", "not a JSON object"),
        ("{}", "it is empty"),
    ],
)
def test_damaged_results(trial, folder, content, said) -> None:
    (folder / layout.RESULTS).write_text(content)
    assert said in problem_of(trial)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "attnperf downstream 9"}, "its format is 'attnperf downstream 9'; 'attnperf"),
        ({"suite": "other"}, "its suite is 'other', its directory's 'pydoc'; it is not read"),
        ({"step": 300}, "its step is 300, its directory's 400"),
        ({"trial_id": "feed"}, "its trial_id is 'feed'"),
        ({"variant": "laser"}, "its variant is 'laser', its directory's 'standard'"),
        ({"seed": 2}, "its seed is 2, its directory's 0"),
    ],
)
def test_results_of_another_place(trial, folder, changes, said) -> None:
    change(folder, **changes)
    problem = problem_of(trial)
    assert problem.startswith("mismatch: T/downstream/400/pydoc/results.json: ")
    assert said in problem


def test_results_without_tasks(trial, folder) -> None:
    change(folder, tasks={})
    problems = read(trial).problems
    assert problems[0] == "unreadable: T/downstream/400/pydoc/results.json: it has no tasks"
    assert "it has task next, which" in problems[1]


def test_a_task_that_is_not_whole_in_results(trial, folder) -> None:
    tasks = layout.read_json(folder / layout.RESULTS)["tasks"]
    change(folder, tasks=tasks | {"next": tasks["next"] | {"primary": "f1"}})
    evaluation = read(trial)
    assert list(evaluation.tasks) == ["swap"]
    assert "tasks.next has no metrics.f1; it is left out" in evaluation.problems[0]
    change(folder, tasks=tasks | {"next": tasks["next"] | {"n": "four"}})
    assert "tasks.next.n is 'four', expected a whole number from 1" in read(trial).problems[0]


def test_missing_samples(trial, folder) -> None:
    (folder / layout.SAMPLES).unlink()
    said = problem_of(trial)
    assert said.startswith("missing: T/downstream/400/pydoc/samples.jsonl.gz: without it")


def test_truncated_samples(trial, answered) -> None:
    tasks = {"next": {"acc": [1, 0] * 20}, "swap": {"acc": [1, 0] * 400}}
    folder = answered.write(trial, tasks)
    path = folder / layout.SAMPLES
    path.write_bytes(path.read_bytes()[:-60])
    evaluation = read(trial)
    assert list(evaluation.tasks) == ["next"]
    cut, lacking = evaluation.problems
    assert cut.startswith("truncated: T/downstream/400/pydoc/samples.jsonl.gz: it ends after ")
    assert lacking.startswith("missing: T/downstream/400/pydoc/samples.jsonl.gz: swap has ")
    assert lacking.endswith("questions, results.json says 800; swap is left out")


def test_a_file_whose_checksum_does_not_hold(trial, folder) -> None:
    content = bytearray((folder / layout.SAMPLES).read_bytes())
    content[-6] ^= 255
    (folder / layout.SAMPLES).write_bytes(content)
    problems = read(trial).problems
    assert problems[0].startswith("damaged: T/downstream/400/pydoc/samples.jsonl.gz: after ")


# Named, since gzip writes the time into what it makes, and every process must collect the same.
@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"\xff\xfe\x00garbage\n")],
    ids=["nothing", "no gzip", "no text"],
)
def test_files_of_something_else(trial, folder, content) -> None:
    (folder / layout.SAMPLES).write_bytes(content)
    evaluation = read(trial)
    assert not evaluation.tasks
    assert evaluation.problems


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"task": "next", "quest', "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ({"question": "1"}, "its question is '1', expected a whole number from 0"),
        ({"question": -1}, "its question is '-1'"),
        ({"task": None}, "its task is 'None', expected text"),
        ({"gold": [1]}, "its gold is '[1]', expected a number or text"),
        ({"correct": {"acc": 1}}, "its correct is"),
        ({"correct": None}, "its correct is 'None'"),
    ],
)
def test_a_damaged_line_is_named_and_its_task_left_out(trial, folder, answered, line, said) -> None:
    lines = answered.lines(TASKS)
    lines[1] = line if isinstance(line, str) else lines[1] | line
    answered.put(folder, lines)
    evaluation = read(trial)
    assert list(evaluation.tasks) == ["swap"]
    damaged, lacking = evaluation.problems
    assert damaged.startswith(
        "damaged: T/downstream/400/pydoc/samples.jsonl.gz: line 2 is left out"
    )
    assert said in damaged
    assert "next has 3 questions, results.json says 4; next is left out" in lacking


def test_many_damaged_lines_are_counted(trial, folder, answered) -> None:
    answered.put(folder, [*answered.lines(TASKS), *["x"] * 9])
    problems = read(trial).problems
    assert len(problems) == downstream.NAMED_LINES + 1
    assert problems[-1].endswith("4 more lines are left out")
    assert list(read(trial).tasks) == ["next", "swap"]


def test_duplicated_and_superfluous_questions(trial, folder, answered) -> None:
    lines = answered.lines(TASKS)
    answered.put(folder, [*lines, lines[2]])
    assert "next has question 2 more than once (1 in all)" in problem_of(trial, "swap")
    answered.put(folder, [*lines, answered.line("next", 9, {"acc": True, "acc_norm": True})])
    said = problem_of(trial, "swap")
    assert said.startswith("mismatch: ")
    assert "next has 5 questions, results.json says 4" in said


def test_a_mean_that_is_not_that_of_the_questions(trial, folder) -> None:
    change_task(folder, "swap", metrics={"acc": 0.8})
    said = problem_of(trial, "next")
    assert said.startswith("mismatch: T/downstream/400/pydoc/samples.jsonl.gz: swap has acc 0.6, ")
    assert said.endswith("results.json says 0.8; swap is left out")


def test_a_metric_that_a_question_lacks(trial, folder, answered) -> None:
    lines = answered.lines(TASKS)
    answered.put(folder, [lines[0] | {"correct": {"acc": True}}, *lines[1:]])
    assert "next has no acc_norm of 1 of its 4 questions" in problem_of(trial, "swap")


def test_tasks_that_only_one_of_the_files_has(trial, folder, answered) -> None:
    answered.put(folder, answered.lines({"next": TASKS["next"], "sig": {"acc": [1]}}))
    evaluation = read(trial)
    assert list(evaluation.tasks) == ["next"]
    other, lacking = evaluation.problems
    assert "it has task sig, which T/downstream/400/pydoc/results.json has not" in other
    assert "swap has 0 questions, results.json says 5" in lacking


def test_files_that_are_written_anew_are_read_anew(trial, folder, answered) -> None:
    first = read(trial)
    assert read(trial) is first
    answered.write(trial, {"swap": {"acc": [1] * 6}})
    assert read(trial).tasks["swap"].n == 6


def test_choices_that_cannot_be_said_are_no_damage(trial, folder, answered) -> None:
    """JSON has no infinity; Python writes and reads one."""
    lines = answered.lines(TASKS)
    lines[0]["choices"][0]["loglikelihood"] = float("-inf")
    answered.put(folder, lines)
    assert read(trial).problems == ()
