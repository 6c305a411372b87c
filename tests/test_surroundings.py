"""Hidden ground learns from seen ground around it and from radar; seen ground stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from scipy.special import expit, logit
from scipy.stats import norm

from random_networks import assert_close, random_batch, random_model
from undercast import engines, load_model
from undercast.bands import N_S2, index
from undercast.calibration import Calibration
from undercast.checkpoint import save_model
from undercast.errors import ConfigError
from undercast.models.cells import CELL
from undercast.models.echo import SLOPES, USUAL_ECHO
from undercast.models.ensemble import ensemble_of
from undercast.models.surroundings import (
    ALWAYS,
    ERROR,
    GROUND,
    HIDDEN_WEIGHT,
    HOW_MUCH,
    IN_PROPORTION,
    LAND,
    LEAST,
    MASKED,
    NO_LAND,
    OTHER_SPREAD,
    USUAL,
    USUAL_SPREAD,
    from_surroundings,
    how_much_land,
    how_shown,
)
from undercast.models.system import Bare, Batch, Model, Output

REACH = 24
CLOUD = 0.7  # reflectance more than the ground's: far beyond any tolerance


def estimate(
    h: int = 96, w: int = 128, seed: int = 0, b: int = 1, level: float = 1.0, sigma: float = 0.02
) -> Output:
    """Land with texture, a tenth of its reflectance; brighter than usual land by a factor."""
    draw = torch.Generator().manual_seed(seed)
    land = level * torch.tensor(USUAL)[:, None, None]
    mean = land * (1 + 0.1 * torch.randn(b, 13, h, w, generator=draw))
    return Output(mean, torch.full_like(mean, sigma**2))


def sand(h: int = 96, w: int = 128, seed: int = 0, b: int = 1, sigma: float = 0.02) -> Output:
    """Land that is nothing like usual land."""
    return estimate(h, w, seed, b, 4.0, sigma)


def batch_of_dates(
    *dates: torch.Tensor,
    valid: tuple[bool, ...] | None = None,
    masks: tuple[torch.Tensor, ...] | None = None,
    echo: tuple[float, float] | None = None,
) -> Batch:
    """Of images (b 13 h w), their masks (b h w), and one echo everywhere, in dB."""
    s2 = torch.stack(dates, dim=1)
    b, t, _, h, w = s2.shape
    known = torch.tensor(valid or (True,) * t).expand(b, t)
    mask = None if masks is None else torch.stack(masks, dim=1)
    s1 = torch.tensor(echo or (torch.nan, torch.nan))[:, None, None].repeat(b, t, 1, h, w)
    return Batch(s2, s1, torch.zeros(b, t), known, mask)


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


def test_how_shown_is_a_half_at_the_tolerance_and_dates_are_wrong_each_by_itself() -> None:
    mean = estimate().mean
    tolerance = ALWAYS + IN_PROPORTION * mean
    off = [mean + k * tolerance for k in (3.0, -1.0, 2.0)]
    for dates, any_date, best in (
        (off, 1 - 81 / 82 * 1 / 2 * 16 / 17, 1 / 2),
        (off[::2], 1 - 81 / 82 * 16 / 17, 1 / 17),
        (off[:1], 1 / 82, 1 / 82),
    ):
        shown, clear, observed = how_shown(batch_of_dates(*dates), mean)
        torch.testing.assert_close(shown, torch.full_like(shown, any_date))
        torch.testing.assert_close(clear, torch.full_like(clear, best))  # no masks
        assert observed.all()


def test_a_mask_takes_its_share_of_what_its_date_shows_and_of_no_other() -> None:
    mean = estimate(b=2).mean
    free = torch.zeros(2, *mean.shape[-2:], dtype=torch.bool)
    left = free.clone()
    left[1, :, :40] = True
    hazy = mean + ALWAYS + IN_PROPORTION * mean  # shows it by a half

    def both(*masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dates = (mean, hazy)[: len(masks)]
        shown, clear, _ = how_shown(batch_of_dates(*dates, masks=masks), mean)
        return shown[:, 0], clear[:, 0]

    everything = torch.ones(free.shape)
    for masks, shown, clear in (
        ((free,), everything, everything),
        ((left,), everything - MASKED * left, everything - 1.0 * left),
        ((left, free), everything - MASKED / 2 * left, everything - 0.5 * left),
        (
            (left, ~free),
            everything - MASKED * (1 - (1 - MASKED) / 2) * left,
            everything - left * 1.0,
        ),
    ):
        found = both(*masks)
        torch.testing.assert_close(found[0], shown)
        torch.testing.assert_close(found[1], clear)


def test_bands_of_the_air_and_bands_without_data_do_not_count() -> None:
    mean = estimate().mean
    date = mean + (ALWAYS + IN_PROPORTION * mean)
    date[:, index(["B1", "B9", "B10"])] = 0.9
    date[:, index(["B5", "B12"])] = torch.nan
    shown, _, _ = how_shown(batch_of_dates(date), mean)
    torch.testing.assert_close(shown, torch.full_like(shown, 0.5))
    assert len(GROUND) == 10


def spectrum(**reflectance: float) -> torch.Tensor:
    """(1 13 1 1), 0.2 in the bands that are not named."""
    image = torch.full((1, N_S2, 1, 1), 0.2)
    for name, value in reflectance.items():
        image[:, index([name])] = value
    return image


def test_land_is_told_from_water_and_snow_by_green_and_shortwave_infrared() -> None:
    for kind, expected in (
        (spectrum(B3=0.09, B11=0.18), 1),  # (0.09 − 0.18) / 0.27 is below LAND
        (spectrum(B3=0.2, B11=0.2), NO_LAND / (NO_LAND - LAND)),
        (spectrum(B3=0.07, B11=0.01), 0),  # water
        (spectrum(B3=0.7, B11=0.1), 0),  # snow
        (spectrum(B3=0.0, B11=0.0), NO_LAND / (NO_LAND - LAND)),
    ):
        assert float(how_much_land(kind)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [spectrum(B3=0.07, B11=0.01), spectrum(B3=0.7, B11=0.1)])
def test_water_and_snow_below_clouds_stay_and_tell_nothing_of_land(kind: torch.Tensor) -> None:
    output = sand()
    wet = (..., slice(30, 60), slice(90, 120))
    output.mean[wet] = kind.expand_as(output.mean)[wet]
    batch = batch_of_dates(hidden_right(output.mean))
    found = from_surroundings(output, batch, REACH)
    assert torch.equal(found.mean[wet], output.mean[wet])
    assert torch.equal(found.variance[wet], output.variance[wet])
    other = Output(output.mean.clone(), output.variance)
    other.mean[wet] *= 0.5
    elsewhere = torch.ones_like(output.mean, dtype=torch.bool)
    elsewhere[wet] = False
    again = from_surroundings(other, batch, REACH).mean
    torch.testing.assert_close(again[elsewhere], found.mean[elsewhere], rtol=0, atol=1e-6)


def blurred(x: np.ndarray) -> np.ndarray:
    """A Gaussian of REACH pixels of scipy, nothing beyond the edges."""
    return np.asarray(gaussian_filter(x, REACH, mode="constant", truncate=3.2))


@pytest.mark.parametrize(
    ("level", "sigma", "part", "low", "high"),
    [(4.0, 0.02, 0.5, 0, 1e-6), (1.0, 0.02, 0.5, 0.99, 1), (1.55, 0.07, 1.0, 0.2, 0.8)],
    ids=["sand", "usual land", "either"],
)
def test_hidden_ground_is_usual_land_or_the_land_around_by_their_probabilities(
    level: float, sigma: float, part: float, low: float, high: float
) -> None:
    output = estimate(level=level, sigma=sigma)
    batch = batch_of_dates(hidden_right(output.mean, part))
    found = from_surroundings(output, batch, REACH)
    s = how_shown(batch, output.mean)[0][0, 0].double().numpy()
    is_land = how_much_land(output.mean)[0, 0].double().numpy()
    x, v = (y[0].double().numpy() for y in (output.mean, output.variance))
    weight = (s + HIDDEN_WEIGHT) * is_land
    total, guess = blurred(weight), blurred(weight * (1 - s))
    around = np.stack([blurred(weight * band) for band in x]) / total
    square = np.stack([blurred(weight * band**2) for band in x]) / total
    error = np.stack([blurred(weight * (1 - s) * band) for band in v]) / total
    seen = blurred(s * is_land) / blurred(np.ones_like(s))
    usual, spread, others = (
        np.array(y)[:, None, None] for y in (USUAL, USUAL_SPREAD, OTHER_SPREAD)
    )
    # Bayes: how likely the level around is, if that of usual land, and if of other land
    p, q = (
        norm(usual, np.sqrt(error + more)).logpdf(around)[GROUND].sum(axis=0)
        for more in (0, others**2)
    )
    share = expit(p - q + logit(HOW_MUCH))
    assert low <= share[8:-8, 80:].mean() <= high
    middle = share * usual + (1 - share) * around
    doubt = (1 - share) * error + share * (1 - share) * (usual - around) ** 2
    pixels = np.maximum(square - around**2, LEAST)
    pixels = pixels + guess / total * (spread**2 - pixels)
    off = (1 + (ERROR - 1) * guess / total) * v
    trust = pixels / (pixels + off)
    opinion = middle + trust * (x - around)
    doubt = doubt + trust * off
    doubt = doubt + (1 - guess / total) * np.maximum(v - doubt, 0)
    h = (1 - s) * is_land * (1 - seen)
    mean = (1 - h) * x + h * opinion
    variance = (1 - h) * v + h * doubt + h * (1 - h) * (x - opinion) ** 2
    # what is smooth is computed on cells of 8 pixels
    near = 0.012 * x.mean(axis=(1, 2), keepdims=True)
    inner = (..., slice(8, -8), slice(8, -8))
    assert (np.abs(found.mean[0].numpy() - mean) < near + 1e-4)[inner].all()
    assert found.variance is not None
    assert (np.abs(found.variance[0].numpy() - variance) < 0.05 * variance + 0.02 * v)[inner].all()


def test_hidden_ground_comes_nearer_to_the_level_of_what_is_seen_and_loses_texture() -> None:
    output = sand(sigma=0.15)
    half = output.mean.shape[-1] // 2
    land = output.mean[..., :half].mean(dim=(2, 3))
    texture = output.mean[..., :half].std(dim=(2, 3))
    output.mean[..., half:] *= 1.5  # a guess that is half too bright
    found = from_surroundings(output, batch_of_dates(hidden_right(output.mean)), 64)
    hidden = found.mean[..., half:]
    assert ((hidden.mean(dim=(2, 3)) / land - 1)[:, GROUND] < 0.4).all()
    assert (hidden.std(dim=(2, 3)) < 0.8 * 1.5 * texture)[:, GROUND].all()


def test_under_a_closed_sky_sand_keeps_its_level_and_loses_texture_it_is_not_sure_of() -> None:
    for sigma, low, high in ((0.001, 0.95, 1.0), (0.1, 0.0, 0.15)):
        output = sand(sigma=sigma)
        found = from_surroundings(output, batch_of_dates(output.mean + CLOUD), 64)
        level, texture = (
            (f(found.mean, dim=(2, 3)) / f(output.mean, dim=(2, 3)))[0, GROUND]
            for f in (torch.mean, torch.std)
        )
        torch.testing.assert_close(level, torch.ones_like(level), rtol=0.01, atol=0)
        assert ((texture >= low) & (texture <= high)).all()


def test_under_a_closed_sky_land_that_may_be_usual_is_taken_for_it() -> None:
    output = estimate(level=1.1, sigma=0.1)
    found = from_surroundings(output, batch_of_dates(output.mean + CLOUD), 64)
    usual, spread = (torch.tensor(x)[GROUND] for x in (USUAL, USUAL_SPREAD))
    level = found.mean.mean(dim=(2, 3))[0, GROUND]
    assert (level < (1 + 0.25 * 0.1) * usual).all()
    assert (level > usual).all()
    assert found.variance is not None
    ratio = found.variance.mean(dim=(2, 3))[0, GROUND].sqrt() / spread
    assert ((ratio > 0.9) & (ratio < 1.3)).all()


@pytest.mark.parametrize("level", [1.0, 4.0], ids=["usual land", "sand"])
def test_hidden_land_has_the_colour_of_its_echo_and_land_that_is_shown_does_not(
    level: float,
) -> None:
    output = estimate(level=level, sigma=0.2)
    closed = batch_of_dates(output.mean + CLOUD, echo=USUAL_ECHO)
    woods = closed.s1.clone()
    middle = output.mean.shape[-1] // 2
    woods[:, :, 1, :, middle:] += 3.0  # dB of VH

    def contrast(batch: Batch) -> torch.Tensor:
        """Of right and left, beyond the cells at the border."""
        mean = from_surroundings(output, batch, 500).mean
        right, left = mean[..., middle + CELL :], mean[..., : middle - CELL]
        return (right.mean(dim=(2, 3)) - left.mean(dim=(2, 3)))[0]

    colour = 3 * torch.tensor(SLOPES)[1]
    share = ((contrast(closed._replace(s1=woods)) - contrast(closed)) / colour)[GROUND]
    # nearly all of it: the estimate, which has nothing of this contrast, counts a little
    assert ((share > 0.85) & (share < 1.01)).all()
    clear = batch_of_dates(output.mean)._replace(s1=woods[:, :1])
    assert torch.equal(from_surroundings(output, clear, 64).mean, output.mean)


def test_an_echo_of_usual_land_and_one_polarisation_alone_tell_nothing() -> None:
    output = estimate(level=1.2, sigma=0.1)
    none, usual, vv = (
        from_surroundings(output, batch_of_dates(hidden_right(output.mean), echo=echo), REACH)
        for echo in (None, USUAL_ECHO, (-3.0, torch.nan))
    )
    torch.testing.assert_close(usual.mean, none.mean, rtol=0, atol=1e-6)
    assert torch.equal(vv.mean, none.mean)


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


def test_a_model_is_calibrated_before_it_is_finished_with_and_without_an_engine() -> None:
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
        assert network.variance is not None
        less_sure = network._replace(variance=2 * network.variance)
        expected = from_surroundings(less_sure, batch, 16)
        assert_close(double(batch), expected)
        assert_close(engines.attach(double)(batch), expected)
        # what a calibration is fitted to is the network alone
        assert_close(Bare(double)(batch), network, mean=0, variance=0)


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


def test_surroundings_of_a_network_without_a_variance_are_refused() -> None:
    with pytest.raises(ConfigError, match="got surroundings for a network without a variance"):
        random_model(surroundings=16, covariance="none")


def test_a_variance_of_all_bands_together_is_one_of_each_band() -> None:
    model, batch = random_model(surroundings=16, covariance="isotropic"), random_batch(h=40, w=48)
    with torch.no_grad():
        found = model(batch)
        torch.testing.assert_close(found, from_surroundings(model.network(batch), batch, 16))
    assert found.variance is not None
    assert found.variance.shape == found.mean.shape
