"""Refusals before anything of init2winit is imported."""

import json
import sys

import pytest

from workloads.algoperf.preflight import Request
from workloads.base import host_checkout
from workloads.init2winit import installation, preflight

ARGUMENTS = (
    "--config.model=vit", "--config.dataset=fake", "--config.num_train_steps=4",
    "--experiment_dir=/nowhere/experiment",
)  # fmt: skip


def _check(stand_in, *arguments, attention="laser", tau=None, data_dir=None, base=ARGUMENTS):
    return preflight.check(Request(attention, tau, (*base, *arguments)), stand_in, data_dir)


def test_a_run_is_admitted_and_nothing_is_imported(stand_in):
    run = _check(stand_in, "--worker_id=3", attention="laser+temp+qk_norm", tau=0.5)
    assert run.record == {
        "attention": "laser+qk_norm+temp",
        "attention_tau": 0.5,
        "model": "vit",
        "dataset": "fake",
        "num_train_steps": 4,
    }
    assert (str(run.experiment_dir), run.worker_id) == ("/nowhere/experiment", 3)
    assert run.arguments[0] == f"--config={preflight.CONFIG}"
    assert run.note is None
    assert "init2winit" not in sys.modules
    _check(stand_in, "--config.model=transformer", attention="sigmoid")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--config.model=resnet",), r"unknown init2winit model with attention 'resnet'\. Known: "),
        (("--config.model=vti",), "Did you mean 'vit'"),
        (("--config.model=xformer_translate_binary",), "no variant was tried in init2winit's xfor"),
        (("--config.dataset=pile",), r"no data set 'pile'; it has \['fake'"),
        (("--config.dataset=wikitext2",), "wikitext2: fails in init2winit itself"),
        (
            ("--config.dataset=wikitext103",),
            "test.txt; give --data_dir=DIR",
        ),
        (("--config.models=vit",), "models"),
        (("--model=vit",), r"no such flag any more .* --config.model="),
        (("--hparam_overrides={}",), "--config.hparam_overrides_json="),
        (("--experiment_dir=here",), r"need an absolute path; give --experiment_dir=/"),
        (("--experiment_dir=",), "needs --experiment_dir"),
        (("--worker_id=one",), "worker_id"),
    ],
)
def test_flags_that_cannot_be_are_refused(stand_in, arguments, words):
    with pytest.raises(ValueError, match=words):
        _check(stand_in, *arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": ()}, "needs --config.model=…"),
        ({"base": ("--config.model=vit",)}, "needs --config.num_train_steps=…"),
        ({"base": ("--config=nowhere.py", *ARGUMENTS)}, "nowhere.py"),
        ({"attention": "lazer"}, "laser"),
        ({"attention": "laser+temp"}, "needs its temperature; give --tau=0.9"),
        ({"attention": "sigmoid"}, "'sigmoid' needs a softmax"),
        (
            {"attention": "standard+qk_norm", "base": (*ARGUMENTS, "--config.model=nanodo")},
            "nanodo.*divides its queries",
        ),
    ],
)
def test_what_a_run_lacks_is_named(stand_in, changes, words):
    with pytest.raises(ValueError, match=words):
        _check(stand_in, **changes)


def test_data_that_tfds_would_download_are_refused(stand_in, tmp_path, monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    with pytest.raises(ValueError, match=r"would download it; .* --data_dir=DIR"):
        _check(stand_in, "--config.dataset=mnist", data_dir=str(tmp_path))
    prepared = tmp_path / "mnist/3.0.1"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text("{}")
    _check(stand_in, "--config.dataset=mnist", data_dir=str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    _check(stand_in, "--config.dataset=mnist")


def test_another_variants_run_is_not_gone_on_from(stand_in, tmp_path):
    place = f"--experiment_dir={tmp_path}"
    record = {"status": "incomplete", **_check(stand_in, place).record}
    meta = tmp_path / "1" / preflight.META
    meta.parent.mkdir()
    meta.write_text(json.dumps(record))
    assert "goes on from its last checkpoint" in _check(stand_in, place).note
    meta.write_text(json.dumps(record | {"init2winit_commit": "0123456"}))
    assert "which init2winit 0123456 wrote" in _check(stand_in, place).note
    with pytest.raises(ValueError, match=r"holds a run with attention 'laser'"):
        _check(stand_in, place, attention="standard")
    meta.write_text("{")
    with pytest.raises(ValueError, match=r"attention None"):
        _check(stand_in, place)


def test_a_directory_that_is_not_init2winit_says_so(tmp_path):
    with pytest.raises(host_checkout.MissingError, match="is not init2winit: it lacks"):
        installation.find(tmp_path)
