"""Input pipelines against AlgoPerf's on a tiny directory; skips where it is not installed."""

import pytest

from workloads.algoperf import installation, parity, parity_inputs

try:
    ALGOPERF = parity.prepared()
    ALGOPERF.module(parity_inputs._PIPELINE)
except installation.AlgoPerfMissingError as missing:
    pytest.skip(f"AlgoPerf is not installed: {missing}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and TensorFlow's own


@pytest.mark.parametrize("part", ["speech_rows", "image_rows", "mixup_rows"])
def test_batches_are_algoperfs(part):
    for row in getattr(parity_inputs, part)(ALGOPERF):
        assert row.passed, row
