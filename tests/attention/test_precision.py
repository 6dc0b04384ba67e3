"""What platforms make of float32 products: names, the kernels that follow, and the check."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from attention import __main__ as command
from attention import backends, registry, table
from attention.common import precision

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_names_are_jaxs_and_mean_what_is_said():
    levels = {name: jax.lax.Precision(name).name for name in precision.NAMES}
    assert levels == {
        **{"default": "DEFAULT", "bfloat16": "DEFAULT"},
        **{"tensorfloat32": "HIGH", "float32": "HIGHEST"},
    }
    for name in precision.NAMES[1:]:
        with jax.default_matmul_precision(name):
            assert jax.config.jax_default_matmul_precision == name


@pytest.mark.parametrize(
    ("name", "platform", "capability", "made"),
    [
        ("default", "cpu", "", "float32"),
        ("bfloat16", "cpu", "", "float32"),
        ("default", "gpu", "9.0", "TF32"),
        ("bfloat16", "gpu", "8.0", "TF32"),
        ("default", "gpu", "7.0", "float32"),
        ("float32", "gpu", "9.0", "float32"),
        ("default", "tpu", "", "bfloat16"),
        ("tensorfloat32", "tpu", "", "3 bfloat16 products"),
        ("float32", "tpu", "", "6 bfloat16 products"),
        ("default", "metal", "", "not known"),
    ],
)
def test_what_platforms_make_of_float32(name, platform, capability, made):
    assert precision.made_of(name, platform, capability) == made


def _precisions(jaxpr):
    """Yields the precision of every matrix product in a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for leaf in jax.tree.leaves(equation.params, is_leaf=lambda one: hasattr(one, "jaxpr")):
            if hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr"):
                yield from _precisions(getattr(leaf, "jaxpr", leaf))


@pytest.mark.parametrize(
    "kernel", [name for name, entry in backends.KERNELS.items() if entry.follows_precision]
)
@pytest.mark.parametrize("name", ["standard", "laser+temp", "diff", "sigmoid", "laser+qk_norm"])
def test_kernels_that_say_so_follow_forward_and_backward(kernel, name):
    if kernel not in table.kernels_of(name):
        pytest.skip(f"no {kernel} for {name}")
    from attention.verification.check import Host

    query = jnp.ones((5, 2, 4))
    host = Host(registry.get(name, kernel=kernel), 1)
    params = jax.eval_shape(host.init, jax.random.key(0), query, query, query, None)

    def loss(params, *qkv):
        return host.apply(params, *qkv, None).sum()

    backward = jax.grad(loss, argnums=(1, 2, 3))
    with jax.default_matmul_precision("float32"):
        found = set(_precisions(jax.make_jaxpr(backward)(params, query, query, query).jaxpr))
    assert found == {(jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)}
    without = set(_precisions(jax.make_jaxpr(backward)(params, query, query, query).jaxpr))
    assert without == {None}


def test_a_kernel_that_takes_none_refuses_by_name():
    backends.check_precision("cudnn", "default")
    backends.check_precision("xla", "float32")
    with pytest.raises(ValueError, match=r"'cudnn' takes no matmul precision.*'xla' or 'jax_xla'"):
        backends.check_precision("cudnn", "float32")


def test_the_check_takes_one(capsys):
    given = ["check", "standard", "--kernels=xla", "--shape=8,2,4"]
    assert command.main([*given, "--matmul_precision=float32"]) == 0
    assert jax.config.jax_default_matmul_precision is None
    assert command.main([*given[:2], "--kernels=cudnn", "--matmul_precision=float32"]) == 2
    assert "takes no matmul precision" in capsys.readouterr().err


def test_a_platform_that_is_not_here_is_named():
    """As of JAX_PLATFORMS=cuda in a shell's start-up file, on a login node."""
    done = subprocess.run(
        [sys.executable, "-m", "attention", "check", "standard", "--kernels=xla"],
        env={**os.environ, "JAX_PLATFORMS": "nonsense"},
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "JAX_PLATFORMS='nonsense'" in done.stderr
