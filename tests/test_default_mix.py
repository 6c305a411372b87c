"""What the packaged weights are trained on: real images in other seasons, under simulated skies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undercast.simulate.clouds import Veil, draw_sky
from undercast.training.data import epoch_order


def test_snow_is_bright_in_the_visible_dark_beyond_it_and_lies_still(
    recipe: dict[str, Any],
) -> None:
    ground = np.full((2, 13, 64, 64), 0.15, np.float32)
    snow = recipe["mix"].snowed(np.random.default_rng(0), ground)
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
    dry, none = recipe["mix"].parched(rng, images, None)
    assert none is None
    red, nir = dry[0, 3], dry[0, 7]
    assert np.abs((nir - red) / (nir + red)).max() < 0.2  # hardly any green
    assert np.corrcoef(dry[0, 3].ravel(), texture.ravel())[0, 1] > 0.95


def test_dry_ground_is_no_single_spectrum(recipe: dict[str, Any]) -> None:
    """Its rise from red to the infrared at 1.6 µm: real deserts go from none to two-fold."""
    drawn = [recipe["mix"].dry_spectrum(np.random.default_rng(seed)) for seed in range(400)]
    rise = np.array([spectrum[11] / spectrum[3] for spectrum in drawn])
    low, middle, high = np.quantile(rise, [0.05, 0.5, 0.95])
    assert low < 1.0 < middle < 1.6 < high
    assert 0 < np.min(drawn) < np.max(drawn) < 1.5


def test_dry_air_lets_the_vapour_and_the_cirrus_band_see_the_ground(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """The driest of the real training images say how much B10 shows where B9 is bright."""
    mix = recipe["mix"]
    drawn = np.array([mix.dry_spectrum(np.random.default_rng(seed)) for seed in range(400)])

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
    expected = ninth[dry] ** mix.CIRRUS_BAND_DEPTH
    assert 0.5 < np.median(tenth[dry] / expected) < 2.0


def test_the_radar_of_dry_land_is_that_of_soil_whatever_grew_there(recipe: dict[str, Any]) -> None:
    images = np.full((1, 13, 64, 64), 0.15, np.float32)
    for before in ((-9.5, -15.0), (-25.0, -31.0)):  # forest and water
        echo = np.broadcast_to(np.array(before, np.float32)[:, None, None], (2, 64, 64))
        draws = [
            recipe["mix"].parched(np.random.default_rng(seed), images, echo)[1]
            for seed in range(20)
        ]
        power = 10 * np.log10(np.mean([10 ** (draw / 10) for draw in draws], axis=(0, 2, 3)))
        soil = recipe["mix"].SOIL_DB
        share = 0.8  # on average
        expected = 10 * np.log10(
            (1 - share) * 10 ** (np.array(before) / 10) + share * 10 ** (soil / 10)
        )
        np.testing.assert_allclose(power, expected, atol=1.0)  # which itself varies by 1.5 dB


def test_thick_cloud_lets_the_mean_of_the_ground_through_and_clear_air_the_ground(
    recipe: dict[str, Any],
) -> None:
    ground = np.random.default_rng(0).uniform(0, 0.5, (13, 16, 16)).astype(np.float32)
    thickness = np.zeros((2, 16, 16), np.float32)
    thickness[1, :, 8:] = 1e6
    seen = recipe["mix"].scattered(ground, thickness)
    np.testing.assert_allclose(seen[:, :, :8], ground[:, :, :8], atol=1e-7)
    mean = ground.mean(axis=(1, 2))[:, None, None]
    np.testing.assert_allclose(seen[:, :, 8:], np.broadcast_to(mean, (13, 16, 8)), atol=1e-4)
    greener = recipe["mix"].surroundings(np.random.default_rng(0))
    seen = recipe["mix"].scattered(ground, thickness, greener)
    np.testing.assert_allclose(seen[:, :, :8], ground[:, :, :8], atol=1e-7)
    expected = np.broadcast_to(mean * greener, (13, 16, 8))
    np.testing.assert_allclose(seen[:, :, 8:], expected, atol=1e-4)


def test_the_surroundings_of_a_crop_are_as_likely_greener_as_barer(recipe: dict[str, Any]) -> None:
    drawn = np.log([recipe["mix"].surroundings(np.random.default_rng(s)) for s in range(600)])
    red, infrared = drawn[:, 3, 0, 0], drawn[:, 7, 0, 0]
    assert abs(red.mean()) < 0.05
    assert abs(infrared.mean()) < 0.05
    assert 0.2 < infrared.std() < 0.35
    assert (infrared - red).std() > 0.3  # of the ratio that tells vegetation
    assert np.abs(drawn[:, 10]).max() == 0  # B10 sees no ground


def test_water_vapour_darkens_two_bands_and_changes_with_the_day(recipe: dict[str, Any]) -> None:
    mix = recipe["mix"]
    ground = np.full((13, 8, 8), 0.25, np.float32)
    ground[9], ground[10] = 0.25 * np.exp(-0.7), 0.002
    others = np.random.default_rng(0).normal(0, mix.VAPOUR_BY_DAY, 500)
    draws = np.array([mix.more_vapour(ground, other) for other in others])
    dry = [band for band in range(13) if band not in (9, 10)]
    np.testing.assert_array_equal(draws[:, dry], np.broadcast_to(ground, draws.shape)[:, dry])
    depth = -np.log(draws[:, 9, 0, 0] / 0.25)
    np.testing.assert_allclose(depth, np.clip(0.7 + others, 0.05, 2.5), atol=1e-5)
    below = 0.25 * np.exp(-mix.CIRRUS_BAND_DEPTH * np.array([depth, np.full_like(depth, 0.7)]))
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
        np.diff(depths(np.stack([recipe["mix"].change(rng, city[0], 0.8) for _ in range(2)])))
        for city in cities
        for _ in range(10)
    ]
    assert np.std(drawn) == pytest.approx(np.sqrt(np.mean(np.square(real))), rel=0.25)


def test_a_clear_day_is_drier_than_those_with_clouds_whose_light_strays(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ground that does not change, between clouds of which a crop has none."""
    mix, rng = recipe["mix"], np.random.default_rng(0)
    for share in ("SNOW", "DRY", "DRY_SINGLE", "OVERCAST", "OVERCAST_SINGLE", "OTHER_COLOUR"):
        monkeypatch.setattr(mix, f"{share}_SHARE", 0.0)
    monkeypatch.setattr(mix, "change", lambda rng, image, strength, wetness: image)
    ground = np.full((13, 32, 32), 0.2, np.float32)
    ground[9], ground[10] = 0.2 * np.exp(-1.2), 0.002
    drawn = mix.Mix(Path("no pool"), {}, 32, 4, 1, 0)
    drawn._skies = [even_sky(rng, 0.0)]
    place = recipe["backgrounds"].Background("here", ground[None])
    more = []
    for _ in range(100):
        stack, target, _ = drawn._real(rng, place, 4)
        assert np.log(target[9] / ground[9]).mean() == pytest.approx(mix.VAPOUR_BELOW_CLOUDS)
        np.testing.assert_array_equal(target[:9], ground[:9])
        more += list((stack.s2 - ground).mean(axis=(2, 3)))
    expected = 0.8 * mix.STRAY_LIGHT * mix.STRAY  # a fifth of the dates have no clouds anywhere
    np.testing.assert_allclose(np.mean(more, axis=0), expected, rtol=0.25, atol=1e-4)


def test_the_colour_of_a_cloud_varies_and_a_clear_sky_shows_the_ground(
    recipe: dict[str, Any],
) -> None:
    mix, rng = recipe["mix"], np.random.default_rng(0)
    colours = np.array([mix.tint(rng) for _ in range(500)])
    visible, nir, swir = colours[:, 1:4], colours[:, 7], colours[:, 12]
    assert np.abs(visible.mean(axis=0) - 1).max() < 0.04
    assert 1.03 < nir.mean() < 1.09
    assert 0.05 < nir.std() < 0.1 < swir.std() < 0.16
    ground = rng.uniform(0.05, 0.5, (13, 32, 32)).astype(np.float32)
    drawn = mix.Mix(Path("no pool"), {}, 32, 1, 1, 0)
    seen = drawn._under_a_sky(rng, ground, [even_sky(rng, 0.0)])
    np.testing.assert_allclose(seen, ground, atol=1e-6)


def even_sky(rng: np.random.Generator, thickness: float) -> Any:
    """One layer of cloud without shadows, the same everywhere."""
    sky = draw_sky(rng, 0.5, 2.0)
    none, empty = np.zeros((32, 32), bool), np.zeros((1, 32, 32), np.float32)
    return sky, Veil(sky.layers[:1], empty + thickness, empty, empty + 1, empty[0], none, none)


def test_clouds_have_the_colours_of_real_ones(
    recipe: dict[str, Any], realdata: Path, tmp_path: Path
) -> None:
    """The clouds of training pairs, against drawn ones that are as blue over the same ground."""
    recipe["pool"].write_skies(tmp_path, 0)
    drawn = recipe["mix"].Mix(tmp_path, {}, 64, 1, 1, 0)
    rng, blue, off = np.random.default_rng(0), 1, []
    for place in recipe["backgrounds"].training_backgrounds(realdata)["pairs"]:
        cloudy, ground = place.cloudy, place.clear[0]
        there = np.zeros_like(ground[0], bool) if cloudy is None else cloudy[blue] > 0.25
        if there.mean() < 0.05:
            continue
        real, below = cloudy[:, there].mean(axis=1), ground[:, there].mean(axis=1)
        flat = np.broadcast_to(below[:, None, None], (13, 64, 64)).astype(np.float32)
        spectra = []
        for _ in range(300):
            image = drawn._under_a_sky(rng, flat, drawn._skies)
            alike = np.abs(image[blue] - real[blue]) < 0.05
            if alike.mean() > 0.05:
                spectra.append(image[:, alike].mean(axis=1))
        logs = np.log(spectra)
        assert (np.abs(np.log(real) - logs.mean(axis=0)) < 3 * logs.std(axis=0))[:10].all()
        off.append(np.log(real) - logs.mean(axis=0))
    assert len(off) == 5
    assert np.abs(np.mean(off, axis=0))[1:9].max() < 0.07  # what varies more is tested above


def test_dry_land_lies_under_a_closed_sky_only_where_there_is_no_other(
    recipe: dict[str, Any],
) -> None:
    mix, rng = recipe["mix"], np.random.default_rng(0)
    closed, clear = even_sky(rng, 50.0), even_sky(rng, 0.0)
    ground = np.full((13, 32, 32), 0.1, np.float32)
    drawn = mix.Mix(Path("no pool"), {}, 32, 1, 1, 0)

    def share_closed(skies: list[Any], draws: int) -> float:
        seen = [drawn._under_a_sky(rng, ground, skies, draws=draws)[1].mean() for _ in range(400)]
        return float(np.mean(np.array(seen) > 0.2))

    assert share_closed([closed, clear], 1) == pytest.approx(0.5, abs=0.08)
    assert share_closed([closed, clear], 4) == pytest.approx(0.5**4, abs=0.04)
    assert share_closed([closed], 4) == 1.0


def test_ground_that_clouds_hide_on_all_dates_is_about_as_bright_as_real_land(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """Else a network that sees nothing would guess too bright."""
    mix, rng = recipe["mix"], np.random.default_rng(0)
    places = recipe["backgrounds"].training_backgrounds(realdata)["eurosat"]
    real = np.mean([place.clear.mean(axis=(0, 2, 3)) for place in places], axis=0)
    drawn = mix.Mix(Path("no pool"), {}, 32, 1, 1, 0)
    drawn._overcast = [even_sky(rng, 50.0)]
    drawn._skies = [*drawn._overcast, even_sky(rng, 0.0)]
    hidden = []
    for _ in range(1500):
        stack, target, _ = drawn._real(rng, places[rng.integers(len(places))], 1)
        blue, swir = stack.s2[0, [1, 11]].mean(axis=(1, 2))
        if blue > 0.5 and swir > 0.25:  # a cloud: snow is dark there, dry land is darker in blue
            hidden.append(target.mean(axis=(1, 2)))
    assert len(hidden) > 300
    ratio = np.delete(np.mean(hidden, axis=0) / real, 10)
    assert ((ratio > 0.9) & (ratio < 1.35)).all()
    assert np.delete(ratio, 9).max() < 1.2  # without B9: a clear day is drier


def test_dates_change_by_about_as_much_as_real_ones(recipe: dict[str, Any], realdata: Path) -> None:
    """Cities with two clear dates, some of them years apart, against two drawn dates of them."""
    cities = [
        place.clear for place in recipe["backgrounds"].training_backgrounds(realdata)["cities"]
    ]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(150):
        image = cities[rng.integers(len(cities))][0, :, :64, :64]
        strength = rng.uniform(*recipe["mix"].STRENGTH)
        drawn.append(np.stack([recipe["mix"].change(rng, image, strength) for _ in range(2)]))

    def change(pairs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        logs = [np.diff(np.log(np.clip(pair, 0.01, None)), axis=0)[0] for pair in pairs]
        whole = np.sqrt(np.mean([log.mean(axis=(1, 2)) ** 2 for log in logs], axis=0))
        return whole, np.mean([log.std(axis=(1, 2)) for log in logs], axis=0)

    bands = [1, 3, 7, 9, 11, 12]  # blue, red, near infrared, vapour, SWIR
    for mine, real in zip(change(drawn), change(cities), strict=True):
        ratio = mine[bands] / real[bands]
        assert ((ratio > 0.4) & (ratio < 1.7)).all()
        assert 0.6 < np.median(ratio) < 1.3


def test_dry_land_changes_less_and_hardly_by_rain(recipe: dict[str, Any], realdata: Path) -> None:
    """About as the three dry cities do; rather too much than too little, as they are three."""
    mix, rng = recipe["mix"], np.random.default_rng(0)
    cities = recipe["backgrounds"].training_backgrounds(realdata)["cities"]
    dry = [place.clear for place in cities if place.clear[:, 3].mean() > 0.2]
    assert len(dry) == 3

    def size(pairs: list[np.ndarray]) -> np.ndarray:
        means = np.log([pair.mean(axis=(2, 3)) for pair in pairs])
        return np.asarray(np.sqrt(np.mean(np.diff(means, axis=1) ** 2, axis=(0, 1))))

    def drawn(weaker: float, wetness: float) -> list[np.ndarray]:
        strengths = weaker * rng.uniform(*mix.STRENGTH, 180)
        images = [dry[i % 3][0, :, :64, :64] for i in range(180)]
        return [
            np.stack([mix.change(rng, image, strength, wetness) for _ in range(2)])
            for image, strength in zip(images, strengths, strict=True)
        ]

    less, more = size(drawn(mix.DRY_STRENGTH, mix.DRY_WETNESS)), size(drawn(1.0, 1.0))
    bands = [1, 3, 7, 11, 12]
    assert (less[bands] < 0.7 * more[bands]).all()
    ratio = less[bands] / size(dry)[bands]
    assert ((ratio > 0.8) & (ratio < 2.0)).all()


def test_days_over_dry_land_differ_as_the_real_ones_of_places_not_measured_on(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """Dates of series that people labelled clear, against two drawn days of dry land."""
    mix, backgrounds, rng = recipe["mix"], recipe["backgrounds"], np.random.default_rng(0)
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
        land, _ = mix.parched(rng, cities[n % len(cities)].clear[:1, :, :64, :64], None)
        strength = mix.DRY_STRENGTH * rng.uniform(*mix.STRENGTH)
        days = [mix.change(rng, land[0], strength, mix.DRY_WETNESS) for _ in range(2)]
        drawn.append(change(*(mix.daylight(rng, day) for day in days)) ** 2)
    ratio = np.sqrt(np.mean(drawn, axis=0) / np.mean(real, axis=0))
    ratio = np.delete(ratio, 10, axis=1)  # B10 sees the ground on dry days alone
    assert ((ratio > 0.55) & (ratio < 1.4)).all()


def test_ground_of_another_colour_has_it_on_all_dates(
    recipe: dict[str, Any],
) -> None:
    mix = recipe["mix"]
    ground = np.random.default_rng(0).uniform(0.05, 0.3, (2, 13, 8, 8)).astype(np.float32)
    gains = []
    for seed in range(300):
        gain = mix.recoloured(np.random.default_rng(seed), ground) / ground
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


def test_a_cloudy_view_of_ground_that_has_lost_its_snow_is_left_out(recipe: dict[str, Any]) -> None:
    snow, bare, cloud = (np.full((13, 4, 4), dn, np.uint16) for dn in (6000, 1200, 4000))
    same_ground = recipe["backgrounds"]._same_ground
    assert same_ground(snow, bare) is None
    np.testing.assert_allclose(same_ground(bare, cloud), 0.4)


def test_a_real_cloudy_view_comes_with_its_own_ground(recipe: dict[str, Any]) -> None:
    """Where the bright view is the input, the ground of the target stays green."""
    mix = recipe["mix"]
    green = np.full((1, 13, 32, 32), 0.1, np.float32)
    green[:, 6:9] = 0.4
    cloudy = np.full((13, 32, 32), 0.7, np.float32)
    place = recipe["backgrounds"].Background("here", green, None, cloudy)
    drawn = mix.Mix(Path("no pool"), {}, 32, 2, 1, 0)
    drawn._under_a_sky = lambda rng, image, skies, shadow_only=False, draws=1, wider=1.0: image
    with_view = without = 0
    for seed in range(200):
        stack, target, _ = drawn._real(np.random.default_rng(seed), place, 2)
        index = (target[7] - target[3]) / (target[7] + target[3])
        if np.abs(stack.s2[:, 0].mean(axis=(1, 2)) - 0.7).min() < 0.01:
            with_view += 1
            assert index.mean() > 0.4  # neither snow nor dry soil
        else:
            without += index.mean() < 0.4
    assert 60 < with_view < 140
    assert without > 20


def test_the_samples_of_a_step_have_the_same_number_of_dates(recipe: dict[str, Any]) -> None:
    """In the order in which training takes them; in all epochs every number occurs as often."""
    mix, seed, together, steps = recipe["mix"], 3, 4, 500
    drawn = mix.Mix(Path("no pool"), {}, 32, 5, together * steps, seed, together)
    several = []
    for epoch in (0, 7):
        drawn.set_epoch(epoch)
        order = epoch_order(len(drawn), len(drawn), seed, epoch)
        by_step = drawn._n_dates[order].reshape(steps, together)
        assert (by_step == by_step[:, :1]).all()
        several.append(by_step[:, 0])
    assert (several[0] != several[1]).any()
    odds = np.bincount(np.concatenate(several), minlength=6)[1:] / (2 * steps)
    np.testing.assert_allclose(odds, mix.DATES, atol=0.05)


def test_shares_are_shares(recipe: dict[str, Any]) -> None:
    mix = recipe["mix"]
    for shares in (mix.SHARES.values(), mix.SINGLE_SHARES.values(), mix.DATES):
        assert sum(shares) == pytest.approx(1)
    assert list(mix.SHARES) == list(mix.SINGLE_SHARES)


def test_an_echo_follows_the_colours_and_its_error_is_that_of_the_fit(
    recipe: dict[str, Any],
) -> None:
    """Radar that is a linear function of the colours plus 2 dB of noise comes back."""
    rng = np.random.default_rng(0)

    def place(side: int) -> Any:
        image = rng.uniform(0.02, 0.5, (1, 13, side, side)).astype(np.float32)
        truth = np.stack([-12 + 3 * np.log(image[0, 7]), -18 + 2 * np.log(image[0, 11])])
        echo = (truth + rng.normal(0, 2.0, truth.shape)).astype(np.float32)
        return recipe["backgrounds"].Background("x", image, echo), truth

    known = [place(side)[0] for side in (64, 128)]
    known[0].s1[:, :3] = np.nan
    fitted = recipe["echoes"].Echoes(known)
    np.testing.assert_allclose(fitted.error, 2.0, rtol=0.03)
    other, truth = place(64)
    np.testing.assert_allclose(fitted.mean(other.clear[0]), truth, atol=0.3)
    # draws scatter around it, by the error of the fit and by speckle
    drawn = np.stack([fitted.draw(rng, other.clear[0]) for _ in range(200)])
    assert np.abs(drawn.mean(axis=0) - truth).mean() < 1.2
    assert 2.0 < drawn.std(axis=0).mean() < 4.5
