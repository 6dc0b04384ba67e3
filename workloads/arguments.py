"""Numbers on command lines, checked where they are given. Standard library only."""

import argparse
import math
from collections.abc import Callable


def whole(least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Returns an argparse type: whole numbers from least to most."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}; give a whole number from {least:,} to {most:,}"
            )
        return value

    return parse


def positive(least: float = 0.0, most: float = 1e9) -> Callable[[str], float]:
    """Returns an argparse type: finite numbers above 0, not below least, up to most."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value > 0 and least <= value <= most):
            low = f"from {least:g}" if least else "above 0, up"
            raise argparse.ArgumentTypeError(f"{text[:40]!r}; give a number {low} to {most:g}")
        return value

    return parse


def not_negative(most: float = 1e9) -> Callable[[str], float]:
    """Returns an argparse type: finite numbers from 0 up to most."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}; give a number from 0 to {most:g}")
        return value

    return parse
