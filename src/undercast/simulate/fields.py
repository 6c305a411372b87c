"""Random fields: power-law noise on a torus, soft steps, small shifts. numpy only, float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undercast.types import FloatArray

Generator = np.random.Generator


def generator(seed: int, *key: int) -> Generator:
    """A generator of its own for every key, the same whatever runs before or beside it.

    >>> bool(generator(7, 1, 2).random() == generator(7, 1, 2).random())
    True
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def fast_length(n: int) -> int:
    """The smallest even number ≥ n with no prime factor above 5: FFTs of it are quick.

    >>> [fast_length(n) for n in (7, 256, 268, 521)]
    [8, 256, 270, 540]
    """
    while n % 2 or _rest(n) != 1:
        n += 1
    return n


def _rest(n: int) -> int:
    for prime in (2, 3, 5):
        while n % prime == 0:
            n //= prime
    return n


def power_noise(
    rng: Generator,
    shape: tuple[int, int],
    slope: float,
    *,
    scale: float | None = None,
    stretch: tuple[float, float] = (1.0, 0.0),
) -> FloatArray:
    """Periodic Gaussian noise with the power spectrum f^-slope, mean 0 and standard deviation 1.

    scale: the size in pixels above which the spectrum is flat (None: the whole field).
    stretch: (ratio, angle in radians): features are `ratio` times longer along that angle.
    """
    rows, cols = shape
    fy, fx = np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(cols)[None]
    ratio, angle = stretch
    along = fx * np.cos(angle) + fy * np.sin(angle)
    across = -fx * np.sin(angle) + fy * np.cos(angle)
    floor = 1.0 / (scale or max(shape))
    squared = (along * ratio) ** 2 + (across / 1.0) ** 2
    amplitude = (squared + floor**2) ** (-slope / 4)
    amplitude[0, 0] = 0.0
    white = rng.standard_normal(shape, dtype=np.float32)
    field = np.fft.irfft2(np.fft.rfft2(white) * amplitude.astype(np.float32), s=shape)
    return np.asarray(field / (field.std() + 1e-12), dtype=np.float32)


def patch_noise(
    rng: Generator, size: int, slope: float, *, scale: float | None = None
) -> FloatArray:
    """(size, size) window of `power_noise` on a larger torus, so that opposite edges differ."""
    n = fast_length(size + max(16, size // 8))
    return power_noise(rng, (n, n), slope, scale=scale)[:size, :size]


def soft_step(x: FloatArray, width: float) -> FloatArray:
    """0 below −width/2, 1 above width/2, linear between: an anti-aliased edge."""
    return np.clip(x / width + 0.5, 0.0, 1.0, dtype=np.float32)


def smoothstep(x: FloatArray) -> FloatArray:
    """Hermite step from 0 to 1 on 0..1."""
    x = np.clip(x, 0.0, 1.0)
    return np.asarray(x * x * (3.0 - 2.0 * x), dtype=np.float32)


def distance_to_level(field: FloatArray, level: float = 0.0) -> FloatArray:
    """Distance in pixels to the line field = level, to first order: |f − level| / |∇f|."""
    dy, dx = np.gradient(field)
    return np.asarray(np.abs(field - level) / (np.hypot(dx, dy) + 1e-6), dtype=np.float32)


def logistic(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + e^−x) without overflow."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0))), dtype=np.float32)
