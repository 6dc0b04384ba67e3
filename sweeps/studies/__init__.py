"""Studies that come with the package, one file each: `python -m sweeps studies` lists them."""

from ml_collections import ConfigDict as ConfigDict

from sweeps.study.config import base as base

# The paper tunes on its 16-layer model and takes that point everywhere.
TUNING_STUDY = "c4_lm_234m_paper"


def paper_lm(workload: str, name: str = "", paper_table: str = "", fsdp: int = 8) -> ConfigDict:
    """Returns the settings of one language model of the paper: standard against LASER, AdamW.

    One seed, as far as the paper says; the point is the one that TUNING_STUDY selected, in the
    same experiment_dir. Blocks in a loop with rematerialisation; one trial at a time has all
    devices of the host, of which `fsdp` share a copy of the parameters.
    """
    config = base()
    config.name = name
    config.paper_table = paper_table
    config.workload = workload
    config.variants = ("standard", "laser")
    config.optimizer = "adamw"
    config.protocol = "grid"
    config.space = f"selected:{TUNING_STUDY}"
    config.points = 1
    config.seeds = 1
    config.eval_every = 8_000
    config.mesh.fsdp = fsdp  # with a copy of all moments each, 301 M do not fit 16 GB
    config.scan_layers = True
    config.remat = True
    # Of 16,384 tokens a device (c4_lm on 64 chips) the float32 logits are 2.1 GB, of these 0.26.
    config.loss_chunk_tokens = 2048
    config.local.workers = 1
    return config
