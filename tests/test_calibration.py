"""Calibration: known factors come back, curves never cross, intervals cover."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.optimize import isotonic_regression

from undercast import bands
from undercast.calibration import (
    Calibration,
    ConformalFit,
    VarianceFit,
    intervals,
    pool_adjacent_violators,
)
from undercast.errors import CheckpointError, InputError
from undercast.metrics import calibration_metrics

Triple = tuple[np.ndarray, np.ndarray, np.ndarray]
FACTORS = np.linspace(0.2, 6.0, 13)


def images(seed: int, n: int = 4, size: int = 40, curve: float = 1.0) -> Triple:
    """Errors of variance FACTORS · v^curve where v is what the model says."""
    rng = np.random.default_rng(seed)
    stated = np.exp(rng.normal(-6, 1, (n, 13, size, size)))
    truth = FACTORS[:, None, None] * stated**curve * np.exp(-6 * (1 - curve))
    target = rng.uniform(0, 0.5, stated.shape)
    return target, target + rng.normal(0, np.sqrt(truth)), stated


def fitted(*parts: Triple) -> VarianceFit:
    fit = VarianceFit()
    for part in parts:
        fit.feed(*part)
    return fit


def test_scale_recovers_the_factor_of_each_band_and_is_the_mean_of_squared_z() -> None:
    target, mean, variance = images(0)
    found = np.array(fitted((target, mean, variance)).scale().scale)
    np.testing.assert_allclose(found, FACTORS, rtol=0.06)
    exact = ((mean - target) ** 2 / variance).mean((0, 2, 3))
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_scale_is_where_the_likelihood_is_largest() -> None:
    data = images(1)
    best = fitted(data).scale()

    def nll(factor: float) -> float:
        scaled = Calibration(tuple(factor * s for s in best.scale))
        return calibration_metrics(data[0], data[1], scaled.apply(data[2]))["NLL"]

    assert nll(1.0) < min(nll(0.98), nll(1.02))


def test_fit_does_not_depend_on_batches_and_takes_torch() -> None:
    data = images(2)
    one = fitted(data)
    many = fitted(*(tuple(torch.from_numpy(x[i]) for x in data) for i in (2, 0, 3, 1)))
    np.testing.assert_allclose(one.scale().scale, many.scale().scale, rtol=1e-12)
    np.testing.assert_allclose(
        one.monotone().to_dict()["curve"], many.monotone().to_dict()["curve"], rtol=1e-9
    )


def test_monotone_curve_recovers_a_wrong_power_on_held_out_data() -> None:
    fit, held_out = fitted(images(3, curve=0.5)), images(4, curve=0.5)
    target, mean, variance = held_out
    raw = calibration_metrics(target, mean, variance)
    scale = calibration_metrics(target, mean, fit.scale().apply(variance))
    curve = calibration_metrics(target, mean, fit.monotone().apply(variance))
    assert curve["NLL"] < scale["NLL"] < raw["NLL"]
    assert curve["dispersion"] == pytest.approx(1.0, abs=0.02)
    assert curve["coverage_90"] == pytest.approx(0.9, abs=0.01)


def test_power_recovers_the_law_of_the_errors_in_every_band() -> None:
    """e² is on average 0.6 v (σ²/v)^0.4, v the geometric mean of a band: outside the fit too."""
    rng = np.random.default_rng(6)
    middle = np.exp(np.linspace(-9, -4, 13))[:, None, None]
    variance = middle * np.exp(rng.normal(0, 1.0, (4, 13, 64, 64)))
    truth = 0.6 * middle * (variance / middle) ** 0.4
    found = fitted((rng.normal(0, np.sqrt(truth)), 0 * truth, variance)).power()
    np.testing.assert_allclose(found.apply(variance), truth, rtol=0.15)
    np.testing.assert_allclose(np.median(found.apply(variance) / truth), 1, rtol=0.02)
    np.testing.assert_allclose(
        found.apply(torch.from_numpy(variance)).numpy(), found.apply(variance), rtol=1e-6
    )


def test_groups_of_bands_have_factors_and_powers_of_their_own() -> None:
    """What one band does is no matter to the others, which get what they get by themselves."""
    target, mean, variance = images(5, curve=0.5)
    alone = fitted((target, mean, variance)).power()
    target[:, 3] = mean[:, 3] + 5 * (target[:, 3] - mean[:, 3])
    groups = (("B4",), tuple(name for name in bands.S2 if name != "B4"))
    found = fitted((target, mean, variance)).power(groups)
    others = np.delete(np.arange(bands.N_S2), 3)
    ratio = found.apply(variance) / alone.apply(variance)
    assert ratio[:, others].min() == pytest.approx(ratio[:, others].max(), rel=0.2)
    z = (target - mean) / np.sqrt(found.apply(variance))
    np.testing.assert_allclose((z[:, 3] ** 2).mean(), 1.0, rtol=1e-3)
    np.testing.assert_allclose((z[:, others] ** 2).mean(), 1.0, rtol=1e-3)
    assert (fitted((target, mean, variance)).power().apply(variance) > 1.5 * found.apply(variance))[
        :, others
    ].all()


def test_power_is_where_the_likelihood_is_largest() -> None:
    data = images(1, curve=0.5)
    error, variance = data[0] - data[1], data[2]
    middle = np.exp(np.log(variance).mean((0, 2, 3)))[:, None, None]

    def nll(numbers: Any) -> float:
        stated = np.exp(numbers[0]) * middle * (variance / middle) ** numbers[1]
        return float((np.log(stated) + error**2 / stated).mean())

    best = optimize.minimize(nll, (0.0, 1.0), method="Nelder-Mead").x
    found = fitted(data).power()
    (low, one), (high, other) = found.curve[4]
    assert found.scale == (found.scale[0],) * 13
    assert np.log(found.scale[0]) == pytest.approx(best[0], abs=2e-3)
    assert 1 + (other - one) / (high - low) == pytest.approx(best[1], abs=2e-3)


def test_floor_recovers_errors_of_which_a_part_is_the_same_everywhere() -> None:
    """e² is on average 0.3 σ² + 0.5 v, v the geometric mean of a band: outside the fit too."""
    rng = np.random.default_rng(7)
    middle = np.exp(np.linspace(-9, -4, 13))[:, None, None]
    variance = middle * np.exp(rng.normal(0, 1.5, (4, 13, 64, 64)))
    truth = 0.3 * variance + 0.5 * middle
    found = fitted((rng.normal(0, np.sqrt(truth)), 0 * truth, variance)).floor()
    np.testing.assert_allclose(found.apply(variance), truth, rtol=0.08)
    np.testing.assert_allclose(
        found.apply(torch.from_numpy(variance)).numpy(), found.apply(variance), rtol=1e-6
    )
    far = middle * np.array([1e-7, 1e-4, 1e4])  # linear in the logarithm: exact beyond the bend
    np.testing.assert_allclose(found.apply(far), 0.3 * far + 0.5 * middle, rtol=0.08)


def test_floor_is_where_the_likelihood_is_largest() -> None:
    data = images(1, curve=0.5)
    error, variance = data[0] - data[1], data[2]
    middle = np.exp(np.log(variance).mean((0, 2, 3)))[:, None, None]

    def nll(numbers: Any) -> float:
        stated = np.exp(numbers[0]) * variance + np.exp(numbers[1]) * middle
        return float((np.log(stated) + error**2 / stated).mean())

    best = np.exp(optimize.minimize(nll, (0.0, 0.0), method="Nelder-Mead").x)
    stated = best[0] * variance + best[1] * middle
    np.testing.assert_allclose(fitted(data).floor().apply(variance), stated, rtol=0.012)


def test_without_a_part_that_is_the_same_everywhere_the_floor_is_one_factor() -> None:
    """Errors that vary more boldly than σ² says leave no room for a floor."""
    data = images(2, curve=1.4)
    found = fitted(data).floor().apply(data[2])
    ratio = found / data[2]
    assert ratio.max() / ratio.min() < 1 + 1e-6


def test_monotone_curve_leaves_a_mean_squared_z_of_one_on_its_own_data() -> None:
    data = images(5, curve=0.5)
    found = calibration_metrics(data[0], data[1], fitted(data).monotone().apply(data[2]))
    assert found["dispersion"] == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("method", ["power", "floor", "monotone"])
@given(seed=st.integers(0, 10**6))
def test_a_larger_variance_never_becomes_the_smaller_one(method: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, 13, 6, 6)
    noise = rng.normal(0, 0.1, shape) * (rng.random(shape) > 0.3)
    fit = fitted((noise, 0 * noise, np.exp(rng.normal(-6, 3, shape))))
    calibration = getattr(fit, method)()
    grid = np.geomspace(1e-14, 1e3, 500)
    stated = np.broadcast_to(grid[None, None, :], (13, 1, 500))
    mapped = calibration.apply(stated)
    assert (mapped > 0).all()
    assert (np.diff(np.log(mapped), axis=-1) > -1e-9).all()


def test_torch_and_numpy_apply_the_same_map() -> None:
    data = images(6, curve=0.6)
    calibration = fitted(data).monotone()
    variance = data[2].astype(np.float32)
    ours = calibration.apply(torch.from_numpy(variance))
    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.numpy(), calibration.apply(variance), rtol=1e-5)
    np.testing.assert_allclose(  # one image or a batch of them
        calibration.apply(torch.from_numpy(variance[0])).numpy(), ours[0].numpy(), rtol=1e-6
    )
    assert torch.isnan(calibration.apply(torch.full((13, 1, 1), torch.nan))).all()


@pytest.mark.parametrize("seed", range(3))
def test_pool_adjacent_violators_equals_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=30).cumsum(), rng.uniform(0.1, 2, 30)
    theirs = isotonic_regression(values, weights=weights).x
    np.testing.assert_allclose(pool_adjacent_violators(values, weights), theirs, atol=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_conformal_intervals_cover_exchangeable_data_whatever_their_law(level: float) -> None:
    """Marginal coverage over many draws of 39 calibration values and fresh ones: ≥ the level."""
    rng = np.random.default_rng(0)
    n, draws, fresh = 39, 300, 50
    covered = np.zeros((draws, 13))
    for draw in range(draws):
        error = rng.standard_t(2, (13, 1, n + fresh)) * FACTORS[:, None, None]  # heavy tails
        stated = np.full(error.shape, 0.5)
        fit = ConformalFit()
        fit.feed(error[..., :n], 0 * error[..., :n], stated[..., :n])
        calibration = Calibration(conformal=((level, fit.factors(level)),))
        low, high = intervals(0 * error, stated, level, calibration)
        covered[draw] = ((low <= error) & (error <= high))[..., n:].mean((1, 2))
    exact = np.ceil((n + 1) * level) / (n + 1)  # 0.5 and 0.9: no slack at n = 39
    assert covered.mean() == pytest.approx(exact, abs=0.01)
    assert (covered.mean(0) > level - 0.015).all()


def test_conformal_factor_is_the_order_statistic_rounded_up_to_a_cell() -> None:
    rng = np.random.default_rng(1)
    error = rng.normal(0, 0.1, (13, 10, 10))
    variance = np.full(error.shape, 0.01)
    fit = ConformalFit()
    fit.feed(error, 0 * error, variance)
    exact = np.sort(np.abs(error).reshape(13, -1) / 0.1, axis=1)[:, 91 - 1]  # ⌈101 · 0.9⌉ = 91
    factors = np.array(fit.factors(0.9))
    assert (factors >= exact).all()
    np.testing.assert_allclose(factors, exact, rtol=0.005)


def test_conformal_intervals_of_a_right_gaussian_are_the_gaussian_ones() -> None:
    target, mean, variance = images(7)
    right = Calibration(tuple(FACTORS)).apply(variance)
    fit = ConformalFit()
    fit.feed(target, mean, right)
    calibration = Calibration(conformal=((0.9, fit.factors(0.9)),))
    conformal = intervals(mean, right, 0.9, calibration)
    np.testing.assert_allclose(
        conformal[1] - mean, intervals(mean, right, 0.9)[1] - mean, rtol=0.05
    )
    for ours, theirs in zip(
        conformal,
        intervals(*map(torch.from_numpy, (mean, right)), 0.9, calibration),  # type: ignore[call-arg]
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)


def test_calibration_survives_json() -> None:
    fit = fitted(images(8))
    calibration = Calibration(
        fit.monotone().scale, fit.monotone().curve, ((0.9, tuple(FACTORS.tolist())),)
    )
    assert Calibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration
    assert Calibration.from_dict({"scale": [2.0] * 13}) == Calibration((2.0,) * 13)


def test_identity_changes_nothing() -> None:
    variance = images(9)[2]
    np.testing.assert_array_equal(Calibration().apply(variance), variance)


def test_bad_calibrations_are_one_clear_error() -> None:
    for broken in ({}, {"scale": None}, {"scale": [1.0] * 13, "curve": [1]}):
        with pytest.raises(CheckpointError, match="cannot be read"):
            Calibration.from_dict(broken)
    with pytest.raises(CheckpointError, match="expected 13 everywhere"):
        Calibration((1.0,) * 12)
    with pytest.raises(CheckpointError, match="above 0"):
        Calibration((0.0,) * 13)


def test_impossible_fits_are_one_clear_error() -> None:
    with pytest.raises(InputError, match="without any value"):
        VarianceFit().scale()
    few = np.ones((13, 1, 5))
    fit = ConformalFit()
    fit.feed(few, few + 0.1, few)
    with pytest.raises(InputError, match="expected at least 9"):
        fit.factors(0.9)
    with pytest.raises(InputError, match="between 0 and 1"):
        fit.factors(90)
    with pytest.raises(InputError, match="expected one that the calibration was fitted for"):
        intervals(few, few, 0.8, Calibration())
    with pytest.raises(InputError, match="above 0"):
        VarianceFit().feed(few, few, 0 * few)
    with pytest.raises(InputError, match="expected equal ones"):
        VarianceFit().feed(few, few[:12], few)
