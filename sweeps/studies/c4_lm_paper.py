"""The paper's language-model table, row 2: 301 M parameters, 32 layers, MLP 2048.

Command:  python -m sweeps run --config=c4_lm_paper --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 160,000 steps (167.8 B tokens): about 32 h each, by `plan`.
          Faster and smaller, another precision than the paper's:
          --config.compute_dtype=bfloat16 --config.kernel=fused --config.mesh.fsdp=16,
          300 ms a step and 2.3 GB as compiled (LASER 306 and 2.5; docs/performance.md): 13 h.
          That kernel is ours and has not run on a TPU yet: `python -m sweeps hardware` first;
          kernel=splash, a library's, takes 336 ms.
Result:   the paper prints C4 test losses of 2.641 (standard) and 2.595 (LASER).
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    return paper_lm("c4_lm", "c4_lm_paper", "lm_test_loss")
