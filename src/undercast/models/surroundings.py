"""Hidden ground from the ground around it that some date shows, or else from usual land.

Where no date shows the ground, a network guesses from what it sees there: clouds. Their texture
comes through as detail of the ground, the light below them as its colour, and seen ground is no
help beyond the reach of its filters.

    estimate, inputs ─ how well each pixel is shown ─ mean of the shown ones around, usual land
                     ─ estimate: its own where it is shown, and what these say where it is not
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
ALWAYS, IN_PROPORTION = 0.015, 0.09
HIDDEN_WEIGHT = 0.1  # of a pixel that nothing shows: it counts where there are no others
# Usual land: the mean reflectance, at the top of the atmosphere, of those 70 % of the ground of the
# training images that are most alike; and how much all of it differs (recipes/default/usual.py).
USUAL = (0.131, 0.106, 0.098, 0.087, 0.113, 0.196, 0.233, 0.226, 0.256, 0.070, 0.001, 0.182, 0.111)
USUAL_SPREAD = (
    0.035, 0.039, 0.044, 0.061, 0.060, 0.085, 0.105, 0.105, 0.118, 0.042, 0.003, 0.098, 0.075,
)  # fmt: skip
ERROR = 6.0  # times the variance: the mean square by which an estimate under clouds may be off
LITTLE = 0.8  # how well the pixels around are shown where usual land counts as much as they do
CELL = 8  # pixels: surroundings are computed on a coarse grid, as they are smooth
TINY = 1e-12
DEVIATIONS = 3  # of the Gaussian that is cut off beyond


def from_surroundings(output: Output, batch: Batch, reach: int) -> Output:
    """The output with hidden ground drawn towards what is seen around it, or to usual land.

    With s between 0 and 1 for how well a pixel is shown, x̄ the mean around, weighted by s, and u
    usual land: x' = s x + (1 − s) (x̄ + λ (u − x̄)), where λ is near 1 if hardly anything is shown
    around and x̄ may well be usual land. The variance is that of the same shares: the network's own
    for x, with (x̄ − x)² more for x̄, since the two disagree, and for u how much usual land differs.
    reach: the standard deviation of the Gaussian weights in pixels, at least a cell.
    """
    mean, variance = output.mean, output.variance
    shown, observed = how_shown(batch.s2, batch.valid, mean)
    around, seen = _around(mean, shown, observed, reach)
    usual, spread = (mean.new_tensor(x)[:, None, None] for x in (USUAL, USUAL_SPREAD))
    share = _usual(around, variance) * LITTLE / (LITTLE + seen)
    hidden = (1 - shown) * observed
    change = hidden * (around + share * (usual - around) - mean)
    if variance is not None:
        guessed = (1 - share) * (variance + (around - mean) ** 2) + share * spread**2
        variance = variance + hidden * (guessed - variance)
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


def _around(image: Tensor, shown: Tensor, observed: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """The mean of (b c h w) around every pixel, by how well pixels are shown; and how well they
    are on average (b 1 h w)."""
    weight = (shown + HIDDEN_WEIGHT) * observed
    sums = _blurred(_cells(torch.cat((weight * image, weight, observed), dim=1)), reach / CELL)
    total, weights, count = sums.split((image.shape[1], 1, 1), dim=1)
    found = torch.cat((total / weights.clamp_min(TINY), weights / count.clamp_min(TINY)), dim=1)
    found = F.interpolate(found, scale_factor=CELL, mode="bilinear", align_corners=False)
    found = found[..., : image.shape[2], : image.shape[3]]
    return found[:, :-1], (found[:, -1:] - HIDDEN_WEIGHT).clamp_min(0)


def _usual(around: Tensor, variance: Tensor | None) -> Tensor:
    """(b 1 h w) from 1, where the ground around may well be usual land, to 0, where it is not.

    Tukey's biweight of the distance in units of the spread of usual land and the error of the
    estimate, which is larger than its variance says.
    """
    usual, spread = (around.new_tensor(x)[GROUND, None, None] for x in (USUAL, USUAL_SPREAD))
    scale = spread**2
    if variance is not None:
        scale = scale + ERROR * variance[:, GROUND]
    distance = ((around[:, GROUND] - usual) ** 2 / scale).mean(dim=1, keepdim=True)
    return (1 - distance).clamp_min(0) ** 2


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
