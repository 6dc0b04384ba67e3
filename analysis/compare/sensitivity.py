"""What a study's seeds can see: of the effect it is asked for, the paper's unless one is given."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.load.paper import PaperCell
from analysis.statistics import permutation
from analysis.statistics.comparisons import ALPHA
from analysis.statistics.power import detectable, seeds_needed
from analysis.statistics.results import Comparison
from attention import table as variants

# A word of a workload's name to the paper's table of that domain, and the workload it prints.
DOMAINS = {
    "vit": ("vit_error", "imagenet_vit"),
    "conformer": ("conformer_wer", "librispeech_conformer"),
    "lm": ("lm_test_loss", "c4_lm"),
    "bert": ("bert_mlm_error", "wikipedia_bert_2b"),
}
# The paper prints losses of the language model on test only.
PRINTED = "test"


@dataclass(frozen=True)
class ExpectedEffect:
    """`sizes` maps a variant to a difference of the table's metric (0 or more, its direction left
    out); without those of which nothing is expected: what the paper found says nothing of others.
    `source` says in words where they are from, or why there are none."""

    sizes: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class Sensitivity:
    """What a variant's comparison with the baseline can see. `sd` is as in Comparison, `degrees`
    its degrees of freedom, `alpha` 0.05 divided by the number of variants compared. `detectable`
    is the smallest true difference that is found with 80% power, `effect` the one asked for,
    `seeds` how many seeds would find it; nan, nan and None where undefined. `detectable` is inf
    where no difference can be found at these n, `seeds` where MOST_SEEDS do not find the effect."""

    n: str
    is_paired: bool
    degrees: int
    sd: float
    alpha: float
    detectable: float
    effect: float
    seeds: float | None


def of_table(table: ErrorTable, split: str, asked: ExpectedEffect) -> dict[str, Sensitivity]:
    """Returns the sensitivity of each variant that is compared with the baseline on `split`, by
    its name: to the effect that is `asked` of it, if any is."""
    compared = {row.variant: row.splits[split].comparison for row in table.rows}
    there = {name: each for name, each in compared.items() if each is not None}
    alpha = ALPHA / max(1, sum(each.is_tested for each in there.values()))
    return {
        name: _sensitivity(each, alpha, asked.sizes.get(name, math.nan))
        for name, each in there.items()
    }


def _sensitivity(comparison: Comparison, alpha: float, effect: float) -> Sensitivity:
    paired, sd = comparison.is_paired, comparison.sd
    n, m = comparison.n, comparison.n_baseline
    degrees = comparison.pairs - 1 if paired else n + m - 2
    found, seeds = math.nan, None
    if sd > 0:
        found, seeds = math.inf, _seeds(effect, sd, alpha, paired)
        if comparison.smallest_p < alpha:
            count = comparison.pairs if paired else n
            found = detectable(sd, count, alpha, paired=paired, n_baseline=m)
    return Sensitivity(comparison.seeds, paired, degrees, sd, alpha, found, effect, seeds)


def _seeds(effect: float, sd: float, alpha: float, paired: bool) -> float | None:
    """A permutation test also needs enough seeds to reach `alpha` at all."""
    if not abs(effect) > 0:
        return None
    seeds = seeds_needed(effect, sd, alpha, paired=paired)
    least = 2 if paired else permutation.seeds_to_reach(alpha)
    return math.inf if seeds is None or least is None else max(seeds, least)


def expected(table: ErrorTable, split: str, given: float | None = None) -> ExpectedEffect:
    """Returns the effects to look for on `split`: `given`, of every variant; else each variant's
    own difference from the baseline in the paper's table: for the study's workload, or relative in
    that domain, times the baseline's median. Raises ValueError where `given` is no finite number
    above 0, or above 1 where the metric is a share."""
    if given is not None:
        most = 1.0 if table.metric.is_bounded else math.inf
        if not (0 < given < math.inf and given <= most):
            limit = " and at most 1 (0.01 is one point)" if most == 1 else ""
            raise ValueError(
                f"--effect={given:g}: give a difference of {table.metric.label} above 0{limit}"
            )
        sizes = {row.variant: given for row in table.rows}
        return ExpectedEffect(sizes, f"{given:g}, as given")
    name, config = table.study.paper_table, dict(table.study.config)
    if name and table.metric.name == paper.TABLES[name].metric:
        printed = _printed(table, name, table.workload, config, split)
        if base := printed.pop(table.baseline, None):
            sizes = {key: abs(cell.value - base.value) for key, cell in printed.items()}
            examples = _examples(printed, base)
            return ExpectedEffect(sizes, f"the paper's differences on {split}, {examples}")
    return _relative(table, split)


def _relative(table: ErrorTable, split: str) -> ExpectedEffect:
    domain = next((DOMAINS[word] for word in table.workload.split("_") if word in DOMAINS), None)
    if domain is None or table.metric.name != paper.TABLES[domain[0]].metric:
        what = f"{table.metric.label} on {table.workload}"
        return ExpectedEffect({}, f"the paper has none of {what}; give one with --effect")
    name, workload = domain
    baseline = table.baseline_row
    summary = baseline.splits[split].summary if baseline else None
    if summary is None:
        return ExpectedEffect({}, "the baseline has no number")
    of_split, printed = split, _printed(table, name, workload, {}, split)
    if table.baseline not in printed:
        of_split, printed = PRINTED, _printed(table, name, workload, {}, PRINTED)
    base = printed.pop(table.baseline, None)
    if base is None:
        what = f"the paper prints no number of the baseline, {table.baseline_label}"
        return ExpectedEffect({}, f"{what}; give one with --effect")
    shares = {key: abs(cell.value / base.value - 1) for key, cell in printed.items()}
    return ExpectedEffect(
        {key: share * abs(summary.median) for key, share in shares.items()},
        f"the paper's relative differences on {of_split} of {workload}, "
        f"{_examples(printed, base)}, times the baseline's median",
    )


def _examples(printed: Mapping[str, PaperCell], base: PaperCell) -> str:
    """Returns the numbers behind the effects: `0.3749 to LASER 0.3593`."""
    cells = (f"{variants.label(name)} {cell.text}" for name, cell in printed.items())
    return f"{base.text} to {', '.join(cells) or 'none'}"


def _printed(
    table: ErrorTable, name: str, workload: str, config: dict, split: str
) -> dict[str, PaperCell]:
    """Returns what the paper prints of the table's variants."""
    cells = {
        row.variant: paper.cell(name, workload, config, row.variant, split) for row in table.rows
    }
    return {name: cell for name, cell in cells.items() if cell is not None}
