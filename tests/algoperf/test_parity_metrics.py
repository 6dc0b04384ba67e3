"""Evaluation metrics against AlgoPerf's on the same predictions; skips where it is not there."""

import numpy as np
import pytest

from workloads.algoperf.parity import metrics as parity_metrics
from workloads.speech import ctc

NEEDS = (parity_metrics._METRICS,)
pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and TensorFlow's own


@pytest.mark.parametrize("part", ["accuracy_rows", "decoding_rows", "wer_rows"])
def test_metrics_are_algoperfs_as_far_as_said(reference, part):
    for row in getattr(parity_metrics, part)(reference):
        assert row.passed, row


def test_algoperfs_wer_is_that_of_printed_tensors(reference, tmp_path):
    """Eighteen words, two wrong inside: 2/18 by words, 2/20 by AlgoPerf."""
    said = "a b c d e f g h i j k l m n o p q r"
    heard = said.replace("d", "x").replace("m", "y")
    path = tmp_path / "pieces"
    path.write_bytes(parity_metrics.speech_tokenizer.train([said, heard], 24))
    metrics = reference.module(parity_metrics._METRICS)
    errors, words = parity_metrics._algoperf(metrics, path, [(said, heard)] * 3)
    assert (errors, words) == (6, 60)
    assert ctc.word_errors([said] * 3, [heard] * 3) == (6, 54)
    np.testing.assert_allclose(errors / words, 0.1)
