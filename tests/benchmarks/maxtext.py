"""Peers' train steps by the same compilers: MaxText's decoder on the work of `c4_lm`.

AlgoPerf's models are workloads of ours (`algoperf_imagenet_vit`); MaxText has its own trainer, and
its `train_compile` is what is run here, in a process of its own, with what it compiles looked at as
our steps are. It needs a Python environment with MaxText (0.2.5 is what was tried) and this project
in it, and the jax, jaxlib, flax and libtpu that our figures come from.
"""

import importlib.util
import pathlib
import tempfile
from typing import Any

from attention.common import accelerators
from attention.compilers import topologies
from sweeps.compilers import compiled_step

# c4_lm in MaxText's words: 301 M parameters, one table of embeddings, an MLP without a gate, full
# rematerialisation, layers scanned, AdamW, bfloat16 computed from float32 parameters.
_C4_LM = {
    "base_emb_dim": 1024,
    "base_num_decoder_layers": 32,
    "base_mlp_dim": 2048,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_target_length": 1024,
    "mlp_activations": "['gelu']",
    "logits_via_embedding": True,
    "dtype": "bfloat16",
    "weight_dtype": "float32",
    "remat_policy": "full",
    "scan_layers": True,
    "opt_type": "adamw",
    "enable_checkpointing": False,
    "dataset_type": "synthetic",
}


def compiled(topology: str, batch_size: int, attention: str) -> dict[str, Any]:
    """Returns what the compiler says (`compiled_step.compiled`) of MaxText's train step of c4_lm.

    batch_size: of the whole topology; parameters are divided over 8 devices. attention: 'flash' or
    'dot_product', MaxText's names. Its rotary embedding is left out, as c4_lm has none. Raises
    ValueError where MaxText or the topology's compiler is not installed.
    """
    if importlib.util.find_spec("maxtext") is None:
        raise ValueError("MaxText is not installed")
    where = accelerators.topology(topology)
    with topologies.compiling_for(where, has_kernels=True) as scratch:
        return _compiled(where, batch_size, attention, scratch)


def _compiled(
    where: accelerators.Topology, batch_size: int, attention: str, scratch: str
) -> dict[str, Any]:
    import jax
    from jax.experimental import xla_metadata

    if not hasattr(xla_metadata, "must_fuse_call"):  # imported by 0.2.5, absent from jax 0.10.2
        setattr(xla_metadata, "must_fuse_call", _absent)  # noqa: B010
    import maxtext
    from maxtext.layers import attentions
    from maxtext.trainers.pre_train import train_compile

    found: dict[str, Any] = {}

    def compile_and_look(
        function: Any,
        arguments: Any,
        _: Any,
        mesh: Any,
        in_shardings: Any,
        out_shardings: Any,
        static_argnums: Any,
        donate_argnums: Any,
        config: Any,
        rules: Any,
    ) -> Any:
        step = jax.jit(
            function,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            donate_argnums=donate_argnums,
        )
        named = {"state": arguments[0], "batch": arguments[1]}
        with jax.set_mesh(mesh), rules:
            found.update(
                compiled_step.compiler_report(lambda: step.trace(*arguments), named, where, scratch)
            )
        raise _DoneError

    train_compile.jit_and_compile = compile_and_look
    attentions.Attention.apply_rotary_embedding = lambda self, inputs, *rest, **named: inputs
    settings = {
        **_C4_LM,
        "per_device_batch_size": batch_size // where.devices,
        "attention": attention,
        "compile_topology": f"{where.kind}-{where.devices}",
        "compile_topology_num_slices": 1,
        "ici_fsdp_parallelism": 8,
        "ici_data_parallelism": where.devices // 8,
        "base_output_directory": tempfile.gettempdir(),
        "run_name": "peer",
    }
    file = pathlib.Path(maxtext.__file__).parent / "configs" / "base.yml"
    try:
        train_compile.main(["", str(file), *(f"{key}={value}" for key, value in settings.items())])
    except _DoneError:
        return found
    raise AssertionError("MaxText's train_compile ended without compiling a step")


def _absent(*_: Any) -> Any:
    """Stands for a name of a newer jax that only another kernel of MaxText's calls."""
    raise NotImplementedError("jax.experimental.xla_metadata.must_fuse_call is not in this jax")


class _DoneError(Exception):
    """What MaxText would do with what it compiled is not needed."""
