"""Keys of a study: default, meaning and allowed values, written once.

What is printed by `python -m sweeps keys`, what a study begins with and what is refused before
anything starts all come from here; the tables themselves are in `sweeps.study.keys` and
`sweeps.launchers`.
"""

import enum
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from attention import table as variants_table

_SHOWN = 80  # characters of a value in a message
_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "names, with commas between them",
}


class Range(NamedTuple):
    """Numbers from least to most, both included."""

    least: float
    most: float

    def holds(self, value: Any) -> bool:
        """Returns whether the number is finite and inside."""
        return self.least <= value <= self.most  # False for nan

    def __str__(self) -> str:
        return " to ".join(f"{end:,}" if end < 1e15 else f"{end:g}" for end in self)


class OneOf(NamedTuple):
    """One of some words."""

    words: Collection[str]

    def holds(self, value: Any) -> bool:
        """Returns whether the word is among them."""
        return value in self.words

    def __str__(self) -> str:
        return ", ".join(word or "''" for word in self.words)


class Text(NamedTuple):
    """Text that matches a pattern, or none at all; at most `most` bytes, no zero byte."""

    words: str = ""
    pattern: str = r"(?s).*"
    most: int = 4000  # Linux takes paths of up to 4095 bytes

    def holds(self, value: Any) -> bool:
        """Returns whether the text is empty or of that form."""
        if "\0" in value or len(value.encode(errors="surrogateescape")) > self.most:
            return False
        return not value or re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        form = f"{self.words}, or empty; " if self.words else "text of "
        return f"{form}at most {self.most:,} bytes without a zero byte"


# A part of a path has at most 255 bytes on every file system in use.
PATH = Text("a path of parts of at most 255 bytes", r"(?s)/*(([^/]{1,255})(/+|$))*")


class Role(enum.Enum):
    """What a key decides.

    RESULT: what is computed. EXTENT: which trials there are, and the baseline. FORM: how results
    are named, numbered and stored. TABLE: what stands in the table and beside it. ROUNDING: in how
    many parts, and on how many devices, the same is computed. PATH: where something lies.
    OBSERVATION: what is recorded and kept of a trial. RUNNER: who runs the trials.
    """

    RESULT = enum.auto()
    EXTENT = enum.auto()
    FORM = enum.auto()
    TABLE = enum.auto()
    ROUNDING = enum.auto()
    PATH = enum.auto()
    OBSERVATION = enum.auto()
    RUNNER = enum.auto()

    @property
    def may_change(self) -> bool:
        """Whether a study may be continued with another value: no trial's id depends on it."""
        return self not in (Role.RESULT, Role.FORM)

    @property
    def is_protocol(self) -> bool:
        """Whether the paper's table depends on it."""
        return self in (Role.RESULT, Role.EXTENT)


class Key(NamedTuple):
    """A key: its default (whose type every value has), meaning, allowed values and role.

    allowed: what it may say, of values of its default's type; its text stands after 'it must be'.
    """

    default: Any
    meaning: str
    allowed: Range | OneOf | Text | None = None
    role: Role = Role.RESULT

    @property
    def is_condition(self) -> bool:
        """Whether all studies of one experiment have the same value: it says what is computed, or,
        of a search, from which space, start and baseline; not how many trials there are."""
        is_named = self.role is Role.EXTENT and isinstance(self.default, str)
        return self.role is Role.RESULT or is_named

    def describe(self) -> str:
        """Returns the allowed values in words."""
        if self.allowed is None:
            return _KINDS[type(self.default)]
        return str(self.allowed)


def check(keys: Mapping[str, Key], values: Mapping[str, Any], prefix: str = "") -> None:
    """Raises ValueError for the first value of the wrong type or not allowed, saying what is."""
    for name, key in keys.items():
        value = values[name]
        kind = type(key.default)
        right, parts = type(value) is kind, [value]
        if kind is tuple:  # of names, or of numbers that are allowed; JSON has lists
            parts = value if type(value) in (tuple, list) else [None]
            right = all(type(part) is (int if key.allowed else str) for part in parts)
        if right and (key.allowed is None or all(map(key.allowed.holds, parts))):
            continue
        if right and isinstance(key.allowed, OneOf):
            raise ValueError(variants_table.unknown(f"{prefix}{name}", value, key.allowed.words))
        raise ValueError(f"{prefix}{name} is {shown(value)}; it must be {key.describe()}")


def shown(value: Any) -> str:
    """Returns a value as messages show it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"
