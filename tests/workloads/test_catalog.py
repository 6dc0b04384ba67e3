"""The contract every line of the table keeps, checked without data and without allocating."""

import csv
from importlib import resources

import jax
import pytest

from attention import registry as variants
from attention import table as variants_table
from workloads import algoperf_specs, bench, catalog, registry
from workloads.algoperf import installation
from workloads.base import sharding, spec
from workloads.base.options import Options


@pytest.mark.parametrize("name", list(catalog.WORKLOADS))
def test_an_entry_tells_the_truth(name):
    entry = catalog.get(name)
    stacked = {"scan_layers": True} if "scan_layers" in entry.support.options else {}
    workload = registry.make(name, variants.get("standard"), **stacked)
    params, _ = jax.eval_shape(workload.init_model_fn, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == entry.parameters
    assert workload.step_hint == entry.step_hint
    assert entry.train_examples in (0, workload.num_train_examples)
    assert entry.train_examples or not entry.embedded
    assert workload.target_metric_name == entry.metric
    assert (entry.mode == "max") == (entry.metric == "accuracy")
    assert isinstance(workload.loss_type, spec.LossType)
    assert min(workload.num_train_examples, workload.num_eval_train_examples) > 0
    assert workload.num_validation_examples > 0
    # Of AlgoPerf's language model there is no test split.
    assert (workload.num_test_examples > 0) == ("finewebedu" not in name)
    assert any(workload.is_output_params(key) for key in params)
    data = catalog.data_module(name)
    assert callable(data.check)
    assert callable(data.prepare)
    if entry.embedded:
        assert catalog.get(entry.stands_in_for).metric == entry.metric
        assert callable(data.read_reference)


@pytest.mark.parametrize(
    "name",
    ["imagenet_vit", "imagenet_vit_glu", "imagenet_vit_map", "librispeech_conformer"],
)
def test_a_parameter_tree_is_algoperfs(name, shared):
    with (shared / "algoperf_params" / f"{name}.csv").open() as file:
        expected = {(row["collection"], row["path"]): row["shape"] for row in csv.DictReader(file)}
    tree = jax.eval_shape(registry.make(name)._initial_variables, jax.random.key(0))
    shapes = {
        (path[0].key, "/".join(part.key for part in path[1:])): "x".join(map(str, leaf.shape))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    assert shapes == expected


@pytest.mark.parametrize(
    ("name", "sizes", "targets", "loss"),
    [
        (
            "imagenet_vit",
            (1_281_167, 51_200, 50_000, 10_000, 2048, 167_999),
            (0.77309, 0.6519),
            spec.LossType.SOFTMAX_CROSS_ENTROPY,
        ),
        (
            "librispeech_conformer",
            (263_840, 5376, 5348, 2472, 256, 76_000),
            (0.085884, 0.052981),
            spec.LossType.CTC_LOSS,
        ),
    ],
)
def test_sizes_and_targets_are_algoperfs(name, sizes, targets, loss):
    full = registry.make(name)
    examples = (full.num_train_examples, full.num_eval_train_examples)
    held_out = (full.num_validation_examples, full.num_test_examples)
    assert (*examples, *held_out, full.eval_batch_size, full.step_hint) == sizes
    assert (full.validation_target_value, full.test_target_value) == targets
    assert full.loss_type == loss


@pytest.mark.parametrize(
    "entry",
    [
        entry
        for entry in (*catalog.WORKLOADS.values(), *catalog.ALGOPERF.values())
        if entry.target_source == "AlgoPerf"
    ],
    ids=lambda entry: entry.name,
)
def test_targets_are_those_of_the_tested_commit(entry):
    table = resources.files("analysis") / "reference" / "algoperf_targets.csv"
    (target,) = (
        line
        for line in csv.DictReader(table.read_text("utf-8").splitlines())
        if line["workload"] == algoperf_specs.short_name(entry.name)
        and installation.TESTED_COMMITS[-1].startswith(line["commit"])
    )
    assert (entry.metric, entry.mode) == (target["metric"], target["direction"])
    assert (entry.validation_target, entry.test_target, entry.step_hint) == (
        float(target["validation"]),
        float(target["test"]) if target["test"] else None,
        int(target["step_hint"]),
    )


@pytest.mark.parametrize("name", [n for n, entry in catalog.WORKLOADS.items() if entry.embedded])
def test_every_row_of_an_embedded_workload_has_a_model(name):
    """Loss and logits of a random batch are finite at the first parameters, for every row."""
    lacks = {lack for lack, _ in catalog.get(name).support.lacks}
    mixers = [mixer for mixer, line in variants_table.MIXERS.items() if not lacks & {*line.needs}]
    for row in dict.fromkeys((*catalog.paper_rows(name), *mixers)):
        variant = variants.get(row, **variants_table.hyperparameters(row, 0.9))
        workload = registry.make(name, variant)

        def loss(key, workload=workload):
            params, state = workload.init_model_fn(key)
            batch = workload.example_batch(2)
            logits, _ = workload.model_fn(
                params, batch, state, spec.ForwardPassMode.TRAIN, key, True, dropout_rate=0.1
            )
            return workload.loss_fn(batch["targets"], logits, batch.get("weights"))["summed"]

        assert jax.eval_shape(loss, jax.random.key(0)).shape == ()


@pytest.mark.parametrize("name", [*catalog.WORKLOADS, *catalog.ALGOPERF])
def test_the_catalog_knows_which_mixers_a_model_can_have(name, toy):
    """Every mixer of ours goes everywhere; one that no weighted mean makes, where the model asks
    our function: what it says of an embedded workload, its model says too."""
    entry = catalog.get(name)
    lacks = {lack for lack, _ in entry.support.lacks}
    for mixer, line in variants_table.MIXERS.items():
        if not lacks & {*line.needs}:
            catalog.check_variant(name, mixer)
    theirs = name.startswith("algoperf:")
    assert entry.support.keeps_softmax == (theirs and ("conformer" in name or "finewebedu" in name))
    if entry.support.keeps_softmax:
        with pytest.raises(ValueError, match=f"{name} cannot have 'toy'.*can have: standard,"):
            catalog.check_variant(name, toy)
        with pytest.raises(ValueError, match="kernel='jax_xla' cannot run there"):
            catalog.check_variant(name, "laser", "jax_xla")
        return
    catalog.check_variant(name, toy)
    if entry.embedded:
        workload = registry.make(name, variants.get(toy))
        params, _ = jax.eval_shape(workload.init_model_fn, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == entry.parameters


def test_what_meta_data_tells_are_properties():
    """AlgoPerf's logger and ours write a workload's properties to meta_data_0.json."""
    kind = type(registry.make("digits_vit"))
    properties = {name for name in dir(kind) if isinstance(getattr(kind, name), property)}
    sizes = {f"num_{split}_examples" for split in ("train", "eval_train", "validation", "test")}
    targets = {"target_metric_name", "validation_target_value", "test_target_value"}
    assert properties == {*sizes, *targets, "eval_batch_size", "step_hint", "param_shapes"}


def test_targets_are_reached_from_the_right_side():
    vit, speech = registry.make("digits_vit"), registry.make("spoken_digits_conformer")
    assert vit.has_reached_validation_target({"validation/accuracy": 0.96})
    assert not vit.has_reached_test_target({"test/accuracy": 0.94})
    assert speech.has_reached_validation_target({"validation/wer": 0.1})
    assert not speech.has_reached_test_target({"test/wer": 0.3})
    unknown = registry.make("c4_lm_8b", scan_layers=True)
    assert not unknown.has_reached_test_target({"test/loss": 0.0})
    assert not unknown.is_output_params("layers")


def test_workloads_on_the_same_data_share_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNPERF_DATA", str(tmp_path))
    assert catalog.default_data_dir("c4_lm_2b") == catalog.default_data_dir("c4_lm")
    assert catalog.default_data_dir("pydoc_bert") == catalog.default_data_dir("pydoc_lm")
    assert catalog.default_data_dir("imagenet_vit_glu") == tmp_path / "imagenet_vit"


@pytest.mark.parametrize(
    ("name", "options", "study", "words"),
    [
        ("spoken_digits_conformer", {}, {"variants": ["laser+per_dim_temp"]}, "drop .per_dim_temp"),
        ("algoperf:finewebedu_lm", {}, {"variants": ["laser+qk_norm"]}, "drop .qk_norm"),
        ("digits_vit", {"remat": True}, {}, "digits_vit has no remat True"),
        ("digits_vit", {"loss_chunk_tokens": 4}, {}, "digits_vit has no loss_chunk_tokens 4"),
        ("digits_vit", {"mesh": (0, 2, 1)}, {}, "digits_vit has no mesh"),
        ("pydoc_lm", {"mesh": (0, 1, 3)}, {}, "heads 4 cannot be divided over mesh.tensor = 3"),
        ("pydoc_lm:pydoc_returns", {"mesh": (0, 3, 1)}, {}, "width 64 cannot be divided"),
        ("algoperf:finewebedu_lm", {}, {"observed": True}, "cannot be observed"),
        ("digits_vit", {}, {"batch_size": 998}, "997 examples"),
        (
            "pydoc_lm",
            {"global_every": 2},
            {"variants": ["standard", "laser"]},
            "set global_every=0",
        ),
        ("pydoc_lm", {"positions": "none"}, {"variants": ["laser+rope"]}, "set positions='sinu"),
        ("pydoc_lm", {"positions": "none"}, {"variants": ["laser+rope", "diff+alibi"]}, "every"),
        ("spoken_digits_conformer", {}, {"microbatches": 2}, "BatchNorm"),
        ("digits_vit", {}, {"batch_size": 8, "microbatches": 3}, "cannot be divided into 3"),
    ],
)
def test_what_a_model_cannot_take_is_refused_before_a_study_begins(name, options, study, words):
    with pytest.raises(ValueError, match=words):
        catalog.check(name, Options(**options), **study)


@pytest.mark.parametrize(
    ("options", "variants"),
    [
        ({"global_every": 2}, ["standard", "laser+window"]),
        ({"positions": "none"}, ["standard", "laser+rope"]),
        ({"positions": "none"}, []),
        ({"kv_heads": 2}, ["standard"]),
    ],
)
def test_options_that_change_a_variant_are_taken(options, variants):
    catalog.check("pydoc_lm", Options(**options), variants=variants)


def test_evaluations_divide_over_any_number_of_devices(monkeypatch):
    """20 utterances a batch on 8 devices: 24, the rest of weight 0."""
    workload = registry.make("spoken_digits_conformer")
    assert workload.eval_batch_size == 20
    eight = type("Mesh", (), {"shape": {"data": 4, "fsdp": 2, "tensor": 1}})
    monkeypatch.setattr(sharding.Devices, "mesh", eight)
    assert workload.eval_batch_size == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spoken_digits_conformer", "pydoc_lm"])
def test_bench_times_every_kind_of_model(name, monkeypatch):
    with pytest.raises(ValueError, match="lazer"):  # before it reads data
        next(bench.lines(name, "/nowhere", ["standard", "lazer"]))
    monkeypatch.setattr(bench, "_loader", lambda *arguments: "")
    monkeypatch.setattr(bench, "ROUNDS", 1)
    lines = list(bench.lines(name, "/nowhere", ["standard", "laser"], 2))
    assert "laser / standard" in lines[2]


def test_a_jobs_cache_folder_holds_its_data(tmp_path):
    folder = catalog.default_data_dir("digits_vit", {"ATTNPERF_CACHE": str(tmp_path)})
    assert folder == tmp_path / "data" / "digits_vit"
