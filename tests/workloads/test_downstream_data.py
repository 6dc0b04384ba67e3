"""Benchmarks' files into local questions, and what is wrong with local questions."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.workloads import data_files, fabricated_rows
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
    conversion.prepare(tree, data_dir)
    return local_data.read(data_dir, name, split)


def test_tfds_with_numbered_rows_comes_in_its_authors_order(tmp_path):
    import tensorflow_datasets as tfds

    names = ("premise", "choice1", "choice2", "question")
    features = tfds.features.FeaturesDict(
        {
            **{name: tfds.features.Text() for name in names},
            "idx": tfds.features.Scalar(np.int32),
            "label": tfds.features.ClassLabel(names=["choice1", "choice2"]),
        }
    )
    rows = [{**dict.fromkeys(names, f"é{idx}"), "idx": idx, "label": idx % 2} for idx in (11, 3, 2)]
    splits = {"train": rows, "validation": rows[:1], "test": rows}
    _tfds(tmp_path, "super_glue/copa:1.0.2", features, splits)
    rows = _prepared(tmp_path, tmp_path / "data", "copa", "train")
    assert [(row["premise"], row["label"]) for row in rows] == [("é2", 0), ("é3", 1), ("é11", 1)]
    entry = local_data.index(tmp_path / "data")["copa"]
    assert entry["source"] == "TFDS super_glue/copa:1.0.2"
    assert {split: entry["splits"][split]["rows"] for split in entry["splits"]} == {
        "train": 3,
        "validation": 1,
    }


def test_tfds_with_nested_features(tmp_path):
    import tensorflow_datasets as tfds

    sequence, text = tfds.features.Sequence, tfds.features.Text()
    flat = {
        **{"article": text, "example_id": text},
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
    converted = _prepared(tmp_path, tmp_path / "data", "race_high", "test")
    second = {"article": "a", "question": "q2", "options": ["5", "6", "7", "8"], "answer": "D"}
    assert len(converted) == 4
    assert converted[1] == second


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
        # As their authors publish them: nested questions, spans in other case, labels in words.
        (
            "multirc",
            {
                "passage": {
                    "text": "p",
                    "questions": [{"question": "q", "answers": [{"text": "a", "label": 1}]}],
                }
            },
            {"paragraph": "p", "question": "q", "answer": "a", "label": 1},
        ),
        (
            "record",
            {
                "passage": {"text": "Ann met Bob", "entities": [{"start": 0, "end": 2}]},
                "qas": [{"query": "@placeholder met", "answers": [{"text": "Ann"}]}],
            },
            {"query": "@placeholder met", "entities": ["Ann"], "answers": ["Ann"]},
        ),
        (
            "wsc",
            {
                "text": "The cat says it is",
                "target": {
                    **{"span1_index": 0, "span1_text": "the cat"},
                    **{"span2_index": 3, "span2_text": "it,"},
                },
                "label": True,
            },
            {"span1_text": "The cat", "span2_text": "it", "label": 1},
        ),
        ("cb", {"label": "neutral"}, {"label": 2}),
    ],
)
def test_rows_of_other_forms_become_lm_evals(name, row, expected):
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
    lines = conversion.prepare(tmp_path, tmp_path / "data")
    assert len(lines) == len(DATA_SETS)
    for (name, split), rows in wanted.items():
        assert local_data.read(tmp_path / "data", name, split) == rows


def test_published_files(tmp_path):
    """Labels in a file of their own, CSV, and XML."""
    for split in ("train", "dev"):
        path = tmp_path / f"physicaliqa-train-dev/{split}.jsonl"
        _lines(path, [{"goal": "g", "sol1": "1", "sol2": "2"}] * 2)
        path.with_name(f"{split}-labels.lst").write_text("1\n0\n")
    names = [f"InputSentence{number}" for number in (1, 2, 3, 4)]
    names += [f"RandomFifthSentenceQuiz{number}" for number in (1, 2)]
    table = f"{','.join(names)},AnswerRightEnding\n1,2,3,4,1,2,2\n"
    for split in ("val", "test"):
        (tmp_path / f"cloze_test_{split}__spring2016 - x.csv").write_text(table)
    (tmp_path / "WSCollection.xml").write_text(
        "<collection><schema><text><txt1>The cat\n sees</txt1><pron>it</pron><txt2>and runs.</txt2>"
        "</text><answers><answer>a cat</answer><answer>a dog</answer></answers>"
        "<correctAnswer>B.</correctAnswer></schema></collection>"
    )
    data_dir = tmp_path / "data"
    rows = _prepared(tmp_path, data_dir, "piqa", "validation")
    assert [row["label"] for row in rows] == [1, 0]
    (story,) = local_data.read(data_dir, "storycloze_2016", "test")
    assert (story["input_sentence_4"], story["sentence_quiz2"]) == ("4", "2")
    assert story["answer_right_ending"] == 2
    assert local_data.read(data_dir, "wsc285", "test") == [
        {
            "text": "The cat sees it and runs.",
            "pronoun": "it",
            "pronoun_loc": 13,
            "options": ["a cat", "a dog"],
            "label": 1,
        }
    ]


@pytest.mark.parametrize(
    ("row", "splits", "message"),
    [
        (None, (), "(?s)has none of the data sets.*TFDS super_glue/copa"),
        ({"premise": "p", "label": 0}, ("train",), "cb: super_glue/cb/train.*hypothesis"),
        (
            {"premise": "p", "hypothesis": "h", "label": 0},
            ("train",),
            "cb: .* is there, but not validation",
        ),
    ],
)
def test_trees_that_cannot_be_converted(tmp_path, row, splits, message):
    for split in splits:
        _lines(tmp_path / f"super_glue/cb/{split}.jsonl", [row])
    with pytest.raises(DataError, match=message):
        conversion.prepare(tmp_path, tmp_path / "data")
    with pytest.raises(DataError, match="is no directory"):
        conversion.prepare(tmp_path / "absent", tmp_path / "data")


@pytest.fixture
def whole(tmp_path):
    suite = suites.get("superglue")
    fabricated_rows.write(tmp_path, suite, WORDS)
    return tmp_path, fabricated_rows.fabricated(suite)


def test_what_lacks_is_named_with_its_remedy(whole):
    data_dir, suite = whole
    suites.check_data(suite, data_dir, full=True)
    with pytest.raises(DataError, match="3 questions; the published figures are of 100"):
        suites.check_data(suites.get("superglue"), data_dir)
    with pytest.raises(DataError, match=r"(?s)has no arc_easy/test.jsonl, .*prepare downstream"):
        suites.check_data(suites.get("paper_diff"), data_dir)
    path = local_data.rows_path(data_dir, "wic", "validation")
    content = path.read_text()
    path.write_text(content.replace("0", "1", 1))
    suites.check_data(suite, data_dir)
    for damage, full in (
        (data_files.written(content.replace("0", "1", 1)), True),
        (data_files.written(content + "\n"), False),
        (Path.unlink, False),
    ):
        damage(path)
        with pytest.raises(DataError, match="wic/validation.jsonl is missing, cut short or chan"):
            suites.check_data(suite, data_dir, full=full)
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
            assert (task.entry.n is None) == suites.get(name).embedded
            assert bool(task.paper) == (not suites.get(name).embedded)
            assert not (task.entry.partial and task.primary != "acc")


@pytest.mark.parametrize("version", ["none", "0.4.2"])
def test_harness_absent_or_of_another_release(monkeypatch, version):
    def installed(name):
        if version == "none":
            raise suites.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(suites.importlib.metadata, "version", installed)
    message = rf"lm-eval 0.4.13, which .*attnperf\[downstream\].*installed: {version}"
    with pytest.raises(ValueError, match=message):
        suites.check_harness()


def test_commands(tmp_path, capsys):
    """Another number of questions than the paper's is refused, a part of the suites is enough."""
    writer = fabricated_rows.Writer(WORDS)
    arguments = ["--data_dir", str(tmp_path / "data")]
    for line, words in (
        (["check", "downstream"], "give --data_dir"),
        (["check", "downstream", *arguments], "no questions are prepared there"),
        (["prepare", "downstream", *arguments], "tokens.json does not exist"),
    ):
        assert commands.main(line) == 2
        assert words in capsys.readouterr().err
    arguments += ["--from", str(tmp_path / "tree")]
    for n, message in ((55, "has 55 questions; .* of 56"), (56, "has no arc_easy/test.jsonl")):
        for split, count in (("train", 3), ("validation", n)):
            _lines(tmp_path / f"tree/super_glue/cb/{split}.jsonl", [writer.row("cb")] * count)
        assert commands.main(["prepare", "downstream", *arguments]) == 2
        output = capsys.readouterr()
        assert re.search(message, output.err)
        assert f"cb: 3 train, {n} validation" in output.out


def test_a_byte_order_mark_and_companions_change_nothing(tmp_path):
    row = {"question": "is it", "passage": "it is", "label": True}
    for split in ("train", "val", "test"):
        path = tmp_path / "BoolQ" / f"{split}.jsonl"
        _lines(path, [row, row])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        path.with_name(f"._{split}.jsonl").write_bytes(b"\x00\x05\x16\x07")
    converted = _prepared(tmp_path, tmp_path / "data", "boolq", "train")
    assert [row["question"] for row in converted] == ["is it"] * 2
    local_data.rows_path(tmp_path / "data", "boolq", "._train").write_bytes(b"\x00\x05\x16\x07")
    loaded = local_data.lm_eval_dataset(tmp_path / "data", "boolq")
    assert set(loaded) == {"train", "validation"}
