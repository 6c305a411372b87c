"""Radar for real images that have none: what the real triplets say of ground that looks alike.

Only six training images come with VV and VH, and a network that sees no other radar learns these
images by heart. A linear fit of backscatter to the colours of those six gives every other image a
plausible echo, with an error as large as that of the fit and with speckle.
"""

from __future__ import annotations

import numpy as np
from backgrounds import Background

from undercast.bands import index
from undercast.simulate.fields import Generator, power_noise
from undercast.simulate.radar import speckle

COLOURS = index(["B2", "B3", "B4", "B8", "B11", "B12"])
LOWEST, HIGHEST = -32.0, 3.0  # dB


class Echoes:
    """Backscatter in dB as a linear function of the logarithms of reflectance."""

    def __init__(self, known: list[Background]) -> None:
        pairs = [(features(b.clear[0]), b.s1) for b in known if b.s1 is not None]
        rows, echoes = (
            np.concatenate(
                [image.reshape(len(image), -1).T / image[0].size ** 0.5 for image in kind]
            )
            for kind in zip(*pairs, strict=True)
        )
        there = np.isfinite(echoes).all(axis=1)
        self._slopes, *_ = np.linalg.lstsq(rows[there], echoes[there], rcond=None)
        error = echoes[there] - rows[there] @ self._slopes
        self.error = np.sqrt((error**2).sum(axis=0) / len(known))  # dB, each image alike

    def mean(self, image: np.ndarray) -> np.ndarray:
        """(2, H, W) dB that an image (13, H, W) is expected to have."""
        return np.einsum("fp,fhw->phw", self._slopes, features(image))

    def draw(self, rng: Generator, image: np.ndarray) -> np.ndarray:
        """(2, H, W) dB that it might have."""
        field = power_noise(rng, image.shape[1:], 3.0, scale=12.0)
        off = 0.7 * self.error * (rng.normal() + rng.normal(0, 0.3, 2))  # of the whole image
        level = self.mean(image) + off[:, None, None] + 0.7 * self.error[:, None, None] * field
        power = 10 ** (np.clip(level, LOWEST, HIGHEST) / 10) * speckle(rng, level.shape)
        return np.asarray(10 * np.log10(power), dtype=np.float32)


def features(image: np.ndarray) -> np.ndarray:
    """(F, H, W): 1, the logarithms of six bands, and greenness."""
    colours = np.log(np.clip(image[COLOURS], 0.005, 1.0))
    red, nir = image[index(["B4"])[0]], image[index(["B8"])[0]]
    green = (nir - red) / (nir + red + 1e-4)
    return np.concatenate([np.ones_like(green)[None], colours, green[None]])
