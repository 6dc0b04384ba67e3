"""Tools for putting a variant into a foreign model's class. Loads no JAX."""

import functools
import re
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def layer_index(path: str, layers: int) -> int:
    """Returns a layer's index from 0, by the path of its attention module: 'encoderblock_3/…',
    'ConformerBlock_0/…', 'blocks_1/…'. A pooling layer comes behind all `layers`.

    Encoder and decoder count from 0 each. A decoder block's cross-attention has its block's index.
    Raises ValueError if the path has no such name.
    """
    if "MAPHead" in path:
        return layers
    match = re.search(r"blocks?_(\d+)", path, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"no layer number in {path!r}, and the variant needs one: the model has other names "
            "than the tested versions"
        )
    return int(match[1])


def run_inside(
    method: Callable[..., Any],
    enter: Callable[[], AbstractContextManager[Any]],
    check: Callable[[Any, tuple[str, ...]], None],
) -> Callable[..., Any]:
    """Returns a method of a class, run inside `enter()`.

    If the method makes parameters (`init`, `init_model_fn`), `check` gets the object and the paths
    of the layers that ran the variant.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with enter() as injection:
            output = method(self, *args, **kwargs)
        if method.__name__ in ("init", "init_model_fn"):
            check(self, injection.layers)
        return output

    return run


def check_layers(variant: str, paths: tuple[str, ...], expected: int, model: str) -> None:
    """Logs in how many of a model's attention layers a variant ran; `paths`: those layers.

    Raises ValueError for another number than `expected`.
    """
    from absl import logging

    if len(paths) != expected:
        raise ValueError(
            f"{variant!r} ran in {len(paths)} attention layers, and {model} has {expected}: "
            "this is another model, or some of its layers attend in another way. It ran in "
            f"{', '.join(paths)}. Take out local changes to the model"
        )
    logging.info("%r runs in %d of %d attention layers", variant, len(paths), expected)


class Substitute(types.ModuleType):
    """A module with some names replaced."""

    def __init__(self, module: types.ModuleType, **names: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
