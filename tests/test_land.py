"""Where no date shows the ground, the estimate moves towards land as it mostly is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, ndimage, stats

from random_networks import assert_close, random_batch, random_model
from undercast import bands, evidence
from undercast.calibration import Calibration
from undercast.engines import attach
from undercast.errors import CheckpointError
from undercast.evidence import CIRRUS, shows_ground
from undercast.land import Land, combined, hidden

GREY = Land((0.15,) * bands.N_S2, 0.4)
GROUND = [i for i in range(bands.N_S2) if i not in CIRRUS]


def estimate(h: int = 4, w: int = 4, level: float = 0.3, sigma: float = 0.1) -> tuple[Any, ...]:
    """Mean, variance, one date under cloud everywhere, and that it is there."""
    mean = torch.full((1, bands.N_S2, h, w), level)
    cloud = torch.full((1, 1, bands.N_S2, h, w), 0.8)
    return mean, torch.full_like(mean, sigma**2), cloud, torch.ones(1, 1, dtype=torch.bool)


@pytest.mark.parametrize("spread", [0.2, 0.4, 1.0])
def test_under_a_closed_sky_the_mean_is_that_of_bayes_rule(spread: float) -> None:
    """The mean of the logarithm, by numerical integration of prior times likelihood."""
    mean, sigma, spectrum = 0.3, 0.1, 0.15
    found, _ = combined(*estimate(level=mean, sigma=sigma), replace(GREY, spread=spread))

    def density(log: float) -> float:
        before = stats.norm.pdf(log, np.log(spectrum), spread)
        return float(before * stats.norm.pdf(log, np.log(mean), sigma / mean))

    mass, _ = integrate.quad(density, -8, 4, points=[-1.5])
    first, _ = integrate.quad(lambda x: x * density(x), -8, 4, points=[-1.5])
    np.testing.assert_allclose(found[:, GROUND].log(), first / mass, rtol=1e-5)


def test_nothing_becomes_more_certain() -> None:
    mean, variance, s2, valid = estimate()
    found, spread = combined(mean, variance, s2, valid, GREY)
    assert (found[:, GROUND] < 0.9 * mean[:, GROUND]).all()
    torch.testing.assert_close(spread.sqrt() / found, variance.sqrt() / mean)


def test_ground_that_a_date_shows_and_the_cirrus_band_stay_as_they_are() -> None:
    mean, variance, s2, _ = estimate()
    clear = torch.cat([s2, mean[:, None] * 1.05], dim=1)
    both = torch.ones(1, 2, dtype=torch.bool)
    unmoved, as_wide = combined(mean, variance, clear, both, GREY)
    torch.testing.assert_close(unmoved, mean, rtol=0, atol=0)
    torch.testing.assert_close(as_wide, variance, rtol=0, atol=0)
    moved, _ = combined(mean, variance, clear, both & torch.tensor([[True, False]]), GREY)
    assert (moved[:, GROUND] < mean[:, GROUND]).all()  # a date that is not there shows nothing
    torch.testing.assert_close(moved[:, CIRRUS], mean[:, CIRRUS], rtol=0, atol=0)


def test_what_is_hidden_is_what_no_date_shows_here_or_around(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "AROUND", 5)
    rng = np.random.default_rng(0)
    mean = torch.full((1, bands.N_S2, 30, 40), 0.2)
    haze = torch.from_numpy(ndimage.gaussian_filter(rng.normal(0, 1, (2, 30, 40)), (0, 4, 4)))
    s2 = mean[:, None] + (haze.float()[None, :, None] + 0.06).clamp(min=0)
    s2[:, :, :, 20:, :8] = float("nan")  # beyond the swath
    found = hidden(mean, s2, torch.ones(1, 2, dtype=torch.bool))[0, 0]
    covered = np.prod([1 - shows_ground(s2[:, t], mean)[0, 0].numpy() for t in (0, 1)], axis=0)
    there = np.isfinite(s2[0, 0, 0].numpy())
    for y, x in ((0, 0), (12, 17), (22, 10), (29, 39), (15, 3)):
        square = np.s_[max(0, y - 5) : y + 6, max(0, x - 5) : x + 6]
        around = covered[square][there[square]].mean()
        assert float(found[y, x]) == pytest.approx(covered[y, x] * around, abs=1e-5)
    assert 0.1 < float(found.mean()) < 0.9


def test_missing_pixels_beside_it_hide_nothing() -> None:
    """A tile that is half beyond the swath is as its other half alone."""
    mean, variance, _, valid = estimate(32, 64)
    s2 = mean[:, None].clone()
    s2[..., 8:24, 8:24] = 0.8  # a cloud
    s2[..., 32:] = float("nan")
    whole = combined(mean, variance, s2, valid, GREY)[0][..., :32]
    half = combined(mean[..., :32], variance[..., :32], s2[..., :32], valid, GREY)[0]
    torch.testing.assert_close(whole, half)


@given(st.permutations(range(3)), st.integers(0, 3))
def test_neither_order_nor_padding_nor_company_of_dates_matters(
    order: list[int], padding: int
) -> None:
    model, batch = random_model(), random_batch(b=2, h=16, w=16)
    with torch.no_grad():
        output = model.network(batch)
    args = (output.mean, output.variance)
    expected, _ = combined(*args, batch.s2, batch.valid, GREY)
    turned, _ = combined(*args, batch.s2[:, order], batch.valid[:, order], GREY)
    torch.testing.assert_close(turned, expected)
    gap = torch.full((2, padding, *batch.s2.shape[2:]), float("nan"))
    s2, none = torch.cat([batch.s2, gap], 1), torch.zeros(2, padding, dtype=torch.bool)
    padded, _ = combined(*args, s2, torch.cat([batch.valid, none], 1), GREY)
    torch.testing.assert_close(padded, expected)
    alone, _ = combined(*(x[:1] for x in (*args, batch.s2, batch.valid)), GREY)
    torch.testing.assert_close(alone, expected[:1])


def test_a_calibrated_model_knows_land_on_every_engine() -> None:
    model, batch = random_model(), random_batch()
    batch.s2.fill_(0.8)  # clouds
    model.calibration = Calibration((2.0,) * bands.N_S2, land=GREY)
    with torch.no_grad():
        raw, found = model.network(batch), model(batch)
    mean, variance = combined(raw.mean, raw.variance, batch.s2, batch.valid, GREY)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.variance, 2 * variance)
    assert float((mean / raw.mean - 1).abs().max()) > 0.1  # it did move
    with torch.inference_mode():
        assert_close(attach(model, "auto")(batch), found)


def test_land_is_kept_with_the_calibration_and_read_back() -> None:
    calibration = Calibration(land=GREY)
    assert Calibration.from_dict(calibration.to_dict()) == calibration
    assert "land" not in Calibration().to_dict()


@pytest.mark.parametrize(
    ("spectrum", "spread"),
    [((0.1,) * 12, 0.5), ((0.1,) * 12 + (0.0,), 0.5), (GREY.spectrum, 0.0),
     (GREY.spectrum, float("inf")), ((float("nan"),) * 13, 0.5)],
)  # fmt: skip
def test_land_that_cannot_be_is_refused(spectrum: tuple[float, ...], spread: float) -> None:
    with pytest.raises(CheckpointError, match=r"got land of the spectrum .* expected 13 bands"):
        Land(spectrum, spread)


def test_land_that_cannot_be_read_is_refused() -> None:
    broken = Calibration().to_dict() | {"land": {"spectrum": [0.1] * 13}}
    with pytest.raises(CheckpointError, match="a calibration that cannot be read"):
        Calibration.from_dict(broken)
