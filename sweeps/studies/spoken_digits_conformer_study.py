"""Speech, small, all six rows of the paper's WER table x 3 seeds, after tuning.

Command:  make study   (or: python -m sweeps run --config=spoken_digits_conformer_study)
Time:     about 10 minutes on two CPU cores.
Result:   a WER table with intervals on synthesised speech: a stand-in, not evidence about
          LibriSpeech.
"""

from sweeps.studies import ConfigDict, spoken_digits_conformer_demo
from workloads import catalog


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = spoken_digits_conformer_demo.get_config()
    config.name = "spoken_digits_conformer_study"
    config.variants = catalog.paper_rows(config.workload)
    config.protocol = "tune_then_compare"
    config.points = 3
    return config
