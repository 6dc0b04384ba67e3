"""Evidence on speech, small: all six rows of the paper's WER table x 20 seeds, after tuning.

Command:  make evidence   (or: python -m sweeps run --config=spoken_digits_conformer_evidence)
Time:     about 25 minutes on two CPU cores (3 tuning trials, then 120; 400 steps each).
Result:   docs/evidence.md, with the questions it was asked before it was run: above all which rows
          fail to train at a rate tuned on standard attention. Synthesised speech, a stand-in.
"""

from sweeps.studies import ConfigDict, spoken_digits_conformer_demo
from workloads import catalog


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = spoken_digits_conformer_demo.get_config()
    config.name = "spoken_digits_conformer_evidence"
    config.variants = catalog.paper_rows(config.workload)
    config.protocol = "tune_then_compare"
    config.points = 3
    config.seeds = 20
    return config
