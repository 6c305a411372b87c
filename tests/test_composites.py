"""Composites against plain numpy, and their variance against its definition."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from undercast import Stack, load_model, predict
from undercast.errors import InputError
from undercast.models.composites import VARIANCE_FLOOR, spread

COMPOSITES = ["least-cloudy", "mosaic", "median"]


def stack(seed: int, t: int, cover: float, gaps: float = 0.0) -> Stack:
    rng = np.random.default_rng(seed)
    s2 = rng.random((t, 13, 7, 9)).astype(np.float32)
    gap = rng.random((t, 1, 7, 9)) < gaps
    dates = np.datetime64("2018-01-01") + rng.permutation(200)[:t]
    s2 = np.where(gap, np.nan, s2)
    s2[:, :, 3, 4] = 0.5  # one pixel is always there
    return Stack(s2, dates, mask=rng.random((t, 7, 9)) < cover)


def taken(s: Stack) -> np.ndarray:
    """(t h w): the clear observations; all observations where none is clear."""
    observed = np.isfinite(s.s2[:, 0])
    clear = observed & ~s.mask
    return np.where(clear.any(0), clear, observed)


@given(st.integers(0, 99), st.integers(1, 6), st.sampled_from([0.0, 0.4, 1.0]))
def test_mosaic_and_median_are_those_of_the_clear_observations(seed, t, cover) -> None:
    s = stack(seed, t, cover, gaps=0.2)
    values = np.where(taken(s)[:, None], s.s2, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pixels without any observation
        mosaic, median = np.nanmean(values, 0), np.nanmedian(values, 0)
    np.testing.assert_allclose(predict(load_model("mosaic"), s).mean, mosaic, atol=1e-6)
    np.testing.assert_allclose(predict(load_model("median"), s).mean, median, atol=1e-6)


def test_least_cloudy_is_the_clearest_date_with_its_gaps_filled_by_the_next() -> None:
    s = stack(0, 3, 0.0)
    s.mask[0], s.mask[1, :3], s.mask[2, :1] = True, True, True
    s.s2[2, :, 5, 5] = np.nan  # a gap of date 2, the clearest
    expected = s.s2[2].copy()
    expected[:, 5, 5] = s.s2[1, :, 5, 5]
    np.testing.assert_array_equal(predict(load_model("least-cloudy"), s).mean, expected)


def test_equally_cloudy_dates_yield_the_earliest() -> None:
    s = stack(1, 4, 0.0)
    first = int(np.argmin(s.dates))
    np.testing.assert_array_equal(predict(load_model("least-cloudy"), s).mean, s.s2[first])


@pytest.mark.parametrize("name", COMPOSITES)
def test_the_order_of_dates_changes_nothing(name: str) -> None:
    s = stack(2, 5, 0.5, gaps=0.1)
    a, b = predict(load_model(name), s), predict(load_model(name), s.select([3, 1, 4, 0, 2]))
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-6)
    np.testing.assert_allclose(a.variance, b.variance, rtol=1e-4)


@pytest.mark.parametrize("name", COMPOSITES)
def test_all_cloudy_gives_an_image_with_a_positive_variance(name: str) -> None:
    estimate = predict(load_model(name), stack(3, 3, 1.0))
    assert np.isfinite(estimate.mean).all()
    assert (estimate.variance > 0).all()


@pytest.mark.parametrize("name", COMPOSITES)
def test_one_date_gives_that_date(name: str) -> None:
    s = stack(4, 1, 0.3)
    estimate = predict(load_model(name), s)
    np.testing.assert_array_equal(estimate.mean, s.s2[0])
    assert (estimate.variance > 0).all()


def test_variance_is_the_sample_variance_of_the_clear_dates_times_one_plus_one_over_n() -> None:
    s = stack(5, 6, 0.0)
    sample = np.maximum(s.s2.var(axis=0, ddof=1), VARIANCE_FLOOR)
    for name, factor in (("mosaic", 1 + 1 / 6), ("median", 1 + 1 / 6), ("least-cloudy", 2)):
        variance = predict(load_model(name), s).variance
        np.testing.assert_allclose(variance, factor * sample, rtol=1e-4)


def test_a_pixel_seen_once_takes_the_images_average_spread() -> None:
    s2 = torch.rand(1, 3, 13, 6, 6)
    usable = torch.ones(1, 3, 6, 6, dtype=torch.bool)
    usable[:, 1:, 0, 0] = False
    sample = s2.var(dim=1)
    sample[:, :, 0, 0] = torch.nan
    result = spread(s2, usable)[:, :, 0, 0]
    torch.testing.assert_close(result, sample.nanmean(dim=(2, 3)))
    assert spread(torch.zeros(1, 3, 13, 6, 6), usable).min() == pytest.approx(VARIANCE_FLOOR)


def test_variance_covers_another_clear_date_as_promised() -> None:
    rng = np.random.default_rng(0)
    scene = rng.random((13, 64, 64)) * 0.3
    dates = scene + rng.normal(0, 0.05, (5, 13, 64, 64))
    mask = np.zeros((4, 64, 64), dtype=bool)
    estimate = predict(load_model("mosaic"), Stack(dates[:4], ["2018-01-01"] * 4, mask=mask))
    z2 = (dates[4] - estimate.mean) ** 2 / (0.05**2 * (1 + 1 / 4))
    assert z2.mean() == pytest.approx(1, abs=0.02)
    assert estimate.variance.mean() == pytest.approx(0.05**2 * 1.25, rel=0.02)


@pytest.mark.parametrize("name", COMPOSITES)
def test_without_a_mask_the_error_says_how_to_get_one(name: str) -> None:
    with pytest.raises(InputError, match="cloud_mask"):
        predict(load_model(name), Stack(np.zeros((1, 13, 4, 4)), ["2018-01-01"]))
