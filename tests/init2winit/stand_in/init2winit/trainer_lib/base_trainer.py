"""Options of checkpoints that the public orbax lacks."""

import orbax.checkpoint as ocp


def file_options():
    return ocp.checkpoint_manager.FileOptions(
        path_permission_mode=0o775,
        cns2_storage_options=ocp.options.Cns2StorageOptions(choose_store_cell=True),
    )
