"""Every band sees clouds at its own moment and with its own footprint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercast import Stack, bands
from undercast.simulate import add_clouds, clouds, parallax, simulate_series
from undercast.simulate.fields import generator
from undercast.simulate.season import Sun

DELAYS = np.array([*parallax.DELAY_S.values()])
REACH = parallax.REACH


@given(st.floats(-8, 8), st.floats(-8, 8))
def test_a_moving_ramp_is_seen_where_it_is_at_each_moment(down, right):
    """Interpolation is exact on a plane, so the closed form holds to rounding."""
    rows, cols = np.mgrid[:60, :70].astype(np.float32)
    seen = parallax.displaced(3 * rows - cols, np.float32([down, right]))
    assert seen.shape == (13, 60 - 2 * REACH, 70 - 2 * REACH)
    moments = (DELAYS - DELAYS.max() / 2)[:, None, None]
    at_rows, at_cols = rows - down * moments, cols - right * moments
    expected = (3 * at_rows - at_cols)[:, REACH:-REACH, REACH:-REACH]
    np.testing.assert_allclose(seen, expected, atol=1e-3)


def test_the_parallax_is_height_times_the_angle_that_the_satellite_moves_on(monkeypatch):
    monkeypatch.setattr(parallax, "WIND_M_S", 0.0)
    layers = tuple(clouds._layer(generator(1), kind, 0.5) for kind in ("cumulus", "cirrus"))
    for seed in range(20):
        speed = np.hypot(*parallax.draw_velocities(generator(seed), layers).T) * 10  # m/s
        np.testing.assert_allclose(
            speed, [layer.height_km * 1000 * 7.45 / 786 for layer in layers], rtol=1e-5
        )


def test_without_movement_coarse_bands_are_means_over_their_footprint():
    """A step between two footprints stays sharp; the point spread mixes neighbours of a cell."""
    layer = clouds._layer(generator(1), "cumulus", 0.5)
    n = 48 + parallax.MARGIN
    tau = np.broadcast_to(np.arange(n) % 12 >= 6, (1, n, n)).astype(np.float32)
    tau = np.roll(tau, REACH, axis=2)  # footprints of 60 m begin where the margin ends
    none = np.zeros((n, n), bool)
    veil = clouds.Veil((layer,), tau, 0 * tau, 0 * tau + 1, 0 * tau[0], none, none)
    still = np.zeros((1, 2), np.float32)
    seen = parallax.by_bands(veil, still, (0, 0), (0.0, 0.0), "nearest")
    for name, side in (("B1", 0.08), ("B9", 0.08)):
        row = seen.thickness[0, bands.index([name])[0], 20]
        expected = np.where((np.arange(1, 49) % 12) >= 6, 1 - 2 * side, 2 * side)
        np.testing.assert_allclose(row[6:-6], expected[6:-6], atol=1e-6)
    assert seen.relief.shape == seen.overhead.shape == (1, 13, 48, 48)
    np.testing.assert_allclose(seen.relief, 1.0, atol=1e-6)


def test_a_pixel_is_cloud_where_any_band_sees_cloud():
    sky = clouds.Sky((clouds._layer(generator(3), "cirrus", 0.4),), 0.0, 2.0)
    n = 96 + parallax.MARGIN
    veil = clouds.draw_veil(generator(4), sky, (n, n), Sun(0.6, 2.5))
    velocities = parallax.draw_velocities(generator(5), sky.layers)
    seen = parallax.by_bands(veil, velocities, (2, 3), (0.3, 0.6), "nearest")
    each = clouds.cloud_reflectance(seen.thickness[0]) >= clouds.CLOUD_AT * 0.999
    np.testing.assert_array_equal(seen.cloud, each.any(axis=0))
    assert seen.cloud.mean() > each[1].mean() + 0.01  # fringes
    assert not (seen.cloud & seen.shadow).any()


def test_clouds_of_any_shape_of_image_have_fringes_and_spare_what_the_mask_calls_clear():
    ground = np.full((2, 13, 70, 90), 0.2, np.float32)
    seen = add_clouds(Stack(ground, ["2019-06-01", "2019-06-11"]), 3, [0.0, 0.5])
    np.testing.assert_allclose(seen.s2[0], ground[0], atol=1e-6)
    off = np.abs(seen.s2[1] - ground[1]).max(axis=0)
    assert off[seen.mask[1]].mean() > 4 * off[~seen.mask[1]].mean()


def test_real_clouds_are_displaced_as_their_bands_are_late(realdata: Path):
    """Training images under one layer of cloud: the shift of every 10 or 20 m band against B2."""
    stored = np.load(realdata / "sen12mscr_triplets.npz")
    names = [str(name) for name in stored["names"]]
    fine = [i for i, name in enumerate(bands.S2) if bands.RESOLUTION_M[name] < 60]
    for place in ("patch_02", "patch_04"):  # thin cirrus, and a thick layer of cloud
        image = stored["s2_cloudy"][names.index(place)].astype(np.float64)
        late = DELAYS[fine]
        moved = np.array([_shift(image[1], image[i]) for i in fine])
        slope = (late @ moved) / (late @ late)  # px/s, (rows, cols)
        assert 2 < np.hypot(*slope) < 12
        off = moved - late[:, None] * slope
        assert (off**2).sum() < 0.1 * (moved**2).sum()


def _shift(one: np.ndarray, other: np.ndarray, most: int = 30) -> np.ndarray:
    """(rows, cols) by which the second image shows the same clouds displaced."""
    window = np.outer(np.hanning(len(one)), np.hanning(len(one)))
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(len(one)), np.fft.fftfreq(len(one))))
    passed = (frequency > 0.02) & (frequency < 0.15)
    spectra = [np.fft.fft2((x - x.mean()) * window) * passed for x in (one, other)]
    likeness = np.fft.fftshift(np.fft.ifft2(spectra[0].conj() * spectra[1]).real)
    middle = len(one) // 2
    part = likeness[middle - most : middle + most + 1, middle - most : middle + most + 1]
    return np.array(np.unravel_index(part.argmax(), part.shape)) - most


@pytest.mark.parametrize("resampling", ["nearest", "smooth"])
def test_a_closed_sky_of_a_series_shows_blocks_only_where_bands_are_repeated(resampling):
    series = simulate_series(5, 64, 3, cover=1.0, resampling=resampling)
    b9 = series.stack.s2[:, bands.index(["B9"])[0]]
    level = np.abs(np.diff(b9, axis=2))
    jumps = np.sort(level.mean(axis=1), axis=1)  # of each column of pixels
    ratio = jumps[:, : 64 * 4 // 6].mean() / jumps.mean()
    assert ratio < 0.35 if resampling == "nearest" else ratio > 0.5
