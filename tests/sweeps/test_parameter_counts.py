"""Trials record how many parameters their model has: what scaling over model sizes rests on."""

import pytest

from attention import registry
from sweeps.records import provenance
from workloads import registry as workloads


@pytest.mark.parametrize(
    ("name", "variant", "count"),
    [
        # QK-normalization: one head size of 16 for query and key, in each of 2 layers: 64 more.
        ("pydoc_lm", "standard", 164_160),
        ("pydoc_lm", "laser", 164_160),
        ("pydoc_lm", "laser+qk_norm", 164_224),
        ("c4_lm", "standard", 301_270_016),
    ],
)
def test_parameters_are_counted_without_being_made(name, variant, count) -> None:
    workload = workloads.make(name, registry.get(variant))
    assert provenance.parameters(workload) == count
    assert provenance.meta_data(workload, 0, "/data")["parameters"] == count


def test_a_trial_records_what_its_workload_says_of_itself() -> None:
    """AlgoPerf's keys: `analysis` takes step hint and targets from them."""
    workload = workloads.make("digits_vit", registry.get("standard"))
    record = provenance.meta_data(workload, 0, "")
    assert {name: value for name, value in record.items() if name.startswith("workload.")} == {
        "workload.eval_batch_size": 16,
        "workload.num_eval_train_examples": 400,
        "workload.num_test_examples": 400,
        "workload.num_train_examples": 997,
        "workload.num_validation_examples": 400,
        "workload.step_hint": 500,
        "workload.target_metric_name": "accuracy",
        "workload.test_target_value": 0.95,
        "workload.validation_target_value": 0.95,
    }
