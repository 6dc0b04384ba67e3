"""The stand-in says what AlgoPerf says: compared with the real one, where that is installed."""

import ast
import pathlib

import pytest

STAND_IN = pathlib.Path(__file__).parent / "stand_in"
METHODS = (
    "init_model_fn",
    "model_fn",
    "loss_fn",
    "_build_input_queue",
    "_eval_model_on_split",
    "eval_model",
    "is_output_params",
    "has_reached_validation_target",
    "has_reached_test_target",
    "attach_metrics_logger",
)
SUBMISSION = (
    "init_optimizer_state",
    "update_params",
    "prepare_for_eval",
    "data_selection",
    "get_batch_size",
)
# The order in which the runner calls what is ours to hook or to write.
CALLS = (
    "_build_input_queue",
    "init_model_fn",
    "init_optimizer_state",
    "get_meta_data",
    "set_up_loggers",
    "attach_metrics_logger",
    "data_selection",
    "update_params",
    "prepare_for_eval",
    "eval_model",
    "has_reached_validation_target",
    "has_reached_test_target",
    "append_scalar_metrics",
)
FILES = ("hparams.json", "meta_data_", "flags_", "measurements.csv", "eval_measurements.csv")


@pytest.fixture
def trees(algoperf):
    """A function from a file's name to its syntax trees, ours and theirs; neither is run."""

    def read(name):
        return [ast.parse((root / name).read_text()) for root in (STAND_IN, algoperf.directory)]

    return read


def _function(tree, name):
    """The arguments' names and defaults of a function or method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = [argument.arg for argument in node.args.args]
            return arguments, [ast.unparse(value) for value in node.args.defaults]
    raise LookupError(name)


def _flags(tree):
    """The runner's flags: name to kind and default."""
    return {
        ast.literal_eval(node.args[0]): (ast.unparse(node.func), ast.literal_eval(node.args[1]))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_")
    }


def _calls(tree, function):
    """The names called in a function, in the order of the text."""
    body = next(n for n in ast.walk(tree) if getattr(n, "name", "") == function)
    nodes = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    names = [ast.unparse(node.func).split(".")[-1] for node in nodes]
    return list(dict.fromkeys(name for name in names if name in CALLS))


@pytest.mark.parametrize("name", METHODS)
def test_workload_methods(trees, name):
    """What is abstract in AlgoPerf the toy workload defines; it may add defaults."""
    spec, theirs = trees("algoperf/spec.py")
    toy = ast.parse((STAND_IN / "algoperf/workloads/base.py").read_text())
    ours = ast.Module([*toy.body, *spec.body], [])
    names, defaults = _function(theirs, name)
    assert _function(ours, name)[0] == names
    assert _function(ours, name)[1][: len(defaults)] == defaults


@pytest.mark.parametrize("name", SUBMISSION)
def test_submission_functions(algoperf, name):
    ours = _function(ast.parse((STAND_IN / "algorithms/sgd.py").read_text()), name)
    theirs = _function(ast.parse((algoperf.directory / "algoperf/spec.py").read_text()), name)
    assert ours == theirs


def test_flags_and_their_defaults(trees):
    ours, theirs = map(_flags, trees("submission_runner.py"))
    assert ours == {name: theirs[name] for name in ours}


def test_required_flags(trees):
    from workloads.algoperf import preflight

    for tree in trees("submission_runner.py"):
        text = ast.unparse(tree)
        assert all(repr(name) in text for name in preflight.REQUIRED)
        assert "mark_flag_as_required" in text


def test_order_of_calls(trees):
    ours, theirs = (_calls(tree, "train_once") for tree in trees("submission_runner.py"))
    assert ours == theirs == list(CALLS)


def test_failed_evaluations_are_logged_and_forgotten(trees):
    """Why `workloads.algoperf.runner` exists; when this fails, AlgoPerf has repaired it."""
    for tree in trees("submission_runner.py"):
        body = next(node for node in ast.walk(tree) if getattr(node, "name", "") == "train_once")
        tries = [node for node in ast.walk(body) if isinstance(node, ast.Try)]
        (around,) = [node for node in tries if "eval_model" in ast.unparse(node.body)]
        (handler,) = around.handlers
        assert ast.unparse(handler.type) == "RuntimeError"
        assert "logging.exception" in ast.unparse(handler)
        assert not any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def test_names_of_files(algoperf):
    files = ("submission_runner.py", "algoperf/logger_utils.py")
    for root in (STAND_IN, algoperf.directory):
        text = "".join((root / name).read_text() for name in files)
        assert [name for name in FILES if name not in text] == []


@pytest.mark.parametrize("name", ["import_workload", "get_base_workload_name"])
def test_registry_functions(trees, name):
    ours, theirs = (_function(tree, name) for tree in trees("algoperf/workloads/workloads.py"))
    assert ours == theirs


def test_registry_entries(trees):
    def registry(tree):
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WORKLOADS":
                return ast.literal_eval(node.value)
        raise LookupError

    ours, theirs = map(registry, trees("algoperf/workloads/workloads.py"))
    since_1_0 = {"finewebedu_lm"}
    assert set(ours) - set(theirs) <= since_1_0
    assert set(ours) - since_1_0
    assert [name for name in ours if name in theirs and ours[name] != theirs[name]] == []
