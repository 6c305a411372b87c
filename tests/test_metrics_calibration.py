"""Calibration metrics: closed forms, Monte Carlo, exact binning against streaming."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from undercast.errors import InputError
from undercast.metrics import (
    CalibrationAccumulator,
    bins,
    calibration_metrics,
    calibration_metrics_per_band,
)

Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


def gaussian_images(n: int = 24, size: int = 48, seed: int = 0) -> Triple:
    """Images whose errors are drawn from exactly the variance that is stated."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(-7, -4, (n, 1, 1, 1))
    variance = np.exp(level + rng.normal(0, 0.5, (n, 1, size, size))) * np.linspace(
        0.5, 2, 13
    ).reshape(13, 1, 1)
    target = rng.uniform(0, 0.5, variance.shape)
    return target, target + rng.normal(0, np.sqrt(variance)), variance


def test_perfect_gaussian_is_calibrated_and_the_released_uce_says_otherwise() -> None:
    target, mean, variance = gaussian_images()
    found = calibration_metrics(target, mean, variance)
    sharpness = found["sharpness"]
    for name in ("UCE", "UCE_equal_width", "UCE_im", "UCE_im_equal_width"):
        assert found[name] < 0.02 * sharpness
    assert found["ENCE"] < 0.02
    assert found["dispersion"] == pytest.approx(1.0, abs=0.005)
    for level in (50, 80, 90, 95):
        assert found[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.005)
    # the signed error averages out over bands and pixels: a perfect variance looks far too large
    assert found["UCE_legacy"] > 0.5 * sharpness
    assert found["UCE_im_legacy"] > 0.8 * sharpness


@given(st.floats(0.2, 5.0), st.floats(0.005, 0.1))
def test_sigma_off_by_a_factor_k_has_uce_of_k_minus_1_times_rmse(k: float, sigma: float) -> None:
    sign = np.where(np.arange(2 * 13 * 8 * 8).reshape(2, 13, 8, 8) % 2, 1.0, -1.0)
    found = calibration_metrics(sign * sigma, 0 * sign, np.full(sign.shape, (k * sigma) ** 2))
    for name in ("UCE", "UCE_im", "UCE_equal_width", "UCE_im_equal_width"):
        assert found[name] == pytest.approx(abs(k - 1) * sigma, rel=1e-9, abs=1e-12)
    assert found["ENCE"] == pytest.approx(abs(k - 1) / k, rel=1e-9, abs=1e-12)
    assert found["dispersion"] == pytest.approx(1 / k, rel=1e-9)
    assert found["sharpness"] == pytest.approx(k * sigma, rel=1e-9)
    expected = -stats.norm.logpdf(sigma, 0, k * sigma)
    assert found["NLL"] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found["coverage_50"] == float(k * 0.6744897501960817 >= 1)


def test_pixel_errors_are_averaged_over_bands_before_binning() -> None:
    # per band the variance is wrong in opposite ways, over the bands of a pixel it is right
    error = np.zeros((1, 2, 4, 4))
    error[:, 0], error[:, 1] = 0.3, 0.1
    variance = np.full(error.shape, 0.05)
    assert calibration_metrics(error, 0 * error, variance)["UCE"] == pytest.approx(0.0, abs=1e-12)
    first, second = calibration_metrics_per_band(error, 0 * error, variance)
    assert first["UCE"] == pytest.approx(0.3 - math.sqrt(0.05))
    assert second["UCE"] == pytest.approx(math.sqrt(0.05) - 0.1)


def test_crps_and_nll_are_means_of_the_gaussian_scores() -> None:
    target, mean, variance = gaussian_images(2, 16)
    found = calibration_metrics(target, mean, variance)
    law = torch.distributions.Normal(*map(torch.from_numpy, (mean, np.sqrt(variance))))
    assert found["NLL"] == pytest.approx(-float(law.log_prob(torch.from_numpy(target)).mean()))
    # for a calibrated Gaussian the expected CRPS is σ/√π
    assert found["CRPS"] == pytest.approx(found["sharpness"] / math.sqrt(math.pi), rel=0.05)


def test_legacy_uce_reproduces_the_released_binning() -> None:
    rng = np.random.default_rng(3)
    signed, variance = rng.normal(0, 0.1, 500), rng.uniform(0.001, 0.05, 500)
    edges = np.linspace(variance.min(), variance.max(), 20)[1:]
    which = np.digitize(variance, edges)
    gaps = [
        (which == b).mean()
        * abs(np.sqrt((signed[which == b] ** 2).mean()) - np.sqrt(variance[which == b].mean()))
        for b in np.unique(which)
    ]
    images = signed[:, None, None, None] * np.ones((1, 2, 1, 1))
    spread = variance[:, None, None, None] * np.ones((1, 2, 1, 1))
    found = calibration_metrics(0 * images, images, spread)
    assert found["UCE_im_legacy"] == pytest.approx(np.sum(gaps), rel=1e-9)
    assert found["UCE_legacy"] == pytest.approx(np.sum(gaps), rel=1e-9)


def test_equal_mass_bins_hold_equal_numbers_and_keep_ties_together() -> None:
    rng = np.random.default_rng(0)
    variance = rng.uniform(1, 2, 2000)
    diagram = bins.reliability(bins.exact_groups(variance, variance), "equal_mass")
    assert diagram.n.tolist() == [100.0] * 20
    tied = bins.reliability(bins.exact_groups(variance, np.ones(2000)), "equal_mass")
    assert tied.n.tolist() == [2000.0]


def test_discard_curve_ends_at_the_mean_squared_error_and_rises_for_a_good_variance() -> None:
    target, mean, variance = gaussian_images()
    stream = CalibrationAccumulator(13)
    stream.feed(target, mean, variance)
    curve = stream.discard_curve()
    assert curve.mse[-1] == pytest.approx(((target - mean) ** 2).mean(), rel=1e-9)
    assert (np.diff(curve.mse) > 0).all()
    order = np.argsort(variance.mean((1, 2, 3)))[:12]
    assert curve.mse[9] == pytest.approx(((target - mean)[order] ** 2).mean(), rel=1e-9)


def test_ause_is_zero_for_a_variance_that_orders_like_the_error_and_large_for_the_reverse() -> None:
    rng = np.random.default_rng(0)
    squared = rng.gamma(1.0, 0.01, 5000)
    perfect = bins.exact_groups(squared, squared)
    assert bins.ause(bins.exact_groups(squared, 3 * squared), perfect) == pytest.approx(0, abs=1e-9)
    reverse = bins.ause(bins.exact_groups(squared, 1 / squared), perfect)
    noise = bins.ause(bins.exact_groups(squared, rng.uniform(1, 2, 5000)), perfect)
    assert reverse > noise > 0.3


@pytest.mark.parametrize("sizes", [(24,), (1,) * 24, (7, 17)])
def test_streaming_equals_the_exact_metrics_for_any_batch_size_and_order(
    sizes: tuple[int, ...],
) -> None:
    images = gaussian_images(size=16)
    exact = calibration_metrics(*images)
    stream = CalibrationAccumulator(13)
    order = np.random.default_rng(1).permutation(24)
    for pick in np.split(order, np.cumsum(sizes)[:-1]):
        stream.feed(*(x[pick] for x in images))
    found = stream.result()
    assert set(found) == set(exact)
    binned = {"UCE", "UCE_equal_width", "UCE_legacy", "ENCE", "AUSE"}
    for name, value in exact.items():
        if name in binned:  # bin edges are rounded to a cell, 0.8 % of the variance
            scale = 1.0 if name in ("ENCE", "AUSE") else exact["sharpness"]
            assert found[name] == pytest.approx(value, abs=0.005 * scale), name
        else:
            assert found[name] == pytest.approx(value, rel=1e-9), name


def test_streaming_does_not_depend_on_order_and_merging_equals_one_stream() -> None:
    images = gaussian_images(size=16)
    one, back = CalibrationAccumulator(13, per_band=True), CalibrationAccumulator(13, per_band=True)
    one.feed(*images)
    first, second = (CalibrationAccumulator(13, per_band=True) for _ in range(2))
    for i in reversed(range(24)):
        back.feed(*(x[i] for x in images))
        (first if i % 3 else second).feed(*(x[i] for x in images))
    for other in (back, first.merge(second)):
        assert other.result() == pytest.approx(one.result(), rel=1e-9)
        assert other.per_band()["B11"] == pytest.approx(one.per_band()["B11"], rel=1e-9)


def test_streaming_per_band_equals_exact_per_band() -> None:
    images = gaussian_images(6, 16)
    stream = CalibrationAccumulator(13, per_band=True)
    stream.feed(*images)
    exact = calibration_metrics_per_band(*images)
    found = stream.per_band()
    assert found["B1"]["NLL"] == pytest.approx(exact[0]["NLL"], rel=1e-9)
    assert found["B12"]["UCE_im"] == pytest.approx(exact[12]["UCE_im"], rel=1e-9)
    assert found["B12"]["UCE"] == pytest.approx(exact[12]["UCE"], abs=0.005 * 0.1)


def test_missing_values_and_where_leave_the_same_samples() -> None:
    target, mean, variance = gaussian_images(3, 16)
    kept = calibration_metrics(target[..., :10], mean[..., :10], variance[..., :10])
    where = np.zeros((16, 16), bool)
    where[:, :10] = True
    assert calibration_metrics(target, mean, variance, where) == pytest.approx(kept, rel=1e-9)
    target[..., 10:] = np.nan
    assert calibration_metrics(target, mean, variance) == pytest.approx(kept, rel=1e-9)


def test_nothing_to_count_gives_nan_everywhere() -> None:
    empty = np.full((2, 13, 4, 4), np.nan)
    assert all(math.isnan(v) for v in calibration_metrics(empty, empty, empty).values())
    assert all(math.isnan(v) for v in CalibrationAccumulator(13).result().values())


def test_variance_of_zero_is_refused() -> None:
    zeros = np.zeros((1, 13, 4, 4))
    with pytest.raises(InputError, match="above 0"):
        calibration_metrics(zeros, zeros, zeros)
    with pytest.raises(InputError, match="expected equal ones"):
        calibration_metrics(zeros, zeros, zeros[:, :2])
    with pytest.raises(InputError, match="per_band=True"):
        CalibrationAccumulator(13).per_band()
    with pytest.raises(InputError, match="expected two alike"):
        CalibrationAccumulator(13).merge(CalibrationAccumulator(13, per_band=True))
