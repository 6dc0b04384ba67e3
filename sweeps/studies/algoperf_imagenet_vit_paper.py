"""The paper's ViT table on AlgoPerf's own workload object: its model, its data pipeline.

Command:  python -m sweeps run --config=algoperf_imagenet_vit_paper \\
              --config.data_dir=$DATA/imagenet/jax --config.algoperf_dir=$ALGOPERF
Time:     90 trials of 167,999 steps at batch 1024. AlgoPerf allows a trial 19.4 h on 8 V100s
          (0.415 s a step), so at most 90 x 19.4 h = 1,744 h of such a machine.
Result:   that of imagenet_vit_paper, which trains our model of the same parameters: the paper
          prints validation errors 0.2532 (standard), 0.2417 (LASER), 0.2455 and 0.2372 (both with
          QK-normalization).

Needs AlgoPerf's libraries (pip install -e '.[algoperf]'). A trial that is interrupted at step
n reads n batches again before it goes on: AlgoPerf's pipelines start at their first batch alone.
"""

from sweeps.studies import ConfigDict, imagenet_vit_paper


def get_config() -> ConfigDict:
    """Returns the study's configuration: that of our own model, with AlgoPerf's workload."""
    config = imagenet_vit_paper.get_config()
    config.name = "algoperf_imagenet_vit_paper"
    config.workload = "algoperf:imagenet_vit"
    config.loader_workers = 0  # AlgoPerf's pipelines choose their own
    return config
