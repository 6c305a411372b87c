"""The optical sensor: sharpness of each band, resampling to 10 m, noise, digital numbers."""

from __future__ import annotations

import numpy as np

from undercast import bands
from undercast.errors import InputError
from undercast.simulate.fields import Generator
from undercast.types import BoolArray, FloatArray

MARGIN = 18  # pixels that the footprints of 60 m bands need around a patch
RESAMPLINGS = ("nearest", "smooth")
# Noise in DN of one detector: constant part, and the part that grows with the square root of DN.
_NOISE = np.array(
    [bands.RESOLUTION_M[name] == 10 for name in bands.S2], dtype=np.float32
) * 4.0 + 2.5  # fmt: skip


def observe(
    image: FloatArray, phase: tuple[int, int], shift: tuple[float, float], resampling: str
) -> FloatArray:
    """(13, h − 18, w − 18) what the bands see of a (13, h, w) scene at 10 m.

    A band of 20 or 60 m is the mean over its footprint, brought back to 10 m. `nearest` repeats it
    and then moves everything by a part of a pixel, as reprojection did to SEN12MS-CR and
    SEN12MS-CR-TS; `smooth` interpolates, as other products do. phase: (row, col) 0..5 where
    footprints begin. shift: (row, col) 0..1.
    """
    if resampling not in RESAMPLINGS:
        raise InputError(f"got resampling {resampling!r}, expected {' or '.join(RESAMPLINGS)}")
    height, width = (n - MARGIN for n in image.shape[1:])
    row, col = phase
    out = np.empty((len(image), height + 2, width + 2), dtype=np.float32)
    scene = image[:, row:, col:]
    for factor in (1, 2, 6):
        chosen = [i for i, name in enumerate(bands.S2) if bands.RESOLUTION_M[name] == 10 * factor]
        out[chosen] = _resample(scene[chosen], factor, out.shape[1:], resampling)
    down, right = (np.float32(s) for s in shift)
    moved = out[:, :-1] + down * (out[:, 1:] - out[:, :-1])
    moved = moved[:, :, :-1] + right * (moved[:, :, 1:] - moved[:, :, :-1])
    return np.ascontiguousarray(moved[:, :height, :width])


def _resample(
    scene: FloatArray, factor: int, shape: tuple[int, ...], resampling: str
) -> FloatArray:
    """(bands, *shape) of what cells `factor` pixels wide see, one pixel in from the corner."""
    height, width = shape
    within = (slice(None), slice(1, height + 1), slice(1, width + 1))
    if factor == 1:
        return _blur(scene[:, : height + 2, : width + 2], 0.12)[within]
    rows, cols = (-(-(n + 1) // factor) for n in shape)
    coarse = scene[:, : rows * factor, : cols * factor]
    coarse = coarse.reshape(len(scene), rows, factor, cols, factor).mean(axis=(2, 4))
    coarse = _blur(coarse, 0.08)
    if resampling == "nearest":
        fine = coarse.repeat(factor, axis=1).repeat(factor, axis=2)
    else:
        fine = _interpolate(_interpolate(coarse, factor, 1), factor, 2)
    return fine[within]


def _blur(image: FloatArray, side: float) -> FloatArray:
    """Point spread to the neighbours: weights side, 1 − 2·side, side; borders stay as they are."""
    weight, keep = np.float32(side), np.float32(1 - 2 * side)
    rows = image.copy()
    rows[:, 1:-1] = keep * image[:, 1:-1] + weight * (image[:, :-2] + image[:, 2:])
    out = rows.copy()
    out[:, :, 1:-1] = keep * rows[:, :, 1:-1] + weight * (rows[:, :, :-2] + rows[:, :, 2:])
    return out


def _interpolate(image: FloatArray, factor: int, axis: int) -> FloatArray:
    """Linear interpolation between cell centres along one axis."""
    n = image.shape[axis]
    position = np.clip((np.arange(n * factor) + 0.5) / factor - 0.5, 0, n - 1)
    low = np.minimum(position.astype(int), n - 2) if n > 1 else np.zeros(n * factor, dtype=int)
    weight = (position - low).astype(np.float32)
    weight = weight.reshape([-1 if a == axis else 1 for a in range(3)])
    first = np.take(image, low, axis=axis)
    second = np.take(image, np.minimum(low + 1, n - 1), axis=axis)
    return np.asarray(first + weight * (second - first), dtype=np.float32)


def add_noise(rng: Generator, image: FloatArray) -> FloatArray:
    """Detector noise, a few DN and a little more on bright targets; none where bands are nil."""
    sigma = (
        _NOISE[:, None, None] * np.sqrt(0.4 + np.clip(image, 0, 2) * 3) / bands.DN_PER_REFLECTANCE
    )
    coarse = np.array([bands.RESOLUTION_M[name] == 60 for name in bands.S2])
    sigma[coarse] *= 0.1  # one detector covers 36 pixels: its noise is not per pixel
    return np.asarray(image + sigma * rng.standard_normal(image.shape, dtype=np.float32))


def quantise(image: FloatArray) -> FloatArray:
    """Reflectance as the whole digital numbers that a product stores (0..65535)."""
    return np.asarray(
        np.clip(np.rint(image * bands.DN_PER_REFLECTANCE), 1, 65535) / bands.DN_PER_REFLECTANCE,
        dtype=np.float32,
    )


def swath_edge(rng: Generator, shape: tuple[int, int]) -> BoolArray:
    """(H, W) True outside the swath: a wedge cut off by the edge of the orbit."""
    height, width = shape
    tilt = np.deg2rad(rng.uniform(8, 18)) * (1 if rng.random() < 0.5 else -1)
    y, x = np.mgrid[:height, :width]
    coordinate = x * np.cos(tilt) + y * np.sin(tilt)
    share = rng.uniform(0.05, 0.6)
    if rng.random() < 0.5:
        return np.asarray(coordinate < np.quantile(coordinate, share))
    return np.asarray(coordinate > np.quantile(coordinate, 1 - share))
