"""What the choice of a point adds to the error of a comparison, where each variant was trained at
several points with all seeds and is reported at the best one.

A t-test at the best points takes the choice as given. With 10 seeds and three rates whose true
means are 0.4 SD apart it tells equal variants apart in 7.7 % of studies. The bootstrap over seeds
(Efron 1979, "Bootstrap methods: another look at the jackknife") repeats the choice in each
resample, so that its standard error covers the choice.
"""

import numpy as np

# The standard error of this many resamples is itself uncertain by 1.1 %.
RESAMPLES = 4_000


def resamples(n: int, side: int = 0) -> np.ndarray:
    """Returns indices [RESAMPLES, n] of `n` seeds, drawn with replacement; the same in each call,
    others for another `side`."""
    return np.random.default_rng(side).integers(n, size=(RESAMPLES, n))


def best_means(losses: np.ndarray, values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Returns the means [..., resamples] of `values` at the best point of each resample.

    The best point has the least median of `losses` [points, ..., n], the first on ties, as
    `sweeps.study.selection` chooses; a lost seed's loss is inf. `values` [points, ..., n] are what
    is compared, nan where there is no number, which the mean leaves out. `draws` [resamples, n] are
    indices of seeds. nan where no point has a finite median, or no number.
    """
    medians = np.stack([np.median(of_point[..., draws], axis=-1) for of_point in losses])
    counts = (draws[:, :, None] == np.arange(draws.shape[1])).sum(axis=1)
    measured = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        means = (np.where(measured, values, 0.0) @ counts.T) / (measured @ counts.T)
    best = medians.argmin(axis=0)[None]
    chosen = np.take_along_axis(means, np.broadcast_to(best, (1, *means.shape[1:])), axis=0)[0]
    return np.where(np.isfinite(medians.min(axis=0)), chosen, np.nan)


def standard_errors(
    losses: tuple[np.ndarray, np.ndarray], values: tuple[np.ndarray, np.ndarray], is_paired: bool
) -> np.ndarray:
    """Returns the standard errors [...] of the difference of two variants' `best_means`: the SD
    over resamples in which both have one, 0 without any.

    `losses` and `values` are the two variants'. Those of paired variants have the same n seeds, in
    one order, and share the resamples.
    """
    first, second = (
        best_means(loss, value, resamples(loss.shape[-1], 0 if is_paired else side))
        for side, (loss, value) in enumerate(zip(losses, values, strict=True))
    )
    differences = np.ma.masked_invalid(first - second)
    return np.asarray(np.ma.filled(differences.std(axis=-1), 0.0))
