"""Tiles of one process: in order, some side by side, few under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from undercast.tilework import run_here
from undercast.types import Tile


class Work:
    """Work whose tiles are known by their row; `begun` has those that were read."""

    def __init__(self, estimate: Callable[[int], None]) -> None:
        self.begun: list[int] = []
        self._estimate = estimate

    def read(self, tiles: Any) -> Any:
        self.begun.append(tiles[0].row)
        return tiles

    def estimate(self, tiles: Any, stacks: Any) -> Any:
        assert tiles == stacks
        self._estimate(tiles[0].row)
        return [tiles[0].row]


def run(work: Work, count: int, streams: int) -> Iterator[Any]:
    batches = [(Tile(row, 0, 8, 8),) for row in range(count)]
    yield from run_here(work, batches, streams)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_tiles_side_by_side_come_in_order_and_few_are_under_way(streams: int) -> None:
    # the first tile of each pair takes longest
    work = Work(lambda row: time.sleep(0.02 if row % 2 == 0 else 0.001))
    for number, parts in enumerate(run(work, 12, streams)):
        assert parts == [number]
        assert len(work.begun) <= number + streams + 1
    assert work.begun == list(range(12))


def test_after_an_error_nothing_more_is_begun() -> None:
    def fail(row: int) -> None:
        if row == 2:
            raise ValueError("lightning")

    work = Work(fail)
    found = run(work, 50, 2)
    assert [next(found), next(found)] == [[0], [1]]
    with pytest.raises(ValueError, match="lightning"):
        next(found)
    assert len(work.begun) <= 5
