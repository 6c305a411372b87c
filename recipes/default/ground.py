"""Other ground than the real training images show, and what becomes of ground from day to day."""

from __future__ import annotations

import numpy as np

from undercast.bands import WAVELENGTH_NM, index
from undercast.simulate.fields import Generator, power_noise
from undercast.simulate.radar import speckle

# Top-of-atmosphere reflectance of bare dry soil.
SOIL = np.array([0.18, 0.18, 0.22, 0.30, 0.33, 0.35, 0.37, 0.36, 0.39, 0.12, 0.002, 0.47, 0.41])
SOIL_DB = np.array([-15.5, -23.5])  # its backscatter, between loam and sand: VV, VH
# Top-of-atmosphere reflectance of snow, dark where clouds are bright: beyond one micrometre.
SNOW = np.array([0.88, 0.86, 0.82, 0.84, 0.84, 0.83, 0.82, 0.80, 0.77, 0.30, 0.005, 0.10, 0.08])
# How a band answers when vegetation withers: red and SWIR rise, near infrared falls.
WITHERING = np.array([0.1, 0.2, 0.25, 0.6, 0.4, -0.15, -0.35, -0.4, -0.4, -0.3, 0.0, 0.35, 0.6])
# How it darkens when the ground gets wet: the longer the wave, the more.
WETTING = -np.array([0.2, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.5, 0.5, 0.0, 1.0, 1.2])
# How much of what a band sees comes from the ground: the air gives the rest, mostly blue.
GROUND = np.array([0.4, 0.55, 0.75, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
STRENGTH = (0.1, 1.5)  # of the change between the dates of a series: from days to seasons
SEASON = 2.0  # standard deviation of growth between seasons: fields are sown and harvested
DRY_STRENGTH, DRY_WETNESS = 0.55, 0.3  # of it, and of its rain, where land is dry
# Over dry land whole images differ more than their pixels do, in blue as much as in red: standard
# deviation of the logarithm, by light and haze, by wet ground, and how that varies by the day.
DAYLIGHT = (0.07, 0.06, 0.5)
# Depth of the water vapour in B9 over dry land, from high places to coasts; how much it differs
# from day to day anywhere, which is not for the seasons alone; and its multiple in B10.
VAPOUR = (0.15, 1.6)
VAPOUR_BY_DAY = 0.32
CIRRUS_BAND_DEPTH = 8


def change(rng: Generator, image: np.ndarray, strength: float, wetness: float = 1.0) -> np.ndarray:
    """Another date of the same place: other light, growth and wetness, as a whole and in places.

    On average two dates differ about as much as the real images of two dates that are trained on:
    0.1 (blue) to 0.3 (SWIR) in the logarithm of the mean, 0.1 to 0.2 from pixel to pixel.
    """
    green = greenness(image)
    gain = _turn(rng, green, 0.13, 0.55, 0.2 * wetness) + rng.normal(0, 0.03, (13, 1, 1))
    for scale in (6.0, 24.0):
        field = power_noise(rng, image.shape[1:], 3.0, scale=scale)
        gain += _turn(rng, green, 0.06, 0.3, 0.08 * wetness) * field
    if rng.random() < 0.7:
        field = power_noise(rng, image.shape[1:], 3.0, scale=24.0)
        patches = field > np.quantile(field, rng.uniform(0.6, 0.98))
        gain += _turn(rng, np.ones_like(green), 0.15, 0.4, 0.15 * wetness) * patches
    gain *= GROUND[:, None, None]
    changed = np.clip(image * np.exp(strength * gain), 0, 1.2).astype(np.float32)
    return more_vapour(changed, rng.normal(0, VAPOUR_BY_DAY))


def greenness(image: np.ndarray) -> np.ndarray:
    """(H, W) the vegetation index, 0 where it is below."""
    red, nir = image[index(["B4"])[0]], image[index(["B8"])[0]]
    return np.asarray(np.clip((nir - red) / (nir + red + 1e-4), 0, 1))


def other_season(rng: Generator, image: np.ndarray) -> np.ndarray:
    """The image in another season: what grows there is greener or withers, the rest stays."""
    green = greenness(image)
    gain = rng.normal(0, SEASON) * (WITHERING * GROUND)[:, None, None] * green
    return np.clip(image * np.exp(gain), 0, 1.2).astype(np.float32)


def daylight(rng: Generator, image: np.ndarray) -> np.ndarray:
    """The image in the light of another day, the same for all its pixels."""
    light, wetness, spread = DAYLIGHT
    gain = _turn(rng, np.ones((1, 1)), light, 0.0, wetness) * np.exp(rng.normal(0, spread))
    return np.clip(image * np.exp(gain), 0, 1.2).astype(np.float32)


def more_vapour(image: np.ndarray, by: float) -> np.ndarray:
    """The image through air of another depth: if dry, B9 is bright and B10 shows the ground."""
    narrow, vapour, cirrus = index(["B8A", "B9", "B10"])
    depth = max(-float(np.log(image[vapour].mean() / image[narrow].mean())), 0.05)
    other = float(np.clip(depth + by, 0.05, 2.5))
    before, after = np.exp(-CIRRUS_BAND_DEPTH * np.array([depth, other]))
    image = image.copy()
    image[vapour] *= np.exp(depth - other)
    image[cirrus] = np.maximum(image[cirrus] + image[narrow] * (after - before), 0.0005)
    return image


def surroundings(rng: Generator) -> np.ndarray:
    """(13, 1, 1) how much brighter, greener and drier the land around a crop is than the crop."""
    return np.exp(_turn(rng, np.ones((1, 1)), 0.15, 0.6, 0.2) * GROUND[:, None, None])


def _turn(
    rng: Generator, green: np.ndarray, light: float, growth: float, wetness: float
) -> np.ndarray:
    """(13, H, W) logarithms by which bands change; the numbers are standard deviations."""
    turn = rng.normal(0, light) + rng.normal(0, wetness) * WETTING
    return np.asarray(
        turn[:, None, None] + rng.normal(0, growth) * WITHERING[:, None, None] * green
    )


def parched(
    rng: Generator, images: np.ndarray, s1: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The texture of images (N, 13, H, W) with the colours of dry land, wholly or in part.

    Their radar (2, H, W) in dB becomes that of dry land in the same part, so that it tells of it.
    """
    level = images[:, index(["B3", "B4", "B11"])].mean(axis=1, keepdims=True)
    contrast = np.clip((level / level.mean()) ** rng.uniform(0.3, 0.9), 0.3, 2.0)
    soil = dry_spectrum(rng)
    share = rng.uniform(0.6, 1.0)
    dry = (1 - share) * images + share * soil[:, None, None] * contrast
    if s1 is not None:
        bare = 10 ** ((SOIL_DB + rng.normal(0, 1.5)) / 10)[:, None, None] * contrast[0]
        power = (1 - share) * 10 ** (s1 / 10) + share * bare * speckle(rng, s1.shape)
        s1 = (10 * np.log10(power)).astype(np.float32)
    return dry.astype(np.float32), s1


def dry_spectrum(rng: Generator) -> np.ndarray:
    """(13,) reflectance of some dry ground: dark or bright, rising or flat towards the infrared."""
    tilt = rng.normal(-0.2, 0.35) * np.log(np.array([*WAVELENGTH_NM.values()]) / 865)
    spectrum = SOIL * rng.triangular(0.3, 0.7, 2.0) * np.exp(tilt + rng.normal(0, 0.07, 13))
    narrow, vapour, cirrus = index(["B8A", "B9", "B10"])
    depth = rng.uniform(*VAPOUR)
    spectrum[vapour] = spectrum[narrow] * np.exp(-depth)
    spectrum[cirrus] = 0.001 + spectrum[narrow] * np.exp(-CIRRUS_BAND_DEPTH * depth)
    return np.asarray(np.minimum(spectrum, 0.95))


def recoloured(rng: Generator, images: np.ndarray) -> np.ndarray:
    """Images (N, 13, H, W) of ground with other colours, the same on all dates.

    What a clear date shows is to be believed, also of land unlike any that was trained on.
    """
    tilt = rng.normal(0, 0.25) * np.log(np.array([*WAVELENGTH_NM.values()]) / 865)
    gain = rng.normal(0, 0.25) + tilt + rng.normal(0, 0.06, 13)
    return np.asarray(images * np.exp(gain * GROUND)[:, None, None], dtype=np.float32)


def snowed(rng: Generator, images: np.ndarray) -> np.ndarray:
    """Snow on images (N, 13, H, W), everywhere or in patches, on the same ground on all dates."""
    level = images[:, index(["B3", "B4", "B11"])].mean(axis=1, keepdims=True)
    contrast = np.clip(level / level.mean(), 0.3, 2.0) ** rng.uniform(0.1, 0.4)
    snow = SNOW * rng.uniform(0.5, 1.1) * np.exp(rng.normal(0, 0.05, 13))
    field = power_noise(rng, images.shape[2:], 3.0, scale=24.0)
    bare = np.quantile(field, rng.uniform(0, 0.6))
    share = rng.uniform(0.6, 1.0) / (1 + np.exp(-(field - bare) / 0.15))
    white = snow[:, None, None] * contrast
    return ((1 - share) * images + share * white).astype(np.float32)
