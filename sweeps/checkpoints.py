"""Checkpoints of a trial, by orbax: written aside, renamed when whole, the last two kept.

A process killed while it writes leaves the previous checkpoint as it was; what it left behind is
removed at the next start. Of several processes each writes the parts that it holds, all call the
same methods, and another number of processes can restore what they wrote.
"""

import logging
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from sweeps.trial import Trial

logging.getLogger("absl").setLevel(logging.WARNING)


class Checkpoints:
    """Checkpoints below a trial's directory. Close it to finish what is being written."""

    def __init__(self, directory: pathlib.Path, trial: Trial, *, keep: int = 2) -> None:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=True,
            cleanup_tmp_directories=True,
            # Network file systems show hosts different lists: all take the first process's.
            single_host_load_and_broadcast=jax.process_count() > 1,
        )
        self._directory = directory.absolute()
        self._trial = trial
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def save(self, step: int, state: Any, progress: dict[str, float]) -> None:
        """Starts writing the state after `step` updates; `progress` is small plain data."""
        record = {"trial": self._trial.id, "shapes": _shapes(state), **progress}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(record)
        )
        self._manager.save(step, args=items, force=True)

    def restore(self, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Returns (step, state, progress) of the last whole checkpoint, or None.

        Arrays take the shapes, dtypes and shardings of `like`. Raises ValueError where the
        checkpoint belongs to another trial or model.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        step = int(step)  # NumPy's where another process was asked
        record = self._manager.restore(
            step, args=ocp.args.Composite(progress=ocp.args.JsonRestore())
        )["progress"]
        self._check(step, record, like)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        restored = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
        )
        return step, restored["state"], record

    def _check(self, step: int, record: dict[str, Any], like: Any) -> None:
        where = f"checkpoint {self._directory / str(step)}"
        expected = _shapes(like)
        for path, shape in expected.items():
            found = record["shapes"].get(path)
            if found != shape:
                raise ValueError(
                    f"{where} is of another model: {path} is {found or 'absent'} there and {shape} "
                    "here. Remove the trial's directory to train it anew"
                )
        if len(record["shapes"]) != len(expected):
            extra = sorted(set(record["shapes"]) - set(expected))
            raise ValueError(f"{where} is of another model: it also has {extra[0]}")
        if record["trial"] != self._trial.id:
            raise ValueError(
                f"{where} belongs to trial {record['trial']}, not {self._trial.id}. Remove the "
                "trial's directory to train it anew"
            )

    def wait(self) -> None:
        """Blocks until what was saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Finishes writing and ends orbax's threads."""
        self._manager.wait_until_finished()
        self._manager.close()


def _shapes(state: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
