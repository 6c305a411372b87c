"""Every format gives the same stack, exact to the digital number, offsets included."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio

import makers
from undercast import bands
from undercast.scene import open_scene
from undercast.types import Stack, Tile

WHOLE = Tile(0, 0, makers.GRID.height, makers.GRID.width)


def read_all(*inputs: object, **options: object) -> Stack:
    return open_scene(list(inputs), **options).read(WHOLE)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_geotiffs_are_read_to_the_digital_number(tmp_path: Path, dtype: str) -> None:
    stack = makers.dn_stack()
    read = read_all(*makers.write_geotiff_scene(tmp_path, stack, dtype=dtype))
    np.testing.assert_array_equal(read.s2, stack.s2)
    np.testing.assert_array_equal(read.dates, stack.dates)


def test_a_folder_of_geotiffs_is_a_scene(tmp_path: Path) -> None:
    stack = makers.dn_stack()
    makers.write_geotiff_scene(tmp_path, stack)
    np.testing.assert_array_equal(read_all(tmp_path).s2, stack.s2)


def test_scale_and_offset_tags_are_applied(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2023-06-01",))
    dn = makers.digital_numbers(stack, -1000)[0]
    path = makers.write_raster(
        tmp_path / "20230601.tif", dn, makers.GRID, scale=(0.0001, -0.1), nodata=0
    )
    np.testing.assert_array_equal(read_all(path).s2, stack.s2)


def test_a_baseline_removes_the_offset_of_plain_geotiffs(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2023-06-01",))
    dn = makers.digital_numbers(stack, -1000)[0]
    path = makers.write_raster(tmp_path / "20230601.tif", dn, makers.GRID)
    np.testing.assert_array_equal(read_all(path, baseline="05.09").s2, stack.s2)
    np.testing.assert_array_equal(read_all(path, offset=-1000).s2, stack.s2)


def test_floats_that_are_digital_numbers_are_divided_with_a_message(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    dn = makers.digital_numbers(stack)[0].astype("float32")
    scene = open_scene([makers.write_raster(tmp_path / "20180601.tif", dn, makers.GRID)])
    np.testing.assert_array_equal(scene.read(WHOLE).s2, stack.s2)
    assert any("taken as digital numbers" in message for message in scene.info.messages)


def test_band_descriptions_decide_the_order(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    dn = makers.digital_numbers(stack)[0][::-1]
    names = tuple(f"band {name} (DN)" for name in bands.S2[::-1])
    path = makers.write_raster(tmp_path / "20180601.tif", dn, makers.GRID, descriptions=names)
    np.testing.assert_array_equal(read_all(path).s2, stack.s2)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("baseline", ["02.06", "05.09"])
def test_safe_level_1c_is_read_to_the_digital_number(
    tmp_path: Path, baseline: str, zipped: bool
) -> None:
    stack = makers.dn_stack(("2023-06-01", "2023-06-11"), native=True)
    products = makers.write_safe(tmp_path, stack, baseline=baseline, zipped=zipped)
    scene = open_scene(products)
    np.testing.assert_array_equal(scene.read(WHOLE).s2, stack.s2)
    assert scene.grid == makers.GRID
    assert scene.info.level == "L1C"
    assert scene.info.missing_bands == ()
    assert scene.info.inputs[0]["baseline"] == baseline
    assert scene.info.inputs[0]["offset"] == (-1000 if baseline == "05.09" else 0)
    assert len(scene.info.inputs[0]["sha256"]) == 64


@pytest.mark.parametrize("zipped", [False, True])
def test_safe_level_2a_fills_b10_and_takes_the_classification_as_mask(
    tmp_path: Path, zipped: bool
) -> None:
    stack = makers.dn_stack(("2023-06-01", "2023-06-11"), native=True)
    scl = np.random.default_rng(1).integers(0, 12, (2, 66, 60)).repeat(2, 1).repeat(2, 2)
    scene = open_scene(makers.write_safe(tmp_path, stack, level="L2A", scl=scl, zipped=zipped))
    read = scene.read(WHOLE)
    others = [i for i, band in enumerate(bands.S2) if band != "B10"]
    np.testing.assert_array_equal(read.s2[:, others], stack.s2[:, others])
    np.testing.assert_allclose(read.s2[:, 10], 0.0013)
    np.testing.assert_array_equal(read.mask, np.isin(scl, (0, 1, 3, 8, 9, 10)))
    assert scene.info.level == "L2A"
    assert scene.info.missing_bands == ("B10",)


@pytest.mark.parametrize("single_assets", [False, True])
@pytest.mark.parametrize("offset", [0.0, -1000.0])
def test_stac_items_are_read_to_the_digital_number(
    tmp_path: Path, single_assets: bool, offset: float
) -> None:
    stack = makers.dn_stack()
    path = makers.write_stac(tmp_path, stack, offset=offset, single_assets=single_assets)
    scene = open_scene([path])
    read = scene.read(WHOLE)
    np.testing.assert_array_equal(read.s2, stack.s2)
    np.testing.assert_array_equal(read.dates, stack.dates)
    assert scene.info.level == "L1C"
    assert scene.grid == makers.GRID


def test_stac_offset_already_removed_is_not_removed_twice(tmp_path: Path) -> None:
    """Earth Search keeps an offset of −0.1 in `raster:bands` although its pixels have none."""
    stack = makers.dn_stack()
    path = makers.write_stac(tmp_path, stack, properties={"earthsearch:boa_offset_applied": True})
    text = path.read_text().replace('"offset": 0.0', '"offset": -0.1')
    path.write_text(text)
    np.testing.assert_array_equal(read_all(path).s2, stack.s2)


def test_stac_without_raster_bands_takes_the_offset_from_the_baseline(tmp_path: Path) -> None:
    stack = makers.dn_stack()
    about = {"s2:processing_baseline": "05.09"}
    path = makers.write_stac(tmp_path, stack, offset=-1000, properties=about, told=False)
    scene = open_scene([path])
    np.testing.assert_array_equal(scene.read(WHOLE).s2, stack.s2)
    assert scene.info.inputs[0]["baseline"] == "05.09"


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_zarr_stores_are_read_to_the_digital_number(
    tmp_path: Path, integers: bool, scaled: bool
) -> None:
    base = makers.dn_stack(s1=True)
    mask = np.random.default_rng(2).random(base.s2[:, 0].shape) < 0.3
    stack = Stack(base.s2, base.dates, base.s1, base.dates + 2, mask)
    path = makers.write_zarr(tmp_path / "cube.zarr", stack, integers=integers, scaled=scaled)
    scene = open_scene([path])
    read = scene.read(WHOLE)
    np.testing.assert_allclose(read.s2, stack.s2, rtol=1e-7)
    np.testing.assert_array_equal(np.rint(read.s2 * 10000), np.rint(stack.s2 * 10000))
    np.testing.assert_array_equal(read.s1, stack.s1)
    np.testing.assert_array_equal(read.s1_dates, stack.s1_dates)
    np.testing.assert_array_equal(read.mask, mask)
    assert scene.grid == makers.GRID


def test_an_xarray_dataset_in_memory_is_a_scene_and_a_stack(tmp_path: Path) -> None:
    stack = makers.dn_stack(s1=True)
    dataset = makers.make_dataset(stack)
    np.testing.assert_array_equal(read_all(dataset).s2, stack.s2)
    whole = Stack.from_xarray(dataset)
    np.testing.assert_array_equal(whole.s2, stack.s2)
    np.testing.assert_array_equal(whole.s1, stack.s1)
    np.testing.assert_array_equal(whole.dates, stack.dates)


def test_a_dataset_of_band_variables_is_a_stack() -> None:
    stack = makers.dn_stack()
    array = makers.make_dataset(stack)["s2"]
    names = {band: f"B{band[1:]:0>2}" for band in bands.S2}
    dataset = array.to_dataset("band").rename(names)
    np.testing.assert_array_equal(Stack.from_xarray(dataset).s2, stack.s2)
    np.testing.assert_array_equal(Stack.from_xarray(array).s2, stack.s2)


def test_every_kind_of_scene_is_picklable(tmp_path: Path) -> None:
    stack = makers.dn_stack(native=True, s1=True)
    kinds = {
        "geotiff": makers.write_geotiff_scene(tmp_path / "tif", stack),
        "safe": makers.write_safe(tmp_path / "safe", stack),
        "stac": [makers.write_stac(tmp_path / "stac", stack)],
        "zarr": [makers.write_zarr(tmp_path / "cube.zarr", stack)],
    }
    radar = makers.write_s1(tmp_path / "s1", stack)
    tile = Tile(30, 40, 50, 60)
    for name, inputs in kinds.items():
        scene = open_scene(inputs, s1=radar)
        read = scene.read(tile)
        copy = pickle.loads(pickle.dumps(scene)).read(tile)
        np.testing.assert_array_equal(copy.s2, stack.crop(tile).s2, err_msg=name)
        np.testing.assert_array_equal(copy.s1, read.s1, err_msg=name)
        np.testing.assert_allclose(copy.s1, stack.crop(tile).s1, err_msg=name)


def test_no_data_is_nan_but_a_single_dark_band_is_not(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    dn = makers.digital_numbers(stack)[0]
    dn[:, :10] = 0  # no data
    dn[10, 20:30] = 0  # a dark cirrus band
    read = read_all(makers.write_raster(tmp_path / "20180601.tif", dn, makers.GRID)).s2[0]
    assert np.isnan(read[:, :10]).all()
    assert (read[10, 20:30] == 0).all()
    assert np.isfinite(read[:, 10:]).all()


def test_zero_with_an_offset_is_no_data_in_each_band(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2023-06-01",))
    dn = makers.digital_numbers(stack, -1000)[0]
    dn[3, :5] = 0
    read = read_all(makers.write_raster(tmp_path / "20230601.tif", dn, makers.GRID), offset=-1000)
    assert np.isnan(read.s2[0, 3, :5]).all()
    assert np.isfinite(read.s2[0, 2]).all()


def test_a_declared_no_data_value_is_nan(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    values = stack.s2[0].copy()
    values[:, 5, 7] = -9999
    values[:, 5, 8] = 0
    path = makers.write_raster(tmp_path / "20180601.tif", values, makers.GRID, nodata=-9999)
    read = read_all(path).s2[0]
    assert np.isnan(read[:, 5, 7]).all()
    assert (read[:, 5, 8] == 0).all()


def test_mask_files_are_true_where_not_zero(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01", "2018-06-11"))
    masks = np.random.default_rng(3).random((2, makers.GRID.height, makers.GRID.width)) < 0.4
    files = [
        makers.write_raster(tmp_path / "masks" / f"{i}.tif", m[None].astype("uint8"), makers.GRID)
        for i, m in enumerate(masks)
    ]
    read = read_all(*makers.write_geotiff_scene(tmp_path, stack), masks=files)
    np.testing.assert_array_equal(read.mask, masks)


def test_dates_come_from_the_name_a_tag_or_the_caller(tmp_path: Path) -> None:
    dn = makers.digital_numbers(makers.dn_stack(("2018-06-01",)))[0]
    for name, tags in (
        ("S2A_MSIL1C_20180621T105031_N0206_R051_T31UFS_20190101T000000.tif", {}),
        ("scene_2018-06-21.tif", {"ACQUISITION_DATE": "2017-01-01"}),
        ("scene.tif", {"TIFFTAG_DATETIME": "2018:06:21 10:50:31"}),
        ("other.tif", {"ACQUISITION_DATE": "2018-06-21T10:50:31Z"}),
    ):
        path = makers.write_raster(tmp_path / name, dn, makers.GRID, tags=tags)
        assert str(open_scene([path]).dates[0]) == "2018-06-21", name
    assert str(open_scene([path], dates=["2020-02-02"]).dates[0]) == "2020-02-02"


def test_an_estimate_goes_to_xarray_and_back_to_a_grid(tmp_path: Path) -> None:
    from undercast.readers.cube import Cube
    from undercast.types import Estimate

    shape = (bands.N_S2, makers.GRID.height, makers.GRID.width)
    estimate = Estimate(np.full(shape, 0.2, np.float32), np.full(shape, 0.01, np.float32))
    dataset = estimate.to_xarray(makers.GRID, "2018-06-21")
    assert Cube("", dataset).grid == makers.GRID
    np.testing.assert_array_equal(dataset["variance"].values, estimate.variance)
    assert list(dataset["band"].values) == list(bands.S2)
    assert str(dataset["time"].values)[:10] == "2018-06-21"
    assert "variance" not in Estimate(estimate.mean).to_xarray()


def test_only_the_window_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    scene = open_scene(makers.write_geotiff_scene(tmp_path, stack))
    seen = []
    read = rasterio.io.DatasetReader.read

    def counting(self: object, *args: object, **options: object) -> np.ndarray:
        values = read(self, *args, **options)
        seen.append(values.shape)
        return values

    monkeypatch.setattr("undercast.readers.raster.dataset", lambda href: Spy(href, counting))
    scene.read(Tile(10, 20, 30, 40))
    assert seen == [(13, 30, 40)]


class Spy:
    """A dataset whose reads are counted: DatasetReader itself cannot be patched."""

    def __init__(self, href: str, read: object) -> None:
        self._file, self._read = rasterio.open(href), read

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def read(self, *args: object, **options: object) -> np.ndarray:
        return self._read(self._file, *args, **options)
