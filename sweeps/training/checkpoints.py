"""Checkpoints of a trial, by orbax: written aside, renamed when whole, the last two kept.

Where a study keeps more (config.keep_checkpoints), the last ones that an evaluation goes with stay
beside those two, and are what is left of a finished trial.

A process killed while it writes leaves the previous checkpoint as it was; what it left behind is
removed at the next start. Of several processes each writes the parts that it holds, all call the
same methods, and another number of processes can restore what they wrote.

A checkpoint names the bytes of each attempt's measurements that it counts on: a trial resumes at a
checkpoint, and its curve goes on there. Those bytes may be lost because their file was cut short or
corrupted. They may also be void, because a job that was frozen past its lease finished writing a
checkpoint of updates whose rows a later attempt replaced.

A checkpoint that is damaged, or does not have its measurements, is set aside as `damaged-<step>`
and the one before it is restored. Where none is whole the trial begins anew, which costs time and
changes no figure. Orbax notices files that are cut or missing, but not a changed byte of an array
(0.12.8: it restores other numbers), so a checkpoint carries sums of its own.
"""

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from sweeps.records import disk, layout, measurements
from sweeps.study import start as starts
from sweeps.study import trial as trials
from sweeps.study.trial import Trial
from sweeps.training import train_step
from workloads.base import spec


class _Brief(logging.Filter):
    """Leaves orbax's tracebacks out of the log: what went wrong is raised, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


logging.getLogger("absl").setLevel(logging.WARNING)
logging.getLogger("absl").addFilter(_Brief())

DAMAGED = "damaged-"
# In the name of a folder that orbax is writing; older ones have a number behind it.
_UNFINISHED = ".orbax-checkpoint-tmp"
RECORD = layout.CHECKPOINT_RECORD


class _Kept:
    """Orbax's rule of what stays when a checkpoint has been saved."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def should_preserve(self, checkpoints: Sequence[Any], **_: Any) -> list[bool]:
        """Returns of each checkpoint, oldest first, whether it stays."""
        steps = [int(checkpoint.step) for checkpoint in checkpoints]
        kept = _kept(self._trial, steps, newest=2)
        return [step in kept for step in steps]


def _kept(trial: Trial, steps: list[int], newest: int) -> set[int]:
    """Returns which of a trial's checkpoints stay, of `steps` in order: the newest, and what the
    study keeps."""
    at_evaluations = [step for step in steps if trial.evaluates_at(step)]
    most = trial.keep_checkpoints
    return {*steps[-newest:], *(at_evaluations[-most:] if most > 1 else ())}


class _Parameters(NamedTuple):
    """What of a state an evaluation needs, by the names that it has there."""

    params: Any
    model_state: Any


class DamagedError(ValueError):
    """A checkpoint cannot be read as it was written; the message names it."""


class Checkpoints:
    """Checkpoints below a trial's directory. Close it to finish what is being written."""

    def __init__(self, directory: pathlib.Path, trial: Trial) -> None:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_Kept(trial),
            create=True,
            cleanup_tmp_directories=True,
            # Network file systems show hosts different lists: all take the first process's.
            single_host_load_and_broadcast=jax.process_count() > 1,
        )
        self._directory = directory.absolute()
        self._trial = trial
        self._bytes = 0
        # A sentence on each checkpoint that `restore` passed over.
        self.damages: list[str] = []
        with self._naming_a_full_disk():
            self._manager = ocp.CheckpointManager(self._directory, options=options)

    def save(
        self, step: int, state: Any, measured: dict[str, int], clock: dict[str, float]
    ) -> None:
        """Starts writing the state after `step` updates.

        measured: the bytes of measurements that it counts on, by the number of the attempt. clock:
        accumulated seconds. Raises `disk.FullError`, as `wait` and `close` do.
        """
        self._bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        record = {
            "trial": self._trial.id,
            "shapes": _shapes(state),
            "sums": _sums(state),
            "measurements": measured,
            "clock": clock,
        }
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            progress=ocp.args.JsonSave({**record, "sha256": layout.digest(record)}),
        )
        with self._naming_a_full_disk():
            self._manager.save(step, args=items, force=True)

    def restore(self, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Returns (step, state, record) of the last whole checkpoint, None where none is whole.

        Arrays take the shapes, dtypes and shardings of `like`. The record holds `measurements` and
        `clock` as `save` got them. Later checkpoints, which do not count, are set aside; `damages`
        says which. Raises ValueError where a checkpoint belongs to another trial or model;
        RuntimeError where several processes must begin again.
        """
        # NumPy's integers where another process was asked.
        for step in sorted(map(int, self._manager.all_steps()), reverse=True):
            try:
                return step, *self._read(step, like)
            except DamagedError as damage:
                self._set_aside(step)
                self.damages.append(f"checkpoint {step} is set aside: {damage}")
                # Of several processes one may see it, and the others wait for it.
                if jax.process_count() > 1:
                    raise RuntimeError(self.damages[-1]) from damage
        return None

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        folder = self._directory / str(step)
        record = _record(folder)
        _check(folder, record, _shapes(like), record["shapes"], self._trial.id)
        if lost := measurements.lacking(self._directory.parent, step, record["measurements"]):
            raise DamagedError(lost)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        with _damage_of(folder):
            state = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
            )["state"]
        _check_sums(folder, record, state)
        return state, record

    def _set_aside(self, step: int) -> None:
        """Takes a checkpoint out of orbax's sight; it is kept until the trial is done."""
        aside = self._directory / f"{DAMAGED}{step}"
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(self._directory / str(step), aside)
        self._manager.reload()

    def wait(self) -> None:
        """Blocks until what was saved is on disk."""
        with self._naming_a_full_disk():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Finishes writing and ends orbax's threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def _naming_a_full_disk(self) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            if not disk.is_full(problem):
                raise
            # Room for the small files that say so. The one before is removed only when the new one
            # is whole, and stays.
            for path in self._directory.glob(f"*{_UNFINISHED}*"):
                shutil.rmtree(path, ignore_errors=True)
            needs = f"a checkpoint takes {disk.size(self._bytes)}, beside the one before"
            raise disk.FullError(self._directory.parent, needs) from problem


def restore_parameters(
    trial: Trial, directory: pathlib.Path, step: int, params: Any, model_state: Any = None
) -> tuple[Any, Any]:
    """Returns (parameters, model state) of a checkpoint of a trial's directory; nothing else is
    read, and nothing is changed there.

    So no moments of the optimizer need a place in memory: a third of what training holds. Arrays
    take the shapes, dtypes and shardings of what is given, arrays or `jax.ShapeDtypeStruct`. A
    damage of what is not read is not noticed. Raises ValueError where the checkpoint is damaged,
    not there, or another trial's or model's.
    """
    folder = directory.absolute() / layout.CHECKPOINTS / str(step)
    if not folder.is_dir():
        steps = ", ".join(map(str, layout.checkpoint_steps(directory))) or "none"
        raise ValueError(f"{directory} has no checkpoint of step {step}; it has {steps}")
    like, record = _Parameters(params, model_state), _record(folder)
    parts = tuple(f".{name}" for name in like._fields)
    stored = {path: shape for path, shape in record["shapes"].items() if path.startswith(parts)}
    _check(folder, record, _shapes(like), stored, trial.id)
    item = {name: part for name, part in like._asdict().items() if part is not None}
    args = ocp.args.PyTreeRestore(
        item, ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
    )
    # The manager reads whole states.
    with _damage_of(folder), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        restored = like._replace(**reader.restore(folder / "state", args=args))
    _check_sums(folder, record, restored)
    return restored.params, restored.model_state


def restore_trained(
    trial: Trial, directory: pathlib.Path, step: int, workload: spec.Workload
) -> tuple[Any, Any]:
    """Returns what `restore_parameters` does, placed as the workload's mesh says."""
    shapes = jax.eval_shape(
        workload.init_model_fn, train_step.seed_key(trial.seed, train_step.INIT)
    )

    def placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    params, model_state = jax.tree.map(placed, shapes, train_step.shardings_of(workload, shapes))
    return restore_parameters(trial, directory, step, params, model_state)


def start(trial: Trial, params: Any, model_state: Any) -> tuple[Any, Any]:
    """Returns the (parameters, model state) that a trial starts from: another study's
    (`sweeps.study.start`), where the given ones would lie.

    Raises ValueError where that checkpoint is gone, damaged, another model's, or not what it was.
    """
    folder = pathlib.Path(trial.start_from)
    directory = folder.parents[1]
    if (content := starts.content(folder)) != trial.start:
        raise ValueError(
            f"{folder} holds other parameters ({content}) than those that the trial starts from "
            f"({trial.start}); restore that study, or run this one under another --config.name"
        )
    return restore_parameters(
        trials.read(directory), directory, int(folder.name), params, model_state
    )


def _record(folder: pathlib.Path) -> dict[str, Any]:
    """Returns what a checkpoint says beside its arrays."""
    path = folder / RECORD
    try:
        record = layout.record(
            path, trial=str, shapes=dict, sums=dict, measurements=dict, clock=dict, sha256=str
        )
    except (*layout.ABSENT, ValueError) as problem:
        raise DamagedError(str(problem)) from problem
    if record.pop("sha256") != layout.digest(record):
        raise DamagedError(f"{path} is not what was written")
    return record


def _check(
    folder: pathlib.Path,
    record: dict[str, Any],
    expected: dict[str, str],
    stored: dict[str, str],
    trial_id: str,
) -> None:
    """Raises ValueError where a checkpoint's arrays are not as expected, or it is another
    trial's."""
    where = f"checkpoint {folder}"
    for path in sorted({*expected, *stored}):
        if stored.get(path) != expected.get(path):
            raise ValueError(
                f"{where} is of another model: {path} is {stored.get(path, 'absent')} there and "
                f"{expected.get(path, 'absent')} here. Remove the trial's directory to train it "
                "anew"
            )
    if record["trial"] != trial_id:
        raise ValueError(
            f"{where} belongs to trial {record['trial']}, not {trial_id}. Remove the "
            "trial's directory to train it anew"
        )


def _check_sums(folder: pathlib.Path, record: dict[str, Any], state: Any) -> None:
    wrong = [name for name, total in _sums(state).items() if total != record["sums"].get(name)]
    if wrong:
        raise DamagedError(f"{folder / 'state'}: {wrong[0]} is not what was written")


@contextlib.contextmanager
def _damage_of(folder: pathlib.Path) -> Iterator[None]:
    """Turns what orbax raises of files that it cannot read as its own into DamagedError.

    A file server or a memory that fails is no damage: that is raised as it is.
    """
    try:
        yield
    except (MemoryError, RuntimeError):
        raise
    except Exception as problem:
        if isinstance(problem, OSError) and not isinstance(problem, FileNotFoundError):
            raise
        cause: BaseException = problem
        while cause.__cause__ is not None:
            cause = cause.__cause__
        # Tensorstore adds its whole specification.
        why = str(cause).partition(" [")[0]
        raise DamagedError(f"{folder / 'state'}: {why[:160]}") from problem


def _sums(state: Any) -> dict[str, int]:
    """Returns the sum of each array's bits, as words, modulo 2**32: any division over devices."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    sums = jax.device_get(_sums_of([leaf for _, leaf in leaves]))
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return dict(zip(names, map(int, sums), strict=True))


@jax.jit
def _sums_of(leaves: list[jax.Array]) -> list[jax.Array]:
    def words(leaf: jax.Array) -> jax.Array:
        if leaf.dtype == jnp.bool_:
            return leaf
        bits = {1: jnp.uint8, 2: jnp.uint16}.get(leaf.dtype.itemsize, jnp.uint32)
        return jax.lax.bitcast_convert_type(leaf, bits)

    return [jnp.sum(words(leaf), dtype=jnp.uint32) for leaf in leaves]


def _shapes(state: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def keep_the_last(trial: Trial, directory: pathlib.Path) -> None:
    """Removes what nothing needs once a trial is finished: all checkpoints but the last, or as many
    as its study keeps."""
    folder, steps = directory / layout.CHECKPOINTS, layout.checkpoint_steps(directory)
    kept = _kept(trial, steps, newest=1)
    older = (folder / str(step) for step in steps if step not in kept)
    for path in (*older, *folder.glob(f"{DAMAGED}*")):
        shutil.rmtree(path)
