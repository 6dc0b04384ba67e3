"""Options of checkpoints that the public orbax lacks; checkpoints, of which it keeps the last."""

import pathlib
import shutil

import orbax.checkpoint as ocp


def file_options():
    return ocp.checkpoint_manager.FileOptions(
        path_permission_mode=0o775,
        cns2_storage_options=ocp.options.Cns2StorageOptions(choose_store_cell=True),
    )


def restored(trial_dir):
    """The step of the last checkpoint, which is all that this path has to know."""
    folder = pathlib.Path(trial_dir) / "ttl=180d"
    steps = (int(path.name) for path in folder.glob("*") if path.name.isdigit())
    return max(steps, default=0)


def save(trial_dir, step):
    folder = pathlib.Path(trial_dir) / "ttl=180d"
    older = [path for path in folder.glob("*") if path.name.isdigit()]
    (folder / f"{step}.orbax-checkpoint-tmp").mkdir(parents=True)
    (folder / f"{step}.orbax-checkpoint-tmp").rename(folder / str(step))
    for path in older:
        shutil.rmtree(path)
