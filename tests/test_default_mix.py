"""What the packaged weights are trained on: real images in other seasons, under simulated skies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undercast.simulate import parallax
from undercast.simulate.clouds import Veil, draw_sky
from undercast.training.data import epoch_order


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
    greener = recipe["ground"].surroundings(np.random.default_rng(0))
    seen = recipe["mix"].scattered(ground, thickness, greener)
    np.testing.assert_allclose(seen[:, :, :8], ground[:, :, :8], atol=1e-7)
    expected = np.broadcast_to(mean * greener, (13, 16, 8))
    np.testing.assert_allclose(seen[:, :, 8:], expected, atol=1e-4)


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
    size = 32 + parallax.MARGIN
    none, empty = np.zeros((size, size), bool), np.zeros((1, size, size), np.float32)
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

    def share_closed(skies: list[Any], hidden: tuple[float, float]) -> float:
        seen = [drawn._under_a_sky(rng, ground, skies, hidden=hidden)[1].mean() for _ in range(400)]
        return float(np.mean(np.array(seen) > 0.2))

    assert share_closed([closed, clear], mix.ANY) == pytest.approx(0.5, abs=0.08)
    assert share_closed([closed, clear], mix.OPEN) == pytest.approx(0.5**4, abs=0.04)
    assert share_closed([closed], mix.OPEN) == 1.0


def test_ground_that_clouds_hide_on_all_dates_is_about_as_bright_as_real_land(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """Else a network that sees nothing would guess too bright."""
    mix, rng = recipe["mix"], np.random.default_rng(0)
    places = recipe["backgrounds"].training_backgrounds(realdata)["eurosat"]
    real = np.mean([place.clear.mean(axis=(0, 2, 3)) for place in places], axis=0)
    drawn = mix.Mix(Path("no pool"), {"eurosat": places}, 32, 1, 1, 0)
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


@pytest.mark.parametrize("overcast", [0.0, 1.0])
def test_most_skies_over_one_date_show_the_light_of_other_land(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, overcast: float
) -> None:
    """What is left of the ground below thick cloud is dark red here, and bright red elsewhere."""
    mix, rng = recipe["mix"], np.random.default_rng(0)
    for share in ("SNOW_SINGLE", "DRY_SINGLE", "RARE_OVERCAST", "ECHO", "ECHO_SINGLE", "SHADOW",
                  "OTHER_COLOUR"):  # fmt: skip
        monkeypatch.setattr(mix, f"{share}_SHARE", 0.0)
    monkeypatch.setattr(mix, "OVERCAST_SINGLE_SHARE", overcast)
    monkeypatch.setattr(mix, "change", lambda rng, image, strength, wetness: image)
    monkeypatch.setattr(mix, "surroundings", lambda rng: np.ones((13, 1, 1)))
    here, there = (np.full((1, 13, 32, 32), level, np.float32) for level in (0.05, 0.4))
    background = recipe["backgrounds"].Background
    drawn = mix.Mix(Path("no pool"), {"there": [background("there", there)]}, 32, 1, 1, 0)
    drawn._overcast = [(None, None)]
    light: list[float] = []
    drawn._under_a_sky = lambda rng, image, skies, wider, **how: light.append(wider.mean()) or image
    drawn._under_a_view = lambda rng, image, hidden, wider: light.append(wider.mean()) or image
    drawn._views = ["a real sky"]
    for share_of_views in (0.0, 1.0):
        monkeypatch.setattr(mix, "VIEW_OVERCAST_SHARE", share_of_views)
        monkeypatch.setattr(mix, "VIEW_SHARE", share_of_views)
        light.clear()
        for _ in range(400):
            drawn._real(rng, background("here", here), 1)
        assert len(light) == 400 if overcast or share_of_views else 300 < len(light) < 400
        assert set(np.round(light, 3)) == {1.0, 8.0}
        assert np.mean(np.array(light) > 2) == pytest.approx(mix.ELSEWHERE_SHARE, abs=0.08)


def test_a_thinner_sky_is_the_sky_of_that_thickness_and_the_pool_keeps_its_own(
    recipe: dict[str, Any],
) -> None:
    ground = np.full((13, 32, 32), 0.2, np.float32)
    drawn = recipe["mix"].Mix(Path("no pool"), {}, 32, 1, 1, 0)
    thick, thin = (even_sky(np.random.default_rng(1), tau) for tau in (40.0, 10.0))
    seen = [
        drawn._under_a_sky(np.random.default_rng(2), ground, [sky], thinner=thinner)
        for sky, thinner in ((thick, 0.25), (thin, 1.0), (thick, 1.0))
    ]
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-6)
    assert seen[2][1].min() > seen[1][1].max() + 0.1
    assert (thick[1].thickness == 40).all()


def test_broken_skies_show_some_of_the_ground(recipe: dict[str, Any]) -> None:
    mix, rng = recipe["mix"], np.random.default_rng(0)
    ground = np.full((13, 32, 32), 0.1, np.float32)
    drawn = mix.Mix(Path("no pool"), {}, 32, 1, 1, 0)
    sky, veil = even_sky(rng, 50.0)
    gap = (np.arange(veil.haze.shape[1]) % 32 < 26) * veil.thickness  # 26 of 32 columns are hidden
    skies = [even_sky(rng, 50.0), even_sky(rng, 0.0), (sky, replace(veil, thickness=gap))]
    for _ in range(30):
        seen = drawn._under_a_sky(rng, ground, skies, hidden=mix.BROKEN)
        assert 0.6 < (seen[1] > 0.3).mean() < 0.97


def test_of_one_date_a_share_of_the_skies_is_broken_and_none_of_several(
    recipe: dict[str, Any],
) -> None:
    mix, rng = recipe["mix"], np.random.default_rng(0)
    green = 0.5  # neither snowy nor dry
    skies = [mix._scenery(rng, green, 1, False)[0] for _ in range(2000)]
    closed, broken = (np.mean([sky == kind for sky in skies]) for kind in (mix.CLOSED, mix.BROKEN))
    assert closed == pytest.approx(mix.OVERCAST_SINGLE_SHARE, abs=0.04)
    assert broken == pytest.approx(mix.BROKEN_SINGLE_SHARE * (1 - closed), abs=0.04)
    assert {mix._scenery(rng, green, 3, False)[0] for _ in range(300)} == {mix.CLOSED, mix.ANY}
    dry = {mix._scenery(rng, 1.0, 3, False)[0] for _ in range(300)}
    assert dry == {mix.CLOSED, mix.OPEN}


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
    without_view = recipe["backgrounds"].Background("there", green)
    drawn = mix.Mix(Path("no pool"), {"pairs": [without_view]}, 32, 2, 1, 0)
    drawn._cloudy = {"here"}
    drawn._under_a_sky = lambda rng, image, skies, **how: image
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


def test_small_images_go_on_beyond_their_edges_and_large_ones_stay(
    recipe: dict[str, Any],
) -> None:
    place = recipe["backgrounds"].Background
    rng = np.random.default_rng(0)
    clear, s1 = rng.random((2, 13, 20, 24)), rng.random((2, 20, 24))
    wide = recipe["backgrounds"].mirrored(place("small", clear, s1, clear[0]), 32)
    assert wide.clear.shape == (2, 13, 32, 32)
    assert wide.s1.shape == (2, 32, 32)
    for small, large in ((clear, wide.clear), (s1, wide.s1), (clear[0], wide.cloudy)):
        np.testing.assert_array_equal(large[..., :20, :24], small)
        np.testing.assert_array_equal(large[..., 20:, :24], small[..., :-13:-1, :])
        np.testing.assert_array_equal(large[..., :20, 24:], small[..., :-9:-1])
    large = place("large", clear)
    assert recipe["backgrounds"].mirrored(large, 20) is large
    assert recipe["backgrounds"].mirrored(large, 22).s1 is None


def test_one_date_alone_is_at_times_of_another_season_and_the_land_asked_for_is_as_seen(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two dates all change; of one, the cloudy day has the change of both, and its season."""
    mix, ground = recipe["mix"], recipe["ground"]
    asked: list[float] = []

    def change(rng: Any, image: np.ndarray, strength: float, wetness: float) -> np.ndarray:
        asked.append(strength)
        return image

    monkeypatch.setattr(mix, "change", change)
    monkeypatch.setattr(mix, "other_season", lambda _, image: asked.append(-1.0) or image)
    for share in ("SNOW", "DRY", "DRY_SINGLE", "RARE_OVERCAST", "OVERCAST", "ELSEWHERE"):
        monkeypatch.setattr(mix, f"{share}_SHARE", 0.0)
    monkeypatch.setattr(mix, "OVERCAST_SINGLE_SHARE", 0.0)
    rng = np.random.default_rng(0)
    drawn = mix.Mix(Path("no pool"), {}, 16, 4, 1, 0)
    drawn._skies = [even_sky(rng, 0.0)]
    image = np.full((1, 13, 16, 16), 0.2, np.float32)
    place = recipe["backgrounds"].Background("here", image)
    for _ in range(400):
        drawn._real(rng, place, 2)
    assert min(asked) > 0
    assert max(asked) <= ground.STRENGTH[1]
    drawn._overcast = drawn._skies
    for overcast, share in ((0.0, mix.SEASON_SHARE), (1.0, mix.SEASON_OVERCAST_SHARE)):
        monkeypatch.setattr(mix, "OVERCAST_SINGLE_SHARE", overcast)
        asked.clear()
        for _ in range(400):
            drawn._real(rng, place, 1)
        assert asked.count(-1.0) / 400 == pytest.approx(share, abs=0.07)
        pairs = np.sort(np.array([s for s in asked if s >= 0]).reshape(-1, 2), axis=1)
        np.testing.assert_array_equal(pairs[:, 0], 0)
        assert pairs[:, 1].max() <= 2**0.5 * ground.STRENGTH[1]


def test_a_real_cloudy_view_is_shown_unless_its_brightness_is_new_snow(
    recipe: dict[str, Any],
) -> None:
    mix, rng = recipe["mix"], np.random.default_rng(0)
    ground = np.full((1, 13, 32, 32), 0.15, np.float32)
    cloud = np.full((13, 32, 32), 0.5, np.float32)
    snow = cloud.copy()
    snow[10:] = 0.1
    place = recipe["backgrounds"].Background
    places = [place("cloud", ground, None, cloud), place("snow", ground, None, snow)]
    drawn = mix.Mix(Path("no pool"), {"pairs": places}, 32, 1, 1, 0)
    drawn._skies = [even_sky(rng, 0.0)]
    drawn._overcast = drawn._skies
    for here, view, share in ((places[0], cloud, mix.SEEN_SINGLE_SHARE), (places[1], snow, 0.0)):
        inputs = [drawn._real(rng, here, 1)[0].s2[0] for _ in range(200)]
        shown = [np.abs(one - view).mean() < 0.003 for one in inputs]
        assert np.mean(shown) == pytest.approx(share, abs=0.08)


def test_twins_leave_out_other_seasons_of_the_pairs_and_no_place_is_in_two(
    recipe: dict[str, Any], realdata: Path
) -> None:
    backgrounds = recipe["backgrounds"]
    every = backgrounds.training_backgrounds(realdata)
    twins = [backgrounds.without_pairs_of(every, seed) for seed in (90, 91)]
    names = [{b.name for b in twin["pairs"]} for twin in twins]
    assert not names[0] & names[1]
    assert names[0] | names[1] == {b.name for b in every["pairs"]}
    places = [{name.rsplit("_", 1)[0] for name in some} for some in names]
    assert not places[0] & places[1]
    for twin in twins:
        assert all(twin[kind] == every[kind] for kind in every if kind != "pairs")


def test_bright_land_is_never_wholly_hidden_on_one_date_alone(recipe: dict[str, Any]) -> None:
    """Neither by simulated nor by real clouds; darker land is, and so is any on several dates."""
    mix, rng = recipe["mix"], np.random.default_rng(0)
    cloud = np.full((13, 32, 32), 0.75, np.float32)
    place = recipe["backgrounds"].Background
    land = {name: np.full((1, 13, 32, 32), level, np.float32)
            for name, level in (("grass", 0.1), ("sand", 0.3))}  # fmt: skip
    places = {name: place(name, clear, None, cloud) for name, clear in land.items()}
    drawn = mix.Mix(Path("no pool"), {"pairs": [*places.values()]}, 32, 2, 1, 0)
    drawn._views, drawn._skies = [], [even_sky(rng, 0.0)]
    drawn._overcast = [even_sky(rng, 200.0)]

    def share_hidden(name: str, dates: int) -> float:
        draws = [drawn._real(rng, places[name], dates)[0].s2[:, 1].min() for _ in range(300)]
        return float(np.mean(np.array(draws) > 0.5))

    seen = mix.SEEN_SINGLE_SHARE
    expected = seen + (1 - seen) * mix.OVERCAST_SINGLE_SHARE
    assert share_hidden("grass", 1) == pytest.approx(expected, abs=0.08)
    assert share_hidden("sand", 1) < 0.05  # snow, of which a few draws turn land into
    assert share_hidden("sand", 2) > 0.03
