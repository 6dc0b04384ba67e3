"""The small AlgoPerf says what AlgoPerf says: compared with the real one, where it is installed."""

import ast
import pathlib

import pytest

from workloads.algoperf import preflight

STAND_IN = pathlib.Path(__file__).parent / "stand_in"
METHODS = ("init_model_fn", "model_fn", "loss_fn", "_build_input_queue", "eval_model")


def _function(path, name):
    """The arguments' names and defaults of a function or method; nothing is run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = [argument.arg for argument in node.args.args]
            return arguments, [ast.unparse(value) for value in node.args.defaults]
    raise LookupError(name)


@pytest.mark.parametrize("name", METHODS)
def test_workload_methods(algoperf, name):
    """What is abstract in AlgoPerf the small workload defines; it may add defaults."""
    names, defaults = _function(algoperf.directory / "algoperf/spec.py", name)
    ours = _function(STAND_IN / "algoperf/workloads/base.py", name)
    assert ours[0] == names
    assert ours[1][: len(defaults)] == defaults


@pytest.mark.parametrize("name", ["import_workload", "get_base_workload_name"])
def test_registry_functions(algoperf, name):
    path = "algoperf/workloads/workloads.py"
    assert _function(STAND_IN / path, name) == _function(algoperf.directory / path, name)


def test_flags_that_are_checked_are_the_runners(algoperf):
    text = (algoperf.directory / "submission_runner.py").read_text()
    for name in (*preflight.FLAGS, "max_global_steps"):
        assert f"'{name}'" in text
