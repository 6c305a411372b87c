"""Hidden ground: usual land, or else land as the network guesses it, as the radar has it.

Where no date shows the ground, a network guesses from what it sees there: clouds. Their texture
comes through as detail of the ground, the light below them as its colour, and seen ground is no
help beyond the reach of its filters. Most land is alike, though: unless what is shown around, and
the guess, say otherwise, hidden land is taken for usual land; and where there is radar, an echo
tells woods from fields.

    estimate, inputs ─ how well each pixel is shown ─ the level of land around ─ usual, or other?
    S1 ─ the colour of an echo ─────────────────────────────────────┴─ hidden ground
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from undercast import bands
from undercast.gaussian import log_density, mixture_moments
from undercast.models.cells import CELL, blurred, to_cells, to_pixels
from undercast.models.echo import colour_of_echo
from undercast.models.system import Batch, Output

# Bands that show the ground; the rest are of 60 m, and show the air.
GROUND = bands.index(b for b in bands.S2 if bands.RESOLUTION_M[b] < 60)
# Differences between a date and the estimate that leave it open whether the date shows the ground:
# reflectance, and in proportion to that of the estimate. Two clear dates differ by less.
ALWAYS, IN_PROPORTION = 0.024, 0.15
# What a mask takes from a date that agrees, even odds: clouds may be thin and masks wrong, but the
# network may also have believed the light of the clouds.
MASKED = 0.5
# (B3 − B11) / (B3 + B11) of land, and of water and snow, which the land around tells nothing of.
LAND, NO_LAND = -0.1, 0.1
HIDDEN_WEIGHT = 0.1  # of a pixel that nothing shows: it counts where there are no others
# Usual land at the top of the atmosphere: the mean reflectance of the 70 % of the ground of the
# training images that is most alike; by how much land is off that at places that are most alike;
# and by how much the rest of the ground is off (root mean squares; recipes/default/usual.py).
HOW_MUCH = 0.7
USUAL = (0.131, 0.106, 0.098, 0.087, 0.113, 0.196, 0.233, 0.226, 0.256, 0.070, 0.001, 0.182, 0.111)
USUAL_SPREAD = (
    0.021, 0.027, 0.032, 0.049, 0.045, 0.052, 0.067, 0.068, 0.075, 0.029, 0.003, 0.072, 0.061,
)  # fmt: skip
OTHER_SPREAD = (
    0.056, 0.062, 0.065, 0.087, 0.083, 0.111, 0.136, 0.135, 0.151, 0.057, 0.003, 0.123, 0.097,
)  # fmt: skip
# Times the variance: the mean square by which the detail of an estimate is off where nothing is
# shown around; where all is, it is the variance.
ERROR = 4.0
LEAST = 1e-6  # reflectance²: the variance of land that is all alike
TINY = 1e-12


class Around(NamedTuple):
    """The land around, in cells (b c h w, or b 1 h w), by how well pixels are shown."""

    level: Tensor
    spread: Tensor  # the variance of its pixels
    error: Tensor  # the variance of the level, from pixels that are guessed
    guessed: Tensor  # the share of the level that such pixels have
    seen: Tensor  # how much of what is around is land that is clear


def from_surroundings(output: Output, batch: Batch, reach: int) -> Output:
    """The output with hidden land drawn to usual land, or to the land around, as the radar has it.

    The moments of a mixture: with probability h the ground is hidden, and is of the level of the
    land around, or of usual land, with what detail of the estimate is to be believed; else it is
    the estimate. h is the less, the more is shown of the pixel and around it, for then the network
    knows by itself. Water, snow and pixels without data stay as they are.
    reach: the standard deviation of the Gaussian weights of the land around in pixels, at least a
    cell. The output must have a calibrated variance.
    """
    mean, variance = output.mean, output.variance
    assert variance is not None  # the settings of a network see to it
    shown, clear, observed = how_shown(batch, mean)
    land = how_much_land(mean) * observed
    echo = colour_of_echo(batch)
    image = mean - echo  # as it would be if all had the echo of usual land
    around = _around(image, variance, shown, clear, land, observed, reach)
    level, doubt, spread, middle, guessed, seen = _to_pixels(
        *_level(around),
        _spread(around),
        around.level,
        around.guessed,
        around.seen,
        shape=mean.shape,
    )
    error = (1 + (ERROR - 1) * guessed) * variance
    trust = spread / (spread + error)
    doubt = doubt + trust * error
    # calibrations are mostly of such places: where land is shown around, no surer than they say
    doubt = doubt + (1 - guessed) * (variance - doubt).clamp_min(0)
    hidden = (1 - shown) * land * (1 - seen)
    found = mixture_moments(
        torch.stack((mean, level + echo + trust * (image - middle))),
        torch.stack((variance, doubt)),
        torch.stack((1 - hidden, hidden)),
    )
    return output._replace(mean=found.mean, variance=found.variance)


def how_shown(batch: Batch, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(b 1 h w) each: the probability that any date shows the estimate (b 13 h w); how well the
    best does if masks are never wrong; and whether there is any observation at all.

    A date with clouds or shadows differs from the estimate below them, and is masked there where
    masks are known; dates are wrong each by itself. Bands without data do not count.
    """
    estimate = mean[:, GROUND]
    tolerance = ALWAYS + IN_PROPORTION * estimate
    hides, clear = torch.ones_like(mean[:, :1]), torch.zeros_like(mean[:, :1])
    observed = torch.zeros_like(hides, dtype=torch.bool)
    for date in range(batch.s2.shape[1]):
        squares = ((batch.s2[:, date, GROUND] - estimate) / tolerance) ** 2
        off = squares.nanmean(dim=1, keepdim=True)
        known = off.isfinite() & batch.valid[:, date, None, None, None]
        agrees = known / (1 + off.nan_to_num() ** 2)
        masked = torch.zeros_like(known) if batch.mask is None else batch.mask[:, date, None]
        hides = hides * (1 - torch.where(masked, (1 - MASKED) * agrees, agrees))
        clear = torch.maximum(clear, agrees * ~masked)
        observed = observed | known
    return 1 - hides, clear, observed


def how_much_land(mean: Tensor) -> Tensor:
    """(b 1 h w) from 1, where an estimate (b 13 h w) is of land, to 0, where it is water or snow.

    Both are brighter in green than in the shortwave infrared, and land hardly ever is.
    """
    green, infrared = (mean[:, bands.index([name])] for name in ("B3", "B11"))
    index = (green - infrared) / (green + infrared).clamp_min(TINY)
    return ((NO_LAND - index) / (NO_LAND - LAND)).clamp(0, 1)


def _around(
    image: Tensor,
    variance: Tensor,
    shown: Tensor,
    clear: Tensor,
    land: Tensor,
    observed: Tensor,
    reach: int,
) -> Around:
    weight = (shown + HIDDEN_WEIGHT) * land
    guess = weight * (1 - shown)
    parts = (weight * image, weight * image**2, guess * variance)
    shares = (weight, guess, clear * land, observed)
    sums = blurred(to_cells(torch.cat((*parts, *shares), dim=1)), reach / CELL)
    c = image.shape[1]
    total, squares, errors, weights, guesses, seen, count = sums.split((c, c, c, 1, 1, 1, 1), dim=1)
    weights = weights.clamp_min(TINY)
    level = total / weights
    return Around(
        level,
        spread=(squares / weights - level**2).clamp_min(LEAST),
        error=(errors / weights).clamp_min(LEAST),
        guessed=guesses / weights,
        seen=seen / count.clamp_min(TINY),
    )


def _level(around: Around) -> tuple[Tensor, Tensor]:
    """Mean and variance of the level of hidden land: that of usual land with the probability that
    the land around is usual, else that of the land around."""
    usual, others = (around.level.new_tensor(x)[:, None, None] for x in (USUAL, OTHER_SPREAD))
    if_usual = log_density(around.level, usual, around.error)
    if_other = log_density(around.level, usual, around.error + others**2)
    evidence = (if_usual - if_other)[:, GROUND].sum(dim=1, keepdim=True)
    share = torch.sigmoid(evidence + math.log(HOW_MUCH / (1 - HOW_MUCH)))
    found = mixture_moments(
        torch.stack((around.level, usual.expand_as(around.level))),
        torch.stack((around.error, torch.zeros_like(around.error))),
        torch.stack((1 - share, share)),
    )
    return found.mean, found.variance


def _spread(around: Around) -> Tensor:
    """The variance of the pixels of hidden land: of those around, or of usual land where those are
    guesses, too."""
    usual = around.level.new_tensor(USUAL_SPREAD)[:, None, None]
    return (1 - around.guessed) * around.spread + around.guessed * usual**2


def _to_pixels(*cells: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """Every one of `cells` on the pixels of an image of a shape (b c h w)."""
    pixels = to_pixels(torch.cat(cells, dim=1), shape[2], shape[3])
    return pixels.split([x.shape[1] for x in cells], dim=1)
