"""The paper's precision pair, second half: 2.2 B with weights and activations in bfloat16.

The first half is c4_lm_2b_paper. Optimizer moments and the loss stay in float32.

Command:  python -m sweeps run --config=c4_lm_2b_bfloat16 --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 160,000 steps: about 24 h each, by `plan`.
Result:   the paper prints losses of 2.350 (standard) and 2.333 (LASER).
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm_2b", "c4_lm_2b_bfloat16", "lm_precision", fsdp=16)
    config.compute_dtype = "bfloat16"
    config.param_dtype = "bfloat16"
    config.matmul_precision = "bfloat16"
    return config
