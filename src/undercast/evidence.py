"""What clear dates say of the variance: the one asked for differs as those that are seen do.

The dates of a series are exchangeable, but a network that normalises each image hardly sees that
one is brighter than another. So its variance is a prior: the variance s² of a pixel and band is
scaled-inverse-χ² around the network's σ², worth ν dates, and every clear date x is a draw of
N(μ, s²). What follows is (ν σ² + Σ (x − μ)²) / (ν + n). One date alone says nothing of how dates
differ, and the cirrus band shows clouds, not ground: there the variance stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undercast import bands

# A date counts less and less from the first to the second of each pair, so that nothing jumps.
CLOUD, BRIGHTER = bands.index(["B2", "B3"]), (0.04, 0.08)  # reflectance above the estimate: cloud
SHADOW, DARKER = bands.index(["B8", "B8A", "B11"]), (0.4, 0.6)  # in the logarithm: shadow
DARKEST = 0.01  # reflectance below which darker means nothing
CIRRUS = bands.index(["B10"])


def posterior_variance(
    mean: Tensor, variance: Tensor, s2: Tensor, valid: Tensor, prior_dates: float
) -> Tensor:
    """(b 13 h w) the variance after the clear dates were seen, above 0 where it was.

    mean, variance: (b 13 h w) of the network. s2: (b t 13 h w) reflectance, NaN = no data. valid:
    (b t) dates that are there. prior_dates: how many dates the network's variance counts for.

    >>> mean, variance = torch.full((1, 13, 1, 1), 0.3), torch.full((1, 13, 1, 1), 0.0004)
    >>> s2 = torch.stack([mean + 0.04, mean - 0.04], dim=1)
    >>> valid = torch.ones(1, 2, dtype=torch.bool)
    >>> round(float(posterior_variance(mean, variance, s2, valid, 1.0)[0, 0]), 6)  # 36 / 3
    0.0012
    """
    squares, dates = torch.zeros_like(mean), torch.zeros_like(mean)
    for image, there in zip(s2.unbind(1), valid.unbind(1), strict=True):
        off = image.clamp(0, 1) - mean
        counts = shows_ground(image, mean) * there[:, None, None, None] * off.isfinite()
        squares += counts * off.square().nan_to_num()
        dates += counts
    posterior = (prior_dates * variance + squares) / (prior_dates + dates)
    posterior[:, CIRRUS] = variance[:, CIRRUS]
    several = valid.sum(dim=1) > 1
    return torch.where(several[:, None, None, None], posterior, variance)


def shows_ground(image: Tensor, mean: Tensor) -> Tensor:
    """(b 1 h w) 0..1: 1 where an image (b 13 h w) has no cloud and no shadow, as the mean has none.

    It is 0 where the bands that tell are missing.
    """
    brighter = (image - mean)[:, CLOUD].mean(dim=1, keepdim=True)
    ratio = mean[:, SHADOW].clamp(min=DARKEST) / image[:, SHADOW].clamp(min=DARKEST)
    darker = ratio.log().mean(dim=1, keepdim=True)
    return (_below(brighter, *BRIGHTER) * _below(darker, *DARKER)).nan_to_num()


def _below(x: Tensor, first: float, last: float) -> Tensor:
    """1 below the first number, 0 above the last, linear between."""
    return ((last - x) / (last - first)).clamp(0, 1)
