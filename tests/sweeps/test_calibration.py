"""`plan`'s model of a step against what compilers said of it, as docs/performance.md holds it."""

import pytest

from sweeps.monitoring import calibration
from sweeps.training import accelerators
from tests.benchmarks import performance


@pytest.mark.parametrize(
    "row", [row for row in performance.ROWS if not row.peer], ids=lambda row: " ".join(row[:3])
)
def test_plan_is_near_the_compiler_on_every_row(row, in_process):
    """What the page says of plan is what plan says now, and both are near the compiler."""
    its_study, where = performance.resolved(row), accelerators.topology(row.topology)
    predictions, table = calibration.predict(its_study, where), performance.table()
    for variant in its_study.settings["variants"]:
        line = table[row.study + "†" * (not row.calibrates), row.changed, row.topology, variant]
        if not predictions:  # ViT and Conformer by a kernel: no figures were fitted
            assert (line["plan GB"], line["plan ms"]) == ("–", "–")
            assert not row.calibrates
            continue
        planned = predictions[variant]
        assert planned.total_gb == pytest.approx(float(line["plan GB"]), abs=0.006)
        assert planned.total_gb == pytest.approx(float(line["GB"]), rel=calibration.TOLERANCE)
        verdict = calibration.verdict(planned.total_gb, where.accelerator.usable_gb())
        assert {"fits": "yes", "DOES NOT FIT": "NO"}.get(verdict, line["fits"]) == line["fits"]
        assert (planned.step_ms is None) == (line["ms"] == "–")
        if planned.step_ms is not None:
            assert planned.step_ms == pytest.approx(float(line["plan ms"]), abs=0.06)
            assert planned.step_ms == pytest.approx(float(line["ms"]), rel=calibration.TOLERANCE)
        if planned.least_ms is not None:
            least = 1e3 * float(line["HBM GB"]) / where.accelerator.bandwidth_gb
            assert planned.least_ms <= least + 0.02  # the page's last digit


def test_figures_of_other_settings_are_not_given():
    """ViT's own figures are of float32 and our core: a kernel or a precision has others."""
    row = next(row for row in performance.ROWS if row.study == "imagenet_vit_paper")
    where = accelerators.topology(row.topology)
    assert set(calibration.predict(performance.resolved(row), where)) == {"standard", "laser"}
    for change in ("compute_dtype=bfloat16", "kernel=splash", "matmul_precision=float32"):
        changed = performance.resolved(row._replace(changed=change))
        assert calibration.predict(changed, where) == {}


def test_rows_that_did_not_calibrate_are_among_them():
    held_out = [row for row in performance.ROWS if not (row.calibrates or row.peer)]
    assert len({row.study for row in held_out}) >= 5
    assert {accelerators.topology(row.topology).accelerator.platform for row in held_out} == {
        "tpu",
        "cuda",
    }


@pytest.mark.parametrize("row", [row for row in performance.ROWS if row.peer], ids=str)
def test_peers_stand_beside(row):
    """As compiled where they were installed, else with the words."""
    line = performance.table()[*row[:3], f"{row.peer}'s own"]
    assert line["GB"] == "not installed" or float(line["GB"]) > 1


def test_a_verdict_leaves_to_the_compiler_what_it_cannot_tell():
    assert calibration.verdict(8.6, 10) == "fits"
    assert calibration.verdict(11.6, 10) == "DOES NOT FIT"
    for gb in (8.8, 10, 11.4):
        assert calibration.verdict(gb, 10) == "CLOSE, `python -m sweeps compile` decides"


def test_times_by_hand():
    """On v5e 197 TFLOP/s and 819 GB/s: 1.97 TFLOP are 10 ms, 8.19 GB too."""
    work = {"products": 1.97e12, "score_products": 3.94e12, "score_bytes": 8.19e9}
    ideal = calibration.ideal_ms(work, accelerators.KINDS["v5e"])
    assert ideal == pytest.approx({"products": 10, "score_products": 20, "score_bytes": 10})


def test_the_least_time_by_hand():
    """33.5232 GB at 3,352.32 GB/s are 10 ms; 9.894 TFLOP are 20 in TF32, 50 at v5e's 197."""
    row = {"flops": 9.894e11, "hbm_gb": 33.5232}
    assert performance.least_ms(row, accelerators.KINDS["h100"]) == pytest.approx(10)
    row["flops"] = 9.894e12
    assert performance.least_ms(row, accelerators.KINDS["h100"]) == pytest.approx(20)
    assert performance.least_ms(row, accelerators.KINDS["v5e"]) == pytest.approx(9894 / 197)
