"""What a study's seeds could have seen, as a sentence beside its verdicts."""

import math

from analysis.documents import grid
from analysis.results import expected_effect, power
from analysis.results.error_table import ErrorTable


def sentence(table: ErrorTable) -> str:
    """Returns the smallest true differences that 80% of such studies would find, and the seeds
    that the expected effect needs; says so where one seed can tell nothing, empty where nothing
    is compared."""
    expected = expected_effect.of_table(table, table.decisive)
    told = power.of_table(table, table.decisive, expected)
    if not told:
        return ""
    found = [each.detectable for each in told.values() if math.isfinite(each.detectable)]
    if not found:
        return "These seeds are too few to find a difference of any size."
    digits = table.metric.digits
    low, high = (grid.number(bound, digits).text for bound in (min(found), max(found)))
    spread = low if low == high else f"{low} to {high}, by variant"
    said = (
        "Smallest true difference that 80% of studies of these seeds and this noise would find: "
        f"{spread}."
    )
    seeds = [each.seeds for each in told.values() if each.seeds is not None]
    if not seeds:
        return said
    few, many = min(seeds), max(seeds)
    low, high = (power.seeds_text(bound) for bound in (few, many))
    needed = low if few == many else f"{low} to {high}"
    size = grid.number(expected.size, digits).text
    return f"{said} To find {size} ({expected.source}) takes {needed} seeds."
