"""What a line of `attention.table` says of a mixer or modifier. Standard library only."""

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple


class Hyperparameter(NamedTuple):
    """A value that a variant is given by name.

    `other`: a value beside the default that must change the output, for tests. `why`: what it is,
    for messages. `choices`: what it may be; without them it is a number > 0, an integer if the
    default is one.
    """

    default: Any
    other: Any
    why: str
    choices: tuple[Any, ...] = ()

    def check(self, name: str, value: object) -> Any:
        """Returns a value, also NumPy's, as Python's number, bool or string.

        Raises ValueError for what it cannot be.
        """
        if self.choices:
            for choice in self.choices:
                # NumPy's types are called bool, bool_ and str_.
                if type(choice).__name__ == type(value).__name__.rstrip("_") and value == choice:
                    return choice
            allowed = " or ".join(map(repr, self.choices))
            raise ValueError(f"{name}={value!r}: {self.why}; give {allowed}")
        if isinstance(self.default, int):
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
                raise ValueError(f"{name}={value!r}: {self.why}; give an integer from 1")
            return int(value)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError(
                f"{name}={value!r} is not a Python number, nor NumPy's: it is part of a variant's "
                "identity and is compiled in, so it cannot be an array or a traced value"
            )
        number = value if isinstance(value, int) else float(value)
        # 1/value must be a float32 too.
        if not 1e-30 <= number <= 1e30:
            raise ValueError(f"{name}={value!r}: {self.why}; give a number > 0, of 1e-30 to 1e30")
        return float(number)


# What it needs of a model. `causal`: tokens of the model see earlier ones alone, so a mechanism may
# read those. Whether it also hides later keys itself is in the mask of its record or call.
MODEL_NEEDS = {
    "x": "the block's input",
    "layer": "the layer's index",
    "memory": "what earlier layers left",
    "causal": "causal attention",
    "self": "self-attention",
    "inside": "a softmax that it can change",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the lines of a mixer and of a modifier share: what `list` prints, and `get` accepts.

    label: its name in tables. needs: names of KERNEL_NEEDS and MODEL_NEEDS.
    """

    label: str
    formula: str
    source: str
    parameters: str = "none"
    hyperparameters: Mapping[str, Hyperparameter] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class MixerEntry(Entry):
    """The line of a mixer.

    group: the label of the group within which a table marks the best, if it is not the mixer's own.
    normalised: rows of its weights sum to 1. value_width: the head size of the values that it hands
    a backend, over that of the model's. maps: how many maps each key head has for one of the
    model's.
    """

    group: str = ""
    normalised: bool = False
    value_width: int = 1
    maps: int = 1


@dataclasses.dataclass(frozen=True)
class ModifierEntry(Entry):
    """The line of a modifier. takes_weight: it needs a mixer whose rows of weights sum to 1."""

    takes_weight: bool = False
