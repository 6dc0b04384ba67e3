"""Input pipelines against AlgoPerf's on a tiny directory; skips where it is not installed."""

import pytest

from workloads.algoperf.parity import inputs

NEEDS = (inputs._PIPELINE,)
pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and TensorFlow's own


@pytest.mark.parametrize("part", ["speech_rows", "image_rows", "mixup_rows"])
def test_batches_are_algoperfs(reference, part):
    for row in getattr(inputs, part)(reference):
        assert row.passed, row
