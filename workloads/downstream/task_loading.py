"""lm-eval's tasks on local rows, without its index, its network and its noise."""

import contextlib
import logging
import os
import pathlib
import tempfile
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

from workloads.downstream.suites import Task

# lm-eval's own; shots are the same for every model.
_SHOTS_SEED = 1234
_OURS = pathlib.Path(__file__).with_name("tasks")


def load(task: Task, data_dir: str | os.PathLike[str]) -> Any:
    """Returns lm-eval's task (`ConfigurableTask`): the stock file, or ours, on local rows.

    For use inside of `quiet`.
    """
    import yaml
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "task.yaml")
        path.write_text(_task_file(task, data_dir, yaml.safe_dump), encoding="utf-8")
        # Without lm-eval's index of all its tasks, which takes seconds.
        loaded = TaskManager(include_defaults=False).load(str(path))["tasks"][task.name]
    loaded.set_fewshot_seed(_SHOTS_SEED)
    return loaded


def _task_file(task: Task, data_dir: str | os.PathLike[str], dump: Callable[..., str]) -> str:
    """Returns a task file that includes the named one."""
    entry = task.entry
    fields: dict[str, Any] = {
        "include": str(_OURS / entry.file if entry.ours else _stock(entry.file)),
        "task": task.name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_dir": os.path.abspath(data_dir), "data": entry.data},
        "num_fewshot": task.shots,
    }
    if task.shots:
        fields["fewshot_split"] = entry.shots_from
    if not entry.generates:
        # lm-eval would score the choices alone, which are no continuations there.
        asked = ("acc",) if entry.partial else ("acc", "acc_norm", "acc_mutual_info")
        fields["metric_list"] = [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in asked
        ]
    rows = "!function workloads.downstream.local_data.lm_eval_dataset"
    return f"{dump(fields)}custom_dataset: {rows}\n"


def _stock(file: str) -> pathlib.Path:
    import lm_eval

    return pathlib.Path(lm_eval.__file__).parent / "tasks" / file


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without lm-eval's bars of progress and its warnings about what is meant here, and offline."""
    # What lm-eval builds on asks the network where this is not set, for half a minute.
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    import datasets
    import lm_eval.api.task
    import tqdm

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()

    def silent(items: Any, **settings: Any) -> Any:
        return tqdm.tqdm(items, **{**settings, "disable": True})

    try:
        with unittest.mock.patch.object(lm_eval.api.task, "tqdm", silent):
            yield
    finally:
        logger.setLevel(level)
        datasets.enable_progress_bars()
