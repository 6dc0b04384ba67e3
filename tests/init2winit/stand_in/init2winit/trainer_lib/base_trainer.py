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
    """The step of the last checkpoint, which is all that this one has to know."""
    folder = pathlib.Path(trial_dir) / "ttl=180d"
    steps = (int(one.name) for one in folder.glob("*") if one.name.isdigit())
    return max(steps, default=0)


def save(trial_dir, step):
    folder = pathlib.Path(trial_dir) / "ttl=180d"
    older = [one for one in folder.glob("*") if one.name.isdigit()]
    (folder / f"{step}.orbax-checkpoint-tmp").mkdir(parents=True)
    (folder / f"{step}.orbax-checkpoint-tmp").rename(folder / str(step))
    for one in older:
        shutil.rmtree(one)
