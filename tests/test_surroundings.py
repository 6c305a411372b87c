"""Hidden ground learns from seen ground around it; seen ground stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from random_networks import assert_close, random_batch, random_model
from undercast import engines, load_model
from undercast.bands import N_S2, index
from undercast.calibration import Calibration
from undercast.checkpoint import save_model
from undercast.errors import ConfigError
from undercast.models.ensemble import ensemble_of
from undercast.models.surroundings import (
    ALWAYS,
    CELL,
    ERROR,
    GROUND,
    HIDDEN_WEIGHT,
    IN_PROPORTION,
    LITTLE,
    USUAL,
    USUAL_SPREAD,
    from_surroundings,
    how_shown,
)
from undercast.models.system import Batch, Model, Output

REACH = 24
CLOUD = 0.7  # reflectance more than the ground's: far beyond any tolerance


def estimate(h: int = 96, w: int = 128, seed: int = 0, b: int = 1, level: float = 1.0) -> Output:
    """Land with texture, a tenth of its reflectance; brighter than usual land by a factor."""
    draw = torch.Generator().manual_seed(seed)
    land = level * torch.tensor(USUAL)[:, None, None]
    mean = land * (1 + 0.1 * torch.randn(b, 13, h, w, generator=draw))
    return Output(mean, torch.full_like(mean, 0.02**2))


def sand(h: int = 96, w: int = 128, seed: int = 0, b: int = 1) -> Output:
    """Land that is nothing like usual land."""
    return estimate(h, w, seed, b, level=4.0)


def batch_of_dates(*dates: torch.Tensor, valid: tuple[bool, ...] | None = None) -> Batch:
    """Of images (b 13 h w)."""
    s2 = torch.stack(dates, dim=1)
    b, t, _, h, w = s2.shape
    known = torch.tensor(valid or (True,) * t).expand(b, t)
    return Batch(s2, torch.full((b, t, 2, h, w), torch.nan), torch.zeros(b, t), known)


def hidden_right(mean: torch.Tensor, share: float = 0.5) -> torch.Tensor:
    """The image with its right part under cloud."""
    image = mean.clone()
    image[..., int(mean.shape[-1] * (1 - share)) :] += CLOUD
    return image


def test_what_a_date_shows_stays_to_the_last_bit() -> None:
    output = estimate()
    batch = batch_of_dates(output.mean + CLOUD, output.mean)
    found = from_surroundings(output, batch, REACH)
    assert torch.equal(found.mean, output.mean)
    assert found.variance is not None
    assert torch.equal(found.variance, output.variance)


def test_how_shown_is_a_half_at_the_tolerance_and_takes_the_nearest_date() -> None:
    mean = estimate().mean
    tolerance = ALWAYS + IN_PROPORTION * mean
    off = [mean + k * tolerance for k in (3.0, -1.0, 2.0)]
    for dates, expected in ((off, 1 / 2), (off[::2], 1 / 5), (off[:1], 1 / 10)):
        batch = batch_of_dates(*dates)
        shown, observed = how_shown(batch.s2, batch.valid, mean)
        torch.testing.assert_close(shown, torch.full_like(shown, expected))
        assert observed.all()


def test_bands_of_the_air_and_bands_without_data_do_not_count() -> None:
    mean = estimate().mean
    date = mean + (ALWAYS + IN_PROPORTION * mean)
    date[:, index(["B1", "B9", "B10"])] = 0.9
    date[:, index(["B5", "B12"])] = torch.nan
    shown, _ = how_shown(date[:, None], torch.ones(1, 1, dtype=torch.bool), mean)
    torch.testing.assert_close(shown, torch.full_like(shown, 0.5))
    assert len(GROUND) == 10


def blurred(x: np.ndarray) -> np.ndarray:
    """A Gaussian of REACH pixels of scipy, nothing beyond the edges."""
    return np.asarray(gaussian_filter(x, REACH, mode="constant", truncate=3.2))


@pytest.mark.parametrize("land", [sand, estimate], ids=["sand", "usual land"])
def test_hidden_ground_is_the_mixture_of_its_surroundings_and_usual_land(land: Any) -> None:
    output = land()
    batch = batch_of_dates(hidden_right(output.mean))
    found = from_surroundings(output, batch, REACH)
    s = how_shown(batch.s2, batch.valid, output.mean)[0][0, 0].double().numpy()
    x, v = (y[0].double().numpy() for y in (output.mean, output.variance))
    weight, ones = s + HIDDEN_WEIGHT, blurred(np.ones_like(s))
    around = np.stack([blurred(weight * band) for band in x]) / blurred(weight)
    seen = blurred(s) / ones
    usual, spread = (np.array(y)[:, None, None] for y in (USUAL, USUAL_SPREAD))
    scale = spread**2 + ERROR * v
    distance = ((around - usual) ** 2 / scale)[GROUND].mean(axis=0)
    share = np.maximum(1 - distance, 0) ** 2 * LITTLE / (LITTLE + seen)
    assert (share.max() == 0) if land is sand else (share.min() > 0.4)
    mean = s * x + (1 - s) * ((1 - share) * around + share * usual)
    guessed = (1 - share) * (v + (around - x) ** 2) + share * spread**2
    variance = s * v + (1 - s) * guessed
    # what is smooth is computed on cells of 8 pixels
    near = 0.01 * x.mean(axis=(1, 2), keepdims=True)
    assert (np.abs(found.mean[0].numpy() - mean) < near + 1e-4).all()
    assert found.variance is not None
    np.testing.assert_allclose(found.variance[0], variance, rtol=0.1)


def test_the_level_of_hidden_ground_comes_from_what_is_seen_and_its_texture_goes() -> None:
    output = sand()
    half = output.mean.shape[-1] // 2
    land = output.mean[..., :half].mean(dim=(2, 3))
    texture = output.mean[..., :half].std(dim=(2, 3))
    output.mean[..., half:] *= 1.5  # a guess that is half too bright
    found = from_surroundings(output, batch_of_dates(hidden_right(output.mean)), 64)
    near = found.mean[..., half : half + 16]
    assert ((near.mean(dim=(2, 3)) / land - 1)[:, GROUND] < 0.15).all()
    assert (near.std(dim=(2, 3)) < 0.3 * texture)[:, GROUND].all()


def test_under_a_closed_sky_sand_keeps_its_level_and_loses_its_texture() -> None:
    output = sand()
    found = from_surroundings(output, batch_of_dates(output.mean + CLOUD), 64)
    torch.testing.assert_close(
        found.mean.mean(dim=(2, 3)), output.mean.mean(dim=(2, 3)), rtol=0.01, atol=0
    )
    assert (found.mean.std(dim=(2, 3)) < 0.05 * output.mean.std(dim=(2, 3))).all()


def test_under_a_closed_sky_land_that_may_be_usual_is_taken_for_it_and_is_as_uncertain() -> None:
    output = estimate(level=1.2)
    wide = Output(output.mean, torch.full_like(output.mean, 0.07**2))
    found = from_surroundings(wide, batch_of_dates(output.mean + CLOUD), 64)
    usual, spread = (torch.tensor(x)[GROUND] for x in (USUAL, USUAL_SPREAD))
    level = found.mean.mean(dim=(2, 3))[0, GROUND]
    assert (level < (1 + 0.2 * 0.2) * usual).all()
    assert (level > usual).all()
    assert found.variance is not None
    ratio = found.variance.mean(dim=(2, 3))[0, GROUND] / spread**2
    assert ((ratio > 0.8) & (ratio < 1.4)).all()


def test_without_a_variance_there_is_none_and_the_spread_of_land_alone_decides() -> None:
    output = estimate()
    date = batch_of_dates(output.mean + CLOUD)
    bare = from_surroundings(Output(output.mean), date, REACH)
    sure = from_surroundings(Output(output.mean, torch.full_like(output.mean, 1e-12)), date, REACH)
    assert bare.variance is None
    torch.testing.assert_close(bare.mean, sure.mean)


def test_pixels_without_any_observation_neither_change_nor_count() -> None:
    output = sand()
    date = hidden_right(output.mean)
    date[..., 40:56, 48:80] = torch.nan
    wrong = Output(output.mean.clone(), output.variance)
    wrong.mean[..., 40:56, 48:80] = 0.9
    batch = batch_of_dates(date)
    found, other = (from_surroundings(x, batch, REACH).mean for x in (output, wrong))
    assert torch.equal(other[..., 40:56, 48:80], wrong.mean[..., 40:56, 48:80])
    other[..., 40:56, 48:80] = found[..., 40:56, 48:80]
    torch.testing.assert_close(found, other, rtol=0, atol=1e-6)
    nothing = batch_of_dates(torch.full_like(date, torch.nan))
    assert torch.equal(from_surroundings(output, nothing, REACH).mean, output.mean)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(CELL, 80), st.integers(0, 99))
def test_at_any_size_sand_stays_between_its_darkest_and_its_brightest(
    h: int, w: int, reach: int, seed: int
) -> None:
    output = sand(h, w, seed)
    found = from_surroundings(output, batch_of_dates(hidden_right(output.mean)), reach).mean
    low, high = (f(output.mean, dim=(2, 3), keepdim=True) for f in (torch.amin, torch.amax))
    assert (found >= low - 1e-5).all()
    assert (found <= high + 1e-5).all()


def test_mirrors_samples_order_and_padding_change_nothing() -> None:
    output = estimate(b=2, level=1.4)
    assert output.variance is not None
    first, second = hidden_right(output.mean), hidden_right(output.mean, 0.7)
    found = from_surroundings(output, batch_of_dates(first, second), REACH).mean
    turned = Output(output.mean.flip(2, 3), output.variance)
    mirrored = from_surroundings(turned, batch_of_dates(first.flip(2, 3), second.flip(2, 3)), REACH)
    torch.testing.assert_close(mirrored.mean.flip(2, 3), found, rtol=0, atol=1e-6)
    swapped = from_surroundings(output, batch_of_dates(second, first), REACH).mean
    assert torch.equal(swapped, found)
    garbage = torch.rand_like(first)
    padded = batch_of_dates(first, second, garbage, valid=(True, True, False))
    assert torch.equal(from_surroundings(output, padded, REACH).mean, found)
    alone = from_surroundings(
        Output(output.mean[1:], output.variance[1:]), batch_of_dates(first[1:], second[1:]), REACH
    ).mean
    torch.testing.assert_close(alone, found[1:], rtol=0, atol=1e-6)


def test_a_model_is_finished_before_it_is_calibrated_with_and_without_an_engine() -> None:
    plain, model = random_model(), random_model(surroundings=16)
    batch = random_batch(h=64, w=64)
    double = Model("double", model.network, Calibration((2.0,) * N_S2)).eval()
    with torch.no_grad():
        network = plain.network(batch)
        expected = from_surroundings(network, batch, 16)
        assert_close(model(batch), expected, mean=0, variance=0)
        assert float((expected.mean - network.mean).abs().max()) > 1e-3
        assert_close(engines.attach(model)(batch), expected)
        assert_close(ensemble_of([model, model])(batch), expected)
        assert expected.variance is not None
        assert_close(double(batch), expected._replace(variance=2 * expected.variance))


def test_training_is_of_the_network_alone() -> None:
    def l2(output: Output, target: torch.Tensor, batch: Batch) -> torch.Tensor:
        return (output.mean - target).square().mean()

    model = random_model(surroundings=16)
    batch, target = random_batch(), torch.rand(1, 13, 32, 64)
    parts = model.network.training_loss(batch, target, l2)
    assert torch.equal(parts.output.mean, model.network(batch).mean)


def test_a_checkpoint_keeps_the_surroundings_and_older_ones_have_none(tmp_path: Path) -> None:
    model = random_model(surroundings=64)
    save_model(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert loaded.config["surroundings"] == 64
    batch = random_batch(h=40, w=48)
    with torch.no_grad():
        assert_close(loaded(batch), model(batch))
    assert random_model().config["surroundings"] == 0


@pytest.mark.parametrize("reach", [-1, CELL - 1])
def test_surroundings_smaller_than_a_cell_are_refused(reach: int) -> None:
    with pytest.raises(ConfigError, match=f"got surroundings of {reach} pixels"):
        Model("uncrtaints", random_model(surroundings=reach).network)
