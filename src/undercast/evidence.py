"""What clear dates say of the variance: the one asked for differs as those that are seen do.

The dates of a series are exchangeable, but a network that normalises each image hardly sees that
one is brighter than another. So its variance σ² is a prior worth ν differences between dates. The n
clear dates x of a pixel and band have n − 1, and the squares S = Σ (x − x̄)² of their own: the next
date is off their mean by (1 + 1/n) S / (n − 1) on average, and the estimate μ off it by x̄ − μ,

    D = (1 + 1/n) S + (n − 1) (x̄ − μ)².

Dates differ by light and air, hence over more than a pixel. So with the means of D/σ² and n − 1
over the square around each pixel, the variance becomes

    σ² (ν + mean of D/σ²) / (ν + mean of n − 1).

One date alone says nothing of how dates differ, and the cirrus band shows clouds, not ground: there
the variance stays.
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
AROUND = 64  # pixels to each side that tell of one
FEWEST = 1e-6  # of a date or pixel, so that nothing is divided by 0


def posterior_variance(
    mean: Tensor, variance: Tensor, s2: Tensor, valid: Tensor, prior_dates: float
) -> Tensor:
    """(b 13 h w) the variance after the clear dates were seen, above 0 where it was.

    mean, variance: (b 13 h w) of the network. s2: (b t 13 h w) reflectance, NaN = no data. valid:
    (b t) dates that are there. prior_dates: how many differences the network's variance counts for.

    >>> mean, variance = torch.full((1, 13, 1, 1), 0.3), torch.full((1, 13, 1, 1), 0.0004)
    >>> s2 = torch.stack([mean + 0.04, mean - 0.04], dim=1)
    >>> valid = torch.ones(1, 2, dtype=torch.bool)
    >>> round(float(posterior_variance(mean, variance, s2, valid, 1.0)[0, 0]), 6)  # (4 + 48) / 2
    0.0026
    """
    dates, weights, offs, squares = (torch.zeros_like(mean) for _ in range(4))
    for image, there in zip(s2.unbind(1), valid.unbind(1), strict=True):
        off = image.clamp(0, 1) - mean
        counts = shows_ground(image, mean) * there[:, None, None, None] * off.isfinite()
        off = off.nan_to_num()
        dates += counts
        weights += counts.square()
        offs += counts * off
        squares += counts * off.square()
    dates = dates.clamp(min=FEWEST)
    share, bias = weights / dates.square(), (offs / dates).square()  # 1/n, (x̄ − μ)²
    free = dates * (1 - share)  # n − 1
    off_by = (1 + share) * (squares - dates * bias).clamp(min=0) + free * bias
    there = observed(s2, valid)
    found, free = around(off_by / variance, there), around(free, there)
    posterior = variance * (prior_dates + found) / (prior_dates + free)
    posterior[:, CIRRUS] = variance[:, CIRRUS]
    return posterior


def shows_ground(image: Tensor, mean: Tensor) -> Tensor:
    """(b 1 h w) 0..1: 1 where an image (b 13 h w) has no cloud and no shadow, as the mean has none.

    It is 0 where the bands that tell are missing.
    """
    brighter = (image - mean)[:, CLOUD].mean(dim=1, keepdim=True)
    ratio = mean[:, SHADOW].clamp(min=DARKEST) / image[:, SHADOW].clamp(min=DARKEST)
    darker = ratio.log().mean(dim=1, keepdim=True)
    return (_below(brighter, *BRIGHTER) * _below(darker, *DARKER)).nan_to_num()


def observed(s2: Tensor, valid: Tensor) -> Tensor:
    """(b 1 h w) 1 where any date (b t 13 h w) that is there has data, else 0."""
    seen = s2.isfinite().any(dim=2) & valid[..., None, None]
    return seen.any(dim=1, keepdim=True).to(s2.dtype)


def around(x: Tensor, there: Tensor) -> Tensor:
    """(b c h w) the mean over the square around each pixel, of pixels that are there (b 1 h w)."""
    return _square(x * there) / _square(there).clamp(min=FEWEST)


def _square(x: Tensor) -> Tensor:
    """Sums over the square around each pixel, as far as the image goes."""
    for dim in (-2, -1):
        at = torch.arange(x.shape[dim], device=x.device)
        sums = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), x.cumsum(dim)], dim)
        upper = sums.index_select(dim, (at + AROUND + 1).clamp(max=x.shape[dim]))
        x = upper - sums.index_select(dim, (at - AROUND).clamp(min=0))
    return x


def _below(x: Tensor, first: float, last: float) -> Tensor:
    """1 below the first number, 0 above the last, linear between."""
    return ((last - x) / (last - first)).clamp(0, 1)
