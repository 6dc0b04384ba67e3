"""The benchmarks' data sets: where the Hub's repositories have their Parquet files.

lm-eval's task files ask for rows as these files have them.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of the Hub.

    splits: the splits that suites ask for. fields: the columns that its tasks read. folders: where
    a tree may have its Parquet files, the repository's name first.
    """

    splits: tuple[str, ...]
    fields: tuple[str, ...]
    folders: tuple[str, ...]


def _glue(name: str, *fields: str) -> DataSet:
    return DataSet(("train", "validation"), fields, (f"super_glue/{name}",))


def _race(level: str) -> DataSet:
    fields = ("article", "question", "options", "answer")
    return DataSet(("train", "test"), fields, (f"race/{level}",))


_SCHEMA = ("text", "pronoun", "pronoun_loc", "options", "label")
_WIC = ("word", "sentence1", "sentence2", "start1", "end1", "start2", "end2", "label")
_WSC = ("text", "span1_index", "span1_text", "span2_index", "span2_text", "label")
_PAIR = ("premise", "hypothesis", "label")
_STORY = tuple(f"input_sentence_{number}" for number in range(1, 5))

DATA_SETS: dict[str, DataSet] = {
    "wsc285": DataSet(("test",), _SCHEMA, ("winograd_wsc/wsc285",)),
    "wsc273": DataSet(("test",), _SCHEMA, ("winograd_wsc/wsc273",)),
    "winogrande": DataSet(
        ("train", "validation"),
        ("sentence", "option1", "option2", "answer"),
        ("winogrande/winogrande_xl",),
    ),
    "race_middle": _race("middle"),
    "race_high": _race("high"),
    "storycloze_2016": DataSet(
        ("validation", "test"),
        (*_STORY, "sentence_quiz1", "sentence_quiz2", "answer_right_ending"),
        ("story_cloze/2016",),
    ),
    "record": _glue("record", "passage", "query", "entities", "answers"),
    "multirc": _glue("multirc", "paragraph", "question", "answer", "label"),
    "sglue_rte": _glue("rte", *_PAIR),
    "cb": _glue("cb", *_PAIR),
    "copa": _glue("copa", "premise", "choice1", "choice2", "question", "label"),
    "wic": _glue("wic", *_WIC),
    "wsc": _glue("wsc.fixed", *_WSC),
    "boolq": _glue("boolq", "passage", "question", "label"),
    "hellaswag": DataSet(
        ("train", "validation"),
        ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        ("hellaswag/data", "hellaswag/default"),
    ),
    "piqa": DataSet(
        ("train", "validation"),
        ("goal", "sol1", "sol2", "label"),
        ("piqa/plain_text", "piqa/data", "piqa/default"),
    ),
    "openbookqa": DataSet(
        ("train", "validation", "test"),
        ("question_stem", "choices", "answerKey"),
        ("openbookqa/main",),
    ),
    "arc_easy": DataSet(
        ("train", "validation", "test"),
        ("question", "choices", "answerKey"),
        ("ai2_arc/ARC-Easy",),
    ),
}
