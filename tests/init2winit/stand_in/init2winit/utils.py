"""Its metrics' logger: a function that writes, and no call of it."""

import csv
import io

import orbax.checkpoint as ocp
from tensorflow.io import gfile


class TrainingDivergedError(Exception):
    pass


def file_options():
    return ocp.checkpoint_manager.FileOptions(
        path_permission_mode=0o775,
        cns2_storage_options=ocp.options.Cns2StorageOptions(choose_store_cell=True),
    )


class MetricLogger:
    def __init__(self, csv_path):
        self._csv_path = csv_path
        self.appended = []

    def append_scalar_metrics(self, metrics):
        def _read_and_write_csv():
            try:
                with gfile.GFile(self._csv_path) as file:
                    rows = list(csv.DictReader(io.StringIO(file.read())))
            except gfile.FileError:
                rows = []
            rows.append(metrics)
            names = list(dict.fromkeys(name for row in rows for name in row))
            with gfile.GFile(self._csv_path, "w") as file:
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(rows)

        metrics["global_step"] = int(metrics["global_step"])
        self.appended.append(metrics)
