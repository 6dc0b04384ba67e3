"""Texts as a decoder's tokens: contexts and continuations, as lm-eval divides them."""

import os
from collections.abc import Sequence
from pathlib import Path

from workloads.base.errors import DataError
from workloads.storage import token_records, tokenizer


class Tokens:
    """The vocabulary of the token records in `data_dir`, which a model was trained on.

    Line breaks and runs of blanks are one blank to it. Raises DataError where there is none.
    """

    def __init__(self, data_dir: str | os.PathLike[str]) -> None:
        self.path = Path(data_dir) / token_records.TOKENIZER_FILE
        self._processor = tokenizer.load(self.path, "give the --data_dir that the model read")

    def checked(self, model: str, vocabulary: int) -> "Tokens":
        """Returns these tokens. Raises DataError where they are not those of the model's
        `vocabulary`."""
        size = self._processor.vocab_size()
        if size != vocabulary:
            raise DataError(
                f"{self.path} has {size} tokens; {model} has {vocabulary}",
                "give the --data_dir that the model was trained on",
            )
        return self

    def encode(self, text: str) -> list[int]:
        """Returns a text's token ids, without separators."""
        return list(self._processor.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids."""
        return str(self._processor.decode(list(map(int, ids))))

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Returns the ids of a context and of what follows: the whole text's, divided behind as
        many as the context alone has. Blanks at the context's end belong to what follows."""
        bare = context.rstrip()
        whole, first = self.encode(context + continuation), self.encode(bare)
        return whole[: len(first)], whole[len(first) :]

    def check_sayable(self, answer: str) -> None:
        """Raises ValueError where an answer has no token, or a part of it is unknown."""
        ids = self.encode(answer)
        if not ids or tokenizer.UNK in ids:
            what = "has no token for a part of it" if ids else "makes no token of it"
            raise ValueError(
                f"the answer {answer!r} cannot be said: {self.path} {what}; use a vocabulary with "
                "byte fallback, or another task"
            )
