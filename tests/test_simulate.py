"""Series with known truth: geometry, light, speckle and sharpness against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from undercast import Stack, bands
from undercast.errors import InputError
from undercast.simulate import BIOMES, LAND, add_clouds, clouds, radar, sensor, simulate_series
from undercast.simulate.fields import generator, power_noise
from undercast.simulate.season import Sun, sun_at

NIR, CIRRUS, VAPOUR = bands.index(("B8A", "B10", "B9"))


@pytest.fixture(scope="module")
def series():
    return simulate_series(3, 128, 8)


@pytest.fixture
def layer():
    return clouds._layer(generator(0), "cumulus", 0.4)


def flat_stack(value: float = 0.2, shape=(3, 64, 64)) -> Stack:
    n, height, width = shape
    return Stack(np.full((n, 13, height, width), value), ["2018-06-01"] * n)


def power_above(image, frequency: float) -> float:
    """Share of the variance of an image at frequencies above a limit (cycles a pixel)."""
    window = np.hanning(len(image))[:, None] * np.hanning(len(image))[None]
    power = np.abs(np.fft.fft2((image - image.mean()) * window)) ** 2
    f = np.hypot(np.fft.fftfreq(len(image))[:, None], np.fft.fftfreq(len(image))[None])
    return float(power[f > frequency].sum() / power.sum())


def test_the_same_seed_gives_the_same_series_and_another_seed_another(series):
    again, other = simulate_series(3, 128, 8), simulate_series(4, 128, 8)
    np.testing.assert_array_equal(series.stack.s2, again.stack.s2)
    np.testing.assert_array_equal(series.stack.s1, again.stack.s1)
    assert not np.array_equal(series.stack.s2, other.stack.s2)


def test_the_stack_is_reflectance_in_whole_digital_numbers_with_truth(series):
    dn = series.stack.s2 * bands.DN_PER_REFLECTANCE
    np.testing.assert_allclose(dn, np.rint(dn), atol=2e-3)
    np.testing.assert_array_equal(series.stack.mask, series.cloud | series.shadow)
    np.testing.assert_allclose(series.cover, series.cloud.mean(axis=(1, 2)), atol=1e-6)
    assert not (series.cloud & series.shadow).any()
    assert series.land.max() < len(LAND)


def test_where_the_mask_is_false_the_image_is_the_truth_up_to_haze_and_noise(series):
    difference = np.abs(series.stack.s2 - series.clear)
    # a skirt of cloud below the limit, light lost to skirts of shadow, uneven haze, noise
    haze = 0.05 * 3 * (550 / 442.7) ** 1.3
    bound = 1.5 * clouds.CLOUD_AT + clouds.SHADOW_AT * series.clear + haze + 0.006
    seen = ~series.stack.mask[:, None] & np.ones((1, 13, 1, 1), dtype=bool)
    assert (difference[seen] <= bound[seen]).all()
    assert np.median(difference[seen]) < 0.01


def test_a_clear_date_differs_from_the_truth_by_sensor_noise_only():
    series = simulate_series(5, 128, 4, cover=0.0)
    error = series.stack.s2 - series.clear
    assert not series.stack.mask.any()
    assert np.abs(error.mean(axis=(0, 2, 3))).max() < 2e-4  # half a DN of rounding at most
    assert error.std(axis=(0, 2, 3)).max() < 2e-3


def test_cloud_changes_neither_the_radar_nor_the_truth():
    none, full = (simulate_series(6, 64, 4, cover=c) for c in (0.0, 1.0))
    np.testing.assert_array_equal(none.stack.s1, full.stack.s1)
    np.testing.assert_array_equal(none.clear, full.clear)
    assert full.cover.min() == 1.0
    assert none.cover.max() == 0.0


def test_the_clear_image_changes_between_dates_by_more_than_noise():
    for biome in ("cropland", "pasture", "forest"):
        series = simulate_series(1, 96, ["2018-03-05", "2018-06-23"], biome=biome, cover=0.0)
        change = series.clear[1] - series.clear[0]
        within = (change - change.mean(axis=(1, 2), keepdims=True)).std(axis=(1, 2))
        assert within[NIR] > 0.01, biome  # five times the noise, and not the same everywhere


def test_abrupt_change_is_on_one_side_of_its_date_only():
    """A parcel that is built over stays so: two late dates are alike, an early one is not."""
    days = ["2018-01-05", "2018-12-20", "2018-12-25"]
    changed = 0
    for seed in range(4):
        s = simulate_series(seed, 128, days, biome="rainforest", cover=0.0)
        early, late = np.abs(s.clear[1] - s.clear[0]), np.abs(s.clear[2] - s.clear[1])
        changed += int((early[NIR] > 0.08).sum()) - int((late[NIR] > 0.08).sum())
    assert changed > 100


def test_the_sun_follows_the_closed_form():
    equinox = sun_at(0.0, 81.0)
    assert np.rad2deg(equinox.zenith) == pytest.approx(22.5)
    assert np.rad2deg(equinox.azimuth) == pytest.approx(90.0)  # due east before noon
    lat, dec, hour = np.deg2rad([50.0, 23.44, -22.5])
    expected = np.arccos(np.sin(lat) * np.sin(dec) + np.cos(lat) * np.cos(dec) * np.cos(hour))
    assert sun_at(50.0, 81.0 + 365 / 4).zenith == pytest.approx(expected)
    assert 90 < np.rad2deg(sun_at(50.0, 20.0).azimuth) < 180  # south-east in the north
    assert np.rad2deg(sun_at(-30.0, 172.0).azimuth) < 90  # north-east in the south


@given(st.floats(0.1, 1.2), st.floats(0, 2 * np.pi), st.floats(0.5, 2.0))
def test_shadows_lie_height_times_tan_zenith_away_from_the_sun(zenith, azimuth, height):
    rows, cols = Sun(zenith, azimuth).shadow_offset(height)
    north, east = -rows * 10, cols * 10  # metres
    assert np.hypot(north, east) == pytest.approx(height * 1000 * np.tan(zenith))
    away = -np.array([np.cos(azimuth), np.sin(azimuth)])
    assert np.dot([north, east], away) == pytest.approx(np.hypot(north, east))


def test_the_shadow_of_a_layer_is_the_layer_moved(layer):
    sun = Sun(np.deg2rad(40), np.deg2rad(150))
    sky = clouds.Sky((replace(layer, height_km=0.8),), 0.0, 2.0)
    veil = clouds.draw_veil(generator(1), sky, (200, 220), sun)
    rows, cols = (round(v) for v in sun.shadow_offset(0.8))
    assert max(rows, cols) < 0  # the sun in the south-east: shadows to the north-west
    moved = veil.overhead[0][: 200 + rows, : 220 + cols]
    np.testing.assert_array_equal(moved, veil.thickness[0][-rows:, -cols:])


def test_a_shadow_darkens_and_is_bluer(layer):
    clear = np.full((13, 96, 96), 0.3, dtype=np.float32)
    sky = clouds.Sky((layer,), 0.0, 2.0)
    veil = clouds.draw_veil(generator(2), sky, (96, 96), Sun(0.7, 2.5))
    seen = clouds.seen_through(clear, veil, sky)[:, veil.shadow] / 0.3
    assert seen.shape[1] > 50
    assert (seen.mean(axis=1) < 0.97).all()
    assert seen[1].mean() > seen[NIR].mean() + 0.02


@pytest.mark.parametrize("cover", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", sorted(clouds._KINDS))
def test_a_layer_covers_exactly_its_share_of_the_torus(kind, cover):
    layer = clouds._layer(generator(4), kind, cover)
    thickness = clouds.layer_thickness(generator(5), layer, (270, 300))
    bright = clouds.cloud_reflectance(thickness) >= clouds.CLOUD_AT * 0.999
    assert bright.mean() == pytest.approx(cover, abs=2e-4)


def test_light_through_cloud_is_the_two_stream_solution(layer):
    tau = np.float32([[0.0, 5.0, 40.0, 1e6]])
    r = clouds.cloud_reflectance(tau)
    np.testing.assert_allclose(r, [[0, 0.75 / 2.75, 6 / 8, 1]], rtol=1e-3)
    veil = clouds.Veil((layer,), tau[None], 0 * tau[None], np.ones_like(tau)[None],
                       0 * tau, tau > 1, tau > 9)  # fmt: skip
    ground = np.full((13, 1, 4), 0.3, dtype=np.float32)
    seen = clouds.seen_through(ground, veil, clouds.Sky((layer,), 0.0, 2.0))
    colour = clouds._colour(layer, 2.0)[:, None]
    np.testing.assert_allclose(
        seen[:, 0], colour * r + (1 - r) ** 2 * 0.3 / (1 - 0.3 * r), rtol=1e-4
    )
    np.testing.assert_allclose(seen[:, 0, 0], 0.3, rtol=1e-6)  # no cloud, no change
    np.testing.assert_allclose(seen[:, 0, 3], colour[:, 0], rtol=1e-3)  # no ground to be seen


def test_cirrus_is_bright_in_b10_and_water_cloud_is_not():
    clear = np.full((13, 64, 64), 0.2, dtype=np.float32)
    clear[CIRRUS] = 0.001
    seen = {}
    for kind in ("cumulus", "cirrus"):
        sky = clouds.Sky((clouds._layer(generator(7), kind, 1.0),), 0.0, 2.0)
        veil = clouds.draw_veil(generator(8), sky, (64, 64), Sun(0.6, 2.5))
        seen[kind] = clouds.seen_through(clear, veil, sky).mean(axis=(1, 2))
    assert seen["cumulus"][CIRRUS] < 0.004
    assert seen["cirrus"][CIRRUS] > 0.015
    assert seen["cumulus"][VAPOUR] < 0.8 * seen["cumulus"][NIR]


@given(st.floats(0.05, 0.95), st.integers(0, 100))
def test_covers_have_the_mean_asked_for_and_two_humps(mean, seed):
    cover = clouds.draw_cover(generator(seed), 400, mean)
    assert cover.mean() == pytest.approx(mean, abs=0.02)
    assert (cover == 0).mean() == pytest.approx(clouds.CLEAR_SHARE * (1 - mean), abs=0.01)
    assert (cover == 1).mean() >= clouds.OVERCAST_SHARE * mean - 0.01


def test_most_series_have_a_clear_date_and_half_the_pixels_are_cloudy():
    covers = [clouds.draw_cover(generator(seed), 12, 0.5) for seed in range(200)]
    assert np.mean([c.min() == 0 for c in covers]) == 1.0
    assert np.mean(covers) == pytest.approx(0.5, abs=0.02)


def test_speckle_is_gamma_distributed_with_the_number_of_looks():
    grain = radar.speckle(generator(0), (2, 300, 300), looks=5)
    assert grain.mean() == pytest.approx(1.0, abs=0.01)
    assert 1 / grain.var() == pytest.approx(5.0, rel=0.05)
    apart = grain[:, ::12, ::12].ravel()  # neighbours are alike, distant pixels independent
    assert stats.kstest(apart, stats.gamma(5, scale=1 / 5).cdf).pvalue > 0.01
    near = np.corrcoef(grain[0, :, 1:].ravel(), grain[0, :, :-1].ravel())[0, 1]
    # |correlation|² of Gaussian-blurred circular noise: exp(−1 / 2σ²)
    assert near == pytest.approx(np.exp(-1 / (2 * radar.CORRELATION_PX**2)), abs=0.02)


def test_the_radar_tells_land_cover_apart():
    """Medians of VV and VH within 3 dB of those of real samples with the same cover."""
    levels: dict[str, list[np.ndarray]] = {name: [] for name in LAND}
    for seed, biome in enumerate(("coast", "city", "forest", "cropland", "coast")):
        s = simulate_series(seed, 128, 2, biome=biome)
        for i, name in enumerate(LAND):
            levels[name].append(s.stack.s1[:, :, s.land == i].transpose(1, 0, 2).reshape(2, -1))
    vv, vh = zip(*(np.median(np.concatenate(levels[n], 1), 1) for n in LAND[:4]), strict=True)
    farm, wood, built, water = range(4)
    assert vh[water] < vh[farm] - 5 < vh[wood] - 7
    assert vv[farm] < vv[wood] < vv[built] + 1
    np.testing.assert_allclose(vv, (-12.5, -10.0, -8.5, -21.5), atol=3)
    np.testing.assert_allclose(vh, (-18.5, -15.5, -15.0, -26.5), atol=3)


def test_coarse_bands_carry_less_detail():
    series = simulate_series(2, 128, 1, biome="smallholders", cover=0.0, resampling="smooth")
    detail = dict(zip(bands.S2, (power_above(x, 0.2) for x in series.clear[0]), strict=True))
    assert detail["B2"] > 1.5 * detail["B5"] > 0
    assert detail["B8"] > 1.5 * detail["B8A"]
    assert detail["B11"] > 2 * detail["B1"]


def test_nearest_bands_are_flat_over_their_footprints_before_the_shift():
    scene = generator(0).random((13, 96 + sensor.MARGIN, 96 + sensor.MARGIN), dtype=np.float32)
    seen = sensor.observe(scene, (0, 0), (0.0, 0.0), "nearest")
    assert seen.shape == (13, 96, 96)
    for name, cell in (("B1", 6), ("B11", 2)):
        band = seen[bands.S2.index(name)]
        inner = band[cell - 1 : cell - 1 + 10 * cell].reshape(10, cell, -1)
        np.testing.assert_array_equal(inner, np.repeat(inner[:, :1], cell, axis=1))


@pytest.mark.parametrize("resampling", sensor.RESAMPLINGS)
def test_a_uniform_scene_stays_uniform(resampling):
    scene = np.full((13, 40 + sensor.MARGIN, 40 + sensor.MARGIN), 0.25, dtype=np.float32)
    for phase in ((0, 5), (5, 0), (3, 2)):
        seen = sensor.observe(scene, phase, (0.3, 0.9), resampling)
        np.testing.assert_allclose(seen, 0.25, rtol=1e-6)


@pytest.mark.parametrize("slope", [1.0, 2.5, 4.0])
def test_noise_has_the_power_law_asked_for(slope):
    field = np.mean(
        [np.abs(np.fft.fft2(power_noise(generator(s), (256, 256), slope))) ** 2 for s in range(4)],
        0,
    )
    f = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.fftfreq(256)[None])
    ring = (f > 8 / 256) & (f < 0.4)
    assert np.polyfit(np.log(f[ring]), np.log(field[ring]), 1)[0] == pytest.approx(-slope, abs=0.1)


@pytest.mark.slow
def test_clouds_on_a_clear_stack_hit_the_cover_on_average():
    """The cloud is the mask without shadows: what is brighter in B2 than dark ground."""
    stack = flat_stack(0.02, shape=(12, 48, 48))
    for cover in (0.2, 0.5, 0.8):
        clouded = [add_clouds(stack, seed, cover) for seed in range(6)]
        bright = [c.mask & (c.s2[:, 1] > 0.02 + 0.4 * clouds.CLOUD_AT) for c in clouded]
        assert np.mean(bright) == pytest.approx(cover, abs=0.07)
        assert np.mean(bright) <= np.mean([c.mask for c in clouded]) < cover + 0.3


def test_no_cover_leaves_the_image_as_it_is_and_cover_per_date_is_kept():
    stack = flat_stack(shape=(3, 48, 80))
    clouded = add_clouds(stack, 0, [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(clouded.s2[0], stack.s2[0])
    np.testing.assert_allclose(clouded.mask.mean(axis=(1, 2)), [0, 1, 0])
    assert clouded.shape == (3, 48, 80)


def test_clouds_leave_nodata_radar_dates_and_an_earlier_mask(rng):
    s2 = rng.uniform(0.05, 0.4, (2, 13, 64, 64)).astype(np.float32)
    s2[0, :, :10] = np.nan
    s2[1] = np.nan
    s1 = rng.normal(-12, 3, (2, 2, 64, 64))
    mask = np.zeros((2, 64, 64), dtype=bool)
    mask[0, 40:, 40:] = True
    stack = Stack(s2, ["2018-01-01", "2019-07-01"], s1, ["2018-01-02", "2019-07-02"], mask)
    clouded = add_clouds(stack, 1, 0.5)
    np.testing.assert_array_equal(np.isnan(clouded.s2), np.isnan(s2))
    np.testing.assert_array_equal(clouded.s1, stack.s1)
    np.testing.assert_array_equal(clouded.s1_dates, stack.s1_dates)
    assert clouded.mask[0, 40:, 40:].all()


def test_one_date_one_tiny_patch_works():
    series = simulate_series(0, 16, ["2020-02-29"])
    assert series.stack.shape == (1, 16, 16)
    assert np.isfinite(series.stack.s2).all()
    assert add_clouds(flat_stack(shape=(1, 5, 7)), 0).shape == (1, 5, 7)


def test_nodata_wedges_are_nan_in_all_bands():
    series = simulate_series(0, 64, 6, nodata=1.0)
    missing = np.isnan(series.stack.s2)
    assert (missing.any(axis=1) == missing.all(axis=1)).all()
    share = missing[:, 0].mean(axis=(1, 2))
    assert ((share > 0.02) & (share < 0.65)).all()
    assert np.isfinite(series.clear).all()


def test_dates_lie_in_one_year_and_radar_has_its_own():
    series = simulate_series(9, 16, 30)
    dates = series.stack.dates
    assert (np.diff(dates).astype(int) > 0).all()
    assert set(dates.astype("datetime64[Y]").astype(str)) == {"2018"}
    gap = np.abs((series.stack.s1_dates - dates).astype(int))
    assert gap.max() <= 3
    assert gap.max() > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 8}, "size of 8"),
        ({"dates": 0}, "got 0 dates"),
        ({"dates": 99}, "got 99 dates"),
        ({"dates": []}, "no dates"),
        ({"cover": 1.5}, "cover 1.5"),
        ({"cover": float("nan")}, "cover nan"),
        ({"biome": "moon"}, "biome 'moon'"),
        ({"resampling": "cubic"}, "resampling 'cubic'"),
    ],
)
def test_impossible_arguments_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        simulate_series(0, **{"size": 32, "dates": 1, **arguments})


def test_one_cover_for_each_date_is_needed():
    with pytest.raises(InputError, match="2 covers for 3 dates"):
        add_clouds(flat_stack(), 0, [0.1, 0.2])


@pytest.mark.parametrize("biome", sorted(BIOMES))
def test_every_biome_gives_plausible_reflectance(biome):
    clear = simulate_series(11, 64, 3, biome=biome, cover=0.0).clear
    assert clear.min() > 0
    assert clear.max() < 1.6
    assert np.percentile(clear[:, CIRRUS], 99) < 0.01
