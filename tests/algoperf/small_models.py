"""AlgoPerf's commands with models that tests make small: other numbers of attention layers.

`python -m tests.algoperf.small_models ...` is `python -m workloads ...` with the stand-in's.
"""

import dataclasses
import sys

from workloads import __main__ as command
from workloads.algoperf import supported

# By the start of a workload's name; the longest counts.
OF_STAND_IN = {
    "imagenet_vit": 2,
    "imagenet_vit_map": 3,
    "librispeech_conformer": 2,
    "wmt": 3,
    "finewebedu_lm": 2,
}


def table(layers):
    """`supported.SUPPORTED` with other numbers of layers."""

    def of(name):
        return layers[max((start for start in layers if name.startswith(start)), key=len)]

    return {
        name: dataclasses.replace(entry, layers=of(name))
        for name, entry in supported.SUPPORTED.items()
    }


if __name__ == "__main__":
    supported.SUPPORTED = table(OF_STAND_IN)
    sys.exit(command.main())
