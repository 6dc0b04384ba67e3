"""Numbers on command lines, checked where they are given. Standard library only."""

import argparse
import contextlib
from collections.abc import Callable
from typing import Any


def _number(
    kind: Callable[[str], Any], allowed: Callable[[Any], bool], wanted: str
) -> Callable[[str], Any]:
    """Returns an argparse type: what `kind` makes of a text and `allowed` lets pass."""

    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if allowed(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text[:40]!r}; give {wanted}")

    return parse


def whole(least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Returns an argparse type: whole numbers from least to most."""
    return _number(
        int, lambda value: least <= value <= most, f"a whole number from {least:,} to {most:,}"
    )


def positive(least: float = 0.0, most: float = 1e9) -> Callable[[str], float]:
    """Returns an argparse type: finite numbers above 0, not below least, up to most."""
    low = f"from {least:g}" if least else "above 0, up"
    wanted = f"a number {low} to {most:g}"
    return _number(float, lambda value: value > 0 and least <= value <= most, wanted)


def not_negative(most: float = 1e9) -> Callable[[str], float]:
    """Returns an argparse type: finite numbers from 0 up to most."""
    return _number(float, lambda value: 0 <= value <= most, f"a number from 0 to {most:g}")
