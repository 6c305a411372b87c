"""Stacks are checked on entry, and say what was got, what was expected and what to do."""

from __future__ import annotations

from datetime import date, datetime

import numpy as np
import pytest

from undercast import Estimate, Grid, Stack, Tile
from undercast.errors import InputError


def s2(t: int = 2, h: int = 8, w: int = 6) -> np.ndarray:
    return np.full((t, 13, h, w), 0.1, dtype=np.float32)


DATES = ["2018-06-21", "2018-06-01"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"s2": np.zeros((2, 12, 8, 6))}, ["12", "13", "NaN"]),
        ({"s2": np.zeros((13, 8, 6))}, ["(13, 8, 6)", "s2[None]"]),
        ({"s2": np.zeros((0, 13, 8, 6)), "dates": []}, ["empty"]),
        ({"s2": s2() * 30000}, ["3000", "10000"]),
        ({"s2": np.where(s2() > 0, np.inf, 0)}, ["infinite", "s2"]),
        ({"s2": [["a"]]}, ["no array of numbers"]),
        ({"dates": ["2018-06-21"]}, ["1 dates", "2 images"]),
        ({"dates": ["2018-06-21", "June"]}, ["June", "ISO"]),
        ({"dates": ["2018-06-21", "NaT"]}, ["missing date"]),
        ({"s1": np.zeros((2, 2, 8, 7))}, ["(2, 2, 8, 7)", "(2, 2, 8, 6)"]),
        ({"s1": np.full((2, 2, 8, 6), -np.inf)}, ["infinite", "s1"]),
        ({"s1_dates": DATES}, ["s1_dates without s1"]),
        ({"s1": np.zeros((2, 2, 8, 6)), "s1_dates": DATES[:1]}, ["1 s1_dates", "2 images"]),
        ({"mask": np.zeros((2, 8, 7), dtype=bool)}, ["(2, 8, 7)", "(2, 8, 6)"]),
        ({"mask": np.zeros((2, 8, 6))}, ["float64", "True = unusable"]),
    ],
)
def test_bad_input_is_refused_in_one_line_that_says_why(arguments: dict, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        Stack(**{"s2": s2(), "dates": DATES, **arguments})
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
    assert isinstance(caught.value, ValueError)


def test_dates_may_be_strings_datetimes_or_datetime64() -> None:
    same = [
        ["2018-06-21", "2018-06-01"],
        [date(2018, 6, 21), date(2018, 6, 1)],
        [datetime(2018, 6, 21, 10, 50), datetime(2018, 6, 1)],
        np.array(DATES, dtype="datetime64[ns]"),
    ]
    for dates in same:
        assert Stack(s2(), dates).dates.astype(str).tolist() == DATES
        assert Stack(s2(), dates).dates.dtype == np.dtype("datetime64[D]")


def test_days_are_the_mean_of_both_sensors_where_both_were_there() -> None:
    s1 = np.full((2, 2, 8, 6), -10.0)
    s1[1] = np.nan
    stack = Stack(s2(), DATES, s1=s1, s1_dates=["2018-06-23", "2018-12-31"])
    assert stack.days().tolist() == [1541.0, 1520.0]
    assert Stack(s2(), DATES, s1=s1).days().tolist() == [1540.0, 1520.0]


def test_a_stack_knows_its_gaps() -> None:
    array = s2(3)
    array[1] = np.nan
    array[:, :, 0, 0] = np.nan
    stack = Stack(array, [*DATES, "2018-07-01"])
    assert stack.valid_dates.tolist() == [True, False, True]
    assert not stack.observed[0, 0]
    assert stack.observed.sum() == 8 * 6 - 1


def test_select_and_crop_keep_what_belongs_together() -> None:
    rng = np.random.default_rng(1)
    stack = Stack(
        rng.random((3, 13, 9, 7)),
        ["2018-01-01", "2018-02-01", "2018-03-01"],
        s1=rng.random((3, 2, 9, 7)),
        s1_dates=["2018-01-02", "2018-02-02", "2018-03-02"],
        mask=rng.random((3, 9, 7)) > 0.5,
    )
    part = stack.select([2, 0]).crop(Tile(1, 2, 5, 4))
    assert part.shape == (2, 5, 4)
    assert part.dates.astype(str).tolist() == ["2018-03-01", "2018-01-01"]
    assert part.s1_dates is not None
    assert part.s1_dates.astype(str).tolist() == ["2018-03-02", "2018-01-02"]
    np.testing.assert_array_equal(part.s2, stack.s2[[2, 0], :, 1:6, 2:6])
    np.testing.assert_array_equal(part.s1, stack.s1[[2, 0], :, 1:6, 2:6])
    np.testing.assert_array_equal(part.mask, stack.mask[[2, 0], 1:6, 2:6])


def test_another_mask_leaves_the_rest_and_the_first_stack_as_they_were() -> None:
    stack = Stack(np.full((2, 13, 4, 5), 0.1), ["2018-06-21", "2018-06-01"])
    mask = np.zeros((2, 4, 5), bool)
    masked = stack.with_mask(mask)
    assert masked.mask is mask
    assert stack.mask is None
    assert masked.s2 is stack.s2
    np.testing.assert_array_equal(masked.dates, stack.dates)
    with pytest.raises(InputError, match="one for each date"):
        stack.with_mask(mask[:1])


def test_the_grid_of_a_tile_agrees_with_rasterio() -> None:
    from affine import Affine
    from rasterio.transform import xy

    grid = Grid("EPSG:32631", (10.0, 1.0, 5e5, 0.5, -10.0, 4e6), 512, 512)
    tile = Tile(100, 50, 20, 30)
    corner = xy(Affine(*grid.transform), tile.row, tile.col, offset="ul")
    window = grid.window(tile)
    assert (window.transform[2], window.transform[5]) == pytest.approx(corner)
    assert (window.height, window.width) == (20, 30)


def test_sigma_is_the_root_of_the_variance() -> None:
    assert Estimate(np.zeros((13, 2, 2), np.float32)).sigma is None
    estimate = Estimate(np.zeros((13, 2, 2), np.float32), np.full((13, 2, 2), 0.04, np.float32))
    np.testing.assert_allclose(estimate.sigma, 0.2)
