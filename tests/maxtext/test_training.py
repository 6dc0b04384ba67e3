"""MaxText's own training with a variant, where MaxText is installed (`make test-maxtext`)."""

import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.maxtext.formula import laser

maxtext = pytest.importorskip("maxtext", reason="MaxText is not installed")

# MaxText 0.2.5 calls what jax and flax deprecate.
pytestmark = pytest.mark.filterwarnings("default")

SETTINGS = (
    *("base_emb_dim=32", "base_num_decoder_layers=3", "base_mlp_dim=64", "base_num_query_heads=4"),
    *("base_num_kv_heads=2", "head_dim=8", "vocab_size=128", "max_target_length=32"),
    *("dtype=float32", "weight_dtype=float32", "matmul_precision=highest", "learning_rate=0.01"),
    *("dataset_type=synthetic", "per_device_batch_size=2", "attention=dot_product"),
    *("enable_checkpointing=False", "enable_tensorboard=False", "run_name=tiny"),
    *("enable_goodput_recording=False", "monitor_goodput=False"),
)
CONFIG = str(pathlib.Path(maxtext.__path__[0]) / "configs" / "base.yml")
OURS = ("-m", "workloads", "maxtext")
# Without a limit of segments MaxText's synthetic sequences are one segment each.
SEGMENTS = "max_segments_per_seq=4"
MASKS = {
    "causal": (),
    "window and segments": ("attention_type=local_sliding", "sliding_window_size=4", SEGMENTS),
}


def _train(folder, command, *settings):
    """Returns the losses of a run in a process of its own."""
    folder.mkdir()
    metrics = folder / "metrics.jsonl"
    paths = (f"metrics_file={metrics}", f"base_output_directory={folder}")
    done = subprocess.run(
        [sys.executable, *command, CONFIG, *SETTINGS, *paths, *settings],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return np.array([row["learning/loss"] for row in rows if "learning/loss" in row])


@pytest.mark.slow
@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_standard_has_the_losses_of_maxtext(tmp_path, scanned, mask):
    settings = ("steps=20", f"scan_layers={scanned}", *MASKS[mask])
    own = _train(tmp_path / "own", ("-m", "maxtext.trainers.pre_train.train"), *settings)
    ours = _train(tmp_path / "ours", (*OURS, "--attention=standard", "--"), *settings)
    assert len(own) == 20
    np.testing.assert_allclose(ours, own, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["laser+gate+qk_norm+fox+sink", "diff2_laser"])
def test_learned_leaves_train_on_two_devices(tmp_path, monkeypatch, variant):
    """MaxText refuses parameters of which more than 2 % lie whole on each device."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    losses = _train(tmp_path / "run", (*OURS, f"--attention={variant}", "--"), "steps=10")
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_restored_run_has_the_losses_of_one_without_a_stop(tmp_path):
    command = (*OURS, "--attention=laser+gate", "--")
    schedule = "learning_rate_schedule_steps=20"
    whole = _train(tmp_path / "whole", command, schedule, "steps=20")
    saved = ("enable_checkpointing=True", "skip_jax_distributed_system=True")
    saved += (f"base_output_directory={tmp_path}",)
    _train(tmp_path / "stopped", command, schedule, *saved, "steps=10")
    restored = _train(tmp_path / "restored", command, schedule, *saved, "steps=20")
    np.testing.assert_array_equal(restored, whole[10:])


@pytest.mark.slow
def test_laser_is_the_formula_on_the_tensors_of_maxtext(tmp_path, monkeypatch):
    from attention.variant import Variant
    from workloads.maxtext import runner

    calls = []
    attend = Variant.attend

    def recorded(self, call, **settings):
        output, memory = attend(self, call, **settings)
        # Leaves are made by a call without segments.
        if call.mask.segments is not None:
            arrays = (call.query, call.key, call.value, call.mask.segments[0], output)
            jax.debug.callback(lambda *arrays: calls.append([*map(np.asarray, arrays)]), *arrays)
        return output, memory

    monkeypatch.setattr(Variant, "attend", recorded)
    paths = (f"base_output_directory={tmp_path}", "steps=1", "scan_layers=False", SEGMENTS)
    runner.run("laser", None, [CONFIG, *SETTINGS, *paths])
    jax.effects_barrier()
    *arrays, segments, output = calls[0]
    assert segments.max() > 1
    seen = np.tril(segments[:, None, :, None] == segments[:, None, None, :])
    expected = laser(*arrays, seen)
    np.testing.assert_allclose(output, expected, rtol=0, atol=2e-5)
