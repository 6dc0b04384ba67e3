"""The settings that a launcher has unless a study changes them, and those of a small study."""

# What makes digits_vit_quick a study of the paper's protocol: two points, one seed, 100 steps.
SMALL = {
    "protocol": "tune_then_compare",
    "space": "paper_nadamw",
    "points": 2,
    "seeds": 1,
    "steps": 100,
    "batch_size": 0,
    "eval_every": 0,
}


def of(launcher):
    """Returns {key: default} of a launcher's module."""
    return {name: key.default for name, key in launcher.KEYS.items()}


# The beginning of a user's study file.
STUDY_FILE = (
    "from sweeps.study import config as configs\ndef get_config():\n    config = configs.base()\n"
)
