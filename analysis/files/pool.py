"""Many small files at a time: reading and Arrow's parsing leave Python's lock to another thread."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# What runs in Python itself cannot be shared: a third thread gained nothing on two cores.
THREADS = min(2, os.cpu_count() or 1)
# Files that are parsed together: Arrow takes 0.36 ms for one of 200 lines, 0.15 ms each for many.
CHUNK = 32


def in_chunks(
    function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
) -> list[Result]:
    """Returns the results for all items, in order; `function` takes some of them at a time and
    returns one for each. Raises what it raises."""
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    if len(chunks) < 2 or THREADS < 2:
        return [result for chunk in chunks for result in function(chunk)]
    with ThreadPoolExecutor(THREADS) as threads:
        return [result for results in threads.map(function, chunks) for result in results]
