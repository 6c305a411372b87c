"""The sun mirrored by rough water, on simulated series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undercast import Stack
from undercast.simulate import LAND, SimulatedSeries
from undercast.simulate.fields import generator, power_noise
from undercast.simulate.spectra import gas_transmission


def add_glint(
    series: SimulatedSeries, stack: Stack, seed: int, brightness: Sequence[float]
) -> Stack:
    """`stack`, of dates of the series, with so bright a glint on each: alike in all bands.

    It lies under the clouds, and waves make it vary by a third.
    """
    water = series.land == LAND.index("water")
    seen = gas_transmission(2.0)[:, None, None]  # what vapour leaves of it in B9 and B10
    images = stack.s2.copy()
    for i, (date, bright) in enumerate(zip(stack.dates, brightness, strict=True)):
        opacity = series.opacity[int(np.flatnonzero(series.stack.dates == date)[0])]
        waves = power_noise(generator(seed, i), water.shape, 3.0, scale=40.0)
        glint = bright * np.clip(1 + 0.3 * waves, 0, None) * water * (1 - opacity) ** 2
        images[i] += (seen * glint).astype(np.float32)
    return Stack(images, stack.dates, stack.s1, stack.s1_dates, stack.mask)
