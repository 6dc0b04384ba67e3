"""Speech, small: standard against LASER x 3 seeds on synthesised spoken digits.

Command:  make demo   (or: python -m sweeps run --config=spoken_digits_conformer_demo)
Time:     about 3 minutes on two CPU cores, data included.
Result:   a WER table with intervals. The voices are synthesised: a stand-in, not evidence about
          LibriSpeech.

One point of NAdamW, chosen beforehand on standard attention (spaces/spoken_digits_nadamw.json);
spoken_digits_conformer_evidence tunes.
"""

from sweeps.studies import ConfigDict, base


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = base()
    config.name = "spoken_digits_conformer_demo"
    config.workload = "spoken_digits_conformer"
    config.protocol = "grid"
    config.space = "spoken_digits_nadamw"
    config.points = 1
    config.seeds = 3
    config.eval_every = 50
    config.log_every = 10
    return config
