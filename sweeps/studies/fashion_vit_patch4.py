"""Is it an effect of 16 tokens? Standard against LASER on Fashion-MNIST in 49 patches of 4.

Command:  make evidence-patch4   (or: python -m sweeps run --config=fashion_vit_patch4)
Time:     about 55 minutes on two CPU cores (3 tuning trials, then 24; 10,000 steps each).
Result:   docs/evidence.md; its question was fixed before the run.
"""

from sweeps.studies import ConfigDict, fashion_vit_evidence


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = fashion_vit_evidence.get_config()
    config.name = "fashion_vit_patch4"
    config.workload = "fashion_vit_patch4"
    config.variants = ("standard", "laser")
    config.seeds = 12
    return config
