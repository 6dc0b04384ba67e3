"""Our submission, schedule and points against AlgoPerf's; skips where it is not installed."""

import pytest

from sweeps.algoperf import parity
from sweeps.training import optimizers

pytestmark = pytest.mark.filterwarnings("ignore")  # AlgoPerf's and its libraries' own


@pytest.mark.parametrize("part", ["update_rows", "schedule_rows", "point_rows"])
def test_training_is_algoperfs(reference, part):
    for row in getattr(parity, part)(reference):
        assert row.passed, row


def test_another_optimizer_is_not_the_same(reference, monkeypatch):
    """The comparison has teeth: optax's NAdamW instead of AlgoPerf's is seen."""
    monkeypatch.setitem(optimizers.OPTIMIZERS, "nadamw", optimizers.OPTIMIZERS["nadamw_optax"])
    assert not next(parity.update_rows(reference)).passed
