"""Hidden ground from the land around it that some date shows, or else from usual land.

Where no date shows the ground, a network guesses from what it sees there: clouds. Their texture
comes through as detail of the ground, the light below them as its colour, and seen ground is no
help beyond the reach of its filters. What land is like around is a second opinion; the product of
both Gaussians is what is believed of hidden land.

    estimate, inputs ─ how well each pixel is shown ─ the land around, usual land ─ both opinions
                     ─ estimate: its own where it is shown, and that where it is not
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from undercast import bands
from undercast.gaussian import Moments, mixture_moments
from undercast.models.system import Batch, Output

# Bands that show the ground; the rest are of 60 m, and show the air.
GROUND = bands.index(b for b in bands.S2 if bands.RESOLUTION_M[b] < 60)
# Differences between a date and the estimate that leave it open whether the date shows the ground:
# reflectance, and in proportion to that of the estimate. Two clear dates differ by less.
ALWAYS, IN_PROPORTION = 0.024, 0.15
# What a mask takes from a date that agrees: clouds may be thin and masks wrong, but the network may
# also have believed the light of the clouds.
MASKED = 0.6
# (B3 − B11) / (B3 + B11) of land, and of water and snow, which the land around tells nothing of.
LAND, NO_LAND = -0.1, 0.1
HIDDEN_WEIGHT = 0.1  # of a pixel that nothing shows: it counts where there are no others
# Usual land: mean and standard deviation of the reflectance, at the top of the atmosphere, of those
# 70 % of the ground of the training images that are most alike (recipes/default/usual.py).
USUAL = (0.131, 0.106, 0.098, 0.087, 0.113, 0.196, 0.233, 0.226, 0.256, 0.070, 0.001, 0.182, 0.111)
USUAL_SPREAD = (
    0.019, 0.024, 0.030, 0.045, 0.046, 0.071, 0.089, 0.089, 0.101, 0.034, 0.003, 0.085, 0.064,
)  # fmt: skip
# Times the variance: the mean square by which an estimate under clouds is off. Of 2, 4, 6 and 8 the
# likeliest on the places that select and calibrate the packaged weights; so is MASKED, of 0.4 to 1.
ERROR = 4.0
LITTLE = 0.8  # how well the pixels around are shown where usual land counts as much as they do
CELL = 8  # pixels: surroundings are computed on a coarse grid, as they are smooth
LEAST = 1e-6  # reflectance²: the variance of land that is all alike
TINY = 1e-12
DEVIATIONS = 3  # of the Gaussian that is cut off beyond


def from_surroundings(output: Output, batch: Batch, reach: int) -> Output:
    """The output with hidden land drawn towards what is seen around it, or to usual land.

    The moments of a mixture: with probability h the ground is hidden, and what is believed of it is
    the product of its estimate, N(x, ERROR v), and of what is known of land around, N(x̄, w); else
    it is the estimate, N(x, v). h is the less, the more is shown of the pixel and around it, for
    then the network knows by itself. Water, snow and pixels without data stay as they are.
    reach: the standard deviation of the Gaussian weights of the land around in pixels, at least a
    cell. The output must have a calibrated variance.
    """
    mean, variance = output.mean, output.variance
    assert variance is not None  # the settings of a network see to it
    shown, clear, observed = how_shown(batch, mean)
    land = how_much_land(mean)
    around, spread, seen = _around(mean, shown, clear, land, observed, reach)
    known = _known(around, spread, seen, variance)
    error = ERROR * variance
    trust = known.variance / (known.variance + error)
    hidden = (1 - shown) * land * observed * (1 - seen)
    found = mixture_moments(
        torch.stack((mean, known.mean + trust * (mean - known.mean))),
        torch.stack((variance, trust * error)),
        torch.stack((1 - hidden, hidden)),
    )
    return output._replace(mean=found.mean, variance=found.variance)


def how_shown(batch: Batch, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(b 1 h w) each: how well the date that shows it best shows the estimate (b 13 h w), 0 to 1;
    the same if masks are never wrong; and whether there is any observation at all.

    A date with clouds or shadows differs from the estimate below them, and is masked there where
    masks are known; bands without data do not count.
    """
    estimate = mean[:, GROUND]
    tolerance = ALWAYS + IN_PROPORTION * estimate
    shown, clear = torch.zeros_like(mean[:, :1]), torch.zeros_like(mean[:, :1])
    observed = torch.zeros_like(shown, dtype=torch.bool)
    for date in range(batch.s2.shape[1]):
        squares = ((batch.s2[:, date, GROUND] - estimate) / tolerance) ** 2
        off = squares.nanmean(dim=1, keepdim=True)
        known = off.isfinite() & batch.valid[:, date, None, None, None]
        agrees = known / (1 + off.nan_to_num() ** 2)
        masked = torch.zeros_like(known) if batch.mask is None else batch.mask[:, date, None]
        shown = torch.maximum(shown, torch.where(masked, (1 - MASKED) * agrees, agrees))
        clear = torch.maximum(clear, agrees * ~masked)
        observed = observed | known
    return shown, clear, observed


def how_much_land(mean: Tensor) -> Tensor:
    """(b 1 h w) from 1, where an estimate (b 13 h w) is of land, to 0, where it is water or snow.

    Both are brighter in green than in the shortwave infrared, and land hardly ever is.
    """
    green, infrared = (mean[:, bands.index([name])] for name in ("B3", "B11"))
    index = (green - infrared) / (green + infrared).clamp_min(TINY)
    return ((NO_LAND - index) / (NO_LAND - LAND)).clamp(0, 1)


def _around(
    image: Tensor, shown: Tensor, clear: Tensor, land: Tensor, observed: Tensor, reach: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (b c h w) of the land around every pixel, by how well pixels are shown;
    and how much of what is around is land that is clear (b 1 h w).

    The variance is how much pixels differ, for what all are off by together moves none of them.
    """
    weight = (shown + HIDDEN_WEIGHT) * land * observed
    parts = (weight * image, weight * image**2, weight, clear * land * observed, observed)
    sums = _blurred(_cells(torch.cat(parts, dim=1)), reach / CELL)
    c = image.shape[1]
    total, squares, weights, seen, count = sums.split((c, c, 1, 1, 1), dim=1)
    mean = total / weights.clamp_min(TINY)
    variance = (squares / weights.clamp_min(TINY) - mean**2).clamp_min(LEAST)
    found = torch.cat((mean, variance, seen / count.clamp_min(TINY)), dim=1)
    found = F.interpolate(found, scale_factor=CELL, mode="bilinear", align_corners=False)
    found = found[..., : image.shape[2], : image.shape[3]]
    mean, variance, seen = found.split((c, c, 1), dim=1)
    return mean, variance, seen


def _known(around: Tensor, spread: Tensor, seen: Tensor, variance: Tensor) -> Moments:
    """What is known of hidden land without its own estimate: a mixture of the land around and of
    usual land, which counts where hardly anything is shown and land around may well be usual."""
    usual = around.new_tensor(USUAL)[:, None, None].expand_as(around)
    squares = around.new_tensor(USUAL_SPREAD).square()[:, None, None].expand_as(around)
    share = _usual(around, variance) * LITTLE / (LITTLE + seen)
    return mixture_moments(
        torch.stack((around, usual)),
        torch.stack((spread, squares)),
        torch.stack((1 - share, share)),
    )


def _usual(around: Tensor, variance: Tensor) -> Tensor:
    """(b 1 h w) from 1, where the ground around may well be usual land, to 0, where it is not.

    Tukey's biweight of the distance in units of the spread of usual land and the error of the
    estimate, which is larger than its variance says.
    """
    usual, spread = (around.new_tensor(x)[GROUND, None, None] for x in (USUAL, USUAL_SPREAD))
    scale = spread**2 + ERROR * variance[:, GROUND]
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
