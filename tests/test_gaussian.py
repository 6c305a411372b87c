"""Gaussian formulas against torch.distributions, scipy and numerical integration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from undercast import gaussian
from undercast.errors import InputError

finite = st.floats(-2, 2)
variances = st.floats(1e-6, 4)


@given(finite, finite, variances)
def test_log_density_equals_scipy_and_torch(value: float, mean: float, variance: float) -> None:
    ours = gaussian.log_density(np.array(value), np.array(mean), np.array(variance))
    assert ours == pytest.approx(stats.norm.logpdf(value, mean, np.sqrt(variance)), rel=1e-9)
    tensors = (torch.tensor(x, dtype=torch.float64) for x in (value, mean, variance))
    assert float(gaussian.log_density(*tensors)) == pytest.approx(float(ours), rel=1e-12)


@pytest.mark.parametrize(("value", "mean", "variance"), [(0.3, 0.1, 0.04), (0.0, 0.5, 0.01)])
def test_crps_equals_the_integral_that_defines_it(
    value: float, mean: float, variance: float
) -> None:
    def integrand(x: float) -> float:
        return float((stats.norm.cdf(x, mean, np.sqrt(variance)) - (x >= value)) ** 2)

    below, _ = integrate.quad(integrand, -5, value, limit=200, points=[mean])
    above, _ = integrate.quad(integrand, value, 5, limit=200, points=[mean])
    ours = gaussian.crps(np.array(value), np.array(mean), np.array(variance))
    assert float(ours) == pytest.approx(below + above, abs=1e-7)


@given(finite, finite, variances)
def test_crps_is_the_same_in_torch_and_never_above_the_absolute_error(
    value: float, mean: float, variance: float
) -> None:
    ours = float(gaussian.crps(np.array(value), np.array(mean), np.array(variance)))
    tensors = (torch.tensor(x, dtype=torch.float64) for x in (value, mean, variance))
    assert float(gaussian.crps(*tensors)) == pytest.approx(ours, abs=1e-12)
    assert 0 <= ours <= abs(value - mean) + np.sqrt(variance / np.pi) + 1e-12


def test_crps_of_a_vanishing_variance_is_the_absolute_error() -> None:
    assert float(gaussian.crps(np.array(0.3), np.array(0.1), np.array(1e-14))) == pytest.approx(0.2)


@given(finite, variances, st.floats(0.01, 0.99))
def test_interval_holds_its_level(mean: float, variance: float, level: float) -> None:
    low, high = gaussian.interval(np.array(mean), np.array(variance), level)
    law = stats.norm(mean, np.sqrt(variance))
    assert law.cdf(high) - law.cdf(low) == pytest.approx(level, abs=1e-9)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        gaussian.half_width(level)


def test_mixture_moments_equal_those_of_drawn_samples() -> None:
    rng = np.random.default_rng(1)
    means, variances, weights = np.array([0.0, 1.0]), np.array([0.5, 2.0]), np.array([1.0, 3.0])
    which = rng.choice(2, 400_000, p=weights / weights.sum())
    drawn = rng.normal(means[which], np.sqrt(variances[which]))
    found = gaussian.mixture_moments(means, variances, weights)
    assert found.mean == pytest.approx(drawn.mean(), abs=0.01)
    assert found.variance == pytest.approx(drawn.var(), abs=0.02)
