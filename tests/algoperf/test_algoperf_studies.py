"""Studies of AlgoPerf's own workloads: names, identity, and what is refused before a start."""

import pytest

from sweeps.study import config, jax_calls, study, study_directory
from tests.sweeps import defaults
from workloads import algoperf_specs, catalog
from workloads.algoperf import preflight
from workloads.base.errors import DataError


def _study(tmp_path, *changes):
    changed = dict(change.split("=", 1) for change in changes)
    settings = {**defaults.SMALL, "experiment_dir": tmp_path, **changed}
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    return study.resolve(config.parse("digits_vit_quick", overrides))


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
        (["workload=algoperf:librispeech_conformer"], "AlgoPerf calls every word error rate 0"),
        (["algoperf_dir=/x"], "algoperf_dir is for AlgoPerf's own workloads, and digits_vit"),
        (["workload=algoperf:imagenet_vit", "loader_workers=4"], "choose their own threads"),
        (["workload=algoperf:imagenet_vit", "tokenizer_vocab_path=/x"], "imagenet_vit has no use"),
        (["workload=algoperf:imagenet_vit", "compute_dtype=bfloat16"], "has no compute_dtype"),
        (["workload=algoperf:finewebedu_lm", "diagnostics=3"], "cannot be observed"),
    ],
)
def test_what_cannot_be_is_refused_before_a_start(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        _study(tmp_path, *changes)


def test_trials_know_where_things_lie_and_their_ids_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNPERF_ALGOPERF_DIR", "/from/environment")
    speech = "workload=algoperf:librispeech_conformer"
    made = [
        _study(tmp_path, speech, f"tokenizer_vocab_path={path}")
        for path in ("relative.vocab", "/there/spm_model.vocab")
    ]
    for study_of in made:
        study_directory.prepare(study_of)  # one study, though it moved
    first, second = (study_of.trials("tune")[0] for study_of in made)
    assert first.id == second.id
    assert second.extra_paths == {
        "algoperf_dir": "/from/environment",
        "tokenizer_vocab_path": "/there/spm_model.vocab",
    }
    assert first.tokenizer_vocab_path.startswith("/")
    assert first.path == "tune/standard/librispeech_conformer_jax/trial_1"


def test_what_a_host_lacks_is_named_with_what_to_do(stand_in, tmp_path, monkeypatch):
    """Without JAX and AlgoPerf."""
    speech = "librispeech_conformer"
    name = f"algoperf:{speech}"
    paths = {"algoperf_dir": str(stand_in.directory), "tokenizer_vocab_path": str(tmp_path / "spm")}

    def refused(workload, words):
        with pytest.raises(DataError, match=words):
            jax_calls.data(workload, str(tmp_path), paths)

    monkeypatch.setattr(preflight, "_LIBRARIES", {"librispeech": ("no_such_library",)})
    refused(name, "needs no_such_library, not installed here")
    monkeypatch.setattr(preflight, "_LIBRARIES", {"librispeech": ("json",)})
    refused(name, "tokenizer_vocab_path=.*spm: no such file")
    (tmp_path / "spm").touch()
    refused(name, r"lacks .*train-clean-100.csv.*test-clean.csv")
    for split in (
        *preflight.TRAINING["librispeech_conformer"],
        *preflight.EVALUATION["librispeech_conformer"],
    ):
        (tmp_path / split).touch()
    lines = jax_calls.data(name, str(tmp_path), paths)["lines"]
    assert "has every part that librispeech_conformer reads" in lines[-1]
    paths = {"algoperf_dir": str(stand_in.directory)}
    refused("algoperf:wmt_post_ln", "has no workload 'wmt_post_ln'")
