"""Hidden ground from the ground around it that some date shows.

Where no date shows the ground, a network guesses from what it sees there: clouds. Their texture
comes through as detail of the ground, and seen ground is no help beyond the reach of its filters.

    estimate, inputs ─ how well each pixel is shown ─ average of the shown ones around ─ estimate
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from undercast import bands
from undercast.models.system import Batch, Output

# Bands that show the ground; the rest are of 60 m, and show the air.
GROUND = bands.index(b for b in bands.S2 if bands.RESOLUTION_M[b] < 60)
# Differences between a date and the estimate that leave it open whether the date shows the ground:
# reflectance, and in proportion to that of the estimate. Two clear dates differ by less.
ALWAYS, IN_PROPORTION = 0.012, 0.075
HIDDEN_WEIGHT = 0.1  # of a pixel that nothing shows: it counts where there are no others
CELL = 8  # pixels: surroundings are computed on a coarse grid, as they are smooth
DEVIATIONS = 3  # of the Gaussian that is cut off beyond


def from_surroundings(output: Output, batch: Batch, reach: int) -> Output:
    """The output with hidden ground drawn towards the mean of what is seen around it.

    reach: the standard deviation of Gaussian weights in pixels, at least a cell. With s between 0
    and 1 for how well a pixel is shown, and x̄ the mean around, weighted by s: x' = x̄ + s (x − x̄).
    The variance grows by (x' − x)², for there the two disagree.
    """
    mean = output.mean
    shown, observed = how_shown(batch.s2, batch.valid, mean)
    weight = (shown + HIDDEN_WEIGHT) * observed
    around = _mean_around(mean, weight, reach)
    change = (1 - shown) * observed * (around - mean)
    variance = None if output.variance is None else output.variance + change**2
    return output._replace(mean=mean + change, variance=variance)


def how_shown(s2: Tensor, valid: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """(b 1 h w) each: how well the date that is nearest to the estimate shows it, 0 to 1; and
    whether there is any observation at all.

    s2 (b t 13 h w), mean (b 13 h w). A date with clouds or shadows differs from the estimate below
    them; bands without data do not count.
    """
    estimate = mean[:, GROUND]
    tolerance = ALWAYS + IN_PROPORTION * estimate
    nearest = torch.full_like(mean[:, :1], math.inf)
    for date in range(s2.shape[1]):
        squares = ((s2[:, date, GROUND] - estimate) / tolerance) ** 2
        off = squares.nanmean(dim=1, keepdim=True)
        known = off.isfinite() & valid[:, date, None, None, None]
        nearest = torch.where(known, torch.minimum(nearest, off.nan_to_num()), nearest)
    return 1 / (1 + nearest), nearest.isfinite()


def _mean_around(image: Tensor, weight: Tensor, reach: int) -> Tensor:
    """Σ G w x / Σ G w over the pixels of (b c h w), G a Gaussian; 0 where all weights are."""
    height, width = image.shape[-2:]
    sums = _blurred(_cells(torch.cat((weight * image, weight), dim=1)), reach / CELL)
    around = sums[:, :-1] / sums[:, -1:].clamp_min(1e-12)
    around = F.interpolate(around, scale_factor=CELL, mode="bilinear", align_corners=False)
    return around[..., :height, :width]


def _cells(image: Tensor) -> Tensor:
    """Sums over cells of CELL × CELL pixels, as a share of a whole one; the last may be smaller."""
    height, width = image.shape[-2:]
    more = (0, -width % CELL, 0, -height % CELL)
    return F.avg_pool2d(F.pad(image, more), CELL)


def _blurred(cells: Tensor, sigma: float) -> Tensor:
    """(b c h w) under a Gaussian of `sigma` cells; nothing lies beyond the edges."""
    radius = math.ceil(DEVIATIONS * sigma)
    steps = torch.arange(-radius, radius + 1, dtype=cells.dtype, device=cells.device)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    images = cells.flatten(0, 1)[:, None]
    images = F.conv2d(images, kernel[None, None, :, None], padding=(radius, 0))
    images = F.conv2d(images, kernel[None, None, None, :], padding=(0, radius))
    return images[:, 0].unflatten(0, cells.shape[:2])
