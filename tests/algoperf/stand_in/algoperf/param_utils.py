"""Shapes and types of parameters. A leaf below an attention module must be one of the known."""

import jax

from algoperf import spec

_ATTENTION = {
    "query": spec.ParameterType.ATTENTION_Q,
    "key": spec.ParameterType.ATTENTION_K,
    "value": spec.ParameterType.ATTENTION_V,
    "out": spec.ParameterType.ATTENTION_OUT,
}
_NORM = {
    "scale": spec.ParameterType.LAYER_NORM_SCALE,
    "bias": spec.ParameterType.LAYER_NORM_BIAS,
}


def jax_param_shapes(params):
    return jax.tree.map(lambda leaf: spec.ShapeTuple(leaf.shape), params)


def jax_param_types(param_shapes, parent_name=""):
    types = {}
    for name, value in param_shapes.items():
        name = name.lower()
        if isinstance(value, dict):
            types[name] = jax_param_types(value, f"{parent_name}/{name}")
        else:
            types[name] = _type(parent_name, name)
    return types


def _type(parent, name):
    if "layernorm" in parent or "ln" in parent:
        if name not in _NORM:
            raise ValueError(f"Unrecognized layer norm parameter: {parent}/{name}.")
        return _NORM[name]
    if "attention" not in parent:
        return spec.ParameterType.BIAS if "bias" in name else spec.ParameterType.WEIGHT
    if name == "bias":
        return spec.ParameterType.ATTENTION_BIAS
    if name == "kernel":
        return next(kind for part, kind in _ATTENTION.items() if part in parent)
    if "scale" in name:
        return spec.ParameterType.WEIGHT
    raise ValueError(f"Unrecognized attention parameter: {parent}/{name}.")
