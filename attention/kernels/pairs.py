"""Masks that are functions of two positions, looked at once: which squares of pairs they show.

The functions are known when a program is traced, and so is every pair that they show. All pairs are
computed once for two lengths, 16 queries at a time, and no array of them is kept: 32,768 queries
and keys take 70 MB and 3 s of one CPU core.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.masks import PairFunction, seen

# Rows and columns of a square: a number that divides those of every kernel's tiles.
SQUARE = 16


class PairMask(NamedTuple):
    """The functions of a mask with its band, between `queries` and `keys` positions.

    low, high: bounds of a query's position minus a key's.
    """

    functions: tuple[PairFunction, ...]
    low: int
    high: int
    queries: int
    keys: int


class Survey(NamedTuple):
    """What a `PairMask` shows.

    some, whole: bool [⌈T/16⌉, ⌈S/16⌉], squares with a visible pair, and without a hidden one. rows,
    columns: bool [T] and [S], queries that see a key, and keys that are seen. low, high: the least
    and the largest distance of a visible pair. is_band: all pairs between these two are visible.
    """

    some: np.ndarray
    whole: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    low: int
    high: int
    is_band: bool

    def tiles(self, tile: tuple[int, int], count: tuple[int, int]) -> Any:
        """Returns `some` and `whole` of tiles, bool [count].

        tile: rows of queries and of keys, multiples of 16. count: numbers of tiles.
        """
        (rows, columns), (height, width) = count, (tile[0] // SQUARE, tile[1] // SQUARE)
        have = self.some.shape
        beyond = ((0, rows * height - have[0]), (0, columns * width - have[1]))
        some, whole = (
            np.pad(squares, beyond, constant_values=of_none).reshape(rows, height, columns, width)
            for squares, of_none in ((self.some, False), (self.whole, True))
        )
        return np.any(some, (1, 3)), np.all(whole, (1, 3))


@functools.lru_cache(16)
def survey(mask: PairMask) -> Survey:
    """Returns what a mask shows, by all of its pairs."""
    rows, columns = -(-mask.queries // SQUARE), -(-mask.keys // SQUARE)
    everywhere = np.arange(columns * SQUARE, dtype=np.int32)
    inside = (everywhere < mask.keys)[None]

    def add_row(carried: Any, first: Any) -> Any:
        """Adds a row of squares."""
        columns_seen, low, high = carried
        place = first + np.arange(SQUARE, dtype=np.int32)[:, None]
        # Positions beyond the end are those of the last row.
        of_query = jnp.minimum(place, mask.queries - 1)
        of_key = jnp.asarray(np.minimum(everywhere, mask.keys - 1)[None])
        distance = of_query - of_key
        shown = seen(mask.functions, of_query, of_key)
        shown = shown & (distance >= mask.low) & (distance <= mask.high)
        some = jnp.any(shown, 0)
        squares = some.reshape(columns, SQUARE), jnp.all(shown, 0).reshape(columns, SQUARE)
        carried = (
            columns_seen | some,
            jnp.minimum(low, jnp.min(jnp.where(shown, distance, low))),
            jnp.maximum(high, jnp.max(jnp.where(shown, distance, high))),
        )
        number = jnp.sum(shown & inside & (place < mask.queries), dtype=jnp.int32)
        return carried, (squares[0].any(1), squares[1].all(1), shown.any(1), number)

    start = np.zeros(len(everywhere), bool), np.int32(mask.queries), np.int32(-mask.keys)
    first = np.arange(rows, dtype=np.int32) * np.int32(SQUARE)
    # What JAX traces, and the mesh in use, belong to a thread: another computes beside them.
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(jax.jit(lambda: jax.lax.scan(add_row, start, first))).result()
    (columns_seen, low, high), (some, whole, of_rows, number) = jax.tree.map(np.asarray, made)
    position = np.arange(mask.queries)
    band = np.minimum(mask.keys - 1, position - low) - np.maximum(0, position - high) + 1
    return Survey(
        some,
        whole,
        of_rows.reshape(-1)[: mask.queries],
        columns_seen[: mask.keys],
        int(low),
        int(high),
        bool(np.sum(number, dtype=np.int64) == np.sum(np.maximum(band, 0))),
    )
