"""Rows of every benchmark as its data set has them, with words that mean nothing."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from workloads.downstream import local_data
from workloads.downstream.suites import Suite, Task

Row = dict[str, Any]
N = 3


def fabricated(suite: Suite) -> Suite:
    """Returns the suite as it would be if N questions of every task were published."""

    def small(task: Task) -> Task:
        return dataclasses.replace(
            task, entry=dataclasses.replace(task.entry, n=task.entry.n and N)
        )

    return dataclasses.replace(suite, tasks=tuple(map(small, suite.tasks)))


class Writer:
    """Draws texts; `row(data)` is a row of a data set's folder."""

    def __init__(self, words: list[str]) -> None:
        self._draw, self._vocabulary = random.Random(0), words
        self._make: dict[str, Callable[[], Row]] = {
            "wsc285": self._schema,
            "wsc273": self._schema,
            "winogrande": self._winogrande,
            **dict.fromkeys(
                ("race_middle", "race_high"),
                lambda: {
                    **self._texts("article", "question"),
                    "options": self._sentences(4),
                    "answer": "B",
                },
            ),
            "storycloze_2016": lambda: {
                **self._texts(*(f"input_sentence_{number}" for number in range(1, 5))),
                **self._texts("sentence_quiz1", "sentence_quiz2"),
                "answer_right_ending": 1 + self._draw.randrange(2),
            },
            "record": self._record,
            "multirc": lambda: {**self._texts("paragraph", "question", "answer"), **self._label(2)},
            "sglue_rte": lambda: {**self._texts("premise", "hypothesis"), **self._label(2)},
            "cb": lambda: {**self._texts("premise", "hypothesis"), **self._label(3)},
            "copa": lambda: {
                **self._texts("premise", "choice1", "choice2"),
                "question": self._draw.choice(["cause", "effect"]),
                **self._label(2),
            },
            "wic": self._wic,
            "wsc": self._spans,
            "boolq": lambda: {**self._texts("passage", "question"), **self._label(2)},
            "hellaswag": lambda: {
                **self._texts("activity_label", "ctx_a", "ctx_b"),
                "endings": self._sentences(4),
                "label": str(self._draw.randrange(4)),
            },
            "piqa": lambda: {**self._texts("goal", "sol1", "sol2"), **self._label(2)},
            "openbookqa": lambda: self._choices("question_stem"),
            "arc_easy": lambda: self._choices("question"),
        }

    def row(self, data: str) -> Row:
        return self._make[data]()

    def _words(self, most: int = 6) -> list[str]:
        return self._draw.choices(self._vocabulary, k=self._draw.randint(3, most))

    def _text(self) -> str:
        return " ".join(self._words()) + "."

    def _sentences(self, count: int) -> list[str]:
        return [self._text() for _ in range(count)]

    def _texts(self, *names: str) -> Row:
        return {name: self._text() for name in names}

    def _label(self, classes: int) -> Row:
        return {"label": self._draw.randrange(classes)}

    def _schema(self) -> Row:
        before = " ".join(self._words())
        return {
            "text": f"{before} it {self._text()}",
            "pronoun": "it",
            "pronoun_loc": len(before) + 1,
            "options": [" ".join(self._words(3)) for _ in range(2)],
            **self._label(2),
        }

    def _winogrande(self) -> Row:
        return {
            "sentence": f"{' '.join(self._words())} _ {self._text()}",
            "option1": "at",
            "option2": "ten",
            "answer": str(1 + self._draw.randrange(2)),
        }

    def _record(self) -> Row:
        entities = [f"{word} {number}" for number, word in enumerate(self._words())]
        return {
            "passage": f"{self._text()}\n@highlight\n{' '.join(self._words())}",
            "query": f"{' '.join(self._words())} @placeholder {self._text()}",
            "entities": entities * 2,
            "answers": [entities[0], f"the {entities[1]}!"],
        }

    def _wic(self) -> Row:
        row = self._texts("sentence1", "sentence2")
        word = row["sentence1"].split()[0]
        return {
            **row,
            "word": word,
            "start1": 0,
            "end1": len(word),
            "start2": 0,
            "end2": 1,
            **self._label(2),
        }

    def _spans(self) -> Row:
        words = [*self._words(), "it", *self._words()]
        return {
            "text": " ".join(words),
            "span1_index": 0,
            "span1_text": words[0],
            "span2_index": words.index("it"),
            "span2_text": "it",
            **self._label(2),
        }

    def _choices(self, question: str) -> Row:
        return {
            "choices": {"text": self._sentences(4), "label": ["A", "B", "C", "D"]},
            **self._texts(question),
            "answerKey": "C",
        }


def write(data_dir: Any, suite: Suite, words: list[str]) -> None:
    """Writes N rows of what is asked, and five of what shots are drawn from."""
    writer = Writer(words)
    for entry in (task.entry for task in suite.tasks):
        splits = {entry.shots_from or entry.split: 5, entry.split: N}
        rows = {split: [writer.row(entry.data) for _ in range(n)] for split, n in splits.items()}
        local_data.write(data_dir, entry.data, rows, source="fabricated")
