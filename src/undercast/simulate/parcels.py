"""Parcels: blocks of fields with their own direction, cut into strips; and town blocks alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undercast.simulate.fields import Generator, patch_noise
from undercast.types import FloatArray

N_PARCELS = 4096  # identities; two far parcels may share one, which nobody can see


@dataclass(frozen=True)
class Parcels:
    """identity: (n, n) parcel of each pixel. edge, block_edge: (n, n) distance in pixels to the
    border of the parcel and of its block. stripe: (n, n) distance along the tillage rows."""

    identity: NDArray[np.int64]
    edge: FloatArray
    block_edge: FloatArray
    stripe: FloatArray


def draw_parcels(
    rng: Generator, size: int, width_px: float, angle: float, *, block_px: float, wobble: float
) -> Parcels:
    """Parcels about `width_px` wide in blocks about `block_px` wide, along `angle` on average.

    wobble: how far, in pixels, smooth noise bends the borders.
    """
    grid = np.arange(size, dtype=np.float32)
    y = grid[:, None] + wobble * patch_noise(rng, size, 5.5, scale=max(32.0, 1.2 * block_px))
    x = grid[None] + wobble * patch_noise(rng, size, 5.5, scale=max(32.0, 1.2 * block_px))
    block, block_edge = _voronoi(rng, y, x, size, block_px)
    n_blocks = int(block.max()) + 1
    turn = rng.choice([0.0, np.pi / 2], n_blocks) + rng.normal(0, 0.35, n_blocks)
    turn = (angle + turn).astype(np.float32)
    wide = (width_px * np.exp(rng.normal(0, 0.35, n_blocks))).astype(np.float32)
    long = (wide * rng.uniform(1.0, 3.5, n_blocks)).astype(np.float32)
    cos, sin = np.cos(turn)[block], np.sin(turn)[block]
    along, across = x * cos + y * sin, y * cos - x * sin

    table = rng.random(N_PARCELS, dtype=np.float32)
    strip, strip_edge = _cut(across, wide[block])
    row_key = (block * 131 + strip * 17) % N_PARCELS
    length = long[block] * (0.5 + table[row_key])
    piece, piece_edge = _cut(along + table[row_key] * 1000.0, length)
    identity = (row_key * 7919 + piece * 104729) % N_PARCELS
    edge = np.minimum(np.minimum(strip_edge, piece_edge), block_edge)
    return Parcels(identity, edge, block_edge, across)


def _cut(coordinate: FloatArray, length: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Number of the interval of that length, and the distance to its nearer end."""
    scaled = coordinate / length
    number = np.floor(scaled)
    fraction = scaled - number
    return number.astype(np.int64), np.minimum(fraction, 1 - fraction) * length


def _voronoi(
    rng: Generator, y: FloatArray, x: FloatArray, size: int, block_px: float
) -> tuple[NDArray[np.int64], FloatArray]:
    """Nearest of scattered seeds (one in each jittered cell), and the distance to its border."""
    count = max(1, round((size + block_px) / block_px))
    cell = (size + block_px) / count
    base = (np.arange(count) + 0.5) * cell - block_px / 2
    rows = (base[:, None] + rng.uniform(-0.45, 0.45, (count, count)) * cell).ravel()
    cols = (base[None] + rng.uniform(-0.45, 0.45, (count, count)) * cell).ravel()
    nearest = np.full(y.shape, np.inf, dtype=np.float32)
    second = nearest.copy()
    owner = np.zeros(y.shape, dtype=np.int64)
    for i, (row, col) in enumerate(zip(rows, cols, strict=True)):
        distance = (y - np.float32(row)) ** 2 + (x - np.float32(col)) ** 2
        closer = distance < nearest
        second = np.where(closer, nearest, np.minimum(second, distance))
        nearest = np.where(closer, distance, nearest)
        owner = np.where(closer, i, owner)
    gap = np.sqrt(second) - np.sqrt(nearest)
    gap[~np.isfinite(gap)] = size
    return owner, (gap / 2).astype(np.float32)
