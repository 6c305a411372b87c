"""Ground that the packaged weights are trained on: dry, snowy, of other colours, on other days."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_snow_is_bright_in_the_visible_dark_beyond_it_and_lies_still(
    recipe: dict[str, Any],
) -> None:
    ground = np.full((2, 13, 64, 64), 0.15, np.float32)
    snow = recipe["ground"].snowed(np.random.default_rng(0), ground)
    green, swir = snow[:, 2], snow[:, 11]
    white = green > 0.4
    assert white.any()
    assert ((green - swir) / (green + swir))[white].min() > 0.4  # the snow index of the textbooks
    np.testing.assert_array_equal(snow[0], snow[1])


def test_dry_land_has_the_colours_of_soil_and_the_texture_of_the_image(
    recipe: dict[str, Any],
) -> None:
    rng = np.random.default_rng(0)
    texture = rng.uniform(0.05, 0.3, (1, 1, 64, 64)).astype(np.float32)
    images = np.broadcast_to(texture, (1, 13, 64, 64))
    dry, none = recipe["ground"].parched(rng, images, None)
    assert none is None
    red, nir = dry[0, 3], dry[0, 7]
    assert np.abs((nir - red) / (nir + red)).max() < 0.2  # hardly any green
    assert np.corrcoef(dry[0, 3].ravel(), texture.ravel())[0, 1] > 0.95


def test_dry_ground_is_no_single_spectrum(recipe: dict[str, Any]) -> None:
    """Its rise from red to the infrared at 1.6 µm: real deserts go from none to two-fold."""
    drawn = [recipe["ground"].dry_spectrum(np.random.default_rng(seed)) for seed in range(400)]
    rise = np.array([spectrum[11] / spectrum[3] for spectrum in drawn])
    low, middle, high = np.quantile(rise, [0.05, 0.5, 0.95])
    assert low < 1.0 < middle < 1.6 < high
    assert 0 < np.min(drawn) < np.max(drawn) < 1.5


def test_dry_air_lets_the_vapour_and_the_cirrus_band_see_the_ground(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """The driest of the real training images say how much B10 shows where B9 is bright."""
    land = recipe["ground"]
    drawn = np.array([land.dry_spectrum(np.random.default_rng(seed)) for seed in range(400)])

    def shown(spectra: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        near, vapour, cirrus = spectra[:, 8], spectra[:, 9], spectra[:, 10]
        return vapour / near, (cirrus - 0.001) / near

    ninth, tenth = shown(drawn)
    assert ninth.min() < 0.25
    assert ninth.max() > 0.75
    assert tenth[ninth > 0.75].min() > 0.08
    assert tenth[ninth < 0.4].max() < 0.001
    places = [
        x for kind in recipe["backgrounds"].training_backgrounds(realdata).values() for x in kind
    ]
    real = np.array([place.clear.mean(axis=(0, 2, 3)) for place in places])
    ninth, tenth = shown(real[real[:, 8] > 0.1])  # not water
    dry = ninth > 0.53
    assert dry.sum() >= 5
    expected = ninth[dry] ** land.CIRRUS_BAND_DEPTH
    assert 0.5 < np.median(tenth[dry] / expected) < 2.0


def test_the_radar_of_dry_land_is_that_of_soil_whatever_grew_there(recipe: dict[str, Any]) -> None:
    images = np.full((1, 13, 64, 64), 0.15, np.float32)
    for before in ((-9.5, -15.0), (-25.0, -31.0)):  # forest and water
        echo = np.broadcast_to(np.array(before, np.float32)[:, None, None], (2, 64, 64))
        draws = [
            recipe["ground"].parched(np.random.default_rng(seed), images, echo)[1]
            for seed in range(20)
        ]
        power = 10 * np.log10(np.mean([10 ** (draw / 10) for draw in draws], axis=(0, 2, 3)))
        soil = recipe["ground"].SOIL_DB
        share = 0.8  # on average
        expected = 10 * np.log10(
            (1 - share) * 10 ** (np.array(before) / 10) + share * 10 ** (soil / 10)
        )
        np.testing.assert_allclose(power, expected, atol=1.0)  # which itself varies by 1.5 dB


def test_the_surroundings_of_a_crop_are_as_likely_greener_as_barer(recipe: dict[str, Any]) -> None:
    drawn = np.log([recipe["ground"].surroundings(np.random.default_rng(s)) for s in range(600)])
    red, infrared = drawn[:, 3, 0, 0], drawn[:, 7, 0, 0]
    assert abs(red.mean()) < 0.05
    assert abs(infrared.mean()) < 0.05
    assert 0.2 < infrared.std() < 0.35
    assert (infrared - red).std() > 0.3  # of the ratio that tells vegetation
    assert np.abs(drawn[:, 10]).max() == 0  # B10 sees no ground


def test_water_vapour_darkens_two_bands_and_changes_with_the_day(recipe: dict[str, Any]) -> None:
    land = recipe["ground"]
    ground = np.full((13, 8, 8), 0.25, np.float32)
    ground[9], ground[10] = 0.25 * np.exp(-0.7), 0.002
    others = np.random.default_rng(0).normal(0, land.VAPOUR_BY_DAY, 500)
    draws = np.array([land.more_vapour(ground, other) for other in others])
    dry = [band for band in range(13) if band not in (9, 10)]
    np.testing.assert_array_equal(draws[:, dry], np.broadcast_to(ground, draws.shape)[:, dry])
    depth = -np.log(draws[:, 9, 0, 0] / 0.25)
    np.testing.assert_allclose(depth, np.clip(0.7 + others, 0.05, 2.5), atol=1e-5)
    below = 0.25 * np.exp(-land.CIRRUS_BAND_DEPTH * np.array([depth, np.full_like(depth, 0.7)]))
    expected = np.maximum(0.002 + below[0] - below[1], 0.0005)
    np.testing.assert_allclose(draws[:, 10, 0, 0], expected, rtol=1e-3, atol=1e-6)


def test_water_vapour_differs_between_dates_as_in_real_images(
    recipe: dict[str, Any], realdata: Path
) -> None:
    cities = [
        place.clear for place in recipe["backgrounds"].training_backgrounds(realdata)["cities"]
    ]

    def depths(images: np.ndarray) -> np.ndarray:
        means = images[:, [8, 9]].mean(axis=(2, 3))
        return np.asarray(np.log(means[:, 0] / means[:, 1]))

    real = [np.diff(depths(city)) for city in cities]
    rng = np.random.default_rng(0)
    drawn = [
        np.diff(depths(np.stack([recipe["ground"].change(rng, city[0], 0.8) for _ in range(2)])))
        for city in cities
        for _ in range(10)
    ]
    assert np.std(drawn) == pytest.approx(np.sqrt(np.mean(np.square(real))), rel=0.25)


def test_dates_change_by_about_as_much_as_real_ones(recipe: dict[str, Any], realdata: Path) -> None:
    """Cities with two clear dates, some of them years apart, against two drawn dates of them."""
    cities = [
        place.clear for place in recipe["backgrounds"].training_backgrounds(realdata)["cities"]
    ]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(150):
        image = cities[rng.integers(len(cities))][0, :, :64, :64]
        strength = rng.uniform(*recipe["ground"].STRENGTH)
        drawn.append(np.stack([recipe["ground"].change(rng, image, strength) for _ in range(2)]))

    def change(pairs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        logs = [np.diff(np.log(np.clip(pair, 0.01, None)), axis=0)[0] for pair in pairs]
        whole = np.sqrt(np.mean([log.mean(axis=(1, 2)) ** 2 for log in logs], axis=0))
        return whole, np.mean([log.std(axis=(1, 2)) for log in logs], axis=0)

    bands = [1, 3, 7, 9, 11, 12]  # blue, red, near infrared, vapour, SWIR
    for mine, real in zip(change(drawn), change(cities), strict=True):
        ratio = mine[bands] / real[bands]
        assert ((ratio > 0.4) & (ratio < 1.7)).all()
        assert 0.6 < np.median(ratio) < 1.3


def test_another_season_turns_what_grows_and_leaves_the_soil(recipe: dict[str, Any]) -> None:
    """The logarithms of bare and of green ground, in closed form."""
    land = recipe["ground"]
    image = np.full((13, 4, 4), 0.2, np.float32)
    image[3, :, 2:], image[7, :, 2:] = 0.05, 0.35  # a vegetation index of 0.75
    rng, logs = np.random.default_rng(0), []
    for _ in range(2000):
        other = land.other_season(rng, image)
        np.testing.assert_array_equal(other[..., :2], image[..., :2])
        logs.append(np.log(other[:, 0, 3] / image[:, 0, 3]))
    expected = land.SEASON * 0.75 * np.abs(land.WITHERING * land.GROUND)
    np.testing.assert_allclose(np.std(logs, axis=0), expected, rtol=0.08, atol=1e-6)
    assert np.corrcoef(np.array(logs)[:, [3, 7]].T)[0, 1] == pytest.approx(-1, abs=0.02)


def test_dry_land_changes_less_and_hardly_by_rain(recipe: dict[str, Any], realdata: Path) -> None:
    """About as the three dry cities do; rather too much than too little, as they are three."""
    land, rng = recipe["ground"], np.random.default_rng(0)
    cities = recipe["backgrounds"].training_backgrounds(realdata)["cities"]
    dry = [place.clear for place in cities if place.clear[:, 3].mean() > 0.2]
    assert len(dry) == 3

    def size(pairs: list[np.ndarray]) -> np.ndarray:
        means = np.log([pair.mean(axis=(2, 3)) for pair in pairs])
        return np.asarray(np.sqrt(np.mean(np.diff(means, axis=1) ** 2, axis=(0, 1))))

    def drawn(weaker: float, wetness: float) -> list[np.ndarray]:
        strengths = weaker * rng.uniform(*land.STRENGTH, 180)
        images = [dry[i % 3][0, :, :64, :64] for i in range(180)]
        return [
            np.stack([land.change(rng, image, strength, wetness) for _ in range(2)])
            for image, strength in zip(images, strengths, strict=True)
        ]

    less, more = size(drawn(land.DRY_STRENGTH, land.DRY_WETNESS)), size(drawn(1.0, 1.0))
    bands = [1, 3, 7, 11, 12]
    assert (less[bands] < 0.7 * more[bands]).all()
    ratio = less[bands] / size(dry)[bands]
    assert ((ratio > 0.8) & (ratio < 2.0)).all()


def test_days_over_dry_land_differ_as_the_real_ones_of_places_not_measured_on(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """Dates of series that people labelled clear, against two drawn days of dry land."""
    land, backgrounds, rng = recipe["ground"], recipe["backgrounds"], np.random.default_rng(0)
    stored, places = np.load(realdata / "cloudsen12_series.npz"), backgrounds.PLACES["cloudsen12"]

    def change(one: np.ndarray, other: np.ndarray) -> np.ndarray:  # (2, 13): of the whole, within
        logs = np.diff(np.log(np.stack((one, other)) + 0.001), axis=0)[0].reshape(13, -1)
        return np.stack((logs.mean(axis=1), logs.std(axis=1)))

    real = []
    for place in (*places["select"], *places["calibrate"]):
        images, label = backgrounds.reflectance(stored[f"{place}_s2"]), stored[f"{place}_label"]
        found = []
        for i in range(len(images)):
            for j in range(i):
                both = (label[i] == 0) & (label[j] == 0)
                if both.mean() > 0.05:
                    found.append(change(images[i][:, both], images[j][:, both]) ** 2)
        real.append(np.mean(found, axis=0))
    drawn = []
    cities = backgrounds.training_backgrounds(realdata)["cities"]
    for n in range(150):
        dry, _ = land.parched(rng, cities[n % len(cities)].clear[:1, :, :64, :64], None)
        strength = land.DRY_STRENGTH * rng.uniform(*land.STRENGTH)
        days = [land.change(rng, dry[0], strength, land.DRY_WETNESS) for _ in range(2)]
        drawn.append(change(*(land.daylight(rng, day) for day in days)) ** 2)
    ratio = np.sqrt(np.mean(drawn, axis=0) / np.mean(real, axis=0))
    ratio = np.delete(ratio, 10, axis=1)  # B10 sees the ground on dry days alone
    assert ((ratio > 0.55) & (ratio < 1.4)).all()


def test_ground_of_another_colour_has_it_on_all_dates(
    recipe: dict[str, Any],
) -> None:
    land = recipe["ground"]
    ground = np.random.default_rng(0).uniform(0.05, 0.3, (2, 13, 8, 8)).astype(np.float32)
    gains = []
    for seed in range(300):
        gain = land.recoloured(np.random.default_rng(seed), ground) / ground
        np.testing.assert_allclose(
            gain, np.broadcast_to(gain[:1, :, :1, :1], gain.shape), rtol=1e-5
        )
        gains.append(np.log(gain[0, :, 0, 0]))
    assert np.abs(np.mean(gains, axis=0)).max() < 0.06
    spread = np.std(gains, axis=0)
    assert spread[10] == pytest.approx(0, abs=1e-6)  # what B10 sees is not the ground
    assert 0.22 < spread[7] < 0.3
    assert spread[0] < 0.2
    near = np.corrcoef(np.array(gains)[:, 7:9].T)[0, 1]
    far = np.corrcoef(np.array(gains)[:, [1, 12]].T)[0, 1]
    assert near > 0.9 > far  # neighbours go together, and there are other hues
