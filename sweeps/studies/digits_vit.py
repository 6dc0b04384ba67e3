"""Images, small: Vision Transformers on scikit-learn's handwritten digits."""

from attention import table
from sweeps.studies import ConfigDict, family


def digits_vit_demo(config: ConfigDict) -> None:
    """The main job, small: eight attention rows × 3 seeds on digits_vit, after tuning NAdamW.

    Command:  make demo   (or: python -m sweeps run --config=digits_vit_demo)
    Time:     about 9 minutes on two CPU cores (8 tuning trials, then 24; 500 steps each).
    Result:   an error table with intervals. On digits every variant ends near 2.5 to 4 % test error
              and no row can be told from another with three seeds: a small workload, not evidence
              about ImageNet.

    8 points of the paper's NAdamW space on standard attention, the best by validation, then that
    point for all rows: the paper's protocol. 400 images each for validation and test (one image is
    0.25 points).
    """
    config.update(
        workload="digits_vit",
        variants=table.PAPER_ROWS,
        eval_every=100,
        log_every=10,
    )


def digits_vit_evidence(config: ConfigDict) -> None:
    """Evidence on images, small: eight variants x 12 seeds on digits_vit, after tuning NAdamW.

    Command:  make evidence   (or: python -m sweeps run --config=digits_vit_evidence)
    Time:     about 18 minutes on two CPU cores (8 tuning trials, then 96; 500 steps each).
    Result:   docs/evidence.md, with the questions that were fixed before the run. 400 test images:
              one is 0.25 points.
    """
    digits_vit_demo(config)
    config.seeds = 12


def digits_vit_tuned(config: ConfigDict) -> None:
    """Evidence on images, small: the eight rows of the evidence study, each tuned for itself.

    Command:  make evidence-tuned
              (or: python -m sweeps run --config=digits_vit_tuned)
    Time:     about 27 minutes on two CPU cores (64 tuning trials, then 96; 500 steps each).
    Result:   docs/evidence.md. The same budget of points for each row, which the paper's protocol
              gives to standard attention alone.
    """
    digits_vit_evidence(config)
    config.protocol = "tune_each"


def digits_vit_quick(config: ConfigDict) -> None:
    """A smoke test of the whole path: standard against LASER, one seed, 100 steps on digits_vit.

    Command:  python -m sweeps run --config=digits_vit_quick
    Time:     under a minute on two CPU cores.
    Result:   a table with n = 1, hence no interval and no verdict; errors near 0.5.
    """
    config.update(
        workload="digits_vit",
        points=2,
        seeds=1,
        steps=100,
        log_every=10,
    )


get_config = family("digits_vit", globals())
