"""Studies: what they consist of, where trials live, and what is refused at the door."""

import contextlib
import dataclasses
import functools
import math
import re
import shutil

import pytest

from attention import table
from sweeps.__main__ import main
from sweeps.launchers import table as launchers
from sweeps.launchers.config_keys import PATH
from sweeps.launchers.config_keys import check as check_keys
from sweeps.records import layout, lease, measurements, status, submissions
from sweeps.scheduling import cancel
from sweeps.study import config, keys, selection, space, study, study_directory, trial
from tests.sweeps.conftest import begin_attempt, begin_stage, end_trial, evaluations, resolve
from workloads.__main__ import main as workloads_main


def test_demo_is_the_papers_protocol_small():
    demo = resolve()
    assert [t.variant for t in demo.trials("tune")] == ["standard"] * 8
    rows = [table.canonical(row) for row in table.PAPER_ROWS]
    compared = demo.trials("compare", {"points": dict.fromkeys(rows, 5)})
    assert [(t.variant, t.point) for t in compared[::3]] == [(row, 5) for row in rows]
    assert [t.seed for t in compared] == [1, 2, 3] * 8
    values = {t.variant: t.variant_hyperparameters for t in compared}
    assert values == {row: {"tau": 0.9} if row.endswith("+temp") else {} for row in rows}


_COPY = """
from sweeps.studies.imagenet_vit import imagenet_vit_paper
from sweeps.study.config import base

def get_config(argument="copy"):
    config = base()
    imagenet_vit_paper(config)
    return config
"""
# Another value of a key than the paper's study has.
_NOT_PAPER = {"workload": "digits_vit", "protocol": "grid", "variants": ("standard",)}
_NOT_PAPER |= {"tuning_variant": "laser", "baseline": "laser", "paper_table": "conformer_wer"}


def _not_paper(default):
    if isinstance(default, bool):
        return not default
    return "other" if isinstance(default, str) else default + 1


def test_a_copied_study_keeps_the_papers_table_while_it_is_the_papers(tmp_path):
    """Whatever key that the table depends on differs, by the file as by the command line; the same
    value by another spelling is none."""
    path = tmp_path / "mine.py"
    path.write_text(_COPY)
    same = ["points=50", "steps=167_999", "batch_size=1024", "seeds=3", "name=mine", "log_every=7"]
    same = [f"--config.{change}" for change in (*same, f"variants={','.join(table.PAPER_ROWS)}")]
    assert config.parse(str(path), same).paper_table == "vit_error"
    assert resolve("imagenet_vit_paper", points=49).settings["paper_table"] == ""
    keep, drop = set(), set()
    for name, key in keys.OWN.items():
        other = _NOT_PAPER.get(name) or _not_paper(key.default)
        change = f"config.{name} = {other!r}"
        path.write_text(_COPY.replace("return config", f"{change}\n    return config"))
        kept = config.parse(str(path), []).paper_table
        (keep if kept else drop).add("paper_table" if name == "paper_table" else key.role)
    assert drop == {keys.Role.RESULT, keys.Role.EXTENT, "paper_table"}
    assert not keep & drop


@pytest.mark.parametrize(
    ("file", "overrides", "name"),
    [
        ("mine.py", [], "mine"),
        ("mine.py:small", [], "mine_small"),
        ("mine.py", ["--config.name=yours"], "yours"),
        ("mine.py", ["--config.name="], ""),
        ("-mine.py", [], "-mine"),
        (".mine.py", [], ".mine"),
        ("mine.py:a/b", [], "mine_a/b"),
        ("-mine.py", ["--config.name=yours"], "yours"),
    ],
)
def test_a_study_file_without_a_name_is_called_after_it(tmp_path, file, overrides, name):
    """What may not be a name stays refused."""
    (tmp_path / file.partition(":")[0]).write_text(_COPY)
    parsed = config.parse(str(tmp_path / file), overrides)
    assert parsed.name == name
    if not name.isidentifier():
        with pytest.raises(ValueError, match="name is.*--config.name="):
            study.resolve(parsed, planning=True)


@pytest.mark.parametrize(
    "changes", [{"points": 9, "seeds": 5}, {"first_seed": 1, "seeds": 1, "tuning_seeds": 1}]
)
def test_trial_numbers_never_move(changes):
    """Trials stay where they are when points or seeds are added; later seeds keep their numbers."""
    usual = {"points": 3, "seeds": 2, "tuning_seeds": 2}
    before, after = _ids(resolve(**usual)), _ids(resolve(**{**usual, **changes}))
    fewer, more = sorted((before, after), key=len)
    assert fewer.items() < more.items()


def test_a_trial_s_directory():
    assert resolve(first_seed=997, seeds=2)
    assert layout.trial_path("tune", "laser", "digits_vit", 3, 1) == (
        "tune/laser/digits_vit_jax/trial_3002"
    )
    with pytest.raises(ValueError, match="seeds run from 0 to 999"):
        layout.trial_path("tune", "standard", "digits_vit", 0, 1000)


@pytest.mark.parametrize(
    ("changes", "same_id", "same_program"),
    [
        ({"study": "other", "stage": "x", "point": 9}, True, True),
        ({"seed": 1}, False, True),
        ({"steps": 3}, False, True),
        ({"variant": "laser"}, False, False),
        ({"kernel": "jax_xla"}, False, False),
        ({"compute_dtype": "bfloat16"}, False, False),
        ({"matmul_precision": "float32"}, False, False),
        ({"eval_every": 1}, False, True),
        ({"mesh": (4, 2, 1)}, True, False),
        ({"remat": True}, True, False),
        ({"loss_chunk_tokens": 4096}, True, False),
        ({"microbatches": 4}, True, False),
        ({"checkpoint_every": 100}, True, True),
        ({"diagnostics": 5}, True, True),
        ({"algoperf_dir": "/elsewhere"}, True, True),
    ],
)
def test_ids_and_programs_follow_what_is_computed(changes, same_id, same_program):
    first = resolve().trials("tune")[0]
    other = dataclasses.replace(first, **changes)
    assert (other.id == first.id) == same_id
    assert (other.program == first.program) == same_program


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, r"trial\.json: id .* does not belong to its content"),
        ({"schema": 3}, "its id is of schema 3.*Choose another --config.exp"),
        ({"mesh": 5}, "is not a trial record"),
        (None, "is not a trial record"),
    ],
)
def test_record_on_disk_is_checked(tmp_path, changes, message):
    record = resolve().trials("tune")[0]
    layout.write_json(tmp_path / layout.TRIAL, record.to_json())
    assert trial.read(tmp_path) == record
    content = [] if changes is None else {**record.to_json(), **changes}
    layout.write_json(tmp_path / layout.TRIAL, content)
    with pytest.raises(ValueError, match=message):
        trial.read(tmp_path)


def test_a_study_with_settings_of_another_version_is_refused_and_can_be_cancelled(make_study):
    made = make_study()
    study_directory.prepare(made)
    record = layout.study_record(made.directory)
    record["config"] |= {"pack": 4, "local": {**record["config"]["local"], "packed": True}}
    layout.write_json(made.directory / layout.STUDY, record)
    match = "local.packed, pack. Choose another --config.experiment_dir"
    with pytest.raises(ValueError, match=match):
        study.from_record(record, made.directory)
    with pytest.raises(ValueError, match=match):
        study_directory.prepare(made)
    cancel.cancel(made.directory)
    assert submissions.is_cancelled(made.directory)


def test_what_ids_leave_out_may_change_until_a_trial_is_finished(make_study):
    """A trial that failed is tried again, perhaps because of the change."""
    changes = {"workload": "pydoc_lm", "points": 4, "variants": "standard", "seeds": 1}
    made = make_study(**changes)
    trials = begin_stage(made)
    states = ("pending", "failed", "diverged", "done")
    for record, state in zip(trials, states, strict=True):
        layout.write_json(made.directory / record.path / layout.STATUS, {"state": state})
    again = make_study(**changes, remat=True, checkpoint_every=8, **{"mesh.data": 1})
    standing = begin_stage(again)
    assert [record.id for record in standing] == [record.id for record in trials]
    after, before = (True, 8, 1), (False, 4, 0)
    changed = [(new.remat, new.checkpoint_every, new.mesh[0]) for new in standing]
    assert changed == [after, after, before, before]
    assert [trial.read(again.directory / new.path) for new in standing] == standing


def test_protocols():
    grid = resolve("digits_vit_quick", protocol="grid", seeds=2)
    assert grid.stages == ("grid",)
    assert len(grid.trials("grid")) == 2 * 2 * 2
    tuned = resolve("digits_vit_quick", protocol="tune_each")
    assert len(tuned.trials("tune")) == 2 * 2
    compared = tuned.trials("compare", {"points": {"standard": 0, "laser": 1}})
    assert [t.point for t in compared] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sedes": 5},
            "^unknown config key 'sedes'. Did you mean 'seeds'. `python -m sweeps keys`",
        ),
        ({"local.wokers": 5}, "unknown config key 'local.wokers'.*'local.workers'"),
        ({"seeds": "many"}, "seeds"),
        ({"seeds": 0}, "seeds is 0"),
        ({"first_seed": 1000}, "first_seed is 1000"),
        ({"first_seed": 997, "seeds": 3}, "end at seed 1,000; 999 is the last one"),
        ({"first_seed": 997, "seeds": 1, "tuning_seeds": 3}, "end at seed 1,000; 999 is the last"),
        ({"first_seed": 997, "seeds": 4, "protocol": "grid"}, "end at seed 1,000; 999 is the"),
        ({"points": 0}, "points is 0"),
        ({"tau": 0.0}, "tau is 0.0; it must be 1e-06 to 1,000,000"),
        ({"tau": -1.0}, "tau is -1.0"),
        # What changes no variant of the study.
        ({"tau": 0.5, "variants": "standard,laser"}, "tau=0.5 changes no variant"),
        ({"attention.cap": 3.0}, "attention.cap=3.0 changes no variant"),
        ({"diff_head_norm": "False"}, "diff_head_norm=False changes no variant"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"workload": "digit_vit"}, "unknown workload 'digit_vit'.*'digits_vit'"),
        ({"variants": '("standard","lazer")'}, "unknown mixer 'lazer'.*'laser'"),
        ({"variants": '("laser",)'}, "baseline 'standard' is not among"),
        ({"launcher": "slrm"}, "unknown launcher 'slrm'"),
        ({"kernel": "flash"}, "unknown kernel"),
        ({"compute_dtype": "float16"}, "float16.*NaN"),
        ({"protocol": "tune"}, "unknown protocol"),
        ({"optimizer": "sgd"}, "unknown optimizer"),
        ({"matmul_precision": "float16"}, "'float16'.*default, bfloat16, tensorfloat32, float32"),
        ({"matmul_precision": "float32", "kernel": "cudnn"}, "'cudnn' takes no matmul precision"),
        ({"mesh.fsdp": 0}, "mesh.fsdp is 0; it must be 1 to"),
        ({"param_dtype": "float16"}, "param_dtype='float16'"),
        ({"param_dtype": "bfloat16"}, "digits_vit has no param_dtype 'bfloat16'.*c4_lm"),
        ({"mesh.tensor": 2}, r"digits_vit has no mesh \(fsdp, tensor\) \(1, 2\)"),
        ({"paper_table": "vit"}, "unknown paper_table 'vit'"),
        ({"space": "papr"}, "no search space 'papr'.*paper_adamw, paper_nadamw"),
        ({"checkpoint_every": 30, "eval_every": 20}, "multiple of eval_every"),
        ({"name": "a/b"}, "name is 'a/b'; it must be a name without '/'"),
        ({"steps": -1}, "steps is -1"),
        ({"points": 10**9}, "points is 1000000000; it must be 1 to 10,000"),
        ({"seeds": 1001}, "seeds is 1001; it must be 1 to 1,000"),
        ({"points": 1000, "tuning_seeds": 990}, "990,024 trials: 8 variants, 1,000 points"),
        ({"steps": 10**20}, "steps is 1{1}0{20}; it must be 0 to 1,000,000,000"),
        ({"points": 10**400}, "points is 1"),
        ({"steps": "1e20"}, "steps is '1e20'; it must be 0 to"),
        ({"batch_size": 10**12}, "batch_size is .* 0 to 1,048,576"),
        ({"mesh.fsdp": 10**9}, "mesh.fsdp is .* 1 to 65,536"),
        ({"local.workers": 10**6}, "local.workers is 1000000; it must be 0 to 1,024"),
        ({"loader_workers": 10**9}, "loader_workers is .* 0 to 256"),
        ({"max_attempts": 10**20}, "max_attempts is .* 1 to 100,000"),
        ({"pack": 4}, "unknown config key 'pack'"),
        ({"name": "x" * 300}, r"name is 'x+\.\.\. \(302 characters\); .* at most 200 bytes"),
        ({"name": ""}, "name is empty"),
        ({"name": "-rf"}, "name is '-rf'.*begins with neither"),
        ({"name": "a\nb"}, "name is 'a.nb'.*control characters"),
        ({"experiment_dir": "d" * 300}, "parts of at most 255 bytes"),
        ({"experiment_dir": ""}, "experiment_dir is empty"),
        ({"data_dir": "/d" * 5000}, "at most 4,000 bytes"),
        ({"paper_note": "n" * 5000}, "paper_note is .* at most 4,000 bytes"),
        ({"workload": "w" * 5000}, r"workload is 'w+\.\.\. \(5,002 characters\)"),
        ({"variants": ",".join(["standard"] * 1000)}, "give each variant once, 1 to 100 of them"),
        ({"space": "s" * 300}, "space is 's+"),
        ({"remat": "maybe"}, "remat is 'maybe'; it must be True or False"),
        ({"workload": "c4_lm_301m"}, "'c4_lm_301m' is called 'c4_lm'"),
        ({"diagnostics": -1}, "diagnostics is -1; it must be 0 to"),
        ({"diagnostics": 5, "diagnostics_examples": 0}, "must be 1 to"),
        ({"diagnostics": 5, "batch_size": 4}, "set --config.diagnostics_examples=4 or fewer"),
        ({"microbatches": 0}, "microbatches is 0; it must be 1 to"),
        ({"microbatches": 3, "batch_size": 8}, "cannot be divided into 3 microbatches"),
        (
            {"microbatches": 2, "workload": "librispeech_conformer", "variants": "standard"},
            "BatchNorm takes its statistics over a",
        ),
        (
            {"microbatches": 2, "workload": "algoperf:imagenet_vit"},
            "AlgoPerf's own models draw dropout for",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_made(changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        resolve(**changes)
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"workload": "pydoc_finewebedu"}, "pydoc_finewebedu has no dropout_rate"),
        ({"workload": "spoken_digits_conformer"}, "spoken_digits_conformer has no label_smoothing"),
        ({"variants": "standard,laser+window"}, "width 256 hides nothing of the 64 positions"),
        ({"variants": "standard,laser+window", "attention.width": 63}, ""),
        ({}, ""),
    ],
)
def test_what_changes_nothing_is_named(changes, warning, capsys):
    settings = {"workload": "pydoc_lm", "space": "paper_nadamw", "variants": "standard", **changes}
    resolve("digits_vit_quick", **settings)
    err = capsys.readouterr().err
    assert warning in err
    assert ("nothing" in err) == bool(warning)


def test_a_hyperparameter_of_a_modifier_is_a_key_of_the_study():
    """It enters the trials of its variants alone, and is refused where it cannot be."""
    settings = {"variants": "standard,laser+softcap", "protocol": "grid", "points": 1}
    standard, capped = resolve("digits_vit_quick", **settings).trials("grid")
    changed = resolve("digits_vit_quick", **settings, **{"attention.cap": 30}).trials("grid")
    assert capped.variant_hyperparameters == {"cap": 50.0}
    assert changed[1].variant_hyperparameters == {"cap": 30.0}
    assert (changed[0].id == standard.id, changed[1].id == capped.id) == (True, False)
    with pytest.raises(ValueError, match="cap=-1.0: logits are kept between"):
        resolve("digits_vit_quick", **settings, **{"attention.cap": -1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"variants": "standard,toy", "workload": "algoperf:librispeech_conformer"},
            "librispeech_conformer cannot have 'toy': it weighs",
        ),
        (
            {"kernel": "jax_xla", "workload": "algoperf:librispeech_conformer"},
            "weighs the values by its own.*kernel='jax_xla'",
        ),
    ],
)
def test_what_a_model_cannot_have_is_refused_before_anything_runs(toy, changes, message):
    """Without weights there are no diagnostics; a model may keep its own softmax."""
    assert resolve("digits_vit_quick", variants=f"standard,{toy}")
    with pytest.raises(ValueError, match=message):
        resolve("digits_vit_quick", **changes)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("digit_demo", [], "'digit_demo'. Known: .*c4_lm_paper.*Did you mean 'digits_vit_demo'"),
        ("digits_vit:dmo", [], "Known: digits_vit_demo, .*_quick. Did you mean 'digits_vit_demo'"),
        ("digits_vit", [], "Known: digits_vit_demo, .* Or give a .py file"),
        (f"{config.SHIPPED}/digits_vit.py:dmo", [], "unknown study 'digits_vit_dmo'"),
        ("digits_vit_demo", ["seeds=3"], "not understood"),
        ("digits_vit_demo", ["--config.seeds"], "not understood"),
    ],
)
def test_unknown_study_and_malformed_overrides(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        config.parse(name, overrides)


_MINE = (
    "from sweeps.study import config as configs\ndef get_config():\n    config = configs.base()\n"
)
_END = "    config.workload = 'digits_vit'\n    return config\n"


def test_a_user_s_study_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{_MINE}    config.name = 'mine'\n{_END}")
    assert study.resolve(config.parse(str(path), ["--config.seeds=2"])).settings["seeds"] == 2
    named = _MINE.replace("get_config()", "get_config(size)")
    path.write_text(f"{named}    config.name = size\n{_END}")
    assert config.parse(f"{path}:a:b", []).name == "a:b"


def test_a_list_space_that_is_too_short_says_so(capsys):
    resolved = resolve(space="paper_adamw", points=50)
    assert len(resolved.points) == resolved.settings["points"] == 15
    assert "list of 15 points; 50 were asked, 15 will run" in capsys.readouterr().err


def test_the_best_of_values_by_hand():
    """nan and infinities are passed over; ties go to the first."""
    values = [0.5, 0.8, 0.8, math.nan, math.inf]
    assert selection.best_index(values, "max") == 1
    assert selection.best_index(values, "min") == 0
    assert selection.best_index(values[3:], "max") is None
    losses = selection.point_losses({0: [0.5, None, 0.25], 1: [None], 2: []}, "max")
    assert losses == {0: -0.25, 1: math.inf}


@pytest.mark.parametrize("lost", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_selection_by_hand(lost, mode):
    """A lost seed counts as the worst value; ties go to the lower point."""
    assert selection.best_point({2: [0.3, 0.5], 1: [0.4], 3: []}, mode) == 1
    assert selection.best_point({0: [lost, 0.2, 0.4], 1: [0.3, 0.3, 0.3]}, mode) is not None
    assert selection.best_point({0: [lost], 1: [0.3]}, mode) == 1
    assert selection.best_point({0: [0.5, lost], 1: [lost, 0.5], 2: []}, mode) is None


def _value(directory):
    return selection.trial_value(directory, "validation/accuracy", "max")


def test_a_stale_running_over_done_is_selected_by(make_trial):
    """A worker that was stopped between its check and its write has put `running` over `done`."""
    directory = make_trial()
    end_trial(directory, 0.9, "running")
    lease.claim(directory).end("done")
    assert _value(directory) == 0.9


@pytest.mark.parametrize(
    ("lost", "lacking"),
    [("1", "4 is|updates 4,"), ("2", "8, 12"), ("1/measurements.jsonl", "updates 4,")],
)
def test_a_value_is_of_every_evaluation_that_was_planned(make_trial, lost, lacking):
    """Attempt 1 evaluated once, 0.9, attempt 2 the rest: what is lost of them is named, and the
    best of the others is not taken for the trial's."""
    directory = make_trial()
    begin_attempt(directory, evaluations([0.9])).end("preempted")
    begin_attempt(directory, evaluations([0.5, 0.6], 2), resumed=4).end("done")
    status.write(directory, "done", global_step=12)
    assert _value(directory) == 0.9
    for path in (directory / layout.ATTEMPTS).glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=f"{directory} is done, but its attempts lack.*{lacking}"):
        _value(directory)


def test_what_is_done_and_cannot_be_read_is_not_passed_over(make_trial):
    directory = make_trial()
    assert _value(directory) is None  # nobody began it
    end_trial(directory, 0.9)
    resumed = directory / layout.ATTEMPTS / "1" / measurements.RESUMED
    resumed.write_text("{}")
    with pytest.raises(ValueError, match=f"{resumed} is damaged"):
        _value(directory)


@pytest.fixture
def tuned(make_study):
    """Returns a function that ends a study's tuning with accuracies by (point, seed)."""

    def tune(values, protocol="tune_then_compare", **changes):
        points = 1 + max(point for point, _ in values)
        changes = {"points": points, "tuning_seeds": 3, "protocol": protocol, **changes}
        made = make_study(**changes)
        for record in begin_stage(made):
            value = values.get((record.point, record.seed), 0.1)
            state = value if isinstance(value, str) else "done"
            end_trial(made.directory / record.path, 0.99 if state == value else value, state)
        return made

    return tune


def _begin(made):
    """Selects and lets the comparison begin; returns the selection."""
    chosen = study_directory.select(made)
    study_directory.materialise(made, "compare", made.trials("compare", chosen))
    return chosen


def test_a_point_that_lost_two_of_three_seeds_is_not_selected(tuned):
    made = tuned({(0, 0): "diverged", (0, 1): 0.9, (0, 2): "failed", (1, 0): 0.2})
    chosen = _begin(made)
    assert chosen["points"] == {"standard": 1, "laser": 1}
    assert [path.rpartition("_")[2] for path in chosen["lost"]] == ["1", "3"]


def test_where_every_point_lost_its_seeds_nothing_is_selected(tuned):
    lost = {(0, seed): "diverged" for seed in range(3)}
    made = tuned(lost, variants="laser,standard+gate", baseline="laser")
    with pytest.raises(ValueError, match=f"{made.directory}: no point of standard ended"):
        study_directory.select(made)


@pytest.mark.parametrize("lost", ["laser", "standard", "both"])
def test_a_variant_that_lost_all_seeds_of_its_own_is_left_out(make_study, lost):
    """The others are compared, unless it is the baseline."""
    made = make_study(points=2, protocol="tune_each", variants="standard,laser,diff")
    for record in begin_stage(made):
        state = "diverged" if record.variant == lost or lost == "both" else "done"
        end_trial(made.directory / record.path, 0.5, state)
    if lost != "laser":
        names = "standard" if lost == "standard" else "standard, laser, diff"
        with pytest.raises(ValueError, match=f"no point of {names} ended"):
            study_directory.plan(made, "compare")
        return
    trials, chosen = study_directory.plan(made, "compare")
    assert chosen["points"] == {"standard": 0, "diff": 0}
    assert {trial.variant for trial in trials} == {"standard", "diff"}


@pytest.mark.parametrize("protocol", ["tune_then_compare", "tune_each"])
def test_a_comparison_that_has_begun_keeps_its_points(tuned, protocol):
    """Point 1 was chosen while point 0 had failed; by its repair validation would choose that."""
    repaired = {(0, seed): 0.9 for seed in range(3)}
    made = tuned({(0, 0): "failed", (0, 1): "failed", (1, 0): 0.2}, protocol)
    before = _begin(made)
    assert before["points"] == {"standard": 1, "laser": 1}
    made = tuned(repaired | {(1, 0): 0.2}, protocol)
    assert _begin(made)["points"] == before["points"]
    selection = made.directory / layout.SELECTION
    selection.write_text('{"points": {"standard": 1,')
    with pytest.raises(ValueError, match="remove it to choose anew"):
        study_directory.select(made)
    selection.unlink()
    assert _begin(made)["points"] == {"standard": 0, "laser": 0}


def test_points_and_variants_added_to_a_comparison(tuned):
    """More variants take its point, also where none of the earlier ones is left."""
    _begin(tuned({(0, 0): 0.2, (2, 0): 0.3, (2, 1): 0.3}))
    more = tuned({(0, 0): 0.9, (0, 1): 0.9, (2, 0): 0.3}, variants="standard,laser,diff")
    assert study_directory.select(more)["points"] == dict.fromkeys(("standard", "laser", "diff"), 2)
    others = tuned({(0, 0): 0.9, (0, 1): 0.9, (2, 0): 0.3}, variants="diff", baseline="diff")
    assert study_directory.select(others)["points"] == {"diff": 2}


def test_a_variant_that_is_dropped_leaves_its_point_behind(tuned):
    """Also if the study no longer has such a point."""
    made = tuned({(0, 0): 0.5, (2, 0): 0.1}, "tune_each")
    layout.write_json(made.directory / layout.SELECTION, {"points": {"standard": 0, "laser": 2}})
    fewer = tuned({(0, 0): 0.5, (1, 0): 0.1}, "tune_each", variants="standard,diff")
    study_directory.prepare(fewer)
    assert study_directory.select(fewer)["points"] == {"standard": 0, "diff": 0}


def test_every_key_is_printed_with_what_is_checked(capsys):
    assert main(["keys"]) == 0
    printed = re.findall(r"^([\w.]+)=", capsys.readouterr().out, re.M)
    assert set(printed) == set(config.flat(config.base().to_dict()))
    assert main(["keys", "slurm.save"]) == 0
    assert capsys.readouterr().out == (
        "slurm.save_seconds=120\n    before the time limit, to save and be queued again\n"
        "    allowed: 10 to 65,535\n"
    )
    assert main(["keys", "nothing"]) == 2
    assert "no key has 'nothing' in its name" in capsys.readouterr().err


@pytest.mark.parametrize("launcher", launchers.CLASSES)
def test_what_a_study_begins_with_is_allowed(launcher):
    check_keys(launchers.launcher_class(launcher).KEYS, config.base()[launcher].to_dict())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ndef get_config(:\n", "mine.py, line 2: SyntaxError"),
        ("\nimport no_such_module\n", "line 2: ModuleNotFoundError: No module named"),
        ("x = 1\0\n", "mine.py.*null bytes"),
        (b"# \xff\xe9\nx = '\xe9'\n", "mine.py.*SyntaxError"),
        ("\n\nraise RuntimeError('boom')\n", "line 3: RuntimeError: boom"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("def get_config():\n    return get_config()\n", "RecursionError"),
        ("def get_config(size):\n    return size\n", "TypeError.*positional argument"),
        ("", "a study defines get_config"),
        ("def get_config():\n    return None\n", "a study defines get_config"),
        (_MINE + "    config.seeds = 'three'\n    return config\n", "line 4: TypeError"),
        (_MINE + "    config.variants = ('a', 3)\n    return config\n", "variants is .'a', 3"),
        (_MINE + "    del config.seeds\n    return config\n", "lacks or adds seeds|line 4"),
        (_MINE + "    config.nmae = 'mine'\n    return config\n", "line 4: .*nmae"),
    ],
)  # fmt: skip
def test_a_study_file_that_fails_is_named_with_its_line(tmp_path, capsys, content, message):
    path = tmp_path / "mine.py"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["plan", f"--config={path}"]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("status", "[]"),
        ("resume", '{"name": '),
        ("export --format=algoperf", '{"name": "x", "config": {}, "points": [], "stages": [3]}'),
    ],
)
def test_a_damaged_study_record_is_named(tmp_path, capsys, command, content):
    (tmp_path / layout.STUDY).write_text(content)
    assert main([*command.split(), str(tmp_path)]) == 2
    assert str(tmp_path / layout.STUDY) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "changes", "named"),
    [
        ("status", {"config": {"seeds": "x"}}, "its config"),
        *(("status", {"config": {"queue_warn_hours": x}}, "queue_warn_hours") for x in ("x", -1)),
        ("resume", {"config": {"seeds": "x"}}, "seeds is 'x'"),
        ("resume", {"config": {"workload": "nowhere"}}, "'nowhere'"),
        ("resume", {"config": {"variants": 3}}, "variants is 3"),
        ("resume", {"config": {"variants": ["standard", "standard"]}}, "each variant once"),
        ("resume", {"config": {"variants": []}}, "each variant once"),
        ("resume", {"config": {"variants": ["standard", "lazer"]}}, "'lazer'"),
        ("resume", {"config": {"baseline": "diff"}}, "baseline 'diff'"),
        ("resume", {"config": {"points": 5}}, "config.points is 5"),
        ("resume", {"config": {"points": 1}}, "config.points is 1"),
        ("resume", {"config": {"first_seed": 999}}, "seed 1,0"),
        ("resume", {"config": {"checkpoint_every": 6}}, "eval_every"),
        ("resume", {"config": {"profile": "9:3"}}, "profile"),
        *(("resume", {key: [1]}, key) for key in ("runs", "starts", "stages")),
        *(("resume", {"runs": value}, "runs") for value in ([None], 5, "x", {"a": 1}, [[]])),
    ],
    ids=str,
)
def test_a_study_record_that_was_edited_is_named(make_study, capsys, command, changes, named):
    """`resume` checks all that `run` checks."""
    made = make_study()
    study_directory.prepare(made)
    path = made.directory / layout.STUDY
    record = layout.read_json(path)
    changes = {**changes, "config": {**record["config"], **changes.get("config", {})}}
    layout.write_json(path, {**record, **changes})
    assert main([command, str(made.directory)]) == 2
    printed = capsys.readouterr().err
    assert str(path) in printed
    assert named in printed


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        *((layout.STUDY, content, 2) for content in ("", "[]", '{"name": ')),
        *(
            (f"tune/{layout.TRIALS}", content, 0)
            for content in ("{}", "[]", '{"trials": "abc"}', '{"trials": [{}]}')
        ),
    ],
)
def test_cancel_marks_a_study_whatever_is_damaged(make_study, capsys, name, content, code):
    """Who cancels wants to spend no more. A folder that is no study stays as it is."""
    made = make_study()
    begin_stage(made)
    (made.directory / name).write_text(content)
    assert main(["cancel", str(made.directory)]) == code
    assert str(made.directory / name) in capsys.readouterr().err
    assert submissions.is_cancelled(made.directory)
    assert main(["cancel", str(made.directory.parent)]) == 2
    assert not submissions.is_cancelled(made.directory.parent)


@pytest.mark.parametrize(
    ("last_state", "is_complete"), [("done", True), ("failed", True), ("pending", False)]
)
def test_cancel_says_that_a_study_is_complete(tmp_path, capsys, last_state, is_complete):
    """It is marked all the same: a run that extends it may be preparing its data."""
    resolved = resolve("digits_vit_quick", experiment_dir=tmp_path, protocol="grid")
    trials = begin_stage(resolved, "grid")
    for record in trials:
        state = last_state if record is trials[-1] else "done"
        steps = {"global_step": record.steps, "steps": record.steps}
        status.write(resolved.directory / record.path, state, **steps)
    assert main(["cancel", str(resolved.directory)]) == 0
    assert submissions.is_cancelled(resolved.directory)
    assert ("is complete: every trial has ended" in capsys.readouterr().out) == is_complete
    assert main(["status", str(resolved.directory)]) == (0 if is_complete else 3)
    assert ("cancelled" in capsys.readouterr().out) != is_complete


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            f"plan --config=digits_vit_quick --step_seconds={value}"
            for value in ("0", "nan", "1e400", "80GB")
        ),
        *(f"evaluate x --suite=pydoc --checkpoints={n}" for n in ("0", "1e9")),
        *(f"evaluate x --suite=pydoc --data_dir={path}" for path in ("$DATA/x", "gs://bucket/x")),
    ],
)
def test_numbers_of_commands_are_bounded_and_paths_those_of_a_disk(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert f"argument {arguments.split()[-1].partition('=')[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "command", "place"),
    [
        (main, "status ", "file/x"),
        (main, "resume ", "file"),
        (main, "cancel ", "loop"),
        (main, "run --config=digits_vit_quick --config.experiment_dir=", "loop"),
        (workloads_main, "prepare digits_vit --data_dir=", "file/x"),
    ],
)
def test_impossible_paths_give_a_message(tmp_path, capsys, run, command, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert run(f"{command}{tmp_path / place}".split()) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / place}" in error
    assert "Errno" not in error


# Values of keys that take no other number, or not the number 4.
_OTHERS = {
    "workload": "pydoc_bert",
    "variants": "standard,diff",
    "baseline": "laser",
    "tau": 0.5,
    "kernel": "splash",
    "diff_head_norm": "False",
    "compute_dtype": "bfloat16",
    "param_dtype": "bfloat16",
    "matmul_precision": "float32",
    "scan_layers": "True",
    "remat": "True",
    "paper_note": "a note",
    "protocol": "tune_each",
    "tuning_variant": "laser",
    "space": "paper_adamw",
    "step_hint": 41,
    "eval_every": 8,
    "checkpoint_every": 8,
    "downstream": "pydoc",
    "tensorboard": "True",
    "profile": "1:2",
    "optimizer": "nadamw_optax",
    "launcher": "ray",
    "experiment_dir": "/other",
    "data_dir": "/other",
    "attention.cap": 7.0,
    "attention.learned": "False",
    "attention.per": "head",
    "attention.base": 100.0,
    "positions": "none",
    "global_every": 2,
    "kv_heads": 2,
    "document_mask": "True",
}
# What makes another study, and ids of trials do not say: how it chooses points, its seeds.
_OTHER_STUDY = {"workload", "protocol", "tuning_variant", "first_seed"}
# The name is another directory, a changed study has no paper_table; others are of AlgoPerf's
# workloads.
_NOT_TRIED = {"name", "paper_table", "finetune_from", "algoperf_dir", "tokenizer_vocab_path"}
_NOT_TRIED |= {*launchers.CLASSES}
_KEYS = [key for key in keys.every() if key.split(".")[0] not in _NOT_TRIED]


@functools.cache
def _a_study(**changes):
    settings = {"steps": 40, "eval_every": 4, "points": 2, "seeds": 2, "experiment_dir": "/e"}
    named = "standard,laser,laser+temp,diff,standard+gate+rope+sink+softcap+window"
    settings |= {"variants": named, **changes}
    return resolve("pydoc_lm_quick", **settings)


@pytest.mark.parametrize("key", _KEYS)
def test_a_study_may_change_what_the_ids_of_its_trials_do_not_say(key, tmp_path):
    """And nothing else: resuming and ids both follow the keys' roles."""
    # No other kernel has all of the variants' mechanisms.
    fewer = {"variants": "standard,laser"} if key == "kernel" else {}
    before, after = _a_study(**fewer), _a_study(**fewer, **{key: _OTHERS.get(key, 4)})
    assert before.settings != after.settings
    ids, ids_after = _ids(before), _ids(after)
    is_same = all(ids_after.get(path, name) == name for path, name in ids.items())
    is_same &= key not in _OTHER_STUDY
    again = dataclasses.replace(after, settings={**after.settings, "experiment_dir": tmp_path})
    lease.claim(again.directory / "tune/standard/digits_jax/trial_1")
    record = {"format": layout.FORMAT, "config": before.settings, "points": before.points}
    record |= {"name": before.name, "stages": before.stages}
    layout.write_json(again.directory / layout.STUDY, record)
    refused = pytest.raises(ValueError, match="holds another study of that name")
    with contextlib.nullcontext() if is_same else refused:
        study_directory.check_same(again)


def _ids(made):
    """Returns the ids of a study's trials by path, with point 0 in stage 'compare'."""
    chosen = {"points": dict.fromkeys(made.settings["variants"], 0)}
    return {t.path: t.id for stage in made.stages for t in made.trials(stage, chosen)}


def test_records_of_studies_with_removed_keys(tmp_path):
    """Where these are empty the study and its trials go on, with their ids."""
    made = resolve("digits_vit_quick", experiment_dir=tmp_path)
    planned = begin_stage(made)
    removed = dict.fromkeys(keys.REMOVED, "")
    path = made.directory / planned[0].path / layout.TRIAL
    layout.write_json(path, layout.read_json(path) | removed)
    record = layout.study_record(made.directory)
    record["config"] |= removed
    layout.write_json(made.directory / layout.STUDY, record)
    assert study.from_record(record, made.directory).settings == made.settings
    assert begin_stage(made) == planned
    assert planned[0].id == "4affc72d8d663dfa"
    record["config"] |= dict.fromkeys(keys.REMOVED, "x")
    with pytest.raises(ValueError, match="does not know: init2winit_config, init2winit_dir"):
        study.from_record(record, made.directory)


PATH_KEYS = {
    "experiment_dir": "digits_vit_quick",
    "data_dir": "digits_vit_quick",
    "algoperf_dir": "algoperf_imagenet_vit_paper",
    "tokenizer_vocab_path": "algoperf_librispeech_conformer_paper",
    "space": "digits_vit_quick",
}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        *((key, "gs://b/x") for key, entry in keys.every().items() if entry.allowed is PATH),
        *(("data_dir", path) for path in ("$HOME/x", "/x ", "'/x'", "~no-such-user/x")),
    ],
)
def test_an_impossible_path_is_refused_by_its_key(key, path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", f"--config={PATH_KEYS.get(key, 'digits_vit_quick')}", f"--config.{key}={path}"]
    assert main(words) == 2
    assert f"python -m sweeps: {key}: path " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "overrides", "key", "path"),
    [
        *((name, [f"{key}=~/x.json"], key, "x.json") for key, name in PATH_KEYS.items()),
        ("~/mine.py:quick", ["finetune_from=~/other"], "finetune_from", "other"),
        (
            "~/mine.py:quick",
            ["finetune_from=other", "experiment_dir=~/e"],
            *("finetune_from", "e/other"),
        ),
    ],
)
def test_a_path_of_the_home_directory(name, overrides, key, path, tmp_path, monkeypatch):
    """Of a study, of its keys, and of the study that it starts from."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(space.SHIPPED / "paper_adamw.json", tmp_path / "x.json")
    shutil.copy(config.SHIPPED / "digits_vit.py", tmp_path / "mine.py")
    changes = [f"--config.{override}" for override in overrides]
    made = study.resolve(config.parse(name, changes), planning=True)
    assert made.settings[key] == str(tmp_path / path)


def test_data_named_by_a_variable_is_written_down_once(tmp_path, monkeypatch):
    """So that jobs on nodes, and a resume under another environment, read what the driver did."""
    monkeypatch.setenv("ATTNPERF_DATA", str(tmp_path / "all"))
    made = resolve("digits_vit_quick", experiment_dir=tmp_path)
    assert made.settings["data_dir"] == str(tmp_path / "all" / "digits_vit")
    study_directory.prepare(made)
    monkeypatch.setenv("ATTNPERF_DATA", "/elsewhere")
    record = layout.study_record(made.directory)
    assert study.from_record(record, made.directory).data_dir == str(tmp_path / "all/digits_vit")


_KUBERNETES = {"image": "i", "volume_claim": "c", "queue": "q", "gpus": 1}


@pytest.mark.parametrize(("launcher", "required"), [("ray", {}), ("kubernetes", _KUBERNETES)])
@pytest.mark.parametrize(
    ("driver", "nodes", "data_dir"),
    [
        ("", "", ""),  # each node makes it in its cache
        ("/here", "", "/here/digits_vit"),
        ("/here", "ATTNPERF_DATA=/there", "/there/digits_vit"),
        ("/here", "ATTNPERF_DATA=$HOME/there", ""),  # whose home, a node knows
    ],
)
def test_data_of_nodes_with_folders_of_their_own(
    launcher, required, driver, nodes, data_dir, monkeypatch
):
    """The launcher's variable wins, which is what the nodes have."""
    monkeypatch.setenv("ATTNPERF_DATA", driver)
    settings = {**required, "environment": nodes}
    changes = {f"{launcher}.{key}": value for key, value in settings.items()}
    made = resolve("digits_vit_quick", launcher=launcher, **changes)
    assert made.settings["data_dir"] == data_dir
    full = resolve("imagenet_vit_paper", launcher=launcher, **changes).settings["data_dir"]
    assert bool(full) == ("$" not in nodes)  # nothing that a node could make


def test_data_at_an_address_are_refused(monkeypatch):
    monkeypatch.setenv("ATTNPERF_DATA", "gs://bucket")
    with pytest.raises(ValueError, match="ATTNPERF_DATA: path 'gs://bucket'"):
        resolve("digits_vit_quick")
