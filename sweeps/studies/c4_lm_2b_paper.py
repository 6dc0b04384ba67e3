"""The paper's 2.2 B model in float32: end of the scaling set, first half of the precision pair.

The second half is c4_lm_2b_bfloat16. Products of float32 arrays are float32 here
(matmul_precision), six products of bfloat16 numbers each on a TPU; the paper does not say whether
its own were.

Command:  python -m sweeps run --config=c4_lm_2b_paper --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 160,000 steps: about 119 h each, by `plan`: a float32
          product is six of bfloat16.
Result:   the paper prints losses of 2.344 (standard) and 2.326 (LASER) in float32; elsewhere it has
          its standard model reach 2.327, and the two cannot be reconciled.
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm_2b", "c4_lm_2b_paper", "lm_precision", fsdp=16)
    config.matmul_precision = "float32"  # a TPU's own is bfloat16, the other half of the pair
    return config
