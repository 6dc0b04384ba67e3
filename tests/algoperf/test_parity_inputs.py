"""Input pipelines against AlgoPerf's on a tiny directory; skips where it is not installed."""

import pytest

from workloads.algoperf import parity_inputs

NEEDS = (parity_inputs._PIPELINE,)
pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and TensorFlow's own


@pytest.mark.parametrize("part", ["speech_rows", "image_rows", "mixup_rows"])
def test_batches_are_algoperfs(reference, part):
    for row in getattr(parity_inputs, part)(reference):
        assert row.passed, row
