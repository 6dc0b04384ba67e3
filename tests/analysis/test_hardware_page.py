"""`python -m analysis hardware`: a report of devices, whole, bad and damaged."""

import json

import pytest

from analysis import cli

_STEP = {
    "part": "steps", "what": "c4_lm_paper, 16 examples, laser by fused", "verdict": "DIFFERS",
    "said": "400.0 ms",
    "figures": {"step_ms": 400.0, "memory_gb": 2.5, "plan_ms": 320.0, "plan_gb": 2.4,
                "over_standard": 1.025},
}  # fmt: skip
_KERNEL = {
    "part": "kernels", "what": "cudnn", "verdict": "not here", "said": "runs on gpu", "figures": {},
}  # fmt: skip
_RECORD = {
    "format": "attnperf-hardware-1",
    "devices": {"kind": "TPU v5 lite", "count": 4, "versions": {"jax": "0.10.2"}},
    "lines": [_STEP, _KERNEL],
}


def _run(tmp_path, record, *arguments):
    path = tmp_path / "hardware.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return cli.main(["hardware", str(path), *arguments])


def test_the_page(tmp_path, capsys):
    assert _run(tmp_path, _RECORD, "--format=markdown") == 0
    captured = capsys.readouterr()
    assert "4 × TPU v5 lite" in captured.out
    row = "| c4_lm_paper, 16 examples, laser by fused | DIFFERS | 400.0 | 320.0 | 2.50 | – | 2.40 |"
    assert row in captured.out
    assert "| kernels | cudnn | not here | runs on gpu |" in captured.out
    assert "DIFFERS: steps: c4_lm_paper" in captured.out + captured.err


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "hardware.json"),
        ({**_RECORD, "format": "other"}, "its format is 'other'; 'attnperf-hardware-1' is known"),
        ({**_RECORD, "lines": None}, "it has no lines"),
        ({**_RECORD, "lines": [{"part": "steps"}]}, "line 0 lacks what, verdict, said, figures"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, record, message, capsys):
    assert _run(tmp_path, record) == 2
    assert message in capsys.readouterr().err
