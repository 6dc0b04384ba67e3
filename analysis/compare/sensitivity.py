"""What a study's seeds can see: of the effect it is asked for, the paper's unless one is given."""

import math
from dataclasses import dataclass

from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.statistics import permutation
from analysis.statistics.comparisons import ALPHA
from analysis.statistics.power import detectable, seeds_needed
from analysis.statistics.results import Comparison

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
    """`size` is a difference of the table's metric (0 or more, its direction left out), nan where
    there is none to be had; `source` says in words where it is from, or why there is none.
    `variants` are those that it is expected of: what the paper found says nothing of others."""

    size: float
    source: str
    variants: frozenset[str]

    def of(self, variant: str) -> float:
        """Returns the size for a variant, nan where nothing is expected of it."""
        return self.size if variant in self.variants else math.nan


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
    return {name: _sensitivity(each, alpha, asked.of(name)) for name, each in there.items()}


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
    """Returns the effect to look for on `split`: `given`, of every variant; else, of those that
    stand in the paper's table, its LASER - Standard for the study's workload, or its relative
    difference in that domain, of the baseline's median. Raises ValueError where `given` is no
    finite number above 0, or above 1 where the metric is a share."""
    if given is not None:
        most = 1.0 if table.metric.is_bounded else math.inf
        if not (0 < given < math.inf and given <= most):
            limit = " and at most 1 (0.01 is one point)" if most == 1 else ""
            raise ValueError(
                f"--effect={given:g}: give a difference of {table.metric.label} above 0{limit}"
            )
        return ExpectedEffect(given, "as given", frozenset(row.variant for row in table.rows))
    name, config = table.study.paper_table, dict(table.study.config)
    if name and table.metric.name == paper.TABLES[name].metric:
        pair = _pair(name, table.workload, config, split)
        if pair is not None:
            laser, standard = pair
            return ExpectedEffect(
                abs(laser.value - standard.value),
                f"the paper's LASER - Standard, {laser.text} - {standard.text} on {split}",
                _printed(table, name, table.workload, config, split),
            )
    return _relative(table, split)


def _relative(table: ErrorTable, split: str) -> ExpectedEffect:
    domain = next((DOMAINS[word] for word in table.workload.split("_") if word in DOMAINS), None)
    if domain is None or table.metric.name != paper.TABLES[domain[0]].metric:
        what = f"{table.metric.label} on {table.workload}"
        return _none(f"the paper has none of {what}; give one with --effect")
    name, workload = domain
    of_split, pair = split, _pair(name, workload, {}, split)
    if pair is None:
        of_split, pair = PRINTED, _pair(name, workload, {}, PRINTED)
    baseline = table.baseline_row
    summary = baseline.splits[split].summary if baseline else None
    if pair is None or summary is None:
        return _none("the baseline has no number")
    laser, standard = pair
    share = laser.value / standard.value - 1
    printed = f"{standard.text} to {laser.text} on {of_split} of {workload}"
    return ExpectedEffect(
        abs(share * summary.median),
        f"the paper's relative difference, {share:+.1%} ({printed}), of the baseline's median",
        _printed(table, name, workload, {}, of_split),
    )


def _none(why: str) -> ExpectedEffect:
    return ExpectedEffect(math.nan, why, frozenset())


def _printed(
    table: ErrorTable, name: str, workload: str, config: dict, split: str
) -> frozenset[str]:
    """Returns the table's variants of which the paper prints a number."""
    names = (row.variant for row in table.rows)
    return frozenset(each for each in names if paper.cell(name, workload, config, each, split))


def _pair(
    name: str, workload: str, config: dict, split: str
) -> tuple[paper.PaperCell, paper.PaperCell] | None:
    laser, standard = (
        paper.cell(name, workload, config, variant, split) for variant in ("laser", "standard")
    )
    return None if laser is None or standard is None else (laser, standard)
