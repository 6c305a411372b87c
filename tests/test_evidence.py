"""Clear dates correct the variance as Bayes' rule says; clouds, shadows and gaps do not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from random_networks import assert_close, random_batch, random_model
from undercast import bands, evidence
from undercast.calibration import Calibration
from undercast.engines import attach
from undercast.evidence import posterior_variance, shows_ground

GROUND = [i for i in range(bands.N_S2) if i not in evidence.CIRRUS]


def series(offsets: Any, level: float = 0.3, sigma: float = 0.02) -> tuple[Any, ...]:
    """Mean, variance, dates that are so far off the mean in all bands, and that all are there."""
    mean = torch.full((1, bands.N_S2, 2, 2), level)
    s2 = torch.stack([mean + offset for offset in offsets], dim=1)
    return mean, torch.full_like(mean, sigma**2), s2, torch.ones(1, len(offsets), dtype=torch.bool)


@pytest.mark.parametrize("prior", [0.5, 1.0, 4.0])
def test_the_variance_is_that_of_bayes_rule(prior: float) -> None:
    """1/s² has the mean 1/σ² before, and by numerical integration 1/posterior after."""
    sigma, offsets = 0.02, [0.03, -0.01, -0.02]
    found = posterior_variance(*series(offsets, sigma=sigma), prior)[0, 0, 0, 0]

    def density(precision: float) -> float:
        before = stats.gamma.pdf(precision, prior / 2, scale=2 / (prior * sigma**2))
        return float(before * np.prod(stats.norm.pdf(offsets, 0, precision**-0.5)))

    top = 60 / sigma**2
    mass, _ = integrate.quad(density, 0, top, limit=500)
    first, _ = integrate.quad(lambda p: p * density(p), 0, top, limit=500)
    assert float(found) == pytest.approx(mass / first, rel=1e-3)


def test_variances_that_differ_by_place_come_back_from_few_dates() -> None:
    """Places whose variance is drawn as the prior says: no other factor of it is more likely."""
    rng, prior, n = np.random.default_rng(0), 3.0, 40_000
    truth = 1e-4 * prior / rng.chisquare(prior, n)
    mean = torch.full((1, bands.N_S2, 1, n), 0.3)
    dates = rng.normal(0, 1, (4, n)) * truth**0.5
    s2 = mean[:, None] + torch.from_numpy(dates[:3]).float()[None, :, None, None]
    variance = torch.full_like(mean, 1e-4)
    valid = torch.ones(1, 3, dtype=torch.bool)

    def nll(v: np.ndarray) -> float:
        return float(-stats.t.logpdf(dates[3], prior + 3, scale=v**0.5).mean())

    found = posterior_variance(mean, variance, s2, valid, prior)[0, 0, 0].double().numpy()
    assert nll(found) < nll(np.full(n, 1e-4)) - 0.05
    assert nll(found) < min(nll(0.9 * found), nll(1.1 * found))
    wrong = posterior_variance(mean, variance, s2, valid, 10 * prior)[0, 0, 0].double().numpy()
    assert nll(found) < nll(wrong)


def test_clouds_and_shadows_do_not_count() -> None:
    mean, variance, s2, valid = series([0.02, -0.02, 0.3, -0.2])
    expected = posterior_variance(mean, variance, s2[:, :2], valid[:, :2], 1.0)
    torch.testing.assert_close(posterior_variance(mean, variance, s2, valid, 1.0), expected)
    assert shows_ground(mean + 0.3, mean).max() == 0  # cloud
    assert shows_ground(mean * 0.5, mean).max() == 0  # shadow
    assert shows_ground(mean * 1.1, mean).min() == 1
    water = torch.full_like(mean, 0.004)
    assert shows_ground(water * 0.3, water).min() == 1  # dark water is no shadow


def test_one_date_alone_and_the_cirrus_band_change_nothing() -> None:
    mean, variance, s2, valid = series([0.03, -0.03])
    found = posterior_variance(mean, variance, s2, valid, 1.0)
    torch.testing.assert_close(found[:, evidence.CIRRUS], variance[:, evidence.CIRRUS])
    assert (found[:, GROUND] > 1.4 * variance[:, GROUND]).all()
    for alone in (valid & torch.tensor([[True, False]]), valid & False):
        torch.testing.assert_close(posterior_variance(mean, variance, s2, alone, 1.0), variance)


def test_gaps_count_for_nothing_in_their_band_or_pixel() -> None:
    mean, variance, s2, valid = series([0.03, -0.03, 0.01])
    two = posterior_variance(mean, variance, s2[:, :2], valid[:, :2], 1.0)
    s2[:, 2, :, 0, 0] = float("nan")  # a pixel of the third date
    s2[:, 2, 12] = float("nan")  # a band of it that does not tell clouds
    found = posterior_variance(mean, variance, s2, valid, 1.0)
    torch.testing.assert_close(found[..., 0, 0], two[..., 0, 0])
    torch.testing.assert_close(found[:, 12], two[:, 12])
    assert (found[:, 3, 1] < two[:, 3, 1]).all()


def test_a_cloud_that_fades_makes_no_step() -> None:
    mean = torch.full((1, bands.N_S2, 1, 4001), 0.3)
    cloud = mean + torch.linspace(0, 0.15, 4001)
    both, valid = torch.stack([mean, cloud], dim=1), torch.ones(1, 2, dtype=torch.bool)
    found = posterior_variance(mean, torch.full_like(mean, 4e-4), both, valid, 1.0)[0, 1, 0]
    assert (found > 0).all()
    assert found.max() > 3 * found[-1]
    assert found.diff().abs().max() < 0.005 * found.max()


@given(st.permutations(range(3)), st.integers(0, 3))
def test_neither_order_nor_padding_nor_company_of_dates_matters(
    order: list[int], padding: int
) -> None:
    model, batch = random_model(), random_batch(b=2, h=16, w=16)
    model.calibration = Calibration(prior_dates=1.0)
    with torch.no_grad():
        output = model.network(batch)
    args = (output.mean, output.variance)
    expected = posterior_variance(*args, batch.s2, batch.valid, 1.0)
    turned = posterior_variance(*args, batch.s2[:, order], batch.valid[:, order], 1.0)
    torch.testing.assert_close(turned, expected)
    gap = torch.full((2, padding, *batch.s2.shape[2:]), float("nan"))
    s2, none = torch.cat([batch.s2, gap], 1), torch.zeros(2, padding, dtype=torch.bool)
    padded = posterior_variance(*args, s2, torch.cat([batch.valid, none], 1), 1.0)
    torch.testing.assert_close(padded, expected)
    alone = posterior_variance(*(x[:1] for x in (*args, batch.s2, batch.valid)), 1.0)
    torch.testing.assert_close(alone, expected[:1])


def test_a_calibrated_model_asks_its_dates_on_every_engine() -> None:
    model, batch = random_model(), random_batch()
    model.calibration = Calibration((2.0,) * bands.N_S2, prior_dates=1.0)
    with torch.no_grad():
        raw, found = model.network(batch), model(batch)
    expected = 2 * posterior_variance(raw.mean, raw.variance, batch.s2, batch.valid, 1.0)
    torch.testing.assert_close(found.variance, expected)
    torch.testing.assert_close(found.mean, raw.mean)
    assert float((expected / (2 * raw.variance) - 1).abs().max()) > 0.2  # it did change
    with torch.inference_mode():
        assert_close(attach(model, "auto")(batch), found)
