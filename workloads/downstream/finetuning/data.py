"""The data of a fine-tuning workload, MODEL:SUITE, and its preparation."""

import os
from typing import Any

from workloads.downstream import suites
from workloads.text import finetuning_specs


class FinetuningData:
    """Data of MODEL:SUITE: the suite's questions, and the model's tokenizer beside them.

    Raises ValueError for a workload that is no fine-tuning.
    """

    def __init__(self, name: str) -> None:
        _, suite = finetuning_specs.split(name)
        self.suite = suites.get(suite)

    def check(self, data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
        """Returns a line about the suite. Raises ValueError naming what is amiss, with the command
        that repairs it."""
        suites.check(self.suite, data_dir)
        suites.check_data(self.suite, data_dir, full)
        return [f"{self.suite.name}: whole, {len(self.suite.tasks)} task(s)"]

    def prepare(self, data_dir: str | os.PathLike[str], source: Any = None) -> None:
        """Makes the embedded questions. Raises ValueError for those that are to be downloaded."""
        if not self.suite.embedded:
            raise ValueError(suites.repair(self.suite, data_dir))
        from workloads.downstream import pydoc_questions
        from workloads.text.corpora import pydoc_text

        pydoc_text.PYDOC.prepare(data_dir)
        pydoc_questions.prepare(data_dir)
