"""The plots of a study's diagnostics: which there are, and what each shows."""

import functools
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from analysis.diagnostics import lines, maps
from analysis.diagnostics.lines import Panel, root_sum_square
from analysis.diagnostics.records import GRADIENTS as GRADIENT_NORMS
from analysis.diagnostics.table import paper_shares
from analysis.results.error_table import ErrorTable

MEAN, LARGEST = np.nanmean, np.nanmax

SHARES = tuple(
    Panel(f"probabilities below {limit}, {how}", f"share_below_{limit}", reduce, "share")
    for limit in ("1e-3", "1e-7")
    for how, reduce in (("mean over layers", MEAN), ("last record", None))
)
ENTROPY = (
    Panel("entropy (nats), mean over layers", "entropy", MEAN, "zero"),
    Panel("entropy (nats), last record", "entropy", None, "zero"),
    Panel("entropy / ln(visible keys), mean over layers", "entropy_share", MEAN, "share"),
    Panel("entropy / ln(visible keys), last record", "entropy_share", None, "share"),
)
_GRADIENT = dict(zip(GRADIENT_NORMS, ("logits", "W_Q", "W_K", "W_V"), strict=True))
GRADIENTS = tuple(
    Panel(f"gradient on {name}, norm over all layers", quantity, root_sum_square, "log")
    for quantity, name in _GRADIENT.items()
)
GRADIENTS_BY_LAYER = tuple(
    Panel(f"gradient on {name}, last record", quantity, None, "log")
    for quantity, name in _GRADIENT.items()
)
VALUES = (
    Panel("range of V, largest channel of all layers", "value_range_max", LARGEST, "log"),
    Panel("range of V, largest channel, last record", "value_range_max", None, "log"),
    Panel("range of V, median channel, mean over layers", "value_range_median", MEAN, "log"),
    Panel("floored channels, share", "floored_channels", MEAN, "share", of="channels"),
)
JACOBIAN = (
    Panel("softmax Jacobian, mean over rows and layers", "jacobian_mean", MEAN, "zero"),
    Panel("softmax Jacobian, mean over rows, last record", "jacobian_mean", None, "zero"),
    Panel("softmax Jacobian, largest of all rows", "jacobian_max", LARGEST, "zero"),
    Panel("softmax Jacobian, largest row, last record", "jacobian_max", None, "zero"),
)


def _shares(table: ErrorTable) -> Figure | None:
    return lines.draw(table, "small attention probabilities", SHARES, paper_shares())


def _lines(title: str, panels: tuple[Panel, ...], table: ErrorTable) -> Figure | None:
    return lines.draw(table, title, panels)


_BAND = "Line: median over seeds. Band: smallest to largest seed."
_ABSENT = "the diagnostics of the trials that are done have no such numbers"
# File to (what draws it, why it can be absent, what it shows and how to read it).
PLOTS: dict[str, tuple[Callable[[ErrorTable], Figure | None], str, str]] = {
    "attention_probabilities.png": (
        maps.histogram,
        _ABSENT,
        "Histogram of attention probabilities by layer, in half decades, hidden entries left out. "
        "Dashed: 1e-7 and 1e-3; the strip on the left holds everything smaller.",
    ),
    "attention_shares.png": (
        _shares,
        _ABSENT,
        f"Shares of attention probabilities below 1e-3 and 1e-7. {_BAND} Dashed: the paper's "
        "80 % and 20 %, of another model with more keys.",
    ),
    "attention_entropy.png": (
        functools.partial(_lines, "entropy of attention", ENTROPY),
        _ABSENT,
        f"Entropy of attention's rows, and as a share of the greatest possible. {_BAND}",
    ),
    "attention_gradients.png": (
        functools.partial(_lines, "gradient norms", GRADIENTS),
        _ABSENT,
        f"Gradient norms on the logits and the projections, all layers together. {_BAND}",
    ),
    "attention_gradients_by_layer.png": (
        functools.partial(_lines, "gradient norms by layer", GRADIENTS_BY_LAYER),
        _ABSENT,
        f"Gradient norms by layer in the last record. {_BAND}",
    ),
    "attention_gradient_maps.png": (
        maps.gradients,
        _ABSENT,
        "Gradient norms by layer and step, mixers side by side under one colour scale. "
        "Grey: 0, as below a layer that starts at 0. A column is a record, its step in the middle.",
    ),
    "attention_values.png": (
        functools.partial(_lines, "values", VALUES),
        _ABSENT,
        "Range of V's channels over the visible keys, and the share of channels that need LASER's "
        f"floored form (asked of every variant). {_BAND}",
    ),
    "attention_jacobian.png": (
        functools.partial(_lines, "size of the softmax Jacobian (Frobenius)", JACOBIAN),
        _ABSENT,
        "Frobenius norm of the softmax Jacobian diag(a) - a aT: what a row lets through to its "
        f"logits. {_BAND}",
    ),
}
