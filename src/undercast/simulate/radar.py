"""Sentinel-1 backscatter: land cover, plants and moisture in, VV and VH in dB out, with speckle."""

from __future__ import annotations

import numpy as np

from undercast import bands
from undercast.simulate import spectra
from undercast.simulate.fields import Generator
from undercast.simulate.landscape import Landscape
from undercast.simulate.surface import Ground
from undercast.types import FloatArray

LOOKS = 5  # IW GRD: 5 looks, equivalent number 4.4 to 4.9
NOISE_DB = -29.0  # thermal noise in VH and VV
CORRELATION_PX = 1.5  # blur of the complex speckle: 20 m resolution on a 10 m grid
# dB of dry ground per material: VV, VH
_LEVELS: dict[str, tuple[float, float]] = {
    "green": (-11.0, -16.5), "dry": (-12.5, -19.5), "soil": (-13.5, -21.5),
    "red_soil": (-13.5, -21.5), "sand": (-17.5, -25.5), "rock": (-11.0, -18.5),
    "broadleaf": (-9.5, -15.0), "autumn": (-9.8, -15.3), "leafless": (-10.5, -16.0),
    "conifer": (-9.5, -15.0), "asphalt": (-11.0, -19.0), "concrete": (-4.5, -11.5),
    "tile": (-5.5, -12.0), "water": (-25.0, -31.0), "turbid": (-25.0, -31.0),
    "snow": (-13.0, -20.0),
}  # fmt: skip
LEVELS: FloatArray = np.array([_LEVELS[name] for name in spectra.MATERIALS], dtype=np.float32)
_WATER = [spectra.INDEX["water"], spectra.INDEX["turbid"]]


def backscatter(rng: Generator, land: Landscape, ground: Ground, *, from_east: bool) -> FloatArray:
    """(2, n, n) linear backscatter without speckle.

    Wet soil is brighter (3 dB in VV, 2 dB in VH over the range), wind roughens water, slopes that
    face the sensor are brighter, and towns have single bright scatterers.
    """
    levels = LEVELS.copy()
    levels[_WATER] += rng.normal(0, 1.0) + np.array([rng.gamma(1.2, 2.0), rng.gamma(1.0, 0.8)])
    linear = 10 ** (levels / 10)
    n = land.size
    sigma = (linear.T.astype(np.float32) @ ground.materials.reshape(len(levels), -1)).reshape(
        bands.N_S1, n, n
    )
    exposed = (1 - ground.cover[3]) * (1 - 0.8 * ground.cover[1]) * (1 - ground.snow)
    wet = (ground.moisture - 0.4) * exposed
    facing = land.slope[1] * (1 if from_east else -1)  # tangent of the slope towards the sensor
    terrain = np.clip(14.0 * facing, -8.0, 8.0) * (1 - ground.cover[3])
    structure = (0.5 + 0.4 * ground.cover[1]) * land.coarse * (1 - ground.cover[3])
    db = np.stack((3.5 * wet, 2.2 * wet)) + terrain + structure
    points = (land.fine > 1.6) * ground.cover[2]
    return np.asarray(sigma * 10 ** ((db + 5.0 * points) / 10), dtype=np.float32)


def speckle(
    rng: Generator,
    shape: tuple[int, ...],
    looks: int = LOOKS,
    correlation_px: float = CORRELATION_PX,
) -> FloatArray:
    """Multiplicative speckle of mean 1: each pixel is Gamma distributed with variance 1/looks.

    shape: (..., H, W). It is the mean power of `looks` circular Gaussian fields, each blurred to
    the sensor's resolution, so that neighbours are alike as in real images.
    """
    height, width = shape[-2:]
    pad = 5
    taps = np.exp(-0.5 * (np.arange(-pad, pad + 1) / max(correlation_px, 1e-3)) ** 2)
    taps = (taps / np.sqrt((taps**2).sum())).astype(np.float32)
    power = np.zeros(shape, dtype=np.float32)
    for _ in range(2 * looks):  # real and imaginary parts
        wave = rng.standard_normal((*shape[:-2], height + 2 * pad, width + 2 * pad), np.float32)
        wave = sum(t * wave[..., i : i + height, :] for i, t in enumerate(taps))
        wave = sum(t * wave[..., i : i + width] for i, t in enumerate(taps))
        power += wave * wave
    return np.asarray(power / (2 * looks), dtype=np.float32)


def to_db(linear: FloatArray) -> FloatArray:
    """dB with the thermal noise of the sensor as the floor."""
    return np.asarray(10 * np.log10(linear + 10 ** (NOISE_DB / 10)), dtype=np.float32)
