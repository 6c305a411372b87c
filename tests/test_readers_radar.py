"""Radar images: units, polarisations, and which date they belong to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import makers
from undercast import bands
from undercast.errors import InputError
from undercast.readers.dates import nearest_dates
from undercast.readers.filling import RULES, fill_bands, fillable
from undercast.scene import open_scene
from undercast.types import Grid, Stack, Tile

WHOLE = Tile(0, 0, makers.GRID.height, makers.GRID.width)


@pytest.mark.parametrize("unit", ["auto", "told"])
@pytest.mark.parametrize("linear", [False, True])
def test_db_and_linear_give_the_same_decibels(tmp_path: Path, linear: bool, unit: str) -> None:
    stack = makers.dn_stack(s1=True)
    told = "auto" if unit == "auto" else ("linear" if linear else "db")
    scene = open_scene(
        makers.write_geotiff_scene(tmp_path, stack),
        s1=makers.write_s1(tmp_path / "s1", stack, linear=linear),
        s1_unit=told,
    )
    read = scene.read(WHOLE)
    np.testing.assert_allclose(read.s1, stack.s1, atol=1e-5 if linear else 0)
    assert scene.info.has_s1 == (True, True, True)
    np.testing.assert_array_equal(read.s1_dates, stack.dates)
    assert len(scene.info.inputs) == 6


def test_polarisations_in_files_of_their_own_are_joined(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",), s1=True)
    files = [
        makers.write_raster(tmp_path / name, stack.s1[0, i : i + 1], makers.GRID)
        for i, name in ((1, "S1A_20180603_VH.tif"), (0, "S1A_20180603_VV.tif"))
    ]
    read = open_scene(makers.write_geotiff_scene(tmp_path / "s2", stack), s1=files).read(WHOLE)
    np.testing.assert_array_equal(read.s1, stack.s1)
    assert read.s1_dates.astype(str).tolist() == ["2018-06-03"]


def test_descriptions_decide_the_order_of_polarisations(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",), s1=True)
    file = makers.write_raster(
        tmp_path / "20180601.tif", stack.s1[0, ::-1], makers.GRID, descriptions=("VH", "VV")
    )
    read = open_scene(makers.write_geotiff_scene(tmp_path / "s2", stack), s1=[file]).read(WHOLE)
    np.testing.assert_array_equal(read.s1, stack.s1)


def test_each_date_gets_the_nearest_radar_within_the_tolerance(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01", "2018-06-11", "2018-07-21"))
    radar = makers.dn_stack(("2018-05-29", "2018-06-13", "2018-06-30"), s1=True)
    files = makers.write_geotiff_scene(tmp_path, stack)
    scene = open_scene(files, s1=makers.write_s1(tmp_path / "s1", radar))
    read = scene.read(WHOLE)
    assert scene.info.has_s1 == (True, True, False)
    np.testing.assert_array_equal(read.s1[:2], radar.s1[:2])
    assert np.isnan(read.s1[2]).all()
    assert scene.s1_dates.astype(str).tolist() == ["2018-05-29", "2018-06-13", "2018-07-21"]
    assert any("no radar image near enough to 2018-07-21" in m for m in scene.info.messages)
    np.testing.assert_array_equal(read.days()[:2], [1518.5, 1531.0])
    wide = open_scene(files, s1=list((tmp_path / "s1").iterdir()), s1_tolerance_days=30)
    assert wide.info.has_s1 == (True, True, True)


@given(
    wanted=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    offered=st.lists(st.integers(0, 300), min_size=0, max_size=6),
    tolerance=st.integers(0, 40),
)
def test_the_match_is_the_nearest_of_all(
    wanted: list[int], offered: list[int], tolerance: int
) -> None:
    start = np.datetime64("2018-01-01")
    days = [np.array(x, int).astype("timedelta64[D]") for x in (wanted, offered)]
    matches = nearest_dates(start + days[0], start + days[1], tolerance)
    for day, match in zip(wanted, matches, strict=True):
        gaps = [abs(day - other) for other in offered]
        if match is None:
            assert all(gap > tolerance for gap in gaps)
        else:
            assert gaps[match] == min(gaps) <= tolerance


def test_radar_on_another_grid_is_warped_and_missing_outside(tmp_path: Path) -> None:
    grid = Grid("EPSG:32631", (20.0, 0, 599995.0, 0, -20.0, 5700005.0), 30, 100)
    stack = makers.dn_stack(("2018-06-01",))
    s1 = np.full((1, 2, 30, 100), -12.0, np.float32)
    holder = Stack(np.zeros((1, 13, 30, 100)), ["2018-06-01"], s1)
    radar = makers.write_s1(tmp_path / "s1", holder, grid)
    read = open_scene(makers.write_geotiff_scene(tmp_path, stack), s1=radar).read(WHOLE).s1[0]
    np.testing.assert_allclose(read[:, :58], -12.0)
    assert np.isnan(read[:, 62:]).all()


def test_fill_values_of_radar_are_missing(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",), s1=True)
    s1 = stack.s1.copy()
    s1[0, :, :4] = 0
    files = makers.write_s1(tmp_path / "s1", Stack(stack.s2, stack.dates, s1))
    read = open_scene(makers.write_geotiff_scene(tmp_path, stack), s1=files).read(WHOLE).s1[0]
    assert np.isnan(read[:, :4]).all()
    assert np.isfinite(read[:, 4:]).all()


def test_radar_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    files = makers.write_geotiff_scene(tmp_path, stack)
    odd = np.full((2, 132, 120), 250.0, np.float32)
    for name, values, match in (
        ("20180601.tif", odd, "neither dB"),
        ("20180602.tif", odd.astype("uint16"), "calibrated float"),
        ("radar.tif", odd, "without a date"),
        ("20180603.tif", np.concatenate([odd, odd]), "with 4 bands"),
    ):
        path = makers.write_raster(tmp_path / "bad" / name, values, makers.GRID)
        with pytest.raises(InputError, match=match):
            open_scene(files, s1=[path])
    with pytest.raises(InputError, match="s1_unit 'dB'"):
        open_scene(files, s1=[path], s1_unit="dB")
    with pytest.raises(InputError, match="same radar image twice"):
        open_scene(files, s1=[tmp_path / "bad" / "20180601.tif"] * 2, s1_unit="db")


# Missing bands


def test_filling_leaves_the_other_bands_and_no_data_alone(rng: np.random.Generator) -> None:
    s2 = rng.random((13, 5, 6)).astype(np.float32)
    s2[:, 0, 0] = np.nan
    before = s2.copy()
    filled = fill_bands(s2, ("B10",))
    np.testing.assert_array_equal(np.delete(filled, 10, 0), np.delete(before, 10, 0))
    assert np.isnan(filled[:, 0, 0]).all()


def test_a_band_without_a_rule_cannot_be_missing() -> None:
    with pytest.raises(InputError, match="without B8"):
        fillable(tuple(band for band in bands.S2 if band != "B8"))


DOCUMENTED = {  # RMSE in reflectance; docs/inputs.md
    "eurosat": {"B1": 0.0139, "B9": 0.0338, "B10": 0.0004},
    "clear": {"B1": 0.0052, "B9": 0.0369, "B10": 0.0014},
    "cloudy": {"B1": 0.0380, "B9": 0.0587, "B10": 0.0031},
}


@pytest.mark.slow
def test_errors_of_the_filling_rules_are_those_documented(realdata: Path) -> None:
    triplets = np.load(realdata / "sen12mscr_triplets.npz")
    sets = {
        "eurosat": np.load(realdata / "eurosat_l1c.npz")["s2"],
        "clear": triplets["s2_clear"][5:],  # not used for the fit
        "cloudy": triplets["s2_cloudy"][5:],
    }
    for name, dn in sets.items():
        s2 = np.moveaxis(dn[:, :, ::4, ::4].astype(np.float32) / 10000, 1, 0)
        s2 = s2.reshape(bands.N_S2, -1, 1)
        for band, expected in DOCUMENTED[name].items():
            filled = fill_bands(s2.copy(), (band,))
            i = bands.S2.index(band)
            rmse = np.sqrt(np.mean((filled[i] - s2[i]) ** 2))
            assert rmse == pytest.approx(expected, rel=0.1), (name, band)
    assert set(RULES) == {"B1", "B9", "B10"}
