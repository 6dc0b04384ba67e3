"""The rows that lm-eval asks for: ours, from local files, in memory.

lm-eval's own way by `datasets.load_dataset` writes a copy of every file below the user's home.
"""

import pathlib
from typing import Any

from workloads.downstream import local_data
from workloads.storage import preparation


def local(data_dir: str, data: str, **about: Any) -> dict[str, Any]:
    """Returns the data set of a task: a `datasets.Dataset` per split that is there.

    `custom_dataset` of the task files; `about` is their metadata, of no use here.
    """
    del about
    import datasets

    folder = pathlib.Path(local_data.rows_path(data_dir, data, "any")).parent
    return {
        path.stem: datasets.Dataset.from_list(local_data.read(data_dir, data, path.stem))
        for path in preparation.visible(folder, "*.jsonl")
    }
