"""The contract every line of the table keeps, checked without data; its FLOP are those counted."""

import contextlib
import csv
import hashlib
import itertools
import math
import types
from importlib import resources

import jax
import pytest

from analysis.load import results
from analysis.statistics import across
from attention import registry as variants
from attention import table as variants_table
from workloads import algoperf_specs, bench, catalog, registry
from workloads.algoperf import installation
from workloads.base import sharding, spec
from workloads.base.options import Options
from workloads.speech import spectrogram


@pytest.mark.parametrize("name", list(catalog.WORKLOADS))
def test_an_entry_tells_the_truth(name):
    entry = catalog.get(name)
    stacked = {"scan_layers": True} if "scan_layers" in entry.support.options else {}
    workload = registry.make(name, variants.get("standard"), **stacked)
    params, _ = jax.eval_shape(workload.init_model_fn, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == entry.parameters
    assert workload.step_hint == entry.step_hint
    targets = (workload.validation_target_value, workload.test_target_value)
    expected = [entry.validation_target or math.nan, entry.test_target or math.nan]
    assert targets == pytest.approx(expected, nan_ok=True)
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
    ("name", "digest"),
    [
        ("imagenet_vit", "2a2fa191bc69306b8ade1ac536847dff080a6488ed166a1f3d3d71c8409d88a3"),
        ("imagenet_vit_glu", "4534ec02f3389b0897e8c7106597a1880c1c6c4afd025a803fc0d7b5caba3a75"),
        ("imagenet_vit_map", "cbea33bda2523d0c9ac8c9d1c272a7932b8bc9c3aaf51109f7fc58a0a49d2187"),
        (
            "finewebedu_lm",
            "710d60e01681a2e496f175bcae0870356760e2b79ec512dfc33ed30fec7c7b74",
        ),
        (
            "librispeech_conformer",
            "6ad6fc13b470b00d7e29088202d2aa0d9a1d3bbfe15093a6d4517c36181050fc",
        ),
    ],
)
def test_a_parameter_tree_is_algoperfs(name, digest):
    """The SHA-256 of a line 'collection path shape' per leaf, as AlgoPerf's own models gave it."""
    tree = jax.eval_shape(registry.make(name)._initial_variables, jax.random.key(0))
    lines = [
        f"{path[0].key} {'/'.join(part.key for part in path[1:])} {'x'.join(map(str, leaf.shape))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    assert hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() == digest


@pytest.mark.parametrize(
    ("name", "sizes", "loss"),
    [
        (
            "imagenet_vit",
            (1_281_167, 51_200, 50_000, 10_000, 2048),
            spec.LossType.SOFTMAX_CROSS_ENTROPY,
        ),
        ("librispeech_conformer", (263_840, 5376, 5348, 2472, 256), spec.LossType.CTC_LOSS),
    ],
)
def test_sizes_are_algoperfs(name, sizes, loss):
    full = registry.make(name)
    examples = (full.num_train_examples, full.num_eval_train_examples)
    held_out = (full.num_validation_examples, full.num_test_examples)
    assert (*examples, *held_out, full.eval_batch_size) == sizes
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


@pytest.mark.parametrize(
    "name", ["digits_vit", "spoken_digits_conformer", "pydoc_lm", "pydoc_finewebedu"]
)
def test_every_row_has_a_model(name):
    """One of each kind of model takes every row of the paper and every mechanism."""
    lacks = {lack for lack, _ in catalog.get(name).support.lacks}
    mixers = [mixer for mixer, line in variants_table.MIXERS.items() if not lacks & {*line.needs}]
    for row in dict.fromkeys((*catalog.paper_rows(name), *mixers)):
        variant = variants.get(row, **variants_table.hyperparameters(row, 0.9))
        workload = registry.make(name, variant)
        assert jax.eval_shape(workload.init_model_fn, jax.random.key(0))[0]


@pytest.mark.parametrize("name", [*catalog.WORKLOADS, *catalog.ALGOPERF])
def test_the_catalog_knows_which_mixers_a_model_can_have(name, toy):
    """Every mixer of ours goes everywhere; one that no weighted mean makes, where the model asks
    our function: what it says of an embedded workload, its model says too."""
    entry = catalog.get(name)
    lacks = {lack for lack, _ in entry.support.lacks}
    for mixer, line in variants_table.MIXERS.items():
        if not lacks & {*line.needs}:
            catalog.check_variant(name, mixer)
    assert ("inside" in lacks) == (name == "algoperf:finewebedu_lm")
    if "inside" in lacks:
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


LM, DIGITS, FINEWEBEDU = "pydoc_lm", "digits_vit", "algoperf:finewebedu_lm"
REFUSED = [
    ("spoken_digits_conformer", {}, {"variants": ["laser+per_dim_temp"]}, "drop .per_dim_temp"),
    (FINEWEBEDU, {}, {"variants": ["laser+qk_norm"]}, "drop .qk_norm"),
    ("imagenet_vt", {}, {}, "Did you mean 'imagenet_vit'"),
    (DIGITS, {"compute_dtype": "float16"}, {}, "float16.*NaN"),
    (DIGITS, {"remat": True}, {}, "digits_vit has no remat True"),
    (DIGITS, {"loss_chunk_tokens": 4}, {}, "digits_vit has no loss_chunk_tokens 4"),
    (DIGITS, {"mesh": (0, 2, 1)}, {}, "digits_vit has no mesh"),
    (DIGITS, {"kv_heads": 2}, {}, "digits_vit has no kv_heads 2.*c4_lm"),
    (DIGITS, {"positions": "none"}, {}, "digits_vit has no positions 'none'"),
    (LM, {"mesh": (0, 1, 3)}, {}, "heads 4 .* mesh.tensor = 3"),
    (LM, {"mesh": (0, 1, 1, 3)}, {}, "tokens of a sequence 64 .* mesh.context = 3"),
    (LM, {"mesh": (0, 1, 1, 2)}, {"kernel": "splash"}, "mesh.context = 2"),
    ("digits_vit", {"mesh": (0, 1, 1, 2)}, {}, "mesh"),
    (f"{LM}:pydoc_returns", {"mesh": (0, 3, 1)}, {}, "width 64"),
    (FINEWEBEDU, {}, {"observed": True}, "cannot be observed"),
    (DIGITS, {}, {"batch_size": 998}, "997 examples"),
    (LM, {"global_every": 2}, {"variants": ["standard", "laser"]}, "set global_every=0"),
    (LM, {"global_every": 2}, {}, "set global_every=0"),
    (LM, {"global_every": 3}, {}, "global_every=3: pydoc_lm has 2 layers"),
    (LM, {"positions": "none"}, {"variants": ["laser+rope"]}, "set positions='sinu"),
    (LM, {"positions": "none"}, {"variants": ["laser+rope", "diff+alibi"]}, "every"),
    (LM, {"positions": "learned"}, {}, "positions='learned': give sinusoids or none"),
    (LM, {"kv_heads": 3}, {}, "kv_heads=3: pydoc_lm has 4 heads"),
    (LM, {"kv_heads": 2, "mesh": (1, 1, 4)}, {}, "divisible by mesh.tensor = 4"),
    (LM, {"kv_heads": 4}, {}, "kv_heads=4: .*; set kv_heads=0"),
    ("finewebedu_lm", {"global_every": 2}, {}, "finewebedu_lm has no global_every 2"),
    ("finewebedu_lm", {"document_mask": True}, {}, "finewebedu_lm has no document_mask True"),
    ("spoken_digits_conformer", {}, {"microbatches": 2}, "BatchNorm"),
    (DIGITS, {}, {"batch_size": 8, "microbatches": 3}, "cannot be divided into 3"),
    # Models that see both sides, and what a model does itself.
    *(
        (name, {}, {"variants": [variant]}, f"{name} cannot have '{variant.replace('+', '.')}'")
        for name, variant in (
            *itertools.product(
                (DIGITS, "spoken_digits_conformer", "pydoc_bert"), ("stick_breaking", "laser+fox")
            ),
            ("pydoc_finewebedu", "laser+rope"),
            ("pydoc_finewebedu", "laser+qk_norm"),
            ("pydoc_finewebedu", "laser+qk_rms_norm"),
        )
    ),
    (LM, {"global_every": 2}, {"variants": ["standard", "laser+window"]}, ""),
    (LM, {"positions": "none"}, {"variants": ["standard", "laser+rope"]}, ""),
    (LM, {"positions": "none"}, {}, ""),
    (LM, {"kv_heads": 2}, {"variants": ["standard"]}, ""),
    (LM, {}, {"variants": ["stick_breaking", "laser+fox"]}, ""),
]


@pytest.mark.parametrize(("name", "options", "study", "words"), REFUSED)
def test_what_a_model_cannot_take_is_refused_before_a_study_begins(name, options, study, words):
    """Cases without words are taken."""
    refusal = pytest.raises(ValueError, match=words) if words else contextlib.nullcontext()
    with refusal:
        catalog.check(name, Options(**options), **study)


def test_no_model_answers_questions_that_its_text_answers():
    assert "pysource_lm_57k:pydoc_returns" not in catalog.FINETUNED


def test_default_folders_of_data(monkeypatch, tmp_path):
    """Workloads on the same data share one. A job's cache holds its data."""
    monkeypatch.setenv("ATTNPERF_DATA", str(tmp_path))
    shared = (
        ("c4_lm_2b", "c4_lm"),
        ("pydoc_bert", "pydoc_lm"),
        ("pysource_lm_57k", "pysource_lm_722k"),
    )
    for name, other in shared:
        assert catalog.default_data_dir(name) == catalog.default_data_dir(other)
    assert catalog.default_data_dir("imagenet_vit_glu") == tmp_path / "imagenet_vit"
    folder = catalog.default_data_dir("digits_vit", {"ATTNPERF_CACHE": str(tmp_path)})
    assert folder == tmp_path / "data" / "digits_vit"


def test_evaluations_divide_over_any_number_of_devices(monkeypatch):
    """20 utterances a batch on 8 devices: 24, the rest of weight 0."""
    eight = types.SimpleNamespace(shape={"data": 4, "fsdp": 2, "tensor": 1})
    monkeypatch.setattr(sharding.Devices, "mesh", eight)
    assert registry.make("spoken_digits_conformer").eval_batch_size == 24


@pytest.mark.slow
def test_bench_times_a_model(monkeypatch, tmp_path):
    name = "spoken_digits_conformer"
    for variant, kernel in (("lazer", "xla"), ("laser", "splash+")):  # before it reads data
        with pytest.raises(ValueError, match="lazer|splash"):
            next(bench.lines(name, "/nowhere", ["standard", variant], kernel=kernel))
    monkeypatch.setattr(bench, "_loader", lambda *arguments: "")
    monkeypatch.setattr(bench, "ROUNDS", 2)
    lines = list(bench.lines(name, "/nowhere", ["standard", "laser"], 2, out=tmp_path))
    times = {"standard": {}, "laser": {}}
    for row in results.rows_of(tmp_path / "results.jsonl"):
        times[row.variant][row.seed] = row.value
    faster = across.speed_up(times["laser"], times["standard"])
    ends = f"{1 / faster.ratio:.3f} [{1 / faster.high:.3f}, {1 / faster.low:.3f}]"
    assert f"laser / standard {ends}" in lines[2]


def _products(jaxpr):
    """Returns the FLOP of matrix products and convolutions: two per multiplication."""
    total = 0
    for equation in jaxpr.eqns:
        shapes = [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(shapes[2]) * math.prod(shapes[0][axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            # A kernel's dimensions but for its outputs, for each output.
            outputs = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(shapes[2]) * math.prod(shapes[1]) // shapes[1][outputs]
        leaves = jax.tree.leaves(equation.params, is_leaf=_is_program)
        repeated = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        programs = [getattr(leaf, "jaxpr", leaf) for leaf in leaves if _is_program(leaf)]
        total += repeated * sum(map(_products, programs))
    return total


def _is_program(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


@pytest.mark.parametrize(
    ("name", "variant", "within"),
    [
        ("imagenet_vit", "standard", 0.03),
        ("digits_vit", "standard", 0.08),
        ("digits_vit", "diff", 0.08),
        ("librispeech_conformer", "standard", 0.02),
        ("spoken_digits_conformer", "standard", 0.02),
        ("c4_lm_2b", "standard", 0.01),
        ("wikipedia_bert", "standard", 0.02),
        ("pydoc_lm", "standard", 0.03),
        ("pydoc_lm", "diff", 0.03),
        ("pydoc_lm", "standard+gate", 0.03),
        ("pydoc_finewebedu", "standard+gate", 0.03),
        ("pydoc_bert", "standard", 0.03),
    ],
)
def test_a_forward_pass_is_a_third_of_the_step(name, variant, within):
    entry = catalog.get(name)
    is_scanned = "scan_layers" in entry.support.options
    workload = registry.make(name, variants.get(variant), scan_layers=is_scanned)
    key = jax.random.key(0)
    params, state = jax.eval_shape(workload.init_model_fn, key)
    batch = jax.eval_shape(lambda: workload.example_batch(1))
    train = spec.ForwardPassMode.TRAIN
    run = jax.make_jaxpr(lambda *given: workload.model_fn(*given, train, key, True)[0])
    counted = 3 * _products(run(params, batch, state).jaxpr)
    if "conformer" in name:
        # Model FLOP begin behind the spectrogram, which nothing is learned in.
        counted -= 3 * _products(jax.make_jaxpr(spectrogram.log_mel)(*batch["inputs"]).jaxpr)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert counted == pytest.approx(entry.step_flops(variant, 1, size), rel=within)


@pytest.mark.parametrize(
    ("variant", "attention"),
    # Per layer, of 64 patches and width 64: QKᵀ and A·V take 2·64·64·64 each, differential
    # attention's A·V twice that. Three times for forward and backward.
    [("standard", 2), ("laser", 2), ("laser+temp", 2), ("diff", 3), ("diff_laser", 3)],
)
def test_step_flops_by_hand(variant, attention):
    """Of digits_vit's 75,018 parameters and 64 patches."""
    per_image = 6 * 75_018 * 64 + 3 * 2 * attention * (2 * 64 * 64 * 64)
    assert catalog.get("digits_vit").step_flops(variant, 32) == 32 * per_image
    assert catalog.get("digits_vit").step_flops(variant, 32, 75_018 + 10) == 32 * (
        per_image + 6 * 10 * 64
    )
    assert catalog.get("algoperf:wmt").step_flops(variant, 32) is None
    # 22,400 samples make 138 frames of spectrogram and 35 encoded. Subsampling has
    # 2·40·9·8 + 20·9·8·8 + 20·8·64 weights, a layer 2·(64·128 + 128·64) + 4·64·64 + 3·64·64 + 5·64,
    # the output 64·29; QKᵀ and A·V of a layer take 2·64·35·35 each.
    conformer = catalog.get("spoken_digits_conformer")
    assert conformer.step_flops("standard", 16) == 16 * 33_989_760
