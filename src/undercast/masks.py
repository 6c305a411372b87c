"""Which pixels are unusable: four detectors behind one protocol, True = cloud, shadow or no data.

`s2cloudless` (level 1C, the `clouds` extra), `Rules` (numpy only), `SceneClassification` (the SCL
band of level 2A) and `MaskFile` (any GeoTIFF mask).
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from undercast import bands
from undercast.errors import (
    DataError,
    InputError,
    MissingDependencyError,
    UndercastError,
    UndercastWarning,
)
from undercast.types import BoolArray, FloatArray

METHODS = ("auto", "s2cloudless", "rules")
BLANK = 1e-5  # mean and standard deviation below which an image holds nothing

# Classes of the level-2A scene classification that hide or distort the ground.
SCL_UNUSABLE: dict[int, str] = {
    0: "no data",
    1: "saturated or defective",
    3: "cloud shadow",
    8: "cloud, medium probability",
    9: "cloud, high probability",
    10: "thin cirrus",
}
SCL_CLASSES = 12


class Detector(Protocol):
    """Reflectance (T, 13, H, W) with NaN for no data, to a mask (T, H, W), True = unusable."""

    def __call__(self, s2: FloatArray) -> BoolArray: ...


def cloud_mask(s2: ArrayLike, method: str | Detector = "auto") -> BoolArray:
    """The unusable pixels (T, H, W) of reflectances (T, 13, H, W).

    method: a detector, or `s2cloudless`, `rules`, or `auto`: s2cloudless where it is installed and
    its bands are there, otherwise the rules, with a warning. Pixels without data are unusable.

    >>> clear_then_overcast = np.stack([np.full((13, 8, 8), 0.1), np.full((13, 8, 8), 0.8)])
    >>> clear_then_overcast[:, 10] = 0.02
    >>> cloud_mask(clear_then_overcast, "rules").mean(axis=(1, 2)).tolist()
    [0.0, 1.0]
    """
    array = np.asarray(s2, dtype=np.float32)
    if array.ndim != 4 or array.shape[1] != bands.N_S2:
        raise InputError(f"got s2 of shape {array.shape}, expected (T, {bands.N_S2}, H, W)")
    found = detector(method, array)(array) if isinstance(method, str) else method(array)
    return np.asarray(found | _nowhere(array))


def detector(method: str, s2: FloatArray | None = None) -> Detector:
    """The detector of that name; `auto` looks at what is installed and at the bands of `s2`."""
    if method == "rules":
        return Rules()
    if method == "s2cloudless":
        return S2Cloudless()
    if method != "auto":
        raise InputError(f"got mask method {method!r}, expected one of {' '.join(METHODS)}")
    if not _has_s2cloudless():
        reason = "s2cloudless is not installed (pip install 'undercast[clouds]')"
    elif s2 is not None and (missing := _missing_bands(s2)):
        reason = f"s2cloudless needs the bands {' '.join(missing)}, which hold no data"
    else:
        return S2Cloudless()
    warnings.warn(f"{reason}: clouds are detected by rules instead", UndercastWarning, stacklevel=3)
    return Rules()


def by_rules(method: str) -> bool:
    """Whether the detector of that name is the rules here, as `auto` is without s2cloudless."""
    return method == "rules" or (method == "auto" and not _has_s2cloudless())


def _has_s2cloudless() -> bool:
    return importlib.util.find_spec("s2cloudless") is not None


@dataclass(frozen=True)
class S2Cloudless:
    """The s2cloudless classifier for level 1C, with the settings of the released code.

    The probability is averaged over a disk of radius `average_over` pixels, thresholded, and the
    mask is grown by `dilation_size` pixels. An image that holds nothing is all cloudy. `clip` cuts
    reflectance at 1 first, as the released code does; s2cloudless by itself does not.
    """

    threshold: float = 0.4
    average_over: int | None = 4
    dilation_size: int | None = 2
    clip: bool = True

    BANDS = ("B1", "B2", "B4", "B5", "B8", "B8A", "B9", "B10", "B11", "B12")

    def load(self) -> Any:
        """The classifier of the s2cloudless package."""
        return _s2cloudless(self)

    def probability(self, s2: FloatArray) -> FloatArray:
        """(T, H, W) cloud probability of each pixel by itself, 0..1."""
        if missing := _missing_bands(s2):
            raise InputError(
                f"got no data at all in {' '.join(missing)}, expected the level-1C bands "
                f"{' '.join(self.BANDS)}: use the method rules for other products"
            )
        # float32, as in the released code: a double moves decisions that lie on a threshold
        filled = np.nan_to_num(s2, nan=0.0).astype(np.float32)
        images = (filled.clip(0.0, 1.0) if self.clip else filled).transpose(0, 2, 3, 1)
        found = self.load().get_cloud_probability_maps(images, num_threads=1)
        return np.asarray(found, dtype=np.float32)

    def __call__(self, s2: FloatArray) -> BoolArray:
        blank = _blank(s2)
        mask = np.ones((len(s2), *s2.shape[2:]), dtype=bool)
        if not blank.all():
            probability = self.probability(s2[~blank])
            mask[~blank] = self.mask_of(probability)
        return mask

    def mask_of(self, probability: FloatArray) -> BoolArray:
        """(T, H, W) averaged, thresholded and grown probability."""
        return np.asarray(self.load().get_mask_from_prob(probability)).astype(bool)


@dataclass(frozen=True)
class Rules:
    """Clouds and their shadows by rules on reflectance: numpy only, see `rule_mask`."""

    def __call__(self, s2: FloatArray) -> BoolArray:
        blank = _blank(s2)
        return np.stack(
            [
                np.ones(image.shape[1:], dtype=bool) if empty else rule_mask(image)
                for image, empty in zip(s2, blank, strict=True)
            ]
        )


@dataclass(frozen=True)
class SceneClassification:
    """The scene classification (SCL) of level 2A, (T, H, W) on the grid of the images."""

    scl: NDArray[Any]

    def __call__(self, s2: FloatArray) -> BoolArray:
        return _of_shape(scl_mask(self.scl), s2, "scene classification")


@dataclass(frozen=True)
class MaskFile:
    """One GeoTIFF mask for each date, on the grid of the images; any non-zero value is unusable."""

    paths: Sequence[str | Path]

    def __call__(self, s2: FloatArray) -> BoolArray:
        return _of_shape(np.stack([read_mask(path) for path in self.paths]), s2, "mask files")


def scl_mask(scl: ArrayLike) -> BoolArray:
    """True for the classes of `SCL_UNUSABLE`: no data, defects, shadow, cloud and cirrus.

    Usable are dark areas (2), vegetation (4), bare soil (5), water (6), unclassified (7) and
    snow (11).

    >>> scl_mask(np.arange(12)).nonzero()[0].tolist()
    [0, 1, 3, 8, 9, 10]
    """
    array = np.asarray(scl)
    if array.size and (array.min() < 0 or array.max() >= SCL_CLASSES):
        raise InputError(
            f"got scene classes {array.min()}..{array.max()}, expected 0..{SCL_CLASSES - 1}: "
            "is this the SCL band, resampled to the nearest neighbour?"
        )
    return np.isin(array, list(SCL_UNUSABLE))


def read_mask(path: str | Path) -> BoolArray:
    """(H, W) of a GeoTIFF mask: True where its first band is not zero."""
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(path) as file:
            return np.asarray(file.read(1) != 0)
    except RasterioError as error:
        raise DataError(f"cannot read the mask {path}: {error}") from error


@cache
def _s2cloudless(settings: S2Cloudless) -> Any:
    try:
        from s2cloudless import S2PixelCloudDetector
    except ImportError as error:
        missing: UndercastError = MissingDependencyError(
            "the mask method s2cloudless (the method rules needs none)", "clouds"
        )
        raise missing from error
    return S2PixelCloudDetector(
        threshold=settings.threshold,
        all_bands=True,
        average_over=settings.average_over,
        dilation_size=settings.dilation_size,
    )


def _nowhere(s2: FloatArray) -> BoolArray:
    """(T, H, W) True where no band has data."""
    missing = np.isnan(s2[:, 0])
    for band in range(1, s2.shape[1]):
        if not missing.any():
            break
        missing &= np.isnan(s2[:, band])
    return missing


def _blank(s2: FloatArray) -> BoolArray:
    """(T,) True for images that hold nothing: all no data, or constant zero."""
    return np.array([_holds_nothing(image) for image in s2])


def _holds_nothing(image: FloatArray) -> bool:
    if image.sum() >= BLANK * image.size:  # false for NaN too
        return False
    known = np.nan_to_num(image, nan=0.0)
    return bool(known.mean() < BLANK and known.std() < BLANK)


def _missing_bands(s2: FloatArray) -> list[str]:
    needed = bands.index(S2Cloudless.BANDS)
    return [bands.S2[band] for band in needed if np.isnan(s2[:, band]).all()]


def _of_shape(mask: BoolArray, s2: FloatArray, name: str) -> BoolArray:
    expected = (s2.shape[0], *s2.shape[2:])
    if mask.shape != expected:
        raise InputError(
            f"got {name} of shape {mask.shape}, expected {expected}: one for each date, "
            "on the grid of the images"
        )
    return mask


def rule_mask(s2: FloatArray) -> BoolArray:
    """(H, W) True = cloud or shadow, of one image (13, H, W) in reflectance.

    Cloud: bright in all of the visible, with more blue than soil has (B2 − B4/2, the haze-optimised
    transform), or bright in the cirrus band; not snow, which is dark in B11. Shadow: land close to
    a cloud that is dark in B8 and B11 against the clear land of the image. Both are smoothed and
    clouds grown by 2 pixels. Bands that are missing (NaN) leave out the rules that need them.
    """
    band = dict(zip(bands.S2, s2, strict=True))
    if missing := [name for name in bands.RGB if np.isnan(band[name]).all()]:
        raise InputError(f"got no data in {' '.join(missing)}, expected the visible bands at least")
    haze = band["B2"] - band["B4"] / 2
    bright = np.minimum(np.minimum(band["B2"], band["B3"]), band["B4"]) > 0.10
    white = (haze > 0.09) & bright & (band["B2"] > 0.68 * band["B4"])
    cirrus = (band["B10"] > 0.017) & (haze > 0.05)
    snow = (band["B3"] - band["B11"] > 0.35 * (band["B3"] + band["B11"])) & (band["B11"] < 0.15)
    cloud = _grown(_smoothed((white | cirrus) & ~snow), 2)
    return np.asarray(cloud | _shadow(band, cloud))


def _shadow(band: dict[str, FloatArray], cloud: BoolArray) -> BoolArray:
    infrared = np.where(np.isnan(band["B11"]), band["B8"], (band["B8"] + band["B11"]) / 2)
    land = (band["B8"] > 0.75 * band["B3"]) | (band["B11"] > 0.08)
    clear = land & ~cloud & ~np.isnan(infrared)
    if not cloud.any() or not clear.any():
        return np.zeros_like(cloud)
    dark = clear & (infrared < 0.65 * np.median(infrared[clear]))
    return _grown(_smoothed(dark & _grown(cloud, 50)), 1) & ~cloud


def _smoothed(mask: BoolArray) -> BoolArray:
    """The majority of each 5 × 5 window, edges repeated."""
    counts = np.pad(mask, 2, mode="edge").astype(np.uint8)
    for _ in range(2):  # along the rows, then along the columns
        counts = sum((counts[i : i + len(counts) - 4] for i in range(1, 5)), counts[:-4]).T
    return np.asarray(counts > 12)


def _grown(mask: BoolArray, radius: int) -> BoolArray:
    """Every pixel within `radius` rows and columns of the mask."""
    grown = np.pad(mask, radius)
    for _ in range(2):  # along the rows, then along the columns
        reach = 1  # rows that a pixel has spread over; doubled until the window is full
        while reach < 2 * radius + 1:
            further = min(reach, 2 * radius + 1 - reach)
            grown = grown[:-further] | grown[further:]
            reach += further
        grown = np.ascontiguousarray(grown.T)
    return grown
