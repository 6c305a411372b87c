"""The files of a product as other software reads them, and the numbers in them."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.warp import transform_bounds
from rio_cogeo import cog_validate

from undercast import bands
from undercast.blend import Strip
from undercast.errors import DataError, InputError
from undercast.product import NAMES, WORK, Format, ProductWriter, keep_observed
from undercast.products.cog import Band, Raster, RowFile, band_statistics, write_cog
from undercast.products.item import build_item
from undercast.products.quality import (
    Flag,
    clear_observations,
    middle_date,
    nearest_date,
    quality_layers,
)
from undercast.types import Grid, Stack

GRID = Grid("EPSG:32631", (10.0, 0.0, 500000.0, 0.0, -10.0, 4600000.0), 700, 600)
DATES = np.array(["2018-06-01", "2018-06-11"], "datetime64[D]")
PROVENANCE: dict[str, Any] = {
    "inputs": [{"href": "s2://a<b>&c", "sha256": None}],
    "model": {"name": "none"},
}


@pytest.fixture(scope="module")
def strips() -> list[Strip]:
    rng = np.random.default_rng(0)
    mean = rng.uniform(-0.01, 0.6, (13, 700, 600)).astype(np.float32)
    variance = rng.uniform(1e-5, 0.01, mean.shape).astype(np.float32)
    mean[:, :100, :50] = variance[:, :100, :50] = np.nan
    quality = np.zeros((3, 700, 600), np.int16)
    cuts = [(0, 160), (160, 444), (444, 700)]
    return [Strip(a, mean[:, a:b], variance[:, a:b], (quality[:, a:b],)) for a, b in cuts]


@pytest.fixture(scope="module")
def folder(strips: list[Strip], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("product") / "out"
    with ProductWriter(out, GRID, Format(), {"run": 1}) as writer:
        assert writer.start(resume=False, overwrite=False) is None
        for strip in strips:
            writer.write(strip, {"row": np.array(0)})
        writer.finish(
            lambda found: build_item(
                writer.work, GRID, DATES, found, writer.format.rasters, PROVENANCE
            )
        )
    return out


def test_the_geotiffs_are_valid_cogs_on_the_grid_of_the_scene(folder: Path) -> None:
    for name in ("mean", "sigma", "quality"):
        valid, errors, warnings = cog_validate(folder / f"{name}.tif", strict=True)
        assert valid, (name, errors, warnings)
        with rasterio.open(folder / f"{name}.tif") as file:
            assert file.crs.to_epsg() == 32631
            assert tuple(file.transform)[:6] == GRID.transform
            assert file.overviews(1) == [2]


def test_bands_have_names_units_scale_nodata_and_statistics(
    folder: Path, strips: list[Strip]
) -> None:
    mean = np.concatenate([strip.mean for strip in strips], axis=1)
    with rasterio.open(folder / "mean.tif") as file:
        assert file.descriptions == bands.S2
        assert set(file.units) == {"reflectance"}
        assert set(file.scales) == {1e-4}
        assert set(file.offsets) == {0.0}
        assert file.nodata == 65535
        tags = file.tags(4)
        assert float(tags["STATISTICS_MEAN"]) == pytest.approx(
            np.nanmean(mean[3].clip(0)) * 10000, abs=0.1
        )
        stored = file.read(4, masked=True)
        assert float(tags["STATISTICS_STDDEV"]) == pytest.approx(stored.std(), rel=1e-6)
        assert float(tags["STATISTICS_VALID_PERCENT"]) == pytest.approx(100 * 415 / 420)
    with rasterio.open(folder / "quality.tif") as file:
        assert file.descriptions == ("clear_observations", "nearest_clear_days", "flags")
        assert "1=EXTRAPOLATED" in file.tags()["flags"]


def test_stored_numbers_are_the_rounded_reflectance_and_sigma(
    folder: Path, strips: list[Strip]
) -> None:
    mean = np.concatenate([strip.mean for strip in strips], axis=1).astype(np.float64)
    sigma = np.sqrt(np.concatenate([strip.variance for strip in strips], axis=1), dtype=np.float64)
    for name, values, scale in (("mean", mean, 1e-4), ("sigma", sigma, 1e-5)):
        with rasterio.open(folder / f"{name}.tif") as file:
            found = file.read()
        nodata = np.isnan(values)
        assert (found[nodata] == 65535).all()
        error = found[~nodata] * scale - values[~nodata].clip(0)
        assert np.abs(error).max() <= scale * 0.501


def test_nothing_but_the_product_is_left(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == set(NAMES) - {"product.zarr"}


def test_the_item_is_a_stac_item_that_pystac_reads(folder: Path) -> None:
    pystac = pytest.importorskip("pystac")
    item = pystac.Item.from_file(folder / "item.json")
    assert item.datetime is None
    assert item.properties["start_datetime"] == "2018-06-01T00:00:00Z"
    assert item.bbox == pytest.approx(
        transform_bounds("EPSG:32631", "EPSG:4326", 500000, 4593000, 506000, 4600000), abs=1e-5
    )
    assert item.properties["proj:code"] == "EPSG:32631"
    assert item.properties["proj:shape"] == [700, 600]
    ring = item.geometry["coordinates"][0]
    assert ring[0] == ring[-1]
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring))
    assert area > 0  # GeoJSON: counter-clockwise outside
    for name in ("mean", "sigma", "quality"):
        asset = item.assets[name]
        assert Path(asset.get_absolute_href()).is_file()
        assert asset.media_type == pystac.MediaType.COG
    plain = json.loads((folder / "item.json").read_text())
    assert [band["name"] for band in plain["assets"]["mean"]["bands"]] == list(bands.S2)
    assert plain["assets"]["mean"]["bands"][3]["eo:center_wavelength"] == pytest.approx(0.6646)
    datetime.fromisoformat(plain["properties"]["created"])


def test_sigma_is_never_stored_as_zero_and_large_values_do_not_wrap() -> None:
    strip = Strip(
        0,
        np.full((13, 1, 2), 9.0, np.float32),
        np.array([1e-16, 4.0], np.float32) * np.ones((13, 1, 1), np.float32),
        (np.zeros((3, 1, 2), np.int16),),
    )
    encoded = Format().encode(strip)
    assert encoded["sigma"][0, 0].tolist() == [1, 65534]
    assert (encoded["mean"] == 65534).all()


def test_kept_pixels_have_the_variance_of_a_sensor() -> None:
    observed = np.array([[[0.2, np.nan]]], np.float32)
    mean, variance = keep_observed(np.zeros_like(observed), np.ones_like(observed), observed)
    np.testing.assert_allclose(mean, [[[0.2, 0.0]]])
    np.testing.assert_allclose(variance, [[[1e-5, 1.0]]])


def test_impossible_formats_are_refused() -> None:
    with pytest.raises(InputError, match="no variance"):
        Format(has_variance=False, mask_above=0.1)
    with pytest.raises(InputError, match="above 0"):
        Format(mask_above=-1.0)


def test_a_system_without_variance_has_no_sigma() -> None:
    assert [raster.name for raster in Format(has_variance=False).rasters] == ["mean", "quality"]


def test_a_resumed_writer_cuts_off_rows_that_were_not_acknowledged(
    strips: list[Strip], tmp_path: Path
) -> None:
    with ProductWriter(tmp_path, GRID, Format(), {"run": 1}) as writer:
        writer.start(resume=False, overwrite=False)
        writer.write(strips[0], {"carried": np.arange(3)})
    with (tmp_path / WORK / "mean.rows").open("ab") as file:
        file.write(b"half a row")
    again = ProductWriter(tmp_path, GRID, Format(), {"run": 1})
    with again:
        state = again.start(resume=True, overwrite=False)
    assert state is not None
    assert state["carried"].tolist() == [0, 1, 2]
    assert again.rows_done == 160
    assert (tmp_path / WORK / "mean.rows").stat().st_size == 160 * 600 * 13 * 2
    other = ProductWriter(tmp_path, GRID, Format(), {"run": 2})
    with other, pytest.raises(InputError, match="got other run"):
        other.start(resume=True, overwrite=False)
    (tmp_path / WORK / "mean.rows").write_bytes(b"")
    with again, pytest.raises(DataError, match="less than 160 rows"):
        again.start(resume=True, overwrite=False)


def test_a_cog_that_differs_from_its_rows_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RowFile(
        tmp_path / "x.rows",
        Raster("x", "int16", -1, (Band("a"),)),
        Grid("EPSG:32631", GRID.transform, 4, 5),
    )
    rows.append(np.arange(20, dtype=np.int16).reshape(1, 4, 5))
    write_cog(rows, tmp_path / "x.tif")
    original = rasterio.shutil.copy

    def copy_and_spoil(source: str, target: str, **options: Any) -> None:
        original(source, target, **options)
        rows.path.write_bytes(np.zeros(20, np.int16).tobytes())

    monkeypatch.setattr("rasterio.shutil.copy", copy_and_spoil)
    with pytest.raises(DataError, match="other pixels"):
        write_cog(rows, tmp_path / "x.tif")


def test_statistics_of_chunks_are_those_of_the_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(3, 2, (1, 700, 3)).astype(np.float32)
    values[0, :300, 0] = np.nan
    rows = RowFile(
        tmp_path / "x.rows",
        Raster("x", "float32", np.nan, (Band("a"),)),
        Grid("EPSG:32631", GRID.transform, 700, 3),
    )
    rows.append(values)
    (found,) = band_statistics(rows)
    assert found["mean"] == pytest.approx(np.nanmean(values.astype(np.float64)))
    assert found["stddev"] == pytest.approx(np.nanstd(values.astype(np.float64)))
    assert (found["minimum"], found["maximum"]) == (np.nanmin(values), np.nanmax(values))
    assert found["valid_percent"] == pytest.approx(100 * 1800 / 2100)


def test_quality_layers_equal_a_loop_over_pixels(rng: np.random.Generator) -> None:
    dates = np.array(["2018-06-25", "2018-06-01", "2018-06-11", "2018-06-11"], "datetime64[D]")
    s2 = rng.random((4, 13, 6, 7)).astype(np.float32)
    s2.transpose(0, 2, 3, 1)[rng.random((4, 6, 7)) < 0.4] = np.nan
    s1 = rng.random((4, 2, 6, 7)).astype(np.float32)
    s1.transpose(0, 2, 3, 1)[rng.random((4, 6, 7)) < 0.6] = np.nan
    mask = rng.random((4, 6, 7)) < 0.4
    stack = Stack(s2, dates, s1, mask=mask)
    reference = np.datetime64("2018-06-18")
    found = quality_layers(stack, clear_observations(stack, mask), reference, missing_band=True)
    for row in range(6):
        for col in range(7):
            days = [
                int((dates[t] - reference).astype(int))
                for t in range(4)
                if np.isfinite(s2[t, 0, row, col]) and not mask[t, row, col]
            ]
            flags = Flag.MISSING_BAND
            flags |= Flag(0) if days else Flag.EXTRAPOLATED
            flags |= Flag(0) if np.isfinite(s1[:, 0, row, col]).any() else Flag.MISSING_SAR
            expected = [len(days), min(days, key=lambda d: (abs(d), d), default=-32768), flags]
            if np.isnan(s2[:, 0, row, col]).all():
                expected = [-32768, -32768, Flag.NODATA]
            assert found[:, row, col].tolist() == expected


def test_the_reference_date_is_the_one_asked_for_or_the_middle() -> None:
    dates = np.array(["2018-06-21", "2018-06-01", "2018-06-05"], "datetime64[D]")
    assert str(middle_date(dates)) == "2018-06-05"
    assert str(nearest_date(dates, "2018-06-15")) == "2018-06-21"
    assert str(nearest_date(dates, "2018-06-13")) == "2018-06-05"
