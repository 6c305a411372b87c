"""Overlapping tiles to one image, in a strip of rows: `feed` tiles, take finished `rows`.

Each pixel is the mixture of the tiles that cover it: its variance is the weighted mean of their
variances plus the weighted variance of their means (the law of total variance), so tiles that
disagree show it. The moments are updated one tile at a time, never as a difference of squares:
a constant stays that constant to the bit, and no variance can be negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from undercast.errors import InputError
from undercast.tiles import TilePlan
from undercast.types import BoolArray, FloatArray, Tile

Array = NDArray[Any]
MOMENTS = ("mean", "within", "between")  # of each band


class Part(NamedTuple):
    """What one tile adds."""

    mean: FloatArray  # (c, h, w), NaN = no data
    variance: FloatArray | None = None  # (c, h, w)
    layers: tuple[Array, ...] = ()  # (k, h, w) each: not blended, the heaviest tile's are kept


class Strip(NamedTuple):
    """Finished rows of the image, over its whole width."""

    row: int
    mean: FloatArray  # (c, rows, W), NaN = no data
    variance: FloatArray | None
    layers: tuple[Array, ...]


class Blend:
    """The tiles of a plan, added in the plan's order whatever the order in which they come.

    Memory: one row of tiles, plus the tiles that came before their turn.

    >>> plan = TilePlan(6, 6, size=4, overlap=2)
    >>> blend = Blend(plan)
    >>> for tile in plan:
    ...     blend.feed(tile, Part(np.full((1, 4, 4), 0.3, np.float32)))
    >>> [(strip.row, strip.mean.shape, float(np.ptp(strip.mean))) for strip in blend.rows()]
    [(0, (1, 2, 6), 0.0), (2, (1, 4, 6), 0.0)]
    """

    def __init__(self, plan: TilePlan) -> None:
        self.plan = plan
        self._turn = 0  # position in the plan of the tile to be added next
        self._early: dict[int, Part] = {}
        self._position = {tile: i for i, tile in enumerate(plan)}
        self._buffer: dict[str, Array] = {}
        self._finished: list[Strip] = []
        self._weights = tile_weights(*plan.tile_shape, plan.overlap)

    def feed(self, tile: Tile, part: Part) -> None:
        """Add a tile; one that comes before its turn waits."""
        position = self._position.get(tile)
        if position is None or position < self._turn or position in self._early:
            raise InputError(f"got {tile}, expected each tile of the plan once")
        if part.mean.shape[1:] != self.plan.tile_shape:
            raise InputError(
                f"got an image of shape {part.mean.shape} for {tile}, expected (bands, "
                f"{tile.height}, {tile.width})"
            )
        self._early[position] = part
        while self._turn in self._early:
            self._add(self._turn, self._early.pop(self._turn))

    def rows(self) -> Iterator[Strip]:
        """The strips that were finished since the last call, from top to bottom."""
        finished, self._finished = self._finished, []
        return iter(finished)

    @property
    def rows_fed(self) -> int:
        """Rows of tiles that are complete."""
        return self._turn // len(self.plan.col_starts)

    def state(self) -> dict[str, Array]:
        """Copies of the unfinished rows after a whole row of tiles, to go on from later."""
        per_row = len(self.plan.col_starts)
        if self._turn % per_row or self._finished:
            raise InputError("got a row of tiles that is not finished, expected its last tile")
        state = {name: array[:, : self._carried].copy() for name, array in self._buffer.items()}
        return state | {"row": np.array(self._turn // per_row)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on after the row of tiles at which `state` was taken."""
        number = int(state["row"])
        self._turn = number * len(self.plan.col_starts)
        for name, carried in state.items():
            if name != "row":
                self._buffer[name] = self._empty(carried.shape[0], carried.dtype)
                self._buffer[name][:, : carried.shape[1]] = carried

    @property
    def _carried(self) -> int:
        """Rows of the finished row of tiles that the next row of tiles touches too."""
        first, end = self.plan.final_rows(self._turn // len(self.plan.col_starts) - 1)
        return self.plan.tile_shape[0] - (end - first)

    def _empty(self, channels: int, dtype: Any) -> Array:
        return np.zeros((channels, self.plan.tile_shape[0], self.plan.width), dtype)

    def _add(self, position: int, part: Part) -> None:
        number, col = divmod(position, len(self.plan.col_starts))
        unusable = _unusable(part)
        self._allocate(part, _differs(unusable))
        left = self.plan.col_starts[col]
        under = {
            name: array[:, :, left : left + self.plan.tile_shape[1]]
            for name, array in self._buffer.items()
        }
        _choose_layers(under, part.layers, self._weights)
        _update_moments(under, part, self._weights, unusable)
        self._turn += 1
        if col == len(self.plan.col_starts) - 1:
            self._finish(number, has_variance=part.variance is not None)

    def _allocate(self, part: Part, apart: bool) -> None:
        """apart: bands have no data at different pixels, so that each needs weights of its own."""
        if self._buffer:
            weight = self._buffer["weight"]
            if apart and len(weight) == 1:
                self._buffer["weight"] = weight.repeat(part.mean.shape[0], axis=0)
            return
        self._buffer["weight"] = self._empty(part.mean.shape[0] if apart else 1, np.float32)
        for name in MOMENTS if part.variance is not None else MOMENTS[:1]:
            self._buffer[name] = self._empty(part.mean.shape[0], np.float32)
        for i, layer in enumerate(part.layers):
            self._buffer[f"layer{i}"] = self._empty(layer.shape[0], layer.dtype)
        if part.layers:
            self._buffer["heaviest"] = self._empty(1, np.float32)

    def _finish(self, number: int, has_variance: bool) -> None:
        first, end = self.plan.final_rows(number)
        done = {name: array[:, : end - first] for name, array in self._buffer.items()}
        nothing = done["weight"] == 0
        layers = sum(name.startswith("layer") for name in done)
        mean = done["mean"].copy()
        variance = done["within"] + done["between"] if has_variance else None
        for image in (mean, variance):
            if image is not None and nothing.any():
                np.copyto(image, np.float32(np.nan), where=nothing)
        copies = tuple(done[f"layer{i}"].copy() for i in range(layers))
        self._finished.append(Strip(first, mean, variance, copies))
        for array in self._buffer.values():
            array[:, : self._carried] = array[:, end - first :].copy()
            array[:, self._carried :] = 0


def blend_parts(plan: TilePlan, parts: Sequence[tuple[Tile, Part]]) -> Strip:
    """The whole image at once, for what fits into memory."""
    blend = Blend(plan)
    for tile, part in parts:
        blend.feed(tile, part)
    return join(list(blend.rows()))


def join(strips: Sequence[Strip]) -> Strip:
    """Strips from top to bottom as one."""
    variances = [s.variance for s in strips if s.variance is not None]
    layers = zip(*(s.layers for s in strips), strict=True)
    return Strip(
        strips[0].row,
        np.concatenate([s.mean for s in strips], axis=1),
        np.concatenate(variances, axis=1) if variances else None,
        tuple(np.concatenate(layer, axis=1) for layer in layers),
    )


def tile_weights(height: int, width: int, overlap: int) -> FloatArray:
    """(h, w) weights above 0: 1 inside, a raised cosine over `overlap` pixels towards each edge.

    Where neighbours overlap by exactly `overlap` pixels, their weights add up to 1.

    >>> weights = tile_weights(9, 8, 4)[4]
    >>> [f"{w:.3f}" for w in weights[:4]], [f"{w:.6f}" for w in weights[:2] + weights[4:6]]
    (['0.038', '0.309', '0.691', '0.962'], ['1.000000', '1.000000'])
    """
    along = [_ramp(length, overlap) for length in (height, width)]
    return np.asarray(along[0][:, None] * along[1][None, :], dtype=np.float32)


def _ramp(length: int, overlap: int) -> NDArray[np.float64]:
    if overlap == 0:
        return np.ones(length)
    distance = np.minimum(np.arange(length) + 0.5, overlap) / overlap  # from the first edge
    rising = np.sin(distance * np.pi / 2) ** 2
    return np.asarray(rising * rising[::-1])


def _update_moments(
    under: dict[str, Array], part: Part, weights: FloatArray, unusable: BoolArray | None
) -> None:
    """Welford's update with weights, in place; pixels without data weigh nothing."""
    bands, alike = range(len(part.mean)), len(under["weight"]) == 1
    for plane, total in enumerate(under["weight"]):
        bad = None if unusable is None else unusable[plane]
        weight = weights if bad is None else np.where(bad, np.float32(0), weights)
        total += weight
        share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
        for band in bands if alike else (plane,):  # one band at a time fits into the cache
            moments = {name: under[name][band] for name in MOMENTS if name in under}
            variance = None if part.variance is None else part.variance[band]
            _update_band(moments, part.mean[band], variance, share, bad)


def _update_band(
    under: dict[str, Array],
    mean: FloatArray,
    variance: FloatArray | None,
    share: FloatArray,
    bad: BoolArray | None,
) -> None:
    step = _step(under["mean"], mean, bad)
    if variance is not None:
        rest = 1 - share
        under["between"] *= rest
        rest *= share
        rest *= step
        rest *= step
        under["between"] += rest
        wider = _step(under["within"], variance, bad)
        wider *= share
        under["within"] += wider
    step *= share
    under["mean"] += step


def _step(old: FloatArray, new: FloatArray, bad: BoolArray | None) -> FloatArray:
    """The difference between new and old, 0 for pixels without data."""
    step = new - old
    if bad is not None:
        step[bad] = 0
    return step


def _unusable(part: Part) -> BoolArray | None:
    """(c, h, w) True where mean or variance is no number, or None where all are."""
    parts = [part.mean] if part.variance is None else [part.mean, part.variance]
    if np.isfinite([image.sum() for image in parts]).all():  # one NaN makes the sum NaN
        return None
    return np.asarray(~np.logical_and.reduce([np.isfinite(image) for image in parts]))


def _differs(unusable: BoolArray | None) -> bool:
    """Whether bands have no data at different pixels."""
    return unusable is not None and bool((unusable != unusable[:1]).any())


def _choose_layers(under: dict[str, Array], layers: Sequence[Array], weights: FloatArray) -> None:
    """Keep, for each pixel, the layers of the tile that weighs most; the earlier one in a tie."""
    if not layers:
        return
    heavier = weights > under["heaviest"][0]
    for i, layer in enumerate(layers):
        np.copyto(under[f"layer{i}"], layer, where=heavier)
    np.copyto(under["heaviest"][0], weights, where=heavier)
