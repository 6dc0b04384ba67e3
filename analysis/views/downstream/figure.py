"""downstream.png: every variant's score on each task of a suite, beside its difference from the
baseline's with its interval."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.compare import downstream
from analysis.compare.downstream import MEAN, SuiteTable
from analysis.compare.error_table import ErrorTable
from analysis.compare.suite_scores import Score
from analysis.render import style
from analysis.render.pictures import Plot
from attention import table as variants

# Of a task's row, one unit high, how much its variants take.
ROOM = 0.72
PERCENT = 100.0
# One mixer has one colour: its variants are told apart by how their marker is filled.
FILLS = ("full", "none", "left", "bottom", "right", "top")
DASHES = (*style.REFERENCE_LINES, "-", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 4)))


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure, a pair of panels for each suite, None where no trial was asked any."""
    suites = [each for each in downstream.of_table(table) if each.scores]
    if not suites:
        return None
    most_rows = max(len(each.tasks) + 1 for each in suites)
    names = list(dict.fromkeys(name for each in suites for name in each.scores))
    high = 1.4 + most_rows * (0.24 + 0.075 * len(names))
    figure, axes = style.grid(
        2 * len(suites), 2, lambda down, across: (5.2 * across, high * down + 0.5)
    )
    panels = axes.flat
    for suite in suites:
        _scores(next(panels), suite)
        _differences(next(panels), suite)
    style.title(figure, f"{table.study.name}: what the models can do")
    style.legend(figure, _handles(suites, names))
    return figure


def _rows(axes: Axes, suite: SuiteTable) -> None:
    """Makes a row for each task, the mean over them last, below a rule."""
    style.tidy(axes)
    labels = [*suite.tasks, MEAN]
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(labels)), [style.plain(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.axhline(len(labels) - 1.5, color=style.GREY, linewidth=0.8)


def _each(suite: SuiteTable) -> list[tuple[str, float, Score]]:
    """Returns every variant's scores with their heights: side by side within a task's row."""
    names = list(suite.scores)
    step = ROOM / max(len(names), 1)
    found = []
    for rank, name in enumerate(names):
        offset = (rank - (len(names) - 1) / 2) * step
        scores = suite.scores[name]
        found += [
            (name, row + offset, scores[task])
            for row, task in enumerate(suite.tasks)
            if task in scores
        ]
        if name in suite.means:
            found.append((name, len(suite.tasks) + offset, suite.means[name]))
    return found


def _looks(name: str, names: Iterable[str]) -> dict[str, Any]:
    """Returns a variant's marker, filled by its place among those of its mixer."""
    colour, marker = style.look(name)
    alike = [each for each in names if variants.mixer(each) == variants.mixer(name)]
    fill = FILLS[alike.index(name) % len(FILLS)]
    return {"color": colour, "marker": marker, "fillstyle": fill, "mfcalt": "white", "ms": 5}


def _mark(
    axes: Axes, suite: SuiteTable, name: str, height: float, value: float, *ends: float
) -> None:
    looks = _looks(name, suite.scores)
    bounds = [PERCENT * end for end in ends]
    axes.plot(bounds, [height] * 2, color=looks["color"], linewidth=1.6)
    axes.plot(PERCENT * value, height, ls="", **looks)


def _scores(axes: Axes, suite: SuiteTable) -> None:
    _rows(axes, suite)
    for name, height, score in _each(suite):
        _mark(axes, suite, name, height, score.value, score.low, score.high)
    for dashes, (_, values) in zip(DASHES, suite.references.items(), strict=False):
        for row, value in enumerate([*values.values(), suite.reference(values)]):
            if value is not None:
                axes.plot(
                    [PERCENT * value] * 2, [row - ROOM / 2, row + ROOM / 2],
                    color=style.GREY, linestyle=dashes, linewidth=1.4,
                )  # fmt: skip
    axes.set_title(style.plain(f"{suite.suite}, step {suite.step}"), fontsize=10)
    axes.set_xlabel("right answers (%)", fontsize=10)


def _differences(axes: Axes, suite: SuiteTable) -> None:
    _rows(axes, suite)
    axes.axvline(0.0, color=style.BLACK, linewidth=1.0, zorder=1)
    for name, height, score in _each(suite):
        if (each := score.difference) is not None:
            _mark(axes, suite, name, height, each.value, each.low, each.high)
    if not style.is_narrow():
        axes.set_yticklabels([])
    base = variants.label(suite.baseline)
    axes.set_title(style.plain(f"minus {base}, better to the right"), fontsize=10)
    axes.set_xlabel("difference (points)", fontsize=10)


def _handles(suites: Sequence[SuiteTable], names: Sequence[str]) -> list[Line2D]:
    handles = [style.key(variants.label(name), **_looks(name, names)) for name in names]
    references = dict.fromkeys(name for each in suites for name in each.references)
    for dashes, name in zip(DASHES, references, strict=False):
        handles.append(style.key(name, color=style.GREY, ls=dashes))
    return handles


def words(table: ErrorTable) -> str:
    """Returns every variant's mean over tasks, suite by suite."""
    parts = []
    for suite in downstream.of_table(table):
        means = [
            f"{variants.label(name)} {PERCENT * mean.value:.2f} %"
            for name, mean in suite.means.items()
            if np.isfinite(mean.value)
        ]
        if means:
            several = f", mean over {len(suite.tasks)} tasks" if len(suite.tasks) > 1 else ""
            parts.append(f"{suite.suite}{several}: {', '.join(means)}")
    return f"Right answers on downstream tasks by variant. {'; '.join(parts)}."


PLOTS = (
    Plot(
        file="downstream.png",
        draw=draw,
        words=words,
        absent="no suite has a task that can be read",
        caption="Scores on each task with 95% intervals over questions, and differences from the "
        "baseline, paired question by question; not corrected, as the p-values are. Dashed: "
        "answers without a model.",
        applies=lambda table: bool(downstream.of_table(table)),
    ),
)
