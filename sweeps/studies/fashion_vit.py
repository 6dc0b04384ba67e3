"""Real pictures: Vision Transformers on Fashion-MNIST."""

from attention import table
from sweeps.studies import ConfigDict, family


def fashion_vit_evidence(config: ConfigDict) -> None:
    """Evidence on real pictures: eight variants x 10 seeds on Fashion-MNIST, after tuning.

    Command:  make evidence-images   (or: python -m sweeps run --config=fashion_vit_evidence)
    Time:     75 to 110 minutes on two CPU cores (3 tuning trials, then 80; 10,000 steps each).
    Result:   docs/evidence.md; its questions were fixed before the run. With 10,000 test images 10
              seeds find a difference of 3.5 % of the error.

    Seeds start at 5. The pilot used 0 to 4 and 100 to 104.
    """
    config.update(
        workload="fashion_vit",
        variants=table.PAPER_ROWS,
        space="fashion_nadamw",
        points=3,
        first_seed=5,
        seeds=10,
        eval_every=2500,
    )


def fashion_vit_patch4(config: ConfigDict) -> None:
    """Is it an effect of 16 tokens? Standard against LASER on Fashion-MNIST in 49 patches of 4.

    Command:  make evidence-patch4   (or: python -m sweeps run --config=fashion_vit_patch4)
    Time:     about 55 minutes on two CPU cores (3 tuning trials, then 24; 10,000 steps each).
    Result:   docs/evidence.md; its question was fixed before the run.
    """
    fashion_vit_evidence(config)
    config.update(
        workload="fashion_vit_patch4",
        variants=("standard", "laser"),
        seeds=12,
    )


get_config = family("fashion_vit", globals())
