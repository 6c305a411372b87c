"""Uncertainty calibration error: samples binned by variance, RMSE against RMV in each bin.

UCE = Σ N_p/N · |RMSE_p − RMV_p| over P bins (the paper's equation), where RMSE_p is the root of the
mean squared error and RMV_p the root of the mean variance of the samples in bin p.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from undercast.errors import InputError

Binning = Literal["equal_mass", "equal_width", "legacy"]
Floats = NDArray[np.float64]
N_BINS = 20


class Groups(NamedTuple):
    """Samples that share one variance (or nearly): what binning keeps together.

    Every field is (G,), sorted by variance. Exact binning has one group for each distinct variance,
    streaming one for each cell of a fine histogram.
    """

    n: Floats
    squared_error: Floats  # sum
    variance: Floats  # sum


class Reliability(NamedTuple):
    """The reliability diagram: one entry for each bin that is not empty."""

    n: Floats
    rmse: Floats
    rmv: Floats

    @property
    def uce(self) -> float:
        """Σ N_p/N · |RMSE_p − RMV_p|; NaN without samples."""
        if not self.n.size:
            return float("nan")
        return float(np.average(np.abs(self.rmse - self.rmv), weights=self.n))

    @property
    def ence(self) -> float:
        """Expected normalised calibration error: the mean over bins of |RMSE − RMV| / RMV."""
        if not self.n.size:
            return float("nan")
        return float(np.mean(np.abs(self.rmse - self.rmv) / self.rmv))


def exact_groups(squared_error: Floats, variance: Floats) -> Groups:
    """One group for each distinct variance of the samples (N,)."""
    distinct, inverse, count = np.unique(variance, return_inverse=True, return_counts=True)
    summed = _sums(inverse, squared_error)
    return Groups(count.astype(np.float64), summed, distinct * count)


def reliability(groups: Groups, binning: Binning, n_bins: int = N_BINS) -> Reliability:
    """The groups merged into bins of equal mass or equal width, or as the released code does."""
    filled = groups.n > 0
    count, squared_error, variance = (field[filled] for field in groups)
    if not count.size:
        return Reliability(count, squared_error, variance)
    bin_of = _bin_of_groups(count, variance / count, binning, n_bins)
    n = _sums(bin_of, count)
    kept = n > 0
    mse = _sums(bin_of, squared_error)[kept] / n[kept]
    mean_variance = _sums(bin_of, variance)[kept] / n[kept]
    return Reliability(n[kept], np.sqrt(mse), np.sqrt(mean_variance))


def _sums(index: NDArray[np.intp], values: Floats) -> Floats:
    return np.bincount(index, weights=values).astype(np.float64)


def _bin_of_groups(
    count: Floats, variance: Floats, binning: Binning, n_bins: int
) -> NDArray[np.intp]:
    if binning == "equal_mass":
        # The rank of a group is that of its middle sample: samples of one variance stay together.
        middle = np.cumsum(count) - count / 2
        rank = middle / count.sum()  # below 1
        return np.asarray(rank * n_bins, dtype=np.intp)
    if binning == "equal_width":
        edges = np.linspace(variance[0], variance[-1], n_bins + 1)[1:-1]
        return np.digitize(variance, edges)
    if binning == "legacy":  # 19 bins of equal width and one that holds only the maximum
        return np.digitize(variance, np.linspace(variance[0], variance[-1], n_bins)[1:])
    raise InputError(f"got binning {binning!r}, expected equal_mass, equal_width or legacy")


class DiscardCurve(NamedTuple):
    """Mean squared error of the most certain share of the samples."""

    kept: Floats  # share of samples, 0..1
    mse: Floats

    @property
    def area(self) -> float:
        """The mean of the curve over the shares (trapezoids); smaller is better."""
        if self.kept.size < 2:
            return float("nan")
        return float(np.trapezoid(self.mse, self.kept) / (self.kept[-1] - self.kept[0]))


def discard_curve(squared_error: Floats, variance: Floats, steps: int = 20) -> DiscardCurve:
    """MSE of the x % images of smallest variance, for x in `steps` equal steps up to 100 %.

    >>> discard_curve(np.array([4.0, 1.0]), np.array([2.0, 1.0]), steps=2).mse.tolist()
    [1.0, 2.5]
    """
    if not variance.size:
        return DiscardCurve(np.empty(0), np.empty(0))
    order = np.argsort(variance, kind="stable")
    running = np.cumsum(squared_error[order]) / np.arange(1, order.size + 1)
    kept = np.arange(1, steps + 1) / steps
    number = np.maximum(np.round(kept * order.size).astype(np.intp), 1)
    return DiscardCurve(kept, running[number - 1])


def ause(by_variance: Groups, by_error: Groups, steps: int = 100) -> float:
    """Area under the sparsification error, as a share of the RMSE of all samples.

    Removes the samples of largest variance first, and of largest error first (the oracle), and
    averages the difference of the RMSE of what remains over the removed share; 0 = perfect order.
    """
    total = by_variance.n.sum()
    if total == 0:
        return float("nan")
    kept = total * np.arange(1, steps + 1) / steps
    rmse = np.sqrt(by_variance.squared_error.sum() / total)
    if rmse == 0:
        return 0.0
    gap = _remaining_rmse(by_variance, kept) - _remaining_rmse(by_error, kept)
    return float(np.trapezoid(gap, kept / total) / (1 - 1 / steps) / rmse)


def _remaining_rmse(groups: Groups, kept: Floats) -> Floats:
    count = np.concatenate([[0.0], np.cumsum(groups.n)])
    squared_error = np.concatenate([[0.0], np.cumsum(groups.squared_error)])
    return np.asarray(np.sqrt(np.interp(kept, count, squared_error) / kept))
