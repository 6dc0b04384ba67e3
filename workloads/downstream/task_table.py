"""The tasks that suites are made of: whose prompts, which data, how many questions the paper has.

Standard library only. `stock` files lie in lm-eval (`lm_eval/tasks/`), ours in
`workloads/downstream/tasks/`. The numbers of questions are those that all printed cells of the
paper's tables are whole multiples of.
"""

import dataclasses

_GLUE = "super_glue/{}/{}.yaml"


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """One task.

    file: lm-eval's task file, or where `ours` a file of this project. data: the folder of its rows;
    split: the one that is asked; shots_from: the one that examples are drawn from. n: questions of
    the published figures, None where none are published. classes: whether every question has the
    same answers, so that one of them is the most frequent. partial: whether the choices stand in
    the context, before one continuation. generates: whether the answer is generated, not chosen, of
    `most_tokens` tokens at most; answers: those that are allowed then, none where any text may be
    one.
    """

    file: str
    data: str
    split: str
    n: int | None = None
    shots_from: str = "train"
    ours: bool = False
    classes: bool = False
    partial: bool = False
    generates: bool = False
    # Of an answer where lm-eval does not say: the T5 prompts' longest has 6 pieces out of 32,000.
    most_tokens: int = 16
    answers: tuple[str, ...] = ()


def _glue(name: str, data: str, n: int, classes: bool = True) -> TaskEntry:
    return TaskEntry(_GLUE.format(name, "default"), data, "validation", n, classes=classes)


def _t5(name: str, data: str, n: int, *answers: str) -> TaskEntry:
    file = _GLUE.format(name, "t5-prompt")
    return TaskEntry(file, data, "validation", n, classes=True, generates=True, answers=answers)


def _pydoc(task: str, file: str = "pydoc.yaml") -> TaskEntry:
    return TaskEntry(file, task, "test", ours=True, shots_from="")


TASKS: dict[str, TaskEntry] = {
    "wsc285": TaskEntry("wsc273/default.yaml", "wsc285", "test", 285, "test", partial=True),
    "wsc273": TaskEntry("wsc273/default.yaml", "wsc273", "test", 273, "test", partial=True),
    "winogrande": TaskEntry(
        "winogrande/default.yaml", "winogrande", "validation", 1267, partial=True
    ),
    "race_middle": TaskEntry("race.yaml", "race_middle", "test", 1436, ours=True),
    "race_high": TaskEntry("race.yaml", "race_high", "test", 3498, ours=True),
    "storycloze_2016": TaskEntry(
        "storycloze/storycloze_2016.yaml", "storycloze_2016", "test", 1871, "validation"
    ),
    "record": TaskEntry("record.yaml", "record", "validation", 10_000, ours=True),
    "multirc": _glue("multirc", "multirc", 4848),
    "sglue_rte": _glue("rte", "sglue_rte", 277),
    "cb": _glue("cb", "cb", 56),
    "copa": _glue("copa", "copa", 100, classes=False),
    "wic": _glue("wic", "wic", 638),
    "boolq": _glue("boolq", "boolq", 3270),
    "hellaswag": TaskEntry("hellaswag/hellaswag.yaml", "hellaswag", "validation", 10_042),
    "piqa": TaskEntry("piqa/piqa.yaml", "piqa", "validation", 1838),
    "openbookqa": TaskEntry("openbookqa/openbookqa.yaml", "openbookqa", "test", 500),
    "arc_easy": TaskEntry("arc/arc_easy.yaml", "arc_easy", "test", 2376),
    "super_glue-copa-t5-prompt": _t5("copa", "copa", 100, "choice1", "choice2"),
    "super_glue-wic-t5-prompt": _t5("wic", "wic", 638, "False", "True"),
    "super_glue-wsc-t5-prompt": _t5("wsc", "wsc", 104),
    "super_glue-rte-t5-prompt": _t5("rte", "sglue_rte", 277, "entailment", "not_entailment"),
    "next": _pydoc("next"),
    "near": _pydoc("near"),
    "sig": _pydoc("sig"),
    "swap": _pydoc("swap"),
    "returns": dataclasses.replace(
        _pydoc("returns", "returns.yaml"),
        shots_from="train",
        classes=True,
        generates=True,
        most_tokens=4,
        answers=("False", "True"),
    ),
}
