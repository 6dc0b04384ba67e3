"""Benchmarks' files into local questions, and what is wrong with local questions."""

import csv
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.workloads import fabricated_rows
from tests.workloads.conftest import WORDS
from workloads import __main__ as commands
from workloads.base.errors import DataError
from workloads.downstream import conversion, local_data, suites
from workloads.downstream.data_sets import DATA_SETS
from workloads.storage import tfds_directory


def _tfds(tree, dataset, features, splits):
    directory = tfds_directory.directory_of(tree, dataset)
    tfds_directory.write_dataset(
        directory,
        dataset=dataset,
        splits=splits,
        features=features,
        description="Questions of a test.",
    )
    return directory


def _lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _prepared(tree, data_dir, name, split):
    conversion.prepare(tree, data_dir, published={})
    return local_data.read(data_dir, name, split)


def _texts(*names):
    import tensorflow_datasets as tfds

    return {name: tfds.features.Text() for name in names}


def test_tfds_with_numbered_rows_comes_in_its_authors_order(tmp_path):
    import tensorflow_datasets as tfds

    names = ("premise", "choice1", "choice2", "question")
    features = tfds.features.FeaturesDict(
        {
            **_texts(*names),
            "idx": tfds.features.Scalar(np.int32),
            "label": tfds.features.ClassLabel(names=["choice1", "choice2"]),
        }
    )
    rows = [{**dict.fromkeys(names, f"é{idx}"), "idx": idx, "label": idx % 2} for idx in (11, 3, 2)]
    splits = {"train": rows, "validation": rows[:1], "test": rows}
    _tfds(tmp_path, "super_glue/copa:1.0.2", features, splits)
    found = _prepared(tmp_path, tmp_path / "data", "copa", "train")
    assert [(row["premise"], row["label"]) for row in found] == [("é2", 0), ("é3", 1), ("é11", 1)]
    told = local_data.index(tmp_path / "data")["copa"]
    assert told["source"] == "TFDS super_glue/copa:1.0.2"
    assert {split: one["rows"] for split, one in told["splits"].items()} == {
        "train": 3,
        "validation": 1,
    }


def test_tfds_with_nested_features(tmp_path):
    import tensorflow_datasets as tfds

    sequence, text = tfds.features.Sequence, tfds.features.Text()
    flat = {
        **_texts("article", "example_id"),
        "questions": sequence(text),
        "answers": sequence(text),
    }
    race = tfds.features.FeaturesDict({**flat, "options": sequence(sequence(text))})
    # As the library stores lists of lists, for which it would need TensorFlow.
    rows = {"ragged_flat_values": sequence(text), "ragged_row_lengths_0": sequence(np.int64)}
    article = {
        "article": "a",
        "example_id": "high1.txt",
        "questions": ["q1", "q2"],
        "answers": ["B", "D"],
        "options": {"ragged_flat_values": list("12345678"), "ragged_row_lengths_0": [4, 4]},
    }
    splits = {"train": [article], "test": [article] * 2}
    for level in ("middle", "high"):
        stored = tfds.features.FeaturesDict({**flat, "options": rows})
        race.save_config(_tfds(tmp_path, f"race/{level}:2.0.0", stored, splits))
    data_dir = tmp_path / "data"
    found = _prepared(tmp_path, data_dir, "race_high", "test")
    second = {"article": "a", "question": "q2", "options": ["5", "6", "7", "8"], "answer": "D"}
    assert len(found) == 4
    assert found[1] == second


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (
            "arc_easy",
            {"question": "why", "choices": {"text": ["x", "y"], "label": [0, 1]}, "answerKey": 1},
            {
                "question": "why",
                "choices": {"text": ["x", "y"], "label": ["A", "B"]},
                "answerKey": "B",
            },
        ),
        (
            "openbookqa",
            {
                "question": {"stem": "how", **{f"choice_{x}": x.lower() for x in "ABCD"}},
                "answerKey": 1,
            },
            {
                "question_stem": "how",
                "choices": {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]},
                "answerKey": "B",
            },
        ),
        (
            "hellaswag",
            {"context": "He sits. He stands. she", "endings": [], "label": 2},
            {"ctx_a": "He sits. He stands.", "ctx_b": "she", "label": "2"},
        ),
        (
            "hellaswag",
            {"context": "He sits. He stands.", "endings": [], "label": 2},
            {"ctx_a": "He sits. He stands.", "ctx_b": ""},
        ),
        (
            "storycloze_2016",
            {"context": "A b. C d. E f. G h.", "endings": ["x", "y"], "label": 1},
            {"input_sentence_4": "d. E f. G h.", "sentence_quiz2": "y", "answer_right_ending": 1},
        ),
    ],
)
def test_rows_of_tfds_become_lm_evals(name, row, expected):
    (converted,) = DATA_SETS[name].convert(row)
    assert expected.items() <= converted.items()


def test_parquet_as_the_hub_has_it(tmp_path):
    writer = fabricated_rows.Writer(WORDS)
    wanted = {}
    for name, data_set in DATA_SETS.items():
        for split in data_set.splits:
            rows = [writer.row(name) for _ in range(4)]
            wanted[name, split] = rows
            folder = tmp_path / data_set.folders[0]
            folder.mkdir(parents=True, exist_ok=True)
            for part in (0, 1):
                table = pyarrow.Table.from_pylist(rows[2 * part : 2 * part + 2])
                pyarrow.parquet.write_table(table, folder / f"{split}-{part:05d}-of-00002.parquet")
    lines = conversion.prepare(tmp_path, tmp_path / "data", published={})
    assert len(lines) == len(DATA_SETS)
    for (name, split), rows in wanted.items():
        assert local_data.read(tmp_path / "data", name, split) == rows


def test_published_files(tmp_path):
    """The forms that differ from lm-eval's: nested questions, labels in words, XML, CSV."""
    for split, number in (("train", 2), ("val", 1)):
        passage = {
            "text": "p",
            "questions": [
                {"question": "q", "answers": [{"text": "a", "label": 1}, {"text": "b", "label": 0}]}
            ],
        }
        _lines(tmp_path / f"MultiRC/{split}.jsonl", [{"idx": 0, "passage": passage}] * number)
        entities = {"text": "Ann met Bob", "entities": [{"start": 0, "end": 2}]}
        asked = [{"query": "@placeholder met", "answers": [{"text": "Ann"}]}]
        _lines(tmp_path / f"ReCoRD/{split}.jsonl", [{"passage": entities, "qas": asked}])
        spans = {
            "span1_index": 0,
            "span1_text": "the cat",
            "span2_index": 3,
            "span2_text": "it,",
        }
        schema = {"text": "The cat says it is", "target": spans, "label": True, "idx": 0}
        _lines(tmp_path / f"WSC/{split}.jsonl", [schema])
        pair = {"premise": "p", "hypothesis": "h", "label": "neutral"}
        _lines(tmp_path / f"CB/{split}.jsonl", [pair])
    for split in ("train", "dev"):
        _lines(
            tmp_path / f"physicaliqa-train-dev/{split}.jsonl",
            [{"goal": "g", "sol1": "1", "sol2": "2"}] * 2,
        )
        (tmp_path / f"physicaliqa-train-dev/{split}-labels.lst").write_text("1\n0\n")
    for split in ("val", "test"):
        with (tmp_path / f"cloze_test_{split}__spring2016 - x.csv").open("w") as file:
            names = [f"InputSentence{n}" for n in (1, 2, 3, 4)]
            quiz = [f"RandomFifthSentenceQuiz{n}" for n in (1, 2)]
            table = csv.DictWriter(file, [*names, *quiz, "AnswerRightEnding"])
            table.writeheader()
            table.writerow({name: name[-1] for name in (*names, *quiz)} | {"AnswerRightEnding": 2})
    (tmp_path / "WSCollection.xml").write_text(
        "<collection><schema><text><txt1>The cat\n sees</txt1><pron>it</pron><txt2>and runs.</txt2>"
        "</text><answers><answer>a cat</answer><answer>a dog</answer></answers>"
        "<correctAnswer>B.</correctAnswer></schema></collection>"
    )
    data_dir = tmp_path / "data"
    found = _prepared(tmp_path, data_dir, "multirc", "train")
    assert [(row["answer"], row["label"]) for row in found] == [("a", 1), ("b", 0)] * 2

    def first(name, split="validation"):
        return local_data.read(data_dir, name, split)[0]

    assert first("record")["entities"] == first("record")["answers"] == ["Ann"]
    assert (first("wsc")["span1_text"], first("wsc")["span2_text"]) == ("The cat", "it")
    assert (first("wsc")["label"], first("cb")["label"]) == (1, 2)
    assert [row["label"] for row in local_data.read(data_dir, "piqa", "validation")] == [1, 0]
    story = first("storycloze_2016", "test")
    assert (story["input_sentence_4"], story["sentence_quiz2"]) == ("4", "2")
    assert story["answer_right_ending"] == 2
    assert first("wsc285", "test") == {
        "text": "The cat sees it and runs.",
        "pronoun": "it",
        "pronoun_loc": 13,
        "options": ["a cat", "a dog"],
        "label": 1,
    }


def test_another_number_of_questions_than_the_papers_is_refused(tmp_path):
    writer = fabricated_rows.Writer(WORDS)
    for split in ("train", "validation"):
        _lines(tmp_path / f"super_glue/cb/{split}.jsonl", [writer.row("cb")] * 55)
    with pytest.raises(DataError, match=r"cb: .* 55 questions in validation; .* of 56"):
        conversion.prepare(tmp_path, tmp_path / "data")
    assert not local_data.folder(tmp_path / "data").exists()


def test_a_tree_without_any_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataError, match="(?s)has none of the data sets.*TFDS super_glue/copa"):
        conversion.prepare(tmp_path, tmp_path / "data")
    with pytest.raises(DataError, match="is no directory"):
        conversion.prepare(tmp_path / "absent", tmp_path / "data")


def test_a_row_of_another_form_and_a_split_that_lacks(tmp_path):
    _lines(tmp_path / "super_glue/cb/train.jsonl", [{"premise": "p", "label": 0}])
    with pytest.raises(DataError, match="cb: a row of super_glue/cb/train.jsonl.*hypothesis"):
        conversion.prepare(tmp_path, tmp_path / "data", published={})
    row = {"premise": "p", "hypothesis": "h", "label": 0}
    _lines(tmp_path / "super_glue/cb/train.jsonl", [row])
    with pytest.raises(DataError, match="cb: .* is there, but not validation"):
        conversion.prepare(tmp_path, tmp_path / "data", published={})


@pytest.fixture
def whole(tmp_path):
    suite = suites.get("superglue")
    fabricated_rows.write(tmp_path, suite, WORDS)
    return tmp_path, fabricated_rows.fabricated(suite)


def test_a_whole_suite_passes_and_fabricated_counts_never_do(whole):
    data_dir, suite = whole
    suites.check_data(suite, data_dir, full=True)
    with pytest.raises(DataError, match="3 questions; the published figures are of 100"):
        suites.check_data(suites.get("superglue"), data_dir)


def test_what_lacks_is_named_with_its_remedy(whole):
    data_dir, suite = whole
    with pytest.raises(DataError, match=r"(?s)has no arc_easy/test.jsonl, .*prepare downstream"):
        suites.check_data(suites.get("paper_diff"), data_dir)
    path = local_data.rows_path(data_dir, "wic", "validation")
    path.write_text(path.read_text().replace("0", "1", 1))
    suites.check_data(suite, data_dir)
    with pytest.raises(DataError, match="wic/validation.jsonl has SHA-256"):
        suites.check_data(suite, data_dir, full=True)
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="wic/validation.jsonl has .* bytes"):
        suites.check_data(suite, data_dir)
    path.unlink()
    with pytest.raises(DataError, match="wic/validation.jsonl cannot be read"):
        suites.check_data(suite, data_dir)
    (local_data.folder(data_dir) / "tasks.json").write_text('{"format": "other"}')
    with pytest.raises(DataError, match="its format is 'other'"):
        suites.check_data(suite, data_dir)


def test_every_suite_names_its_metric_and_the_papers_number():
    with pytest.raises(ValueError, match=r"unknown suite 'pydocs'.*Did you mean 'pydoc'"):
        suites.get("pydocs")
    assert set(suites.names()) == {
        "paper_one_shot",
        "paper_7b",
        "paper_diff",
        "superglue",
        *(f"superglue_{task}" for task in ("copa", "wic", "wsc", "rte")),
        "pydoc",
        "pydoc_returns",
    }
    for name in suites.names():
        for task in suites.get(name).tasks:
            assert task.primary in suites.METRICS
            assert (task.n is None) == suites.get(name).embedded
            assert bool(task.paper) == (not suites.get(name).embedded)
            assert not (task.entry.partial and task.primary != "acc")


def test_harness_absent_or_of_another_release(monkeypatch):
    monkeypatch.setattr(suites.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"lm-eval is not installed.*attnperf\[downstream\]"):
        suites.check_harness()
    monkeypatch.undo()
    monkeypatch.setattr(suites.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(suites.importlib.metadata, "version", lambda name: "0.4.2")
    with pytest.raises(ValueError, match=r"lm-eval 0.4.2 is installed; .*0.4.13"):
        suites.check_harness()


def test_commands(tmp_path, capsys):
    writer = fabricated_rows.Writer(WORDS)
    arguments = ["--data_dir", str(tmp_path / "data")]
    assert commands.main(["check", "downstream"]) == 2
    assert "give --data_dir" in capsys.readouterr().err
    assert commands.main(["check", "downstream", *arguments]) == 2
    assert "no questions are prepared there" in capsys.readouterr().err
    assert commands.main(["prepare", "downstream", *arguments]) == 2
    for split, n in (("train", 3), ("validation", 56)):
        _lines(tmp_path / f"tree/super_glue/cb/{split}.jsonl", [writer.row("cb")] * n)
    tree = ["--from", str(tmp_path / "tree")]
    assert commands.main(["prepare", "downstream", *arguments, *tree]) == 2
    told = capsys.readouterr()
    assert "has no arc_easy/test.jsonl" in told.err
    assert "cb: 3 train, 56 validation" in told.out


def test_a_byte_order_mark_and_companions_change_nothing(tmp_path):
    row = {"question": "is it", "passage": "it is", "label": True}
    for split in ("train", "val", "test"):
        path = tmp_path / "BoolQ" / f"{split}.jsonl"
        _lines(path, [row, row])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        path.with_name(f"._{split}.jsonl").write_bytes(b"\x00\x05\x16\x07")
    converted = _prepared(tmp_path, tmp_path / "data", "boolq", "train")
    assert [each["question"] for each in converted] == ["is it"] * 2


def test_companions_beside_local_questions_are_no_split(tmp_path):
    _lines(local_data.rows_path(tmp_path, "copa", "train"), [{"label": 1}])
    local_data.rows_path(tmp_path, "copa", "._train").write_bytes(b"\x00\x05\x16\x07")
    assert set(local_data.lm_eval_dataset(tmp_path, "copa")) == {"train"}
