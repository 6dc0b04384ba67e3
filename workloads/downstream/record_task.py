"""ReCoRD as a task of lm-eval: which of a news story's entities belongs into a sentence about it?

Prompts are those of lm-eval's own `record`. A question may have several right entities, which are
the same but for case, articles and punctuation (Zhang et al., arXiv:1810.12885, section 5).
"""

import re
import string
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def process_docs(rows: Any) -> Any:
    """Returns lm-eval's data set with `entities` sorted, each once, and `right`, the numbers of the
    right ones."""
    return rows.map(_processed)


def _processed(row: Row) -> dict[str, Any]:
    entities = sorted(set(row["entities"]))
    answers = {_plain(answer) for answer in row["answers"]}
    right = [number for number, entity in enumerate(entities) if _plain(entity) in answers]
    if not right:
        raise ValueError(
            f"ReCoRD: none of {row['answers']} is among the entities of {row['query']!r}"
        )
    return {"entities": entities, "right": right}


def _plain(answer: str) -> str:
    """Returns an answer as SQuAD's evaluation compares it."""
    kept = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def doc_to_text(row: Row) -> str:
    """Returns the story, its highlights as a list."""
    story, *highlights = row["passage"].strip().split("\n@highlight\n")
    return f"{story}\n\n" + "".join(f"  - {highlight}.\n" for highlight in highlights)


def doc_to_choice(row: Row) -> list[str]:
    """Returns the sentence as another item of the list, with every entity."""
    return [f"  - {row['query']}".replace("@placeholder", entity) for entity in row["entities"]]


def doc_to_target(row: Row) -> str:
    """Returns the first right choice: what a shot shows."""
    return doc_to_choice(row)[row["right"][0]]
