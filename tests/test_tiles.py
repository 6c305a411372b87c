"""The plan of tiles: sizes that people meet, and settings that cannot work."""

from __future__ import annotations

import pytest

from undercast.errors import ConfigError
from undercast.tiles import TilePlan
from undercast.types import Tile


@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 256), (256, 256), (255, 17)])
def test_a_scene_up_to_one_tile_is_one_tile_of_its_own_size(height: int, width: int) -> None:
    assert list(TilePlan(height, width)) == [Tile(0, 0, height, width)]


def test_one_pixel_more_than_a_tile_makes_two_full_tiles() -> None:
    assert list(TilePlan(256, 257)) == [Tile(0, 0, 256, 256), Tile(0, 1, 256, 256)]


def test_a_sentinel_2_tile_has_69_rows_of_tiles() -> None:
    plan = TilePlan(10980, 10980)
    assert len(plan.row_starts) == 1 + 68
    assert len(plan) == 69**2
    assert plan.row_starts[-1] == 10980 - 256


def test_a_shifted_grid_still_begins_and_ends_with_the_scene() -> None:
    assert TilePlan(600, 600, shift=128).row_starts == (0, 128, 288, 344)


@pytest.mark.parametrize(
    "settings",
    [
        {"overlap": 200},
        {"overlap": -1},
        {"size": 0, "overlap": 0},
        {"shift": 300},
        {"height": 0},
    ],
)
def test_impossible_plans_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        TilePlan(**{"height": 300, "width": 300, **settings})
