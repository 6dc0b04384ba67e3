"""The embedded suites' data: questions made of what is installed, beside pydoc_lm's records."""

import os
from pathlib import Path

from workloads.downstream import local_data, pydoc_questions, suites
from workloads.downstream.tokens import Tokens
from workloads.storage import preparation
from workloads.text.corpora import pydoc_text

NAMES = ("pydoc", "pydoc_returns")


def prepare(data_dir: str | os.PathLike[str]) -> None:
    """Makes the questions unless they are there and whole, about 10 s.

    pydoc_lm's records must lie in `data_dir`: DataError where they do not.
    """
    pydoc_text.PYDOC.check(data_dir)

    def check(_: Path) -> None:
        for name in NAMES:
            suites.check_data(suites.get(name), data_dir)

    preparation.prepare_once(local_data.folder(data_dir), check, lambda _: _write(data_dir))


def _write(data_dir: str | os.PathLike[str]) -> None:
    source = f"Python {pydoc_text.PYDOC.read_reference(data_dir).python}"
    for name, splits in pydoc_questions.questions(Tokens(data_dir)).items():
        local_data.write(data_dir, name, splits, source=source)
