"""The embedded suites' data: questions about Python's documentation, beside pydoc_lm's records.

`pydoc_lm` was not trained on them.

- `next`: which eight words come next? Three distractors are other documents' words. It is made of
  the test part alone (workloads/text/corpora/pydoc_text.py).
- `returns`: does the documented function return a value? Its code says so; for fine-tuning, with
  questions on the documents of every part.

A model of 64 tokens has no room for a shot.
"""

import ast
import inspect
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from workloads.downstream import local_data, suites
from workloads.downstream.tokens import Tokens
from workloads.storage import preparation
from workloads.text.corpora import pydoc_text

Row = dict[str, Any]
_ANSWER, _CONTEXT, _SHORTEST_CONTEXT = 8, 18, 10
# Tokens of a docstring in `returns`: the question, an answer and what is generated need the others.
_RETURNS_TOKENS = 40
_CHOICES = 4
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


NAMES = ("pydoc", "pydoc_returns")


def prepare(data_dir: str | os.PathLike[str]) -> None:
    """Makes the questions unless they are there and whole, about 10 s.

    pydoc_lm's records must lie in `data_dir`: DataError where they do not.
    """
    pydoc_text.PYDOC.check(data_dir)
    python = pydoc_text.PYDOC.read_reference(data_dir).python

    def check(_: Any) -> None:
        for name in NAMES:
            suites.check_data(suites.get(name), data_dir)

    def write(_: Any) -> None:
        for name, splits in questions(Tokens(data_dir)).items():
            local_data.write(data_dir, name, splits, source=f"Python {python}")

    preparation.prepare_once(local_data.folder(data_dir), check, write)


def questions(tokens: Tokens) -> dict[str, dict[str, list[Row]]]:
    """Returns the rows of every task and split, the same for the same Python.

    Rows of `next` have `context`, `choices` and `gold`, the right one's number; those of `returns`
    have `text` and `label`, whether it returns a value.
    """
    parts = pydoc_text.split_documents(pydoc_text.documents())
    continuations = _continuations(parts["test"])
    fitted = [row for question in continuations for row in _fitted(question, tokens)]
    return {"next": {"test": fitted}, "returns": _returns(parts, tokens)}


def _fitted(row: Row, tokens: Tokens) -> list[Row]:
    """Returns the question with as much of its context as has room beside the longest choice; none
    where a choice alone is longer, as tables of dashes are."""
    words, most = row["context"].split(), pydoc_text.LENGTH
    if max(len(tokens.encode(choice)) for choice in row["choices"]) > most:
        return []
    longest = max(row["choices"], key=lambda choice: len(tokens.encode(choice)))
    while words and len(tokens.encode(f"{' '.join(words)} {longest}")) > most:
        words = words[1:]
    return [{**row, "context": " ".join(words)}]


def _continuations(documents: Sequence[pydoc_text.Document]) -> list[Row]:
    """A question per paragraph that is long enough; none where there are too few distractors."""
    draw = random.Random("next")
    continuations = []
    for number, document in enumerate(documents):
        for paragraph in document.text.split("\n"):
            words = paragraph.split()
            start = min(_CONTEXT, len(words) - _ANSWER)
            if start >= _SHORTEST_CONTEXT:
                answer = " ".join(words[start : start + _ANSWER])
                continuations.append((number, " ".join(words[:start]), answer))
    rows = []
    for number, context, right in continuations:
        distractors = {
            answer for place, _, answer in continuations if place != number and answer != right
        }
        if len(distractors) >= _CHOICES - 1:
            choices = [right, *draw.sample(sorted(distractors), _CHOICES - 1)]
            draw.shuffle(choices)
            rows.append({"context": context, "choices": choices, "gold": choices.index(right)})
    return rows


def _returns(parts: dict[str, list[pydoc_text.Document]], tokens: Tokens) -> dict[str, list[Row]]:
    texts: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split in ("train", "validation", "test"):
        rows = splits[split] = []
        for document in parts[split]:
            for documentation, gives_value in _functions(document):
                text = _cut(documentation, tokens)
                if gives_value is not None and text not in texts:
                    texts.add(text)
                    rows.append({"text": text, "label": int(gives_value)})
    return splits


def _cut(text: str, tokens: Tokens) -> str:
    """Returns the first words of a text, as many as have room."""
    words = text.split()[:_RETURNS_TOKENS]
    while len(tokens.encode(" ".join(words))) > _RETURNS_TOKENS:
        words.pop()
    return " ".join(words)


def _functions(document: pydoc_text.Document) -> Iterator[tuple[str, bool | None]]:
    """The functions of a source file whose documentation's first paragraph is in the document: that
    paragraph, and whether the function returns a value, None where it has no code."""
    if document.name.startswith("topic:"):
        return
    source = (pydoc_text.library_path() / document.name).read_bytes()
    lines = set(document.text.split("\n"))
    for node in ast.walk(pydoc_text.syntax_tree(source)):
        if isinstance(node, _FUNCTIONS) and (doc := ast.get_docstring(node)):
            first = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(doc))[0].split())
            if first in lines:
                yield first, _gives_value(node)


def _gives_value(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool | None:
    """Whether a function returns or yields something; None where it has no code of its own."""
    code = [part for part in node.body if not isinstance(part, ast.Pass | ast.Raise)]
    if all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in code):
        return None
    return any(_is_value(part) for part in _code(node))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's code without those of functions and classes inside."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _code(child)


def _is_value(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        nothing = isinstance(node.value, ast.Constant) and node.value.value is None
        return node.value is not None and not nothing
    return isinstance(node, ast.Yield | ast.YieldFrom)
