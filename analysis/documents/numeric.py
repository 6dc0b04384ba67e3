"""Numbers on the command line, checked at the door: what no command can mean never reaches one."""

import argparse
import math


def above_zero(text: str) -> float:
    """Returns a finite number above 0. Raises ArgumentTypeError, as argparse wants it, for
    anything else."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a finite number above 0, such as 0.01")
    return value


def not_negative(text: str) -> float:
    """Returns a finite number of 0 or more; raises as `above_zero`."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a finite number from 0, such as 0.25")
    return value


def count(text: str) -> int:
    """Returns a whole number from 1; raises as `above_zero`."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 10**18):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1, such as 5")
    return int(text)


def seed(text: str) -> int:
    """Returns a whole number from 0; raises as `above_zero`."""
    return 0 if text == "0" else count(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
