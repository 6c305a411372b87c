"""The shrinkage of estimates that are not sure: the rule of James and Stein, its risk known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from undercast import load_model
from undercast.calibration import Calibration
from undercast.checkpoint import save_model
from undercast.errors import CheckpointError, InputError
from undercast.models import create
from undercast.models.system import Output, calibrated
from undercast.shrinkage import STRENGTHS, Shrinkage, ShrinkageFit

LAND = tuple(np.linspace(0.05, 0.4, 13).tolist())
BANDS, SIDE = 13, 200
UNITS = np.linspace(0.2, 3.0, BANDS)[:, None, None]  # how much land varies in each band
WEIGHTS = tuple((1 / UNITS.ravel() ** 2).tolist())


def _guess(
    rng: np.random.Generator, spread: float, sigma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truth around the land, what is estimated of it, and the variance of that."""
    size = (BANDS, SIDE, SIDE)
    truth = np.array(LAND)[:, None, None] + UNITS * rng.normal(0, spread, size)
    mean = truth + UNITS * rng.normal(0, sigma, size)
    return truth, mean, np.broadcast_to((UNITS * sigma) ** 2, size).copy()


@pytest.mark.parametrize("ratio", [0.0, 1.0, 3.0])
def test_the_risk_is_that_of_james_and_stein(rng: np.random.Generator, ratio: float) -> None:
    sigma, best = 0.05, (BANDS - 2) / BANDS
    truth, mean, variance = _guess(rng, ratio * sigma, sigma)
    moved = Shrinkage(LAND, WEIGHTS, best).apply(mean, variance)
    risk = (((moved - truth) / UNITS) ** 2).sum(axis=0).mean() / sigma**2
    plain = BANDS - (BANDS - 2) / (1 + ratio**2)  # that of its positive part is smaller near 0
    assert risk < 1.01 * plain
    assert risk == pytest.approx(plain, rel={0.0: 0.4, 1.0: 0.02, 3.0: 0.005}[ratio])


def test_numpy_and_torch_agree_and_a_sure_or_far_estimate_stays(rng: np.random.Generator) -> None:
    _, mean, variance = _guess(rng, 0.1, 0.05)
    rule = Shrinkage(LAND, WEIGHTS, 0.5)
    found = rule.apply(torch.from_numpy(mean)[None], torch.from_numpy(variance)[None])[0].numpy()
    np.testing.assert_allclose(found, rule.apply(mean, variance), rtol=1e-12)
    land = np.array(LAND)[:, None, None]
    np.testing.assert_allclose(rule.apply(mean, variance * 1e-8), mean, atol=1e-7)
    far = land + 0.5 * UNITS + 0 * mean  # ten standard deviations off: half a hundredth goes
    np.testing.assert_allclose(rule.apply(far, variance), land + 0.995 * 0.5 * UNITS + 0 * mean)
    np.testing.assert_allclose(rule.apply(mean, variance * 1e4), land + 0 * mean, atol=1e-12)
    np.testing.assert_array_equal(rule.apply(land + 0 * mean, variance), land + 0 * mean)


def test_the_fit_finds_the_best_strength_and_none_where_none_helps(
    rng: np.random.Generator,
) -> None:
    fit = ShrinkageFit(LAND, WEIGHTS)
    truth, mean, variance = _guess(rng, 0.05, 0.05)
    truth[:, :3] = np.nan
    fit.feed(truth, mean, variance)
    assert fit.result().strength == pytest.approx((BANDS - 2) / BANDS, abs=0.06)
    by_hand = -10 * np.log10(
        np.nanmean((Shrinkage(LAND, WEIGHTS, 0.5).apply(mean, variance) - truth) ** 2)
        / np.nanmean((mean - truth) ** 2)
    )
    assert fit.gains()[STRENGTHS.index(0.5)] == pytest.approx(by_hand, abs=1e-9)
    sure = ShrinkageFit(LAND, WEIGHTS)
    sure.feed(mean, mean + 1e-6, variance)  # right, and does not know it
    assert sure.result().strength == 0
    with pytest.raises(InputError, match="no image"):
        ShrinkageFit(LAND, WEIGHTS).gains()


def test_the_mean_of_a_model_moves_and_its_variance_is_calibrated_as_before(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    _, mean, variance = (torch.from_numpy(x)[None].float() for x in _guess(rng, 0.05, 0.05))
    rule = Shrinkage(LAND, WEIGHTS, 0.25)
    calibration = Calibration(scale=(2.0,) * BANDS, shrinkage=rule)
    found = calibrated(Output(mean, variance), calibration)
    torch.testing.assert_close(found.mean, rule.apply(mean, variance))
    torch.testing.assert_close(found.variance, 2 * variance)
    parts = calibrated(Output(mean, variance, variance / 4, variance * 3 / 4), calibration)
    torch.testing.assert_close(parts.mean, found.mean)

    model = create("uncrtaints", d_m=16, heads=4, n_d=1)
    model.calibration = calibration
    save_model(model, tmp_path / "m.safetensors")
    assert load_model(tmp_path / "m.safetensors").calibration == calibration


def test_what_cannot_be_a_shrinkage_is_refused() -> None:
    right = {"toward": list(LAND), "weights": list(WEIGHTS), "strength": 1.0}
    for wrong in ({"toward": [0.1]}, {"strength": -1}, {"strength": None}, {"weights": [0.0] * 13},
                  {"weights": [-1.0] * 13}):  # fmt: skip
        values = right | wrong
        with pytest.raises(CheckpointError):
            Calibration.from_dict({"scale": [1.0] * BANDS, "shrinkage": values})
