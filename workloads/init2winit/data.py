"""What a study of init2winit's needs on a host before it trains: its checkout, libraries, data."""

import dataclasses
import json
import os

from attention import files
from workloads import init2winit_specs as specs
from workloads.algoperf.preflight import Request
from workloads.base.errors import DataError
from workloads.base.host_checkout import check_libraries
from workloads.init2winit import installation, preflight

# What its main.py loads beyond our own libraries: the extra `init2winit` of setup.cfg.
_LIBRARIES = (
    *("tensorflow", "tensorflow_text", "tensorflow_metadata", "jax_bitempered_loss", "jraph"),
    *("clu", "chex", "h5py", "pandas", "sacrebleu", "skimage"),
)
_REMEDY = "pip install '/path/to/attnperf[init2winit]' in the environment that runs the study"


@dataclasses.dataclass(frozen=True)
class Check:
    """The check of one workload of `specs`, by its name."""

    name: str

    def check(
        self,
        data_dir: str | os.PathLike[str],
        full: bool = False,
        init2winit_dir: str = "",
        init2winit_config: str = "",
    ) -> list[str]:
        """One line about each thing that was found; loads neither JAX nor init2winit.

        Raises DataError for the first thing that is missing, with what to do, and ValueError for a
        config that its `main.py` would refuse. Records of the data are not read, `full` or not.
        """
        del full
        check_libraries(_LIBRARIES, self.name, _REMEDY)
        checkout = installation.find(init2winit_dir or None)
        fields = specs.read_config(init2winit_config)
        settings = arguments(fields, model=specs.short_name(self.name), num_train_steps=1)
        run = preflight.check(Request("standard", None, settings), checkout, str(data_dir))
        line = f"{checkout}: {run.record['model']} on {run.record['dataset']}, data in {data_dir}"
        return [line, *filter(None, [checkout.remark])]

    def prepare(self, data_dir: str, manual_dir: str | None = None) -> None:
        """Raises DataError: its data sets are prepared by tensorflow-datasets or by hand."""
        del manual_dir
        raise DataError(
            f"{self.name} reads what init2winit reads",
            f"python -m workloads init2winit_data {files.quoted(data_dir)} makes a small one",
        )


def arguments(
    config: dict[str, object], experiment_dir: str = "/", **settings: object
) -> tuple[str, ...]:
    """Returns main.py's arguments: the fields of its config, and where it writes.

    Hyperparameters are one JSON text, as on a command line.
    """
    fields = {**config, **settings}
    overrides = fields.pop(specs.OVERRIDES, {})
    return (
        *(f"--config.{name}={value}" for name, value in fields.items()),
        f"--config.hparam_overrides_json={json.dumps(overrides)}",
        f"--experiment_dir={experiment_dir}",
    )
