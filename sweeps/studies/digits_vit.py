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


def digits_vit_quick(config: ConfigDict) -> None:
    """A demonstration on images: standard against LASER, three seeds, 160 steps on digits_vit.

    Command:  python -m sweeps run --config=digits_vit_quick   (or, with two others: make quick)
    Time:     under a minute on two CPU cores.
    Result:   an error table; the two cannot be told apart. After so few steps errors are near 0.65.
    """
    config.update(
        workload="digits_vit",
        protocol="grid",
        space="fashion_nadamw",
        points=1,
        seeds=3,
        batch_size=16,
        steps=160,
        eval_every=160,
        log_every=10,
    )


get_config = family("digits_vit", globals())
