"""Real clouds over other ground: what a cloudy view adds to, and takes from, the ground below it.

A pair of a clear and a cloudy image says how much a cloud reflects. A cloud that absorbs nothing
lets the rest through, down and up again, the thicker the less straight. What is left of the cloudy
image is the cloud's own light; shadows are ratios.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from backgrounds import Background
from scipy.ndimage import uniform_filter

from undercast.bands import index
from undercast.simulate.clouds import direct_sunlight

VISIBLE = index(["B2", "B3", "B4"])
GREEN, SWIR = index(["B3", "B11"])
FORWARD = 0.85  # the mean cosine of scattering in water clouds
SMOOTH = 15  # pixels: haze and shadows have no finer texture, the change of the ground between has
FAINT = 0.06  # reflectance below which a cloud counts as haze
DARKEST = 0.15  # of a shadow
BRIGHT = 0.05  # more reflectance than the clear image: cloud, or snow
ENOUGH = 0.03  # of an image that is bright for its clouds to be of use
SNOW_INDEX = 0.1  # of bright pixels: above it, and if SWIR is darker than before, snow has come


@dataclass(frozen=True, eq=False)
class View:
    """What clouds make of ground (13, H, W): their light, and what they let pass of the ground."""

    light: np.ndarray  # (13, H, W)
    passed: np.ndarray  # (13, H, W)
    straight: np.ndarray  # (1, H, W)
    reflected: np.ndarray  # (H, W), of the clouds alone

    def over(self, ground: np.ndarray, wider: np.ndarray | float = 1.0) -> np.ndarray:
        """The clouds over other ground; around it, it is `wider` (13, 1, 1) times as bright."""
        around = ground.mean(axis=(1, 2), keepdims=True) * wider
        below = around + self.straight * (ground - around)
        return np.asarray(self.light + self.passed * below, dtype=np.float32)

    def part(self, rows: slice, cols: slice) -> View:
        """The clouds over part of the ground."""
        cut = (x[..., rows, cols] for x in (self.light, self.passed, self.straight, self.reflected))
        return View(*cut)

    @property
    def cover(self) -> float:
        """The share that hides the ground."""
        return float((self.reflected > 0.2).mean())


def view_of(clear: np.ndarray, cloudy: np.ndarray) -> View:
    """The clouds of a pair of images (13, H, W) of the same ground."""
    brighter = (cloudy - clear)[VISIBLE].mean(axis=0) / (1 - clear[VISIBLE].mean(axis=0))
    reflected = np.clip(uniform_filter(brighter, 3), 0, 0.95)
    thickness = 2 * reflected / ((1 - reflected) * (1 - FORWARD))
    straight = direct_sunlight(thickness)[None]
    through = (1 - reflected[None]) ** 2
    mean = clear.mean(axis=(1, 2), keepdims=True)
    below = mean + straight * (clear - mean)
    own = cloudy - through * below
    cloud = np.clip(reflected / FAINT, 0, 1)[None]
    light = cloud * (straight * _smooth(own) + (1 - straight) * own)
    shade = np.clip(_smooth(cloudy) / np.maximum(_smooth(below), 1e-3), DARKEST, 1)
    passed = through * (cloud + (1 - cloud) * shade)
    return View(*(np.asarray(x, np.float32) for x in (light, passed, straight, reflected)))


def views_of(places: list[Background]) -> list[View]:
    """The clouds of every place with a cloudy view that has some, but for those with new snow."""
    pairs = [(b.clear[0], b.cloudy) for b in places if b.cloudy is not None]
    return [view_of(clear, cloudy) for clear, cloudy in pairs if _clouds(clear, cloudy)]


def _clouds(clear: np.ndarray, cloudy: np.ndarray) -> bool:
    """Whether enough of the second image is brighter, and by clouds."""
    return bool(_brighter(clear, cloudy).mean() >= ENOUGH) and not new_snow(clear, cloudy)


def new_snow(clear: np.ndarray, later: np.ndarray) -> bool:
    """Whether the second image is brighter by snow, which is dark in SWIR, not by clouds."""
    bright = _brighter(clear, later)
    if not bright.any():
        return False
    green, swir = later[GREEN][bright], later[SWIR][bright]
    darker = np.median(swir - clear[SWIR][bright]) < 0
    return bool(darker and np.median((green - swir) / (green + swir)) > SNOW_INDEX)


def _brighter(clear: np.ndarray, later: np.ndarray) -> np.ndarray:
    return np.asarray((later - clear)[VISIBLE].mean(axis=0) > BRIGHT)


def _smooth(image: np.ndarray) -> np.ndarray:
    return np.asarray(uniform_filter(image, (0, SMOOTH, SMOOTH), mode="nearest"))
