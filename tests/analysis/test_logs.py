"""AlgoPerf's logs, published ones and those that name our variants: small trees of the same shapes,
and AlgoPerf's real logs if they are there."""

import json
import pathlib

import pytest

from analysis.compare.error_table import build
from analysis.load import metrics, studies
from analysis.load.records import Problem
from analysis.load.studies import read_study
from analysis.views import runs as listing

WER = "global_step,preemption_count,test/wer,train/wer,validation/wer,validation/num_examples\n"
GOOD = WER + "1,0,0.6,0.4,0.5,9\n2,0,0.3,0.1,0.25,9\n"
FIRST = "study_0/w_jax/trial_1"


def trial(root: pathlib.Path, name: str, text: str | None = GOOD, **records: dict) -> pathlib.Path:
    directory = root / name
    directory.mkdir(parents=True)
    if text is not None:
        (directory / "eval_measurements.csv").write_text(text)
    for file, record in records.items():
        (directory / f"{file}.json").write_text(json.dumps(record))
    return directory


def kinds(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.kind, problem.trial) for problem in problems]


def test_published_logs_have_no_problem_and_the_published_medians(shared) -> None:
    study = read_study(shared / "algoperf_logs/baseline")
    assert (study.published, study.shares_seeds, study.problems) == (True, False, ())
    assert len(study.runs) == 2 * 5 * 5
    assert {(run.seed, run.point) for run in study.runs} == {
        (seed, point) for seed in range(5) for point in range(1, 6)
    }
    vit = next(run for run in study.runs if run.name.endswith("vit_jax/trial_1"))
    targets = {"metric": "accuracy", "validation": 0.77309, "test": 0.6519}
    assert vit.targets == pytest.approx(targets)
    assert (vit.step_hint, vit.steps) == (186666, 186666)
    over_seeds = listing.medians(listing.trials(study)).set_index("workload")
    for workload, column, values, digits in (
        ("imagenet_vit", "median", [0.2398, 0.2168, 0.2432, 0.2769, 0.2538], 5e-5),
        ("librispeech_conformer", "median", [0.08369, 0.0904, 0.08148, 0.11587, 0.08191], 5e-6),
        ("librispeech_conformer", "sd", [0.0014, 0.0168, 0.0010, 0.0087, 0.0023], 5e-5),
    ):
        assert list(over_seeds.loc[workload, column]) == pytest.approx(values, abs=digits)


def test_published_logs_as_tables(shared) -> None:
    """The best of five points is the one with the best median over five studies."""
    tables = [build(study) for study in studies.read_each(shared / "algoperf_logs/baseline")]
    for table, name, point, median in zip(
        tables, ("error", "wer"), (2, 3), (0.2168, 0.08148), strict=True
    ):
        (row,) = table.rows
        assert (row.variant, row.point, row.n, table.metric.name) == ("baseline", point, 5, name)
        assert row.splits["validation"].summary.median == pytest.approx(median, abs=5e-5)
        assert (table.baseline_row, table.problems) == (None, ())


@pytest.mark.parametrize(
    ("workload", "columns", "metric", "mode"),
    [
        ("wmt_glu_tanh", ("accuracy", "bleu", "loss"), "bleu", "max"),
        ("ogbg", ("accuracy", "loss", "mean_average_precision"), "mean_average_precision", "max"),
        ("fastmri_tanh", ("loss", "ssim"), "ssim", "max"),
        ("criteo1tb_embed_init", ("loss",), "loss", "min"),
        ("imagenet_resnet_large_bn_init", ("accuracy", "loss"), "accuracy", "max"),
        ("librispeech_deepspeech", ("ctc_loss", "wer"), "wer", "min"),
        ("finewebedu_lm", ("loss", "ppl"), "ppl", "min"),
        ("wmt", (), "bleu", "max"),
        ("another", ("accuracy", "bleu"), "bleu", "max"),
    ],
)
def test_every_workloads_target_by_its_name(tmp_path, workload, columns, metric, mode) -> None:
    """Translation and molecules have an accuracy beside the metric that AlgoPerf scores by."""
    names = [f"validation/{name}" for name in columns]
    text = f"global_step,{','.join(names)}\n1,{','.join('1' for _ in names)}\n"
    trial(tmp_path, f"study_0/{workload}_pytorch/trial_1", text if columns else None)
    run = read_study(tmp_path).runs[0]
    assert (run.workload, run.metric, metrics.get(run.metric).mode) == (workload, metric, mode)


def test_the_metadatas_metric_and_targets_come_first(tmp_path) -> None:
    meta = {
        "workload.target_metric_name": "loss",
        "workload.validation_target_value": 2.5,
        "workload.test_target_value": 2.25,
        "workload.step_hint": 800,
    }
    text = "global_step,validation/loss,validation/wer\n1,3,0.5\n"
    trial(tmp_path, FIRST, text, meta_data_0=meta, flags_0={"max_global_steps": 2400})
    study = read_study(tmp_path)
    run = study.runs[0]
    assert (run.metric, run.step_hint, run.steps) == ("loss", 800, 2400)
    assert run.targets == {"metric": "loss", "validation": 2.5, "test": 2.25}
    assert not study.shares_seeds


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


def test_what_is_lost_cut_or_out_of_place_is_named(tmp_path) -> None:
    root = tmp_path / "adam"
    for name in (FIRST, "study_1/w_jax/trial_1"):
        trial(root, name)
    trial(root, "study_0/w_jax/trial_2", WER, flags_0={"tuning_ruleset": "external"})
    began = trial(root, "study_0/w_jax/trial_3", None, flags_0={"tuning_ruleset": "self"})
    (began / "measurements.csv").write_text("global_step,loss\n0,10.5\n")
    trial(root, "study_0/w_jax/trial_10", None)
    trial(root, "study_0/w_jax/trial_11", GOOD[:-4])
    trial(root, "study_0/w_jax/trial_12", "epoch,accuracy\n1,0.5\n")
    trial(root, "study_1/trial_1")
    study = read_study(root)
    assert [(run.point, run.state, run.last_step) for run in study.runs] == [
        (1, "done", 2),
        (2, "failed", None),
        (3, "failed", None),
        (10, "pending", None),
        (11, "done", 1),
        (12, "pending", None),
        (1, "done", 2),
    ]
    assert study.runs[2].losses()["loss"].tolist() == [10.5]
    assert kinds(study.problems) == [
        ("left out", "study_1/trial_1"),
        *(("missing", f"study_1/w_jax/trial_{point}") for point in (2, 3, 10, 11, 12)),
        ("missing", "study_0/w_jax/trial_2"),
        ("failed", "study_0/w_jax/trial_2"),
        ("failed", "study_0/w_jax/trial_3"),
        ("missing", "study_0/w_jax/trial_10"),
        ("truncated", "study_0/w_jax/trial_11"),
        ("unreadable", "study_0/w_jax/trial_12"),
    ]
    assert "hparams.json" in study.problems[6].text


@pytest.mark.parametrize(
    ("place", "named"),
    [
        *(
            (f"{name}/w_jax/trial_1", name)
            for name in ("seed_1", "run1", "Study_1", "study-1", "1")
        ),
        ("seed_1/deep/w_jax/trial_1", "seed_1/deep"),
        ("study_x/w_jax/trial_1", "study_x/w_jax"),
        ("study_0/study_1/w_jax/trial_1", "study_0/study_1"),
        ("study_1/seed_2/w_jax/trial_1", "study_1/seed_2"),
        ("study_1/w_JAX/trial_1", "study_1/w_JAX"),
        ("study_0/w_jax/Trial_2", "study_0/w_jax/Trial_2"),
        ("study_0/w_jax/trial_2_old", "study_0/w_jax/trial_2_old"),
    ],
)
def test_trials_in_a_folder_of_another_name_are_named(tmp_path, place, named) -> None:
    """Of the submission alone, of a folder of submissions, and beside one of our studies; alone,
    the error names it."""
    root = tmp_path / "adam"
    trial(root, FIRST)
    trial(root, place)
    study = read_study(root)
    assert [(run.variant, run.name) for run in study.runs] == [("adam", FIRST)]
    assert kinds(study.problems) == [("left out", named)]
    assert kinds(read_study(tmp_path).problems) == [("left out", f"adam/{named}")]


@pytest.mark.parametrize("name", ["seed_1", "run1", "adam/Study_1"])
def test_logs_of_another_name_alone_are_named(tmp_path, study, name) -> None:
    trial(tmp_path / "logs", f"{name}/w_jax/trial_1")
    with pytest.raises(studies.NotAStudyError, match=r"logs: .*study_<seed>"):
        read_study(tmp_path / "logs")
    trial(study.finish().parent, f"{name}/w_jax/trial_1")
    first, *_ = studies.read_each(study.root.parent)
    assert ("left out", name) in kinds(first.study_problems)


def test_a_link_to_a_study_is_read_once(tmp_path) -> None:
    """As another seed it would be a second result; a link to another place is a seed."""
    root = tmp_path / "adam"
    trial(root, FIRST)
    trial(tmp_path, "elsewhere/study_2/w_jax/trial_1")
    (root / "study_1").symlink_to(root / "study_0")
    (root / "study_2").symlink_to(tmp_path / "elsewhere" / "study_2")
    study = read_study(root)
    assert [run.name for run in study.runs] == [FIRST, "study_2/w_jax/trial_1"]
    assert kinds(study.problems) == [("duplicated", "study_1/w_jax")]


# From step 2 on there is no finite loss; the numbers of examples show that it evaluated.
EMPTY = (
    "global_step,test/loss,train/loss,validation/loss,validation/num_examples,preemption_count\n"
    "1,0.5,0.5,0.5,9,0\n2,,,,9,0\n3,,,nan,9,0\n"
)


@pytest.mark.parametrize(
    ("trials", "problems"),
    [
        pytest.param(
            {FIRST: {"meta_data_0": {"workload.attnperf_tiny": True}},
             "study_1/w_jax/trial_1": {"meta_data_0": {}}},
            [("fabricated", FIRST)],
            id="fabricated data",
        ),
        pytest.param(
            {FIRST: {}, "study_00/w_jax/trial_1": {}},
            [("duplicated", "study_00/w_jax/trial_1")],
            id="two names of a seed",
        ),
        pytest.param(
            {FIRST: {"text": "global_step,validation/wer\n1,0.5\n"}, "study_2/w_jax/trial_1": {}},
            [("missing", FIRST), ("missing", FIRST)],
            id="columns that some lack",
        ),
        pytest.param({FIRST: {"text": EMPTY}}, [("non-finite", FIRST)], id="empty cells"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_trials_is_named(tmp_path, trials, problems) -> None:
    for name, more in trials.items():
        trial(tmp_path, name, **more)
    assert kinds(read_study(tmp_path).problems) == problems


def test_columns_that_no_trial_has_are_noted(tmp_path) -> None:
    trial(tmp_path, FIRST, "global_step,validation/wer\n1,0.5\n")
    study = read_study(tmp_path)
    absent = ("train/wer", "test/wer", "preemption_count")
    assert {note.text for note in study.notes} == {f"no column {name}" for name in absent}
    assert study.problems == ()


def test_rows_that_evaluate_nothing_are_no_evaluations(tmp_path) -> None:
    header = "global_step,loss,test/wer,train/wer,validation/wer,preemption_count\n"
    trial(tmp_path, FIRST, header + "1,5,,,,\n2,4,,,,\n2,,0.5,0.5,0.5,0\n3,3,,,,\n")
    study = read_study(tmp_path)
    assert study.runs[0].evals["global_step"].tolist() == [2]
    assert (kinds(study.notes), study.problems) == ([("note", FIRST)], ())


def test_figures_of_a_test_split_without_examples_are_left_out(tmp_path) -> None:
    """AlgoPerf reports a test perplexity of 1 on finewebedu_lm, which has no test split."""
    names = (
        "global_step,test/loss,test/num_examples,test/ppl,validation/num_examples,validation/ppl"
    )
    for number, best in ((1, 25.5), (2, 26.5)):
        text = f"{names}\n36000,0.0,0,1.0,100000,30.25\n72000,0.0,0,1.0,100000,{best}\n"
        trial(tmp_path, f"study_{number}/finewebedu_lm_jax/trial_1", text, hparams={"beta2": 0.99})
    table = build(read_study(tmp_path))
    assert not {"test/loss", "test/ppl"} & set(table.study.runs[0].evals)
    (row,) = table.rows
    assert (table.metric.name, row.splits["validation"].summary.median) == ("ppl", 26.0)
    assert row.splits["test"].values == {}


def test_problems_of_several_workloads_stand_each_under_its_own(tmp_path) -> None:
    """That of a workload's directory under its own, others under the first."""
    for name in ("0/v_jax/trial_1", "0/w_jax/trial_1", "1/w_jax/trial_1", "1/v_jax/trial_1",
                 "1/w_jax/trial_2"):  # fmt: skip
        trial(tmp_path, f"a/study_{name}")
    (tmp_path / "a/study_0/other").mkdir()
    first, second = studies.read_each(tmp_path)
    assert (first.workload, second.workload) == ("v", "w")
    assert kinds(first.problems) == [("left out", "a/study_0/other")]
    assert kinds(second.problems) == [("missing", "a/study_0/w_jax/trial_2")]


# Variants that trials record.


def submissions(root: pathlib.Path, **folders: dict) -> pathlib.Path:
    """Writes a trial per folder; its value is what flags_0.json and meta_data_0.json record."""
    for seed, (folder, records) in enumerate(folders.items()):
        trial(root, f"{folder}/{FIRST}", GOOD.replace("0.25", f"0.2{seed}"), **records)
    return root


def flags(attention: object, tau: object = 1.0) -> dict:
    return {"flags_0": {"attention": attention, "attention_tau": tau}}


def meta(attention: str, tau: float) -> dict:
    return {"meta_data_0": {"workload.attention": attention, "workload.attention_tau": tau}}


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        ({"a": flags("standard"), "b": meta("laser+temp", 0.9)}, ["standard", "laser+temp"]),
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
def test_rows_are_named_by_the_recorded_variant(tmp_path, folders, names) -> None:
    study = read_study(submissions(tmp_path, **folders))
    assert [run.variant for run in study.runs] == names
    assert study.problems == ()
    temperatures = [run.variant_hyperparameters for run in study.runs if "temp" in run.variant]
    assert all(set(each) == {"tau"} for each in temperatures)


def test_a_folder_that_contradicts_its_records_is_named(tmp_path) -> None:
    study = read_study(submissions(tmp_path, standard=flags("laser"), laser=flags("laser")))
    assert [run.variant for run in study.runs] == ["laser", "laser (standard)"]
    (problem,) = study.problems
    assert (problem.kind, problem.trial) == ("mismatch", f"standard/{FIRST}")
    assert "laser" in problem.text


@pytest.mark.parametrize(
    ("records", "variant", "kind", "says"),
    [
        (flags("laser norm"), "a", "unreadable", "'laser norm'"),
        (flags(""), "a", "unreadable", "''"),
        (flags("+temp"), "a", "unreadable", "'+temp'"),
        (flags(5), "a", "unreadable", "5"),
        (flags("laser+temp", "high"), "laser+temp", "unreadable", "'high'"),
        (flags("laser") | meta("standard", 1.0), "standard", "mismatch", "laser"),
    ],
)
def test_records_of_a_variant_that_cannot_be_used(tmp_path, records, variant, kind, says) -> None:
    study = read_study(submissions(tmp_path, a=records))
    assert [run.variant for run in study.runs] == [variant]
    (problem,) = study.problems
    assert (problem.kind, problem.trial) == (kind, f"a/{FIRST}")
    assert says in problem.text


# Runs that are no results of their own: cut short, or there twice.

TIMED = "global_step,validation/loss,test/loss,accumulated_submission_time\n"
META = {
    "workload.target_metric_name": "loss",
    "workload.validation_target_value": 0.125,
    "workload.test_target_value": 0.125,
    "workload.step_hint": 1000,
    "workload.max_allowed_runtime_sec": 500,
}


@pytest.mark.parametrize(
    ("rows", "changes", "state"),
    [
        ("1,0.75,0.75,5\n", {}, "failed"),
        ("1,0.75,0.75,5\n899,0.5,0.5,449\n", {}, "failed"),
        ("1,0.75,0.75,5\n900,0.5,0.5,300\n", {}, "done"),  # the steps
        ("1,0.75,0.75,5\n300,0.5,0.5,450\n", {}, "done"),  # the time
        ("1,0.75,0.75,5\n300,0.5,0.5,450\n301,0.5,0.5,nan\n", {}, "done"),  # its last known time
        ("1,0.75,0.75,5\n100,0.125,0.5,50\n", {}, "done"),  # the target
        ("1,0.75,0.75,5\n100,nan,0.5,50\n", {}, "failed"),
        ("1,0.75,0.75,5\n", {"workload.target_metric_name": None}, "done"),  # no target is known
        ("1,0.75,0.75,5\n", {"workload.target_metric_name": "wer"}, "done"),  # nor measured
        # It was told to take 40 steps of the 1,000 that the workload suggests.
        ("1,0.75,0.75,5\n40,0.5,0.5,20\n", {"max_global_steps": 40}, "done"),
    ],
)
def test_a_run_is_complete_by_its_steps_its_time_or_its_target(
    tmp_path, rows, changes, state
) -> None:
    trial(tmp_path, FIRST, TIMED + rows, meta_data_0=META | changes, flags_0=changes)
    (run,) = read_study(tmp_path).runs
    assert run.state == state
    assert ("failed", FIRST) in kinds(run.problems) or state == "done"


def test_a_run_that_died_chooses_no_point(tmp_path) -> None:
    """Its loss at step 1 would have made point 2 the best."""
    for study in (0, 1):
        rows = f"1,3,3,5\n1000,0.5,0.5,39{study}\n"
        trial(tmp_path, f"study_{study}/w_jax/trial_1", TIMED + rows, meta_data_0=META)
    trial(tmp_path, "study_0/w_jax/trial_2", TIMED + "1,0.25,0.25,5\n", meta_data_0=META)
    rows = "1,3,3,5\n1000,0.75,0.75,400\n"
    trial(tmp_path, "study_1/w_jax/trial_2", TIMED + rows, meta_data_0=META)
    study = read_study(tmp_path)
    assert kinds(study.problems) == [("failed", "study_0/w_jax/trial_2")]
    assert "step 1 of 1,000 and 5 of 500 s" in study.problems[0].text
    assert build(study).rows[0].point == 1


def test_without_a_step_hint_the_longest_run_counts_as_complete(tmp_path) -> None:
    nothing = {"workload.step_hint": None, "workload.max_allowed_runtime_sec": None}
    for study, last in enumerate((800, 790, 80)):
        rows = f"{last},0.5,0.5,{last}\n"
        trial(tmp_path, f"study_{study}/w_jax/trial_1", TIMED + rows, meta_data_0=META | nothing)
    study = read_study(tmp_path)
    assert [run.state for run in study.runs] == ["done", "done", "failed"]
    assert "step 80 of 800" in study.problems[0].text
