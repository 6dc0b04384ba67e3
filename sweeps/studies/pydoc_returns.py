"""The small language model fine-tuned: does a documented function return a value?

Starts from the models of pydoc_lm_demo, in the same experiment_dir; three epochs of 3,340
questions, the loss on the answers' tokens alone, answers decoded greedily. The same model from
random weights: --config=pydoc_returns_scratch.

Command:  python -m sweeps run --config=pydoc_lm_demo; python -m sweeps run --config=pydoc_returns
Time:     about two minutes on two CPU cores for this study.
Result:   a table of errors of the decoded answers; columns `test/majority`, `test/rank_accuracy`
          and `test/undecodable` of eval_measurements.csv stand beside them, and of each question
          TRIAL/downstream. One seed of standard attention: see docs/downstream.md.
"""

from sweeps.studies import ConfigDict, base


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = base()
    config.name = "pydoc_returns"
    config.workload = "pydoc_lm:pydoc_returns"
    config.finetune_from = "pydoc_lm_demo"
    config.optimizer = "adamw"
    config.protocol = "grid"
    config.space = "pydoc_adamw"
    config.points = 1
    config.seeds = 3
    config.eval_every = 209  # an epoch
    config.steps = 627
    config.downstream = "pydoc_returns"
    return config
