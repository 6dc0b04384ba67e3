"""Queries, keys and values of a model's layers, in a file or drawn: what can be run again.

A file is NumPy's .npz (uncompressed). Of every layer it holds `<layer>/query`, `<layer>/key` and
`<layer>/value`, float32 [examples, T|S, H, D] (the values of differential mixers [..., 2·D]: both
of a pair), and where something is hidden `<layer>/visibility`,
bool [examples, H or 1, T or 1, S]: True where a query looks. Without a batch the first axis is
left out; `query`, `key`, `value` alone are one layer without a name. bfloat16 is stored as float32,
which holds it exactly and which every NumPy reads; `about`, a JSON text, says what it was.
"""

import contextlib
import dataclasses
import json
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attention.files import replacing

NAMES = ("query", "key", "value")
VISIBILITY, ABOUT = "visibility", "about"


@dataclasses.dataclass(frozen=True)
class Tensors:
    """One example of one layer: query [T, H, D], key [S, H, D], value [S, H, a multiple of D],
    float32; `mask`, bool, broadcasts to [H, T, S], None where everything is seen."""

    layer: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None = None


def draw(
    shape: tuple[int, int, int], count: int, scales: Mapping[str, tuple[float, float]], seed: int
) -> Iterator[Tensors]:
    """Yields `count` examples of shape (N, H, D) per scale, normal, a function of the seed.

    `scales` maps what stands for a layer's name to (factor on the queries, sd of the values).
    """
    for position, (name, (of_query, of_value)) in enumerate(scales.items()):
        rng = np.random.default_rng((seed, position))
        for _ in range(count):
            query, key, value = (rng.standard_normal(shape, np.float32) for _ in range(3))
            yield Tensors(name, query * np.float32(of_query), key, value * np.float32(of_value))


def read(path: pathlib.Path) -> Iterator[Tensors]:
    """Yields the examples in a file, one layer in memory at a time.

    Raises ValueError where the file is damaged, or a layer lacks an array or has other axes.
    """
    with contextlib.ExitStack() as opened:
        try:
            # np.load leaves a damaged file open that it opened itself.
            handle = opened.enter_context(path.open("rb"))
            file = np.load(handle, allow_pickle=False)
        except FileNotFoundError as problem:
            raise ValueError(f"{path}: no such file") from problem
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as problem:
            raise ValueError(f"{path} is no .npz file ({problem}); was it cut short?") from problem
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError(f"{path} is one array, not an .npz file with query, key and value")
        opened.enter_context(file)
        layers = dict.fromkeys(name.rpartition("/")[0] for name in file.files if name != ABOUT)
        if not layers:
            raise ValueError(f"{path} holds no layer; it has {', '.join(file.files) or 'nothing'}")
        for layer in layers:
            yield from _layer(path, file, layer)


def _layer(path: pathlib.Path, file: Any, layer: str) -> Iterator[Tensors]:
    prefix = f"{layer}/" if layer else ""
    missing = [prefix + name for name in NAMES if prefix + name not in file.files]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(file.files)}")
    try:
        arrays = [np.asarray(file[prefix + name]) for name in NAMES]
        seen = np.asarray(file[prefix + VISIBILITY]) if prefix + VISIBILITY in file.files else None
    except Exception as problem:  # zipfile, zlib and NumPy each have their own
        raise ValueError(f"{path}: {layer or 'its arrays'} cannot be read ({problem})") from problem
    _check(f"{path}: {layer or 'query, key, value'}", arrays, seen)
    if arrays[0].ndim == 3:
        arrays, seen = [array[None] for array in arrays], None if seen is None else seen[None]
    for index, (query, key, value) in enumerate(zip(*arrays, strict=True)):
        q, k, v = (np.asarray(array, np.float32) for array in (query, key, value))
        visibility = None if seen is None else seen[index if len(seen) > 1 else 0]
        yield Tensors(layer, q, k, v, visibility)


def _check(where: str, arrays: list[np.ndarray], seen: np.ndarray | None) -> None:
    """Raises ValueError where arrays do not belong together."""
    shapes = [array.shape for array in arrays]
    floats = all(np.issubdtype(array.dtype, np.floating) for array in arrays)
    query, key, value = shapes
    fits = (
        len(query) in (3, 4)
        and len(query) == len(key) == len(value)
        and query[:-3] == key[:-3] == value[:-3]
        and query[-2:] == key[-2:]
        and value[-3:-1] == key[-3:-1]
        and 0 not in query + key + value
        and value[-1] % key[-1] == 0
    )
    if not floats or not fits:
        raise ValueError(
            f"{where}: shapes {shapes}, dtypes {[str(array.dtype) for array in arrays]}; wanted "
            "floats of [T, H, D], [S, H, D], [S, H, a multiple of D], with examples in front or not"
        )
    if seen is not None and (seen.dtype != bool or not _broadcasts(seen.shape, query, key)):
        raise ValueError(
            f"{where}: visibility is {seen.dtype}{list(seen.shape)}, wanted bool that broadcasts "
            "to [H, T, S], with examples in front where the queries have them"
        )


def _broadcasts(seen: tuple[int, ...], query: tuple[int, ...], key: tuple[int, ...]) -> bool:
    whole = (*query[:-3], query[-2], query[-3], key[-3])
    return len(seen) == len(whole) and all(
        axis in (1, size) for axis, size in zip(seen, whole, strict=True)
    )


def write(
    path: pathlib.Path, layers: Mapping[str, Mapping[str, Any]], about: Mapping[str, Any]
) -> None:
    """Writes a file that `read` reads, whole or not at all.

    `layers` maps a layer's path to its arrays query, key, value [examples, ...] of any float
    dtype and, unless it is None, visibility. `about` must be JSON.
    """
    stored: dict[str, np.ndarray] = {ABOUT: np.asarray(json.dumps(about))}
    for layer, arrays in layers.items():
        for name in NAMES:
            stored[f"{layer}/{name}"] = np.asarray(arrays[name]).astype(np.float32)
        if arrays.get(VISIBILITY) is not None:
            stored[f"{layer}/{VISIBILITY}"] = np.asarray(arrays[VISIBILITY]).astype(bool)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **stored)  # type: ignore[arg-type]
