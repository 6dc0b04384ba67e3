"""Evidence on real pictures: eight attention rows x 10 seeds on Fashion-MNIST, after tuning NAdamW.

Command:  make evidence-images   (or: python -m sweeps run --config=fashion_vit_evidence)
Time:     75 to 110 minutes on two CPU cores (3 tuning trials, then 80; 10,000 steps each).
Result:   docs/evidence.md; its questions were fixed before the run. With 10,000 test images 10
          seeds find a difference of 3.5 % of the error.

Seeds start at 5. The pilot used 0 to 4 and 100 to 104.
"""

from attention import table
from sweeps.studies import ConfigDict, base


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = base()
    config.name = "fashion_vit_evidence"
    config.workload = "fashion_vit"
    config.variants = table.PAPER_ROWS
    config.space = "fashion_nadamw"
    config.points = 3
    config.first_seed = 5
    config.seeds = 10
    config.eval_every = 2500
    return config
