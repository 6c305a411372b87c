"""Confidence intervals: Student's t for a few seeds, the bootstrap for images of several regions.

The two include different noise. Seeds at fixed images: initial weights, order and crops of
training. Images at fixed seeds: which places were looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from undercast.errors import InputError

Floats = NDArray[np.float64]
LEVEL = 0.95


class Interval(NamedTuple):
    """Bounds; infinite where there is too little to tell."""

    low: float
    high: float


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t with a whole number of degrees of freedom, above one half.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise InputError(
            f"got probability {probability} and {freedom} degrees of freedom, "
            "expected 0.5 to 1 and at least 1"
        )
    low, high = 0.0, math.pi / 2  # of the angle atan(t/√ν), in which the distribution is a sum
    for _ in range(80):
        middle = (low + high) / 2
        if (1 + _central(middle, freedom)) / 2 < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _central(angle: float, freedom: int) -> float:
    """P(|T| ≤ √ν tan angle), the finite sum for whole ν (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range((freedom - odd) // 2):
        total += term
        step = 2 * k + odd
        term *= (step + 1) / (step + 2) * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def mean_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """The t-interval of the mean of independent values (n,); unbounded for fewer than two.

    Of paired differences it is the interval of the paired t-test.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        return Interval(-math.inf, math.inf)
    reach = t_quantile((1 + level) / 2, array.size - 1) * array.std(ddof=1) / math.sqrt(array.size)
    return Interval(float(array.mean() - reach), float(array.mean() + reach))


def draw_interval(draws: ArrayLike, level: float = LEVEL) -> Interval:
    """The percentile interval of bootstrap draws of a statistic."""
    low, high = np.quantile(np.asarray(draws), ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(low), float(high))


def region_draws(regions: Sequence[str], draws: int, seed: int = 0) -> NDArray[np.int64]:
    """(draws, n) how often each image counts when whole regions are drawn with replacement.

    Images of one region share weather and season, so they come and go together.
    """
    names, region_of = np.unique(np.asarray(regions), return_inverse=True)
    share = np.full(len(names), 1 / len(names))
    counts = np.random.default_rng(seed).multinomial(len(names), share, size=draws)
    return np.asarray(counts[:, region_of])
