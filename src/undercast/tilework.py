"""The work on tiles as one picklable function: a scene and a model, tiles in, parts out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from undercast import bands
from undercast.blend import Part
from undercast.errors import UndercastError
from undercast.inference import infer_some
from undercast.masks import cloud_mask
from undercast.models.system import Model
from undercast.products.quality import Flag, clear_observations, quality_layers
from undercast.scene import Scene
from undercast.threads import start_pool
from undercast.types import BoolArray, FloatArray, Stack, Tile

Tiles = tuple[Tile, ...]
Found = TypeVar("Found")


# Of decoded blocks that GDAL keeps: those under a row of tiles, so that each is decoded once.
LEAST_CACHE, MOST_CACHE = 64 << 20, 1 << 30
_BLOCK_ROWS = 768  # pixels: a row of tiles touches up to three rows of blocks of 256
_PIXEL_BYTES = 2 * bands.N_S2 + 4 * bands.N_S1  # of one date: uint16, and radar in float32


@contextmanager
def gdal_cache(scene: Scene) -> Iterator[None]:
    """A block cache that fits a scene's width; GDAL's own is a twentieth of the memory."""
    import rasterio

    with rasterio.Env(GDAL_CACHEMAX=cache_bytes(scene)):  # an integer is bytes for rasterio
        yield


def cache_bytes(scene: Scene) -> int:
    """Grows with the width of a scene and its dates, within limits, never with its height."""
    wanted = len(scene.dates) * scene.grid.width * _BLOCK_ROWS * _PIXEL_BYTES
    return min(max(wanted, LEAST_CACHE), MOST_CACHE)


@dataclass(frozen=True)
class TileWork:
    """What a process needs to work on any tile of a scene.

    clouds: the cloud detector where the scene brings no mask. reference: the date that the days of
    the quality layer count from, and whose clear pixels `keep_clear` keeps. masks_are_told: whether
    the model sees masks, or only the quality layer does.
    """

    scene: Scene
    model: Model
    reference: np.datetime64
    clouds: str = "auto"
    keep_clear: bool = False
    masks_are_told: bool = True

    def __call__(self, tiles: Tiles) -> list[Part]:
        """The parts of some tiles of one size, in one forward."""
        return self.estimate(tiles, self.read(tiles))

    def read(self, tiles: Tiles) -> list[Stack]:
        """The stacks under the tiles, with masks."""
        stacks = []
        for tile in tiles:
            with naming((tile,)):
                stacks.append(self._masked(self.scene.read(tile)))
        return stacks

    def estimate(self, tiles: Tiles, stacks: Sequence[Stack]) -> list[Part]:
        """Mean and variance of each tile, with its quality and the pixels to keep."""
        with naming(tiles):
            estimates = infer_some(self.model, [self._told(stack) for stack in stacks])
            return [
                Part(estimate.mean, estimate.variance, self._layers(stack))
                for estimate, stack in zip(estimates, stacks, strict=True)
            ]

    def _told(self, stack: Stack) -> Stack:
        """What the model is told: to rules, bright land is cloud, so no network hears of theirs."""
        return stack if self.masks_are_told else stack.without_mask()

    def _masked(self, stack: Stack) -> Stack:
        if stack.mask is not None:
            return stack
        seen = stack.valid_dates
        if seen.all():  # without a copy of the pixels
            return stack.with_mask(cloud_mask(stack.s2, self.clouds))
        mask = np.ones(stack.shape, dtype=bool)
        if seen.any():
            mask[seen] = cloud_mask(stack.s2[seen], self.clouds)
        return stack.with_mask(mask)

    def _layers(self, stack: Stack) -> tuple[np.ndarray, ...]:
        assert stack.mask is not None
        clear = clear_observations(stack, stack.mask)
        missing = bool(self.scene.info.missing_bands)
        quality = quality_layers(stack, clear, self.reference, missing)
        if not self.keep_clear:
            return (quality,)
        kept = self._kept(stack, clear)
        quality[2][np.isfinite(kept[0])] |= Flag.KEPT
        return quality, kept

    def _kept(self, stack: Stack, clear: BoolArray) -> FloatArray:
        """(13, H, W) the clear pixels of the reference date, NaN elsewhere."""
        kept = np.full(stack.s2.shape[1:], np.nan, np.float32)
        for date in np.flatnonzero(stack.dates == self.reference)[::-1]:
            np.copyto(kept, stack.s2[date], where=clear[date])
        return kept


class Work(Protocol[Found]):
    """What `run_here` does for each batch of tiles, in two steps."""

    def read(self, tiles: Tiles) -> list[Stack]: ...
    def estimate(self, tiles: Tiles, stacks: Sequence[Stack]) -> list[Found]: ...


def run_here(
    work: Work[Found], batches: Sequence[Tiles], streams: int = 1
) -> Iterator[list[Found]]:
    """What is found for each batch, in order, computed in this process.

    `streams` batches are computed side by side, torch's threads shared among them, while the next
    one is read.
    """
    reader = ThreadPoolExecutor(1, "undercast-reader")
    threads = max(1, torch.get_num_threads() // streams)
    pool = start_pool(streams, threads, "undercast-stream")

    def estimate(batch: Tiles, stacks: Future[list[Stack]]) -> list[Found]:
        return work.estimate(batch, stacks.result())

    under_way: deque[Future[list[Found]]] = deque()
    try:
        for batch in batches:
            under_way.append(pool.submit(estimate, batch, reader.submit(work.read, batch)))
            if len(under_way) > streams:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for executor in (pool, reader):
            executor.shutdown(cancel_futures=True)


@contextmanager
def naming(tiles: Tiles) -> Iterator[None]:
    """An error on a tile says which tile it was."""
    try:
        yield
    except Exception as error:
        raise UndercastError(f"{describe(tiles)} failed: {_one_line(error)}") from error


def describe(tiles: Tiles) -> str:
    """The tiles in words.

    >>> describe((Tile(0, 160, 256, 256),))
    'the tile at row 0, column 160'
    """
    first = f"the tile at row {tiles[0].row}, column {tiles[0].col}"
    return first if len(tiles) == 1 else f"{first} or one of the {len(tiles) - 1} after it"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UndercastError) else f"{type(error).__name__}: {text}"
