"""Studies: what they consist of, where trials live, and what is refused at the door."""

import contextlib
import dataclasses
import functools
import re
import shutil

import pytest

from attention import table
from sweeps.__main__ import main
from sweeps.launchers import table as launchers
from sweeps.launchers.config_keys import PATH
from sweeps.launchers.config_keys import check as check_keys
from sweeps.records import layout, lease
from sweeps.study import config, keys, space, study, study_directory
from tests.sweeps import defaults
from tests.sweeps.conftest import begin_stage, resolve, trial_ids


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
_NOT_PAPER |= {"tuning_variant": "laser", "baseline": "laser", "looks": (3, 6)} | {
    "paper_table": "conformer_wer"
}


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
        ({"looks": "6,12", "seeds": 8}, r"looks=\[6, 12\] and seeds=8: .* --config.seeds=6 first"),
        ({"looks": "12,6", "seeds": 6}, r"looks=\[12, 6\] and .* must ascend"),
        ({"looks": "6,x"}, r"looks is \('6,x',\); it must be 2 to 1,000"),
        ({"looks": "1,6"}, "looks is .*; it must be 2 to 1,000"),
        ({"looks": "6.5,7"}, "looks is .*; it must be 2 to 1,000"),
        ({"margin": "0.0%"}, "margin is '0.0%'; it must be a positive number such as 0.01"),
        ({"margin": "-1"}, "margin is '-1'"),
        ({"margin": "1e999"}, "margin is '1e999'"),
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
        ({"mesh.tensor": 2}, r"digits_vit has no mesh \(fsdp, tensor, context\) \(1, 2\)"),
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
            {"variants": "standard,toy", "workload": "algoperf:finewebedu_lm"},
            "finewebedu_lm cannot have 'toy': it weighs",
        ),
        (
            {"kernel": "jax_xla", "workload": "algoperf:finewebedu_lm"},
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


_END = "    config.workload = 'digits_vit'\n    return config\n"


def test_a_user_s_study_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{defaults.STUDY_FILE}    config.name = 'mine'\n{_END}")
    assert study.resolve(config.parse(str(path), ["--config.seeds=2"])).settings["seeds"] == 2
    named = defaults.STUDY_FILE.replace("get_config()", "get_config(size)")
    path.write_text(f"{named}    config.name = size\n{_END}")
    assert config.parse(f"{path}:a:b", []).name == "a:b"


def test_a_list_space_that_is_too_short_and_has_a_tiny_epsilon_says_so(capsys):
    resolved = resolve(space="paper_adamw", points=50)
    assert len(resolved.points) == resolved.settings["points"] == 15
    printed = capsys.readouterr().err
    assert "list of 15 points; 50 were asked, 15 will run" in printed
    assert "epsilon=1e-24: gradients below 1e-19 square to 0" in printed
    assert "reach 1e+05 times the learning rate" in printed


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
    "looks": "2,4",
    "margin": "0.5%",
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
_OTHER_STUDY = {"workload", "protocol", "tuning_variant", "first_seed", "looks"}
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
    ids, ids_after = trial_ids(before), trial_ids(after)
    is_same = all(ids_after.get(path, name) == name for path, name in ids.items())
    is_same &= key not in _OTHER_STUDY
    again = dataclasses.replace(after, settings={**after.settings, "experiment_dir": tmp_path})
    lease.claim(again.directory / "tune/standard/digits_jax/trial_1")
    # Of a version without looks.
    stored = {name: value for name, value in before.settings.items() if name != "looks"}
    record = {"format": layout.FORMAT, "config": stored, "points": before.points}
    record |= {"name": before.name, "stages": before.stages}
    layout.write_json(again.directory / layout.STUDY, record)
    refused = pytest.raises(ValueError, match="holds another study of that name")
    with contextlib.nullcontext() if is_same else refused:
        study_directory.check_same(again)


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
