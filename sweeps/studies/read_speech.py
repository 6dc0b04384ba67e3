"""A real voice: Conformers on read Russian, scored by phones."""

from sweeps.studies import ConfigDict, family
from workloads import catalog


def read_speech_conformer_evidence(config: ConfigDict) -> None:
    """Evidence on a real voice: the six rows of the paper's WER table x 10 seeds, after tuning.

    Command:  make evidence-speech   (or: python -m sweeps run
              --config=read_speech_conformer_evidence)
    Time:     60 to 80 minutes on two CPU cores (3 tuning trials, then 60; 1,600 steps each).
    Result:   docs/evidence.md. Phone error rates, in the column of word error rates: a phone is a
              word here. With 9,607 test phones 10 seeds find a difference of 2 % of the error.

    The compared seeds are 5 to 14; seed 4 chooses the point. The pilots used 0 to 4 and 200 to 204.
    """
    config.update(
        workload="read_speech_conformer",
        variants=catalog.paper_rows("read_speech_conformer"),
        space="read_speech_nadamw",
        points=3,
        first_seed=4,
        seeds=10,
        eval_every=400,
        hypothesis="Which of the paper's five other rows changes the phone error rate of a "
        "Conformer on a real voice?",
    )


def read_speech_conformer_grid(config: ConfigDict) -> None:
    """Evidence on a real voice, each row at its own rate: three rows x four rates x ten seeds.

    Command:  make evidence-speech-grid-1 evidence-speech-grid-2, five seeds each
    Time:     about 130 minutes on two CPU cores in all (120 trials of 1,600 steps).
    Result:   docs/evidence.md, with the question that was fixed before the run.

    The smallest rate is half the one that was best, and smallest, before. The largest was added
    when five seeds had their best rate at 0.012, then the largest. All seeds run at all rates, 15
    to 24: none of them was in an earlier run.
    """
    read_speech_conformer_evidence(config)
    config.update(
        variants=("standard", "standard+control", "laser"),
        space="read_speech_low_nadamw",
        protocol="grid",
        points=4,
        first_seed=15,
        hypothesis="Does LASER change the phone error rate of a Conformer on a real voice, each "
        "row at its own best learning rate?",
    )


get_config = family("read_speech", globals())
