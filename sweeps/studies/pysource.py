"""Text, five sizes of one model: what a variant saves, by the number of parameters."""

from sweeps.studies import ConfigDict, family


def pysource_lm_sizes(config: ConfigDict) -> None:
    """One size of five on Python's source code: three mechanisms and a control x 5 seeds.

    Command:  make sizes-1 sizes-2 sizes-3 sizes-4   (one size: python -m sweeps run
              --config=pysource_lm_sizes --config.workload=pysource_lm_57k)
    Time:     about 20 minutes on two CPU cores for the 164,160 parameters named here
              (4 tuning trials, then 25; 3,000 steps each); 4 hours for all sizes and budgets.
    Result:   `python -m analysis scaling` of all: the compute that each mechanism saves at each
              size, and whether it changes with size.

    Beside it standard attention alone trains for 1,500, 6,000 and 12,000 steps. Rates are standard
    attention's, by one seed: four at 3,000 steps, the first two of them at 1,500 and 6,000; 12,000
    takes that of 6,000. All mechanisms have them, so what comes out is conditional on them.
    The compared seeds are 25 to 29; seed 24 chooses.
    """
    config.update(
        workload="pysource_lm_164k",
        variants=("standard", "laser+qk_norm", "standard+fox", "standard+xsa", "standard+control"),
        optimizer="adamw",
        space="pydoc_adamw",
        points=4,
        first_seed=24,
        seeds=5,
        steps=3000,
        eval_every=1000,
        hypothesis="Does the compute that LASER with QK-normalization, FoX or XSA saves change "
        "between 57,504 and 721,792 parameters?",
    )


get_config = family("pysource", globals())
