"""Tiles of one process: in order, some side by side, few under way."""

from __future__ import annotations

import time
from typing import Any

import pytest

from undercast.tilework import run_here
from undercast.types import Tile


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_tiles_side_by_side_come_in_order_and_few_are_under_way(streams: int) -> None:
    begun: list[int] = []

    class Slow:
        """The first tile of each pair takes longest."""

        def read(self, tiles: Any) -> Any:
            begun.append(tiles[0].row)
            return tiles

        def estimate(self, tiles: Any, stacks: Any) -> Any:
            assert tiles == stacks
            time.sleep(0.02 if tiles[0].row % 2 == 0 else 0.001)
            return [tiles[0].row]

    batches = [(Tile(row, 0, 8, 8),) for row in range(12)]
    for number, parts in enumerate(run_here(Slow(), batches, streams)):  # type: ignore[arg-type]
        assert parts == [number]
        assert len(begun) <= number + streams + 1
    assert begun == list(range(12))


def test_after_an_error_nothing_more_is_begun() -> None:
    begun: list[int] = []

    class Failing:
        """The third tile fails."""

        def read(self, tiles: Any) -> Any:
            begun.append(tiles[0].row)
            return tiles

        def estimate(self, tiles: Any, stacks: Any) -> Any:
            if tiles[0].row == 2:
                raise ValueError("lightning")
            return [tiles[0].row]

    batches = [(Tile(row, 0, 8, 8),) for row in range(50)]
    found = run_here(Failing(), batches, 2)  # type: ignore[arg-type]
    assert [next(found), next(found)] == [[0], [1]]
    with pytest.raises(ValueError, match="lightning"):
        next(found)
    assert len(begun) <= 5
