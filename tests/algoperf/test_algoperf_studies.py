"""Studies of AlgoPerf's own workloads: names, identity, and what is refused before a start."""

import pytest

from sweeps.study import config, jax_calls
from tests.sweeps.conftest import begin_stage, resolve
from workloads import algoperf_specs, catalog
from workloads.algoperf import preflight
from workloads.base.errors import DataError

IMAGES, SPEECH = "algoperf:imagenet_vit", "algoperf:librispeech_conformer"


def test_every_workload_of_the_table_takes_a_variant():
    assert {algoperf_specs.short_name(name) for name in catalog.ALGOPERF} == set(
        algoperf_specs.INJECTION_POINTS
    )


@pytest.mark.parametrize("name", ["imagenet_vit", "librispeech_conformer"])
def test_the_paper_study_is_its_twins_with_another_workload(name):
    theirs, ours = (
        config.flat(config.parse(f"{p}{name}_paper", []).to_dict()) for p in ("algoperf_", "")
    )
    assert {key for key in ours if ours[key] != theirs[key]} == {
        "name", "workload", "loader_workers"}  # fmt: skip
    assert catalog.paper_rows(theirs["workload"]) == theirs["variants"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": SPEECH}, "AlgoPerf calls every word error rate 0"),
        ({"algoperf_dir": "/x"}, "algoperf_dir is for AlgoPerf's own workloads, and digits_vit"),
        ({"workload": IMAGES, "loader_workers": 4}, "choose their own threads"),
        ({"workload": IMAGES, "tokenizer_vocab_path": "/x"}, "imagenet_vit has no use"),
        ({"workload": IMAGES, "compute_dtype": "bfloat16"}, "has no compute_dtype"),
        ({"workload": "algoperf:finewebedu_lm", "diagnostics": 3}, "cannot be observed"),
    ],
)
def test_what_cannot_be_is_refused_before_a_start(changes, message):
    with pytest.raises(ValueError, match=message):
        resolve("digits_vit_quick", **changes)


def test_trials_know_where_things_lie_and_their_ids_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNPERF_ALGOPERF_DIR", "/from/environment")
    trials = []
    for path in ("relative.vocab", "/there/spm_model.vocab"):
        places = {"experiment_dir": tmp_path, "tokenizer_vocab_path": path}
        # One study, though it moved.
        trials.append(begin_stage(resolve("digits_vit_quick", workload=SPEECH, **places))[0])
    first, second = trials
    assert first.id == second.id
    assert second.extra_paths == {
        "algoperf_dir": "/from/environment",
        "tokenizer_vocab_path": "/there/spm_model.vocab",
    }
    assert first.tokenizer_vocab_path.startswith("/")
    assert first.path == "tune/standard/librispeech_conformer_jax/trial_1"


def test_what_a_host_lacks_is_named_with_what_to_do(stand_in, tmp_path, monkeypatch):
    """Without JAX and AlgoPerf."""
    paths = {"algoperf_dir": str(stand_in.directory), "tokenizer_vocab_path": str(tmp_path / "spm")}

    def refused(workload, words):
        with pytest.raises(DataError, match=words):
            jax_calls.data(workload, str(tmp_path), paths)

    monkeypatch.setattr(preflight, "_LIBRARIES", {"librispeech": ("no_such_library",)})
    refused(SPEECH, "needs no_such_library, not installed here")
    monkeypatch.setattr(preflight, "_LIBRARIES", {"librispeech": ("json",)})
    refused(SPEECH, "tokenizer_vocab_path=.*spm: no such file")
    (tmp_path / "spm").touch()
    refused(SPEECH, r"lacks .*train-clean-100.csv.*test-clean.csv")
    for split in (
        *preflight.TRAINING["librispeech_conformer"],
        *preflight.EVALUATION["librispeech_conformer"],
    ):
        (tmp_path / split).touch()
    lines = jax_calls.data(SPEECH, str(tmp_path), paths)["lines"]
    assert "has every part that librispeech_conformer reads" in lines[-1]
    paths = {"algoperf_dir": str(stand_in.directory)}
    refused("algoperf:wmt_post_ln", "has no workload 'wmt_post_ln'")
