"""Submissions as they were published: frameworks mixed, trials lost, nan as empty cells. Small
trees of the same shapes, written here."""

import json
import pathlib
import re

import pytest

from analysis import cli
from analysis.load import metrics, studies
from analysis.load.studies import read_study

WER = "global_step,preemption_count,test/wer,train/wer,validation/wer,validation/num_examples\n"
GOOD = WER + "1,0,0.6,0.4,0.5,9\n2,0,0.3,0.1,0.25,9\n"


def trial(root: pathlib.Path, name: str, text: str | None = GOOD, **records: dict) -> pathlib.Path:
    directory = root / name
    directory.mkdir(parents=True)
    if text is not None:
        (directory / "eval_measurements.csv").write_text(text)
    for file, record in records.items():
        (directory / f"{file}.json").write_text(json.dumps(record))
    return directory


@pytest.mark.parametrize(
    ("workload", "columns", "metric", "mode"),
    [
        ("wmt", ("accuracy", "bleu", "loss"), "bleu", "max"),
        ("wmt_glu_tanh", ("accuracy", "bleu", "loss"), "bleu", "max"),
        ("ogbg", ("accuracy", "loss", "mean_average_precision"), "mean_average_precision", "max"),
        ("ogbg_gelu", ("accuracy", "mean_average_precision"), "mean_average_precision", "max"),
        ("fastmri_tanh", ("loss", "ssim"), "ssim", "max"),
        ("criteo1tb_embed_init", ("loss",), "loss", "min"),
        ("imagenet_resnet_large_bn_init", ("accuracy", "loss"), "accuracy", "max"),
        ("librispeech_conformer_layernorm", ("ctc_loss", "wer"), "wer", "min"),
        ("librispeech_deepspeech", ("ctc_loss", "wer"), "wer", "min"),
        ("finewebedu_lm", ("loss", "ppl"), "ppl", "min"),
        ("another", ("accuracy", "bleu"), "bleu", "max"),
    ],
)
def test_every_workloads_target_by_its_name(tmp_path, workload, columns, metric, mode) -> None:
    """Translation and molecules have an accuracy beside the metric that AlgoPerf scores by."""
    names = [f"validation/{name}" for name in columns]
    text = f"global_step,{','.join(names)}\n1,{','.join('1' for _ in names)}\n"
    trial(tmp_path, f"study_0/{workload}_pytorch/trial_1", text)
    run = read_study(tmp_path).runs[0]
    assert (run.workload, run.metric, metrics.get(run.metric).mode) == (workload, metric, mode)


def test_a_trial_without_evaluations_has_its_workloads_target(tmp_path) -> None:
    trial(tmp_path, "study_0/wmt_post_ln_jax/trial_1", None)
    assert read_study(tmp_path).runs[0].metric == "bleu"


def test_the_metadatas_metric_and_targets_come_first(tmp_path) -> None:
    meta = {
        "workload.target_metric_name": "loss",
        "workload.validation_target_value": 2.5,
        "workload.test_target_value": 2.25,
        "workload.step_hint": 800,
    }
    text = "global_step,validation/loss,validation/wer\n1,3,0.5\n"
    trial(tmp_path, "study_0/librispeech_x_jax/trial_1", text, meta_data_0=meta,
          flags_0={"max_global_steps": 2400})  # fmt: skip
    run = read_study(tmp_path).runs[0]
    assert (run.metric, run.step_hint, run.steps) == ("loss", 800, 2400)
    assert run.targets == {"metric": "loss", "validation": 2.5, "test": 2.25}


def test_studies_of_published_logs_share_no_seeds(tmp_path) -> None:
    trial(tmp_path, "study_0/w_jax/trial_1")
    assert not read_study(tmp_path).shares_seeds


def test_both_frameworks_of_one_workload_are_two_variants(tmp_path) -> None:
    """One submission's trial_1 on one study would otherwise be two results for one seed."""
    root = tmp_path / "adam"
    for name in ("w_jax", "w_pytorch", "v_pytorch"):
        trial(root, f"study_0/{name}/trial_1")
    assert [(run.variant, run.workload) for run in read_study(root).runs] == [
        ("adam", "v"),
        ("adam (jax)", "w"),
        ("adam (pytorch)", "w"),
    ]


def test_a_trial_that_other_studies_have_is_missing_by_name(tmp_path) -> None:
    root = tmp_path / "adam"
    for name in ("study_0/w_jax/trial_1", "study_0/w_jax/trial_2", "study_1/w_jax/trial_1"):
        trial(root, name)
    (root / "study_1" / "v_jax").mkdir()
    assert read_study(root).problems == (
        "missing: study_1/v_jax: no trial_<n> in it",
        "missing: study_1/w_jax/trial_2: other studies of adam have this trial",
    )


def test_a_trial_outside_a_workloads_directory_is_named_and_left_out(tmp_path) -> None:
    trial(tmp_path, "study_0/w_jax/trial_1")
    trial(tmp_path, "study_0/trial_1")
    study = read_study(tmp_path)
    assert len(study.runs) == 1
    assert study.problems == (
        "unknown format: study_0/trial_1: not <workload>_jax or _pytorch, left out",
    )


def test_a_trial_that_began_and_evaluated_nothing_has_failed(tmp_path) -> None:
    one = trial(tmp_path, "study_0/w_jax/trial_1", None, flags_0={"tuning_ruleset": "self"})
    (one / "measurements.csv").write_text("global_step,loss\n0,10.5\n")
    trial(tmp_path, "study_0/w_jax/trial_2", WER, flags_0={"tuning_ruleset": "external"})
    trial(tmp_path, "study_0/w_jax/trial_3", None)
    study = read_study(tmp_path)
    assert [run.state for run in study.runs] == ["failed", "failed", "pending"]
    assert study.runs[0].losses()["loss"].tolist() == [10.5]
    assert study.problems == (
        "failed: study_0/w_jax/trial_1: it began and left no eval_measurements.csv",
        "missing: study_0/w_jax/trial_2: no hparams.json",
        "failed: study_0/w_jax/trial_2: it began and left no complete evaluation",
        "missing: study_0/w_jax/trial_3: no eval_measurements.csv",
    )


def test_an_empty_metric_in_an_evaluation_is_nan_as_pandas_writes_it(tmp_path) -> None:
    """From step 2 on there is no finite loss; the numbers of examples show that it evaluated."""
    text = (
        "global_step,test/loss,train/loss,validation/loss,validation/num_examples,preemption_count\n"
        "1,0.5,0.5,0.5,9,0\n2,,,,9,0\n3,,,nan,9,0\n"
    )
    trial(tmp_path, "study_0/w_jax/trial_1", text)
    study = read_study(tmp_path)
    assert study.problems == (
        "non-finite: study_0/w_jax/trial_1: "
        "test/loss, train/loss, validation/loss at step 2 (2 evaluations)",
    )
    assert study.runs[0].last_step == 3


def test_rows_that_evaluate_nothing_are_no_evaluations(tmp_path) -> None:
    text = (
        "global_step,loss,test/wer,train/wer,validation/wer,preemption_count\n"
        "1,5,,,,\n2,4,,,,\n2,,0.5,0.5,0.5,0\n3,3,,,,\n"
    )
    trial(tmp_path, "study_0/w_jax/trial_1", text)
    study = read_study(tmp_path)
    assert study.runs[0].evals["global_step"].tolist() == [2]
    assert study.notes == (
        "study_0/w_jax/trial_1: mixed rows: 2 of 3 evaluate nothing and are left out",
    )
    assert study.problems == ()


def test_columns_that_are_not_there_are_noted_once_for_all_trials(tmp_path, capsys) -> None:
    for number in (1, 2):
        trial(tmp_path, f"study_0/w_jax/trial_{number}", "global_step,validation/wer\n1,0.5\n")
    assert cli.main(["runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "all 2 trials: no column train/wer, test/wer, preemption_count\n" in printed


def test_a_csv_of_something_else_is_of_an_unknown_format(tmp_path) -> None:
    trial(tmp_path, "study_0/w_jax/trial_1", "epoch,accuracy\n1,0.5\n")
    assert read_study(tmp_path).problems[0] == (
        "unknown format: study_0/w_jax/trial_1/eval_measurements.csv: "
        "no column global_step in its header, which begins 'epoch,accuracy'"
    )


@pytest.mark.parametrize("command", ["runs", "table"])
def test_submissions_of_several_rulesets_are_read_together(tmp_path, command, capsys) -> None:
    for submission, value in (("adam", 0.25), ("shampoo", 0.125)):
        for study in (0, 1):
            text = WER + f"1,0,0.5,0.5,{value},9\n"
            trial(tmp_path / submission, f"study_{study}/w_jax/trial_1", text)
    assert cli.main([command, str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "adam" in printed
    assert "0.1250" in printed


LAYOUT = r"looked for study\.json and for AlgoPerf's study_<seed>/<workload>_<framework>/trial_<n>"


@pytest.mark.parametrize(
    ("made", "given", "says"),
    [
        ("l/external/adam/study_0/w_jax/trial_1", "l", "did you mean one of these in it: external"),
        ("l/v/logs/self/adam/study_0/w_jax/trial_1", "l", "one of these in it: v/logs/self"),
        ("adam/study_0/w_jax/trial_1", "adam/study_0", r"AlgoPerf's logs in \S*adam: give that"),
        ("adam/study_0/w_jax/trial_1", "adam/study_0/w_jax/trial_1", "a part of AlgoPerf's logs"),
        ("a/study_0/wmt/run_1", "a", r"study_0 fits, but no <workload>_jax or .* in it, only wmt"),
        ("a/study_0/wmt_jax/run_1", "a", "study_0/wmt_jax fits, but no trial_<n> is in it, only"),
        ("a/b/wmt_jax/c", "a", r"found b/wmt_jax/c/eval_measurements\.csv, of which wmt_jax fits"),
        ("a/b/c", "a", "no part fits"),
    ],
)  # fmt: skip
def test_an_unknown_layout_says_which_part_fits(tmp_path, made, given, says) -> None:
    trial(tmp_path, made)
    with pytest.raises(ValueError, match=says):
        read_study(tmp_path / given)
    with pytest.raises(ValueError, match=LAYOUT):
        read_study(tmp_path / given)


def test_a_study_whose_record_was_lost_says_so(tmp_path) -> None:
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "trials.json").write_text("{}")
    with pytest.raises(ValueError, match=r"there is a trials\.json, so that study\.json was lost"):
        read_study(tmp_path)


def test_figures_of_a_test_split_without_examples_are_left_out(tmp_path, capsys) -> None:
    """AlgoPerf reports a test perplexity of 1 on finewebedu_lm, which has no test split."""
    names = (
        "global_step,test/loss,test/num_examples,test/ppl,validation/num_examples,validation/ppl"
    )
    for number, best in ((1, 25.5), (2, 26.5)):
        text = f"{names}\n36000,0.0,0,1.0,100000,30.25\n72000,0.0,0,1.0,100000,{best}\n"
        trial(tmp_path, f"study_{number}/finewebedu_lm_jax/trial_1", text, hparams={"beta2": 0.99})
    run = read_study(tmp_path).runs[0]
    assert not {"test/loss", "test/ppl"} & set(run.evals)
    assert cli.main(["table", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "perplexity" in shown
    assert "26.000" in shown  # the median of validation's best
    assert "1.000 " not in shown


def test_trials_on_fabricated_data_are_named(tmp_path, capsys) -> None:
    text = WER + "76000,0,0.3,0.1,0.25,9\n"
    meta = {"workload.attnperf_tiny": True}
    trial(tmp_path, "study_0/librispeech_conformer_jax/trial_1", text, meta_data_0=meta)
    trial(tmp_path, "study_1/librispeech_conformer_jax/trial_1", text, meta_data_0={})
    cli.main(["table", str(tmp_path)])
    shown = capsys.readouterr().out
    assert shown.count("fabricated:") == 1
    assert "study_0/librispeech_conformer_jax/trial_1: its data is that of `algoperf_data`" in shown


def logs(root: pathlib.Path, **folders: dict) -> pathlib.Path:
    """Writes a trial per folder; its value is what flags_0.json and meta_data_0.json record."""
    for seed, (folder, records) in enumerate(folders.items()):
        trial(root, f"{folder}/study_0/w_jax/trial_1", GOOD.replace("0.25", f"0.2{seed}"),
              **records)  # fmt: skip
    return root


def flags(attention: str, tau: float = 1.0) -> dict:
    return {"flags_0": {"attention": attention, "attention_tau": tau}}


def test_rows_are_named_by_the_recorded_variant_and_compared(tmp_path, capsys) -> None:
    meta = {"workload.attention": "laser+temp", "workload.attention_tau": 0.9}
    root = logs(tmp_path, exp_a=flags("standard"), exp_b={"meta_data_0": meta})
    study = read_study(root)
    found = [(run.variant, run.variant_hyperparameters) for run in study.runs]
    assert found == [("standard", {}), ("laser+temp", {"tau": 0.9})]
    assert study.problems == ()
    assert cli.main(["table", str(root)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"Standard .* baseline", shown)
    assert re.search(r"LASER \+ temp .* cannot tell", shown)
    assert "tau = 0.9" in shown


def test_a_folder_that_contradicts_the_record_is_named(tmp_path, capsys) -> None:
    root = logs(tmp_path, standard=flags("laser"), laser=flags("laser"))
    study = read_study(root)
    assert [run.variant for run in study.runs] == ["laser", "laser (standard)"]
    (problem,) = study.problems
    assert problem.startswith("mismatch: standard: the folder is called so")
    assert "1 of its 1 trials say attention laser" in problem
    assert cli.main(["table", str(root / "standard")]) == 0
    shown = capsys.readouterr().out
    assert "mismatch: standard: the folder is called so" in shown
    assert "Standard" not in shown


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (
            {"a": flags("laser+temp", 0.9), "b": flags("laser+temp", 0.8)},
            ["laser+temp (tau = 0.9)", "laser+temp (tau = 0.8)"],
        ),
        ({"a": flags("laser"), "b": flags("laser")}, ["laser (a)", "laser (b)"]),
        ({"a": flags("laser"), "laser": flags("laser", 0.5)}, ["laser (a)", "laser"]),
        ({"a": flags("laser+temp+qk_norm", 0.9)}, ["laser+qk_norm+temp"]),
        ({"a": flags("mine"), "b": {}}, ["mine", "b"]),
    ],
)
def test_what_is_not_the_same_has_another_name(tmp_path, folders, names) -> None:
    study = read_study(logs(tmp_path, **folders))
    assert [run.variant for run in study.runs] == names
    assert study.problems == ()


@pytest.mark.parametrize(
    ("records", "variant", "says"),
    [
        (flags("laser norm"), "a", "its attention is 'laser norm', no variant's name"),
        (flags(""), "a", "its attention is '', no variant's name"),
        (flags("+temp"), "a", "no variant's name"),
        (flags(5), "a", "attention is 5, expected text or null"),
        (flags("laser+temp", "high"), "laser+temp", "attention_tau is 'high', expected a finite"),
        (
            flags("laser") | {"meta_data_0": {"workload.attention": "standard"}},
            "standard",
            "flags_0.json says attention laser, meta_data_0.json standard",
        ),
    ],
)
def test_records_of_a_variant_that_cannot_be_used(tmp_path, records, variant, says) -> None:
    study = read_study(logs(tmp_path, a=records))
    assert [run.variant for run in study.runs] == [variant]
    (problem,) = study.problems
    assert says in problem


def test_trials_that_record_nothing_beside_others_that_do(tmp_path) -> None:
    root = logs(tmp_path, exp=flags("laser"))
    trial(root, "exp/study_1/w_jax/trial_1")
    study = read_study(root)
    assert [run.variant for run in study.runs] == ["laser", "exp"]
    assert "1 of its trials record no attention" in study.problems[0]


def test_a_problem_stands_under_one_table(tmp_path) -> None:
    """That of a workload's directory under its own, others under the first."""
    for name in ("a/study_0/v_jax/trial_1", "a/study_0/w_jax/trial_1", "a/study_1/w_jax/trial_1",
                 "a/study_1/v_jax/trial_1", "a/study_1/w_jax/trial_2"):  # fmt: skip
        trial(tmp_path, name)
    (tmp_path / "a/study_0/other").mkdir()
    first, second = studies.read_each(tmp_path)
    assert (first.workload, second.workload) == ("v", "w")
    assert first.problems == (
        "unknown format: a/study_0/other: not <workload>_jax or _pytorch, left out",
    )
    assert second.problems == (
        "missing: a/study_0/w_jax/trial_2: other studies of a have this trial",
    )
