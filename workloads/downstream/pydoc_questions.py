"""Questions about Python's documentation that `pydoc_lm` was not trained on.

All but `returns` are made of the test part alone (workloads/text/corpora/pydoc_text.py):

- `next`: which eight words come next? Three distractors are other documents' words.
- `near`: the same, with distractors from the same document.
- `sig`: whose documentation belongs to a signature? Three are other functions'.
- `swap`: which text is right, and in which are two neighbouring words exchanged?
- `returns`: does the documented function return a value? Its code says so; for fine-tuning, with
  questions on the documents of every part.

A model of 64 tokens has no room for a shot. Reference rows answer by the pairs of neighbours of the
training records, and by the share of a choice's words that the context has, too.
"""

import ast
import dataclasses
import inspect
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer
from workloads.text.corpora import pydoc_text
from workloads.text.corpora.pydoc_text import Document

Row = dict[str, Any]
Rows = dict[str, dict[str, list[Row]]]
_ANSWER, _CONTEXT, _SHORTEST_CONTEXT = 8, 18, 10
_SHORTEST_SWAP, _LONGEST_SWAP = 12, 24
_SHORTEST_DOC, _LONGEST_DOC = 4, 12
# Tokens of a docstring in `returns`: the question, an answer and what is generated need the others.
_RETURNS_TOKENS = 40
_CHOICES = 4
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def questions(tokens: Tokens) -> Rows:
    """Returns the rows of every task and split, the same for the same Python.

    Rows have `context`, `choices` and `gold`, the right one's number; those of `returns` have
    `text` and `label`, whether it returns a value.
    """
    parts = pydoc_text.split_documents(pydoc_text.documents())
    held_out = parts["test"]
    tasks = {
        "next": _continuations(held_out, "next"),
        "near": _continuations(held_out, "near"),
        "sig": _signatures(held_out),
        "swap": _swaps(held_out),
    }
    rows: Rows = {
        task: {"test": [fitted for row in task_rows for fitted in _fitted(row, tokens)]}
        for task, task_rows in tasks.items()
    }
    return {**rows, "returns": _returns(parts, tokens)}


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


def _paragraphs(document: Document) -> list[list[str]]:
    return [line.split() for line in document.text.split("\n")]


def _question(context: str, right: str, wrong: Sequence[str], draw: random.Random) -> Row:
    choices = [right, *wrong]
    draw.shuffle(choices)
    return {"context": context, "choices": choices, "gold": choices.index(right)}


def _continuations(documents: Sequence[Document], task: str) -> list[Row]:
    """A question per paragraph that is long enough; none where there are too few distractors."""
    draw = random.Random(task)
    continuations = []
    for number, document in enumerate(documents):
        for words in _paragraphs(document):
            start = min(_CONTEXT, len(words) - _ANSWER)
            if start >= _SHORTEST_CONTEXT:
                answer = " ".join(words[start : start + _ANSWER])
                continuations.append((number, " ".join(words[:start]), answer))
    rows = []
    for number, context, right in continuations:
        others = {
            answer
            for other, _, answer in continuations
            if (other == number) == (task == "near") and answer != right
        }
        if len(others) >= _CHOICES - 1:
            rows.append(_question(context, right, draw.sample(sorted(others), _CHOICES - 1), draw))
    return rows


def _swaps(documents: Sequence[Document]) -> list[Row]:
    draw = random.Random("swap")
    rows = []
    for document in documents:
        for words in _paragraphs(document):
            words = words[:_LONGEST_SWAP]
            places = [i for i in range(1, len(words) - 1) if words[i] != words[i + 1]]
            if len(words) >= _SHORTEST_SWAP and places:
                place = draw.choice(places)
                other = [*words]
                other[place : place + 2] = reversed(other[place : place + 2])
                rows.append(_question("", " ".join(words), [" ".join(other)], draw))
    return rows


@dataclasses.dataclass(frozen=True)
class _Function:
    signature: str
    doc: str
    returns: bool | None


def _signatures(documents: Sequence[Document]) -> list[Row]:
    draw = random.Random("sig")
    signatures: dict[str, str] = {}
    for function in (one for document in documents for one in _functions(document)):
        words = function.doc.split()[:_LONGEST_DOC]
        if len(words) >= _SHORTEST_DOC:
            signatures.setdefault(" ".join(words), function.signature)
    docs = list(signatures)
    return [
        _question(
            f"{signature}:", right, draw.sample([one for one in docs if one != right], 3), draw
        )
        for right, signature in signatures.items()
    ]


def _returns(parts: dict[str, list[Document]], tokens: Tokens) -> dict[str, list[Row]]:
    texts: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split in ("train", "validation", "test"):
        rows = splits[split] = []
        for function in (one for document in parts[split] for one in _functions(document)):
            text = _cut(function.doc, tokens)
            if function.returns is not None and text not in texts:
                texts.add(text)
                rows.append({"text": text, "label": int(function.returns)})
    return splits


def _cut(text: str, tokens: Tokens) -> str:
    """Returns the first words of a text, as many as have room."""
    words = text.split()[:_RETURNS_TOKENS]
    while len(tokens.encode(" ".join(words))) > _RETURNS_TOKENS:
        words.pop()
    return " ".join(words)


def _functions(document: Document) -> Iterator[_Function]:
    """The functions of a source file whose documentation's first paragraph is in the document."""
    if document.name.startswith("topic:"):
        return
    source = (pydoc_text.library_path() / document.name).read_bytes()
    lines = set(document.text.split("\n"))
    for node in ast.walk(pydoc_text.syntax_tree(source)):
        if isinstance(node, _FUNCTIONS) and (doc := ast.get_docstring(node)):
            first = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(doc))[0].split())
            if first in lines:
                yield _Function(f"{node.name}({_arguments(node)})", first, _gives_value(node))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(names)


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


def references(
    rows: Sequence[Row], tokens: Tokens, train: np.ndarray, metric: str
) -> dict[str, float]:
    """Returns what simple answers get of questions with choices: 'bigram' and 'word overlap'.

    train: token records [N, L]. The bigram (`pydoc_text.bigram`) answers by `metric`: 'acc', or
    'acc_mutual_info'. Of equal choices the first one is taken.
    """
    pairs = np.log(pydoc_text.bigram(train, pydoc_text.unigram(train, tokens.size)))

    def by_bigram(context: str, choice: str) -> float:
        before, after = tokens.pair(context, f" {choice}")
        score = _summed(pairs, before[-1] if before else tokenizer.EOS, after)
        return score - (_summed(pairs, tokenizer.EOS, after) if metric == "acc_mutual_info" else 0)

    return {"bigram": _share(rows, by_bigram), "word overlap": _share(rows, _overlap)}


def _share(rows: Sequence[Row], score: Callable[[str, str], float]) -> float:
    right = [
        int(np.argmax([score(row["context"], choice) for choice in row["choices"]])) == row["gold"]
        for row in rows
    ]
    return sum(right) / len(right)


def _summed(pairs: np.ndarray, before: int, ids: Sequence[int]) -> float:
    return float(pairs[[before, *ids[:-1]], ids].sum())


def _overlap(context: str, choice: str) -> float:
    """The share of a choice's different words that the context has."""
    words = _words(choice)
    return len(words & _words(context)) / max(1, len(words))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
