"""A study measures the laws of its variants before it trains, once for each state of the code."""

import jax.numpy as jnp
import pytest

from attention import records, table
from sweeps import __main__ as command
from sweeps.monitoring import jax_calls
from sweeps.scheduling import preflight


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Variants and laws of each question; nothing is measured."""
    questions = []

    def call(function, *, variants, laws):
        assert function is jax_calls.check_laws
        questions.append((sorted(variants), laws))

    monkeypatch.setattr(jax_calls, "call", call)
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path / "cache"))
    return questions


def test_laws_are_asked_once_for_each_variant_and_state_of_the_code(make_study, monkeypatch, asked):
    preflight.check_laws(make_study(variants="standard,standard+temp"))
    preflight.check_laws(make_study(variants="standard,standard+temp"))
    preflight.check_laws(make_study(variants="standard,standard+temp", tau=0.5))
    monkeypatch.setattr(preflight, "_mechanisms", lambda: ["another"])
    preflight.check_laws(make_study(variants="standard,standard+temp"))
    both = ["standard", "standard+temp"]
    assert asked == [(both, ("batch",)), (["standard+temp"], ("batch",)), (both, ("batch",))]


@pytest.mark.parametrize(
    ("settings", "laws"),
    [
        ({"workload": "pydoc_lm"}, ("batch", "causality")),
        ({"workload": "pydoc_lm", "document_mask": True}, ("batch", "causality", "segments")),
        ({"workload": "pydoc_finewebedu"}, ("batch", "causality")),
        ({"workload": "pydoc_bert"}, ("batch",)),
        ({"workload": "spoken_digits_conformer"}, ("batch",)),
    ],
)
def test_what_a_model_hides_is_asked(make_study, asked, settings, laws):
    preflight.check_laws(make_study(**settings, variants="standard"))
    assert asked == [(["standard"], laws)]


def test_a_cache_that_cannot_be_written_is_asked_again(make_study, monkeypatch, tmp_path, asked):
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    for _ in range(2):
        preflight.check_laws(make_study(variants="standard"))
    assert len(asked) == 2


@pytest.fixture
def leaky(monkeypatch):
    """A modifier of the score that reads the next key."""
    roll = lambda logits, *_: logits + jnp.roll(logits, -1, -1)  # noqa: E731
    record = records.Modifier("score", roll, roll)
    monkeypatch.setattr(records, "modifier", lambda name: record)
    monkeypatch.setitem(table.MODIFIERS, "leaky", table.ModifierEntry("leaky", "f", "a test"))
    return "standard+leaky"


def test_a_leak_is_refused_by_name(leaky):
    jax_calls.check_laws({leaky: {}}, ("batch",))
    with pytest.raises(
        ValueError, match=r"'standard\+leaky'.* later keys.*attention check"
    ) as error:
        jax_calls.check_laws({"standard": {}, leaky: {}}, ("batch", "causality"))
    assert "'standard'" not in str(error.value)


def test_a_study_is_refused_before_its_data_and_goes_on_without_the_variant(
    monkeypatch, tmp_path, leaky, capsys
):
    """The refusal is not remembered as an answer."""

    def check_data(study):
        raise ValueError("data")

    monkeypatch.setattr(jax_calls, "call", lambda function, **arguments: function(**arguments))
    monkeypatch.setattr(preflight, "check_data", check_data)
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path / "cache"))
    given = ["run", "--config=pydoc_lm_quick", f"--config.experiment_dir={tmp_path}"]
    for variants, named in ((f"standard,{leaky}", leaky),) * 2 + (("standard", "data"),):
        assert command.main([*given, f"--config.variants={variants}"]) == 2
        assert named in capsys.readouterr().err
