"""Random fields: power-law noise on a torus, soft steps, small shifts. numpy only, float32."""

from __future__ import annotations

import math

import numpy as np

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
    fy = np.fft.fftfreq(rows).astype(np.float32)[:, None]
    fx = np.fft.rfftfreq(cols).astype(np.float32)[None]
    ratio, cos, sin = stretch[0], math.cos(stretch[1]), math.sin(stretch[1])
    squared = ((fx * cos + fy * sin) * ratio) ** 2 + (fy * cos - fx * sin) ** 2
    amplitude = (squared + (scale or max(shape)) ** -2.0) ** (-slope / 4)
    amplitude[0, 0] = 0.0
    white = rng.standard_normal(shape, dtype=np.float32)
    field = np.fft.irfft2(np.fft.rfft2(white) * amplitude, s=shape)
    return np.asarray(field / (field.std() + 1e-12), dtype=np.float32)


def patch_noise(
    rng: Generator, size: int, slope: float, *, scale: float | None = None
) -> FloatArray:
    """(size, size) window of `power_noise` on a larger torus, so that opposite edges differ."""
    n = fast_length(size + max(16, size // 8))
    return power_noise(rng, (n, n), slope, scale=scale)[:size, :size]


def soft_step(x: FloatArray, width: float) -> FloatArray:
    """0 below −width/2, 1 above width/2, linear between: an anti-aliased edge."""
    return np.asarray(np.clip(x / width + 0.5, 0.0, 1.0), dtype=np.float32)


def smoothstep(x: FloatArray) -> FloatArray:
    """Hermite step from 0 to 1 on 0..1."""
    x = np.clip(x, 0.0, 1.0)
    return np.asarray(x * x * (3.0 - 2.0 * x), dtype=np.float32)


def line_distance(rng: Generator, size: int, wiggle: float) -> FloatArray:
    """(size, size) distance in pixels to a line that crosses the patch and winds.

    wiggle: 0 straight, 0.2 a meandering river. To first order: |offset| / √(1 + slope²).
    """
    n = fast_length(3 * size)
    frequency = np.fft.rfftfreq(n)
    amplitude = (frequency**2 + (1.5 / size) ** 2) ** -1.1 * np.exp(-((frequency * 18) ** 2))
    path = np.fft.irfft(np.fft.rfft(rng.standard_normal(n)) * amplitude, n)
    path = (path - path.mean()) / path.std() * wiggle * size
    angle, shift = rng.uniform(0, np.pi), rng.uniform(-0.35, 0.35) * size
    grid = np.arange(size) - size / 2
    along = grid[None] * np.cos(angle) + grid[:, None] * np.sin(angle) + n / 2
    across = grid[:, None] * np.cos(angle) - grid[None] * np.sin(angle) - shift
    steps = np.arange(n)
    offset = across - np.interp(along, steps, path)
    slope = np.interp(along, steps, np.gradient(path))
    return np.asarray(np.abs(offset) / np.sqrt(1 + slope**2), dtype=np.float32)


def logistic(x: float) -> float:
    """1 / (1 + e^−x)."""
    return 1.0 / (1.0 + math.exp(-x))
