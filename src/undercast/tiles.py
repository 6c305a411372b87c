"""Which windows of a scene are predicted: integers only.

height 600, tiles of 256, overlap 64, stride 192
0        192       344                 the last tile moves inwards instead of being padded
├─────────┼──┤
          ├────────┼────┤
                   ├──────────┤ 600
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from undercast.errors import ConfigError
from undercast.types import Tile

SIZE = 256  # pixels; what the systems were trained and are calibrated on
OVERLAP = 96  # pixels that neighbours share at least; see "Seams" in docs/scenes.md


@dataclass(frozen=True)
class TilePlan:
    """The tiles of a scene, row by row, each `size` pixels square where the scene is that large.

    Neighbours share at least `overlap` pixels. A scene shorter than a tile is one tile of its own
    length. `shift` moves the grid of tiles, which a test of seams needs.

    >>> [tile.col for tile in TilePlan(100, 600)]
    [0, 160, 320, 344]
    >>> len(TilePlan(256, 256)), next(iter(TilePlan(100, 256)))
    (1, Tile(row=0, col=0, height=100, width=256))
    """

    height: int
    width: int
    size: int = SIZE
    overlap: int = OVERLAP
    shift: int = 0

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise ConfigError(
                f"got a scene of {self.height} × {self.width} pixels, expected at least one"
            )
        if self.size < 1 or not 0 <= self.overlap <= self.size // 2:
            raise ConfigError(
                f"got tiles of {self.size} pixels with an overlap of {self.overlap}, expected an "
                "overlap between 0 and half a tile"
            )
        if not 0 <= self.shift <= self.size - self.overlap:
            raise ConfigError(
                f"got a shift of {self.shift}, expected 0 to {self.size - self.overlap} pixels"
            )

    @property
    def row_starts(self) -> tuple[int, ...]:
        """First row of each row of tiles, increasing."""
        return _starts(self.height, self.size, self.overlap, self.shift)

    @property
    def col_starts(self) -> tuple[int, ...]:
        """First column of each column of tiles, increasing."""
        return _starts(self.width, self.size, self.overlap, self.shift)

    @property
    def tile_shape(self) -> tuple[int, int]:
        """Height and width of every tile of this plan."""
        return min(self.size, self.height), min(self.size, self.width)

    def row(self, number: int) -> tuple[Tile, ...]:
        """The tiles of one row of tiles, from left to right."""
        start = self.row_starts[number]
        return tuple(Tile(start, col, *self.tile_shape) for col in self.col_starts)

    def final_rows(self, number: int) -> tuple[int, int]:
        """The pixel rows (first, end) that no later row of tiles touches once this one is done."""
        starts = (*self.row_starts, self.height)
        return starts[number], starts[number + 1]

    def __iter__(self) -> Iterator[Tile]:
        for number in range(len(self.row_starts)):
            yield from self.row(number)

    def __len__(self) -> int:
        return len(self.row_starts) * len(self.col_starts)


def _starts(length: int, size: int, overlap: int, shift: int) -> tuple[int, ...]:
    last = length - size
    if last <= 0:
        return (0,)
    first = {0} if shift else set()  # a shifted grid leaves a gap at the beginning
    return tuple(sorted(first | set(range(shift, last, size - overlap)) | {last}))
