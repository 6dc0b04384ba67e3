"""The benchmarks' data sets: where a tree has their files, and how a row becomes lm-eval's.

A tree is a TFDS directory, a folder of repositories of the Hub (Parquet or JSON lines), or the
files as their authors publish them. Rows become those that lm-eval's task files ask for, whatever
they were.
"""

import ast
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
# What a split is called elsewhere; winogrande's and ARC's among them.
SPLIT_NAMES = {
    "train": ("train", "train_xl", "Train"),
    "validation": ("validation", "val", "dev", "Dev"),
    "test": ("test", "Test"),
}


@dataclasses.dataclass(frozen=True)
class DataSet:
    """tfds: its name there, with its configuration. folders: where the Hub's repositories have its
    Parquet files. files: patterns of the published ones, `{}` for the split. fields: of our rows.
    convert: one of their rows into ours, several or none."""

    splits: tuple[str, ...]
    fields: tuple[str, ...]
    convert: Callable[[Row], list[Row]]
    tfds: str = ""
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def _classes(*labels: str) -> Callable[[Row], list[Row]]:
    """Returns what makes a class's number of its name, or of true and false."""

    def convert(row: Row) -> list[Row]:
        label = row["label"]
        if isinstance(label, str):
            label = labels.index(label)
        return [{**row, "label": int(label)}]

    return convert


def _multirc(row: Row) -> list[Row]:
    passage = row.get("passage")
    if passage is None:
        return _classes()(row)
    return [
        {
            "paragraph": passage["text"],
            "question": question["question"],
            "answer": answer["text"],
            "label": int(answer["label"]),
        }
        for question in passage["questions"]
        for answer in question["answers"]
    ]


def _record(row: Row) -> list[Row]:
    passage = row["passage"]
    if isinstance(passage, str):
        return [row]
    text = passage["text"]
    entities = [text[one["start"] : one["end"] + 1] for one in passage["entities"]]
    return [
        {
            "passage": text,
            "query": asked["query"],
            "entities": entities,
            "answers": [answer["text"] for answer in asked["answers"]],
        }
        for asked in row["qas"]
    ]


def _spans(row: Row) -> list[Row]:
    """Spans as they stand in the text: published ones differ in case, and by punctuation."""
    row = {**row, **row.get("target", {})}
    words = row["text"].split()
    for span in ("span1", "span2"):
        if row[f"{span}_text"] not in row["text"]:
            first, number = row[f"{span}_index"], len(row[f"{span}_text"].split())
            row[f"{span}_text"] = " ".join(words[first : first + number]).strip(".,;:!?\"'")
    return _classes()(row)


def _hellaswag(row: Row) -> list[Row]:
    """TFDS has joined the context's two parts: the second is the last, unfinished sentence."""
    if "context" in row:
        whole, dot, last = row["context"].rpartition(". ")
        begun = dot and last[:1].islower()
        row = {**row, "ctx_a": f"{whole}." if begun else row["context"]}
        row["ctx_b"] = last if begun else ""
    return [{**row, "label": str(row["label"])}]


def _winogrande(row: Row) -> list[Row]:
    return [row if "answer" in row else {**row, "answer": str(row["label"] + 1)}]


def _with_letters(question: str) -> Callable[[Row], list[Row]]:
    """Returns what brings questions with lettered choices to the Hub's form."""

    def convert(row: Row) -> list[Row]:
        stem = row.get(question, row.get("question"))
        choices = row.get("choices")
        if isinstance(stem, dict):
            choices = stem.get("choices") or _openbookqa_choices(stem)
            stem = stem["stem"]
        if isinstance(choices, list):
            choices = {name: [one[name] for one in choices] for name in ("text", "label")}
        assert isinstance(choices, dict)
        labels = [_letter(label) for label in choices["label"]]
        key = _letter(row["answerKey"])
        return [
            {question: stem, "choices": {"text": list(choices["text"]), "label": labels}}
            | {"answerKey": key}
        ]

    return convert


def _openbookqa_choices(stem: Row) -> Row:
    return {"text": [stem[f"choice_{letter}"] for letter in "ABCD"], "label": list("ABCD")}


def _letter(label: Any) -> str:
    """Returns a letter for a letter, a digit from 1, or TFDS's number from 0."""
    if isinstance(label, str):
        return "ABCDE"[int(label) - 1] if label.isdigit() else label.strip()
    return "ABCDE"[int(label)]


def _race(row: Row) -> list[Row]:
    """A row per question; theirs is one per article, or per question."""
    if "problems" in row:
        problems = ast.literal_eval(row["problems"])
    elif "questions" in row:
        names = ("questions", "options", "answers")
        asked = zip(*(row[name] for name in names), strict=True)
        problems = [dict(zip(("question", "options", "answer"), one, strict=True)) for one in asked]
    else:
        problems = [row]
    return [{"article": row["article"], **problem} for problem in problems]


def _story(row: Row) -> list[Row]:
    if "context" in row:  # TFDS has joined four sentences: any four parts join to the same again
        parts = (row["context"].split(" ", 3) + [""] * 4)[:4]
        quiz, right = row["endings"], row["label"]
    elif "InputSentence1" in row:
        parts = [row[f"InputSentence{number}"] for number in range(1, 5)]
        quiz = [row[f"RandomFifthSentenceQuiz{number}"] for number in (1, 2)]
        right = row["AnswerRightEnding"]
    else:
        return [row]
    made = {f"input_sentence_{number}": part for number, part in enumerate(parts, 1)}
    made |= {f"sentence_quiz{number}": one for number, one in enumerate(quiz, 1)}
    return [made | {"answer_right_ending": int(right)}]


def _schema(row: Row) -> list[Row]:
    """Winograd schemas, as the Hub's `winograd_wsc`, TFDS's `wsc273`, or read from the XML file."""
    if "pronoun_start" in row:
        made = {"text": row["text"], "pronoun": row["pronoun_text"]}
        options = [row["option1"], row["option2"]]
        made |= {"pronoun_loc": int(row["pronoun_start"]), "options": options}
        return [made | {"label": int(row["label"])}]
    return [{**row, "label": int(row["label"])}]


def schema_of_xml(schema: Any) -> Row:
    """Returns the row of an element `schema` of WSCollection.xml."""

    def text(path: str) -> str:
        content = schema.findtext(path)
        return re.sub(r"\s+", " ", content or "").strip()

    before, pronoun, after = (text(f"text/{part}") for part in ("txt1", "pron", "txt2"))
    space = "" if re.match(r"[.,;:!?']", after) else " "
    options = [re.sub(r"\s+", " ", one.text or "").strip() for one in schema.findall("answers/*")]
    return {
        "text": f"{before} {pronoun}{space}{after}".strip(),
        "pronoun": pronoun,
        "pronoun_loc": len(before) + 1 if before else 0,
        "options": options,
        "label": "AB".index(text("correctAnswer").strip(". ")),
    }


def _glue(
    name: str,
    folder: str,
    fields: Sequence[str],
    convert: Callable[[Row], list[Row]],
) -> DataSet:
    return DataSet(
        ("train", "validation"),
        tuple(fields),
        convert,
        tfds=f"super_glue/{name}",
        folders=(f"super_glue/{name}",),
        files=(f"{folder}/{{}}.jsonl",),
    )


def _race_files(level: str) -> DataSet:
    return DataSet(
        ("train", "test"),
        ("article", "question", "options", "answer"),
        _race,
        tfds=f"race/{level}",
        folders=(f"race/{level}",),
        files=(f"RACE/{{}}/{level}/*.txt",),
    )


_SCHEMA = ("text", "pronoun", "pronoun_loc", "options", "label")
_WIC = ("word", "sentence1", "sentence2", "start1", "end1", "start2", "end2", "label")
_WSC = ("text", "span1_index", "span1_text", "span2_index", "span2_text", "label")
_PAIR = ("premise", "hypothesis", "label")
_STORY = tuple(f"input_sentence_{number}" for number in range(1, 5))

DATA_SETS: dict[str, DataSet] = {
    "wsc285": DataSet(
        ("test",), _SCHEMA, _schema, folders=("winograd_wsc/wsc285",), files=("WSCollection.xml",)
    ),
    "wsc273": DataSet(
        ("test",),
        _SCHEMA,
        _schema,
        tfds="wsc273",
        folders=("winograd_wsc/wsc273",),
        files=("WSCollection.xml",),
    ),
    "winogrande": DataSet(
        ("train", "validation"),
        ("sentence", "option1", "option2", "answer"),
        _winogrande,
        tfds="winogrande",
        folders=("winogrande/winogrande_xl",),
        files=("winogrande_1.1/{}.jsonl",),
    ),
    "race_middle": _race_files("middle"),
    "race_high": _race_files("high"),
    "storycloze_2016": DataSet(
        ("validation", "test"),
        (*_STORY, "sentence_quiz1", "sentence_quiz2", "answer_right_ending"),
        _story,
        tfds="story_cloze/2016",
        folders=("story_cloze/2016",),
        files=("cloze_test_{}__spring2016*.csv",),
    ),
    "record": _glue("record", "ReCoRD", ("passage", "query", "entities", "answers"), _record),
    "multirc": _glue("multirc", "MultiRC", ("paragraph", "question", "answer", "label"), _multirc),
    "sglue_rte": _glue("rte", "RTE", _PAIR, _classes("entailment", "not_entailment")),
    "cb": _glue("cb", "CB", _PAIR, _classes("entailment", "contradiction", "neutral")),
    "copa": _glue(
        "copa", "COPA", ("premise", "choice1", "choice2", "question", "label"), _classes()
    ),
    "wic": _glue("wic", "WiC", _WIC, _classes()),
    "wsc": _glue("wsc.fixed", "WSC", _WSC, _spans),
    "boolq": _glue("boolq", "BoolQ", ("passage", "question", "label"), _classes()),
    "hellaswag": DataSet(
        ("train", "validation"),
        ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        _hellaswag,
        tfds="hellaswag",
        folders=("hellaswag/data",),
        files=("hellaswag_{}.jsonl",),
    ),
    "piqa": DataSet(
        ("train", "validation"),
        ("goal", "sol1", "sol2", "label"),
        _classes(),
        tfds="piqa",
        folders=("piqa/plain_text", "piqa/data"),
        files=("physicaliqa-train-dev/{}.jsonl",),
    ),
    "openbookqa": DataSet(
        ("train", "validation", "test"),
        ("question_stem", "choices", "answerKey"),
        _with_letters("question_stem"),
        tfds="openbookqa",
        folders=("openbookqa/main",),
        files=("OpenBookQA-V1-Sep2018/Data/Main/{}.jsonl",),
    ),
    "arc_easy": DataSet(
        ("train", "validation", "test"),
        ("question", "choices", "answerKey"),
        _with_letters("question"),
        tfds="ai2_arc/ARC-Easy",
        folders=("ai2_arc/ARC-Easy",),
        files=("ARC-V1-Feb2018-2/ARC-Easy/ARC-Easy-{}.jsonl",),
    ),
}
