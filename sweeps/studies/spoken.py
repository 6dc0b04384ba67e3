"""Speech, small: Conformers on synthesised speech."""

from sweeps.studies import ConfigDict, family


def spoken_digits_conformer_demo(config: ConfigDict) -> None:
    """Speech, small: standard against LASER x 3 seeds on synthesised spoken digits.

    Command:  make demo   (or: python -m sweeps run --config=spoken_digits_conformer_demo)
    Time:     about 3 minutes on two CPU cores, data included.
    Result:   a WER table with intervals. The voices are synthesised: a small workload, not evidence
              about LibriSpeech.

    One point of NAdamW, chosen beforehand on standard attention (spaces/spoken_digits_nadamw.json).
    """
    config.update(
        workload="spoken_digits_conformer",
        protocol="grid",
        space="spoken_digits_nadamw",
        points=1,
        eval_every=50,
        log_every=10,
    )


def spoken_digits_conformer_quick(config: ConfigDict) -> None:
    """A demonstration on speech: standard against LASER, three seeds, 400 steps on spoken digits.

    Command:  python -m sweeps run --config=spoken_digits_conformer_quick   (or: make quick)
    Time:     under a minute on two CPU cores, data included.
    Result:   a WER table; three seeds cannot tell the two apart. WER is near 0.3.
    """
    spoken_digits_conformer_demo(config)
    config.update(
        space="spoken_quick_nadamw",
        batch_size=8,
        steps=400,
        eval_every=400,
    )


get_config = family("spoken", globals())
