"""Scenes: windows, grids, dates and the errors that bad inputs give."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.warp import transform as transform_points

import makers
from undercast import bands
from undercast.errors import DataError, InputError, UndercastWarning
from undercast.scene import Scene, choose_dates, open_scene, sample_tiles
from undercast.types import Grid, Stack, Tile

WHOLE = Tile(0, 0, makers.GRID.height, makers.GRID.width)
EAST = Grid("EPSG:32632", (10.0, 0.0, 183100.0, 0.0, -10.0, 5708800.0), 120, 100)  # the same place


def gradient(grid: Grid, x0: float = 600000.0, y0: float = 5700000.0) -> np.ndarray:
    """(13, H, W) reflectance that rises with x and falls with y of EPSG:32631."""
    a, _, c, _, e, f = grid.transform
    cols, rows = np.meshgrid(np.arange(grid.width) + 0.5, np.arange(grid.height) + 0.5)
    x, y = c + a * cols, f + e * rows
    if grid.crs != "EPSG:32631":
        x, y = (
            np.reshape(v, cols.shape)
            for v in transform_points(grid.crs, "EPSG:32631", x.ravel(), y.ravel())[:2]
        )
    plane = 0.3 + (x - x0) * 1e-4 + (y - y0) * 0.5e-4
    return np.stack([plane * (1 + 0.05 * band) for band in range(bands.N_S2)]).astype(np.float32)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Scene, Stack]]:
    """Scenes of every format, one of them warped, and all of each."""
    folder = tmp_path_factory.mktemp("scenes")
    stack = makers.dn_stack(native=True, s1=True)
    files = makers.write_geotiff_scene(folder / "tif", stack)
    radar = makers.write_s1(folder / "s1", stack)
    shifted = Grid(makers.GRID.crs, (10.0, 0, 600013.0, 0, -10.0, 5699989.0), 110, 100)
    found = {
        "geotiff": open_scene(files, s1=radar),
        "safe": open_scene(makers.write_safe(folder / "safe", stack, level="L2A")),
        "zarr": open_scene([makers.write_zarr(folder / "cube.zarr", stack)]),
        "warped geotiff": open_scene(files, like=EAST, s1=radar),
        "warped zarr": open_scene([folder / "cube.zarr"], like=shifted),
        "warped safe": open_scene(list((folder / "safe").iterdir()), like=shifted),
    }
    return {
        name: (scene, scene.read(Tile(0, 0, scene.grid.height, scene.grid.width)))
        for name, scene in found.items()
    }


KINDS = ("geotiff", "safe", "zarr", "warped geotiff", "warped zarr", "warped safe")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_a_window_is_the_crop_of_the_whole(
    scenes: dict[str, tuple[Scene, Stack]], kind: str, data: st.DataObject
) -> None:
    scene, whole = scenes[kind]
    height = data.draw(st.integers(1, 60))
    width = data.draw(st.integers(1, 60))
    row = data.draw(st.integers(0, scene.grid.height - height))
    col = data.draw(st.integers(0, scene.grid.width - width))
    tile = Tile(row, col, height, width)
    part, expected = scene.read(tile), whole.crop(tile)
    # GDAL computes warped coordinates relative to the window: the last bits may differ.
    tolerance = 1e-6 if "warped" in kind else 0.0
    np.testing.assert_allclose(part.s2, expected.s2, rtol=0, atol=tolerance)
    if whole.s1 is not None:
        np.testing.assert_allclose(part.s1, expected.s1, rtol=0, atol=1000 * tolerance)
    if whole.mask is not None:
        np.testing.assert_array_equal(part.mask, expected.mask)


def test_threads_read_what_one_thread_reads(scenes: dict[str, tuple[Scene, Stack]]) -> None:
    scene, whole = scenes["geotiff"]
    tiles = [Tile(r, c, 30, 30) for r in range(0, 100, 10) for c in range(0, 90, 10)]
    with ThreadPoolExecutor(4) as pool:
        for tile, part in zip(tiles, pool.map(scene.read, tiles), strict=True):
            np.testing.assert_array_equal(part.s2, whole.crop(tile).s2)


@pytest.mark.parametrize(
    "like",
    [Grid("EPSG:32631", (10.0, 0, 600203.0, 0, -10.0, 5699787.0), 90, 80), EAST],
    ids=["shifted", "other CRS"],
)
@pytest.mark.parametrize("form", ["geotiff", "zarr"])
def test_warping_a_gradient_gives_the_gradient_there(tmp_path: Path, like: Grid, form: str) -> None:
    big = Grid("EPSG:32631", (10.0, 0, 599000.0, 0, -10.0, 5701000.0), 400, 400)
    stack = Stack(gradient(big)[None], ["2018-06-01"])
    if form == "zarr":
        source = makers.write_zarr(tmp_path / "a.zarr", stack, big, integers=False)
    else:
        source = makers.write_geotiff_scene(tmp_path, stack, big, dtype="float32")[0]
    scene = open_scene([source], like=like)
    read = scene.read(Tile(0, 0, like.height, like.width)).s2[0]
    seen = np.isfinite(read[0])
    assert seen.mean() > 0.5
    assert np.abs(read - gradient(like))[:, seen].max() < 2e-6
    assert any("warped" in message for message in scene.info.messages)


def test_dates_on_other_grids_come_onto_the_first_and_are_nan_outside(tmp_path: Path) -> None:
    moved = Grid("EPSG:32631", (10.0, 0, 600500.0, 0, -10.0, 5700000.0), 132, 120)  # 50 pixels east
    first = makers.write_geotiff_scene(tmp_path, makers.dn_stack(("2018-06-01",)))
    later = makers.dn_stack(("2018-06-11",), seed=1)
    second = makers.write_geotiff_scene(tmp_path, later, moved)
    scene = open_scene([*first, *second])
    read = scene.read(WHOLE)
    assert scene.grid == makers.GRID
    assert np.isnan(read.s2[1, :, :, :50]).all()
    np.testing.assert_array_equal(read.s2[1, :, :, 50:], later.s2[0, :, :, :70])
    assert scene.info.messages == ()  # whole pixels: nothing was interpolated


def test_like_may_be_a_file(tmp_path: Path) -> None:
    files = makers.write_geotiff_scene(tmp_path, makers.dn_stack())
    part = Grid(makers.GRID.crs, (10.0, 0, 600100.0, 0, -10.0, 5699900.0), 40, 50)
    like = makers.write_raster(tmp_path / "like.tif", np.ones((1, 40, 50), "uint8"), part)
    assert open_scene(files, like=like).grid == part


def test_scenes_are_in_order_of_time_whatever_the_order_of_files(tmp_path: Path) -> None:
    stack = makers.dn_stack()
    files = makers.write_geotiff_scene(tmp_path, stack)
    read = open_scene([files[2], files[0], files[1]]).read(WHOLE)
    np.testing.assert_array_equal(read.dates, stack.dates)
    np.testing.assert_array_equal(read.s2, stack.s2)


@pytest.mark.parametrize("count", [10, 12])
def test_missing_bands_are_filled_by_rule_and_flagged(tmp_path: Path, count: int) -> None:
    stack = makers.dn_stack(("2018-06-01",))
    gone = {10: ("B1", "B9", "B10"), 12: ("B10",)}[count]
    keep = [i for i, band in enumerate(bands.S2) if band not in gone]
    dn = makers.digital_numbers(stack)[0, keep]
    dn[:, 0, 0] = 0
    scene = open_scene([makers.write_raster(tmp_path / "20180601.tif", dn, makers.GRID)])
    read = scene.read(WHOLE).s2[0]
    assert scene.info.missing_bands == gone
    b2, b4, b8a = (stack.s2[0, i, 1:].astype(float) for i in (1, 3, 8))
    np.testing.assert_allclose(read[10, 1:], 0.0013, rtol=1e-6)
    if count == 10:
        np.testing.assert_allclose(read[0, 1:], 0.032 + 1.171 * b2 - 0.253 * b4, atol=1e-6)
        np.testing.assert_allclose(read[9, 1:], -0.010 + 0.157 * b8a + 0.259 * b2, atol=1e-6)
    assert np.isnan(read[:, 0, 0]).all()
    assert any("filled by rule" in message for message in scene.info.messages)


# Bad inputs: each one line that names the file and says what to do.


def test_no_input_is_an_error() -> None:
    with pytest.raises(InputError, match="got no images"):
        open_scene([])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_scene([tmp_path / "20180601.tif"])


def test_a_truncated_geotiff_is_an_error(tmp_path: Path) -> None:
    path = makers.write_geotiff_scene(tmp_path, makers.dn_stack(("2018-06-01",)))[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match=r"cannot read .*20180601.*") as error:
        open_scene([path])
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_raster_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "20180601.tif"
    path.write_text("hello")
    with pytest.raises(DataError, match="cannot read"):
        open_scene([path])


def test_eleven_bands_are_an_error(tmp_path: Path) -> None:
    dn = makers.digital_numbers(makers.dn_stack(("2018-06-01",)))[0, :11]
    with pytest.raises(InputError, match="with 11 bands, expected 13"):
        open_scene([makers.write_raster(tmp_path / "20180601.tif", dn, makers.GRID)])


def test_an_image_without_a_date_is_an_error(tmp_path: Path) -> None:
    dn = makers.digital_numbers(makers.dn_stack(("2018-06-01",)))[0]
    with pytest.raises(InputError, match="without a date"):
        open_scene([makers.write_raster(tmp_path / "scene.tif", dn, makers.GRID)])


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_an_image_without_georeference_is_an_error(tmp_path: Path) -> None:
    dn = makers.digital_numbers(makers.dn_stack(("2018-06-01",)))[0]
    path = tmp_path / "20180601.tif"
    options = {"count": 13, "height": 132, "width": 120, "dtype": "uint16", "driver": "GTiff"}
    with rasterio.open(path, "w", **options) as file:
        file.write(dn)
    with pytest.raises(InputError, match="without georeference"):
        open_scene([path])


def test_eight_bits_are_an_error(tmp_path: Path) -> None:
    image = np.full((13, 132, 120), 7, np.uint8)
    with pytest.raises(InputError, match="of 8 bits"):
        open_scene([makers.write_raster(tmp_path / "20180601.tif", image, makers.GRID)])


@pytest.mark.parametrize("crs", ["EPSG:32631", "EPSG:32755"])
def test_images_without_overlap_are_an_error(tmp_path: Path, crs: str) -> None:
    far = Grid(crs, (10.0, 0, 300000.0, 0, -10.0, 5100000.0), 132, 120)
    files = makers.write_geotiff_scene(tmp_path, makers.dn_stack(("2018-06-01",)))
    files += makers.write_geotiff_scene(tmp_path, makers.dn_stack(("2018-06-11",)), far)
    with pytest.raises(InputError, match="does not overlap"):
        open_scene(files)


def test_the_same_file_twice_is_an_error(tmp_path: Path) -> None:
    file = makers.write_geotiff_scene(tmp_path, makers.dn_stack(("2018-06-01",)))[0]
    with pytest.raises(InputError, match="same acquisition twice"):
        open_scene([file, file])


def test_a_copy_of_the_pixels_under_another_name_is_an_error(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01", "2018-06-11"))
    files = makers.write_geotiff_scene(tmp_path, stack)
    other = makers.write_geotiff_scene(tmp_path / "copy", stack.select([0]), compress="deflate")
    with pytest.raises(InputError, match="same acquisition twice"):
        open_scene([*files, *other])


def test_the_same_tile_and_time_in_two_products_is_an_error(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01",), native=True)
    products = makers.write_safe(tmp_path, stack)
    products += makers.write_safe(tmp_path, stack, level="L2A")
    with pytest.raises(InputError, match="same acquisition twice"):
        open_scene(products)


def test_two_different_images_of_one_day_are_fine(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01", "2018-06-01"))
    assert len(open_scene(makers.write_geotiff_scene(tmp_path, stack)).dates) == 2


def test_mixed_levels_warn(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01", "2018-06-11"), native=True)
    products = makers.write_safe(tmp_path / "a", stack.select([0]))
    products += makers.write_safe(tmp_path / "b", stack.select([1]), level="L2A")
    with pytest.warns(UndercastWarning, match="level 1C and level 2A"):
        scene = open_scene(products)
    assert scene.info.level == "mixed"
    assert scene.read(WHOLE).mask is None


def test_all_no_data_is_an_error(tmp_path: Path) -> None:
    image = np.zeros((13, 400, 300), np.uint16)
    grid = Grid("EPSG:32631", (10.0, 0, 6e5, 0, -10.0, 5.7e6), 400, 300)
    with pytest.raises(InputError, match="no data in all 1 images"):
        open_scene([makers.write_raster(tmp_path / "20180601.tif", image, grid)])
    image[:, 333, 222] = 1000  # one observed pixel between the samples
    assert open_scene([makers.write_raster(tmp_path / "20180602.tif", image, grid)])


@pytest.mark.parametrize("damage", ["metadata", "doctype", "image", "zip"])
def test_an_unreadable_safe_is_an_error(tmp_path: Path, damage: str) -> None:
    stack = makers.dn_stack(("2018-06-01",), native=True)
    product = makers.write_safe(tmp_path, stack, zipped=damage == "zip")[0]
    metadata = product / "MTD_MSIL1C.xml"
    if damage == "metadata":
        metadata.unlink()
    elif damage == "doctype":
        metadata.write_text('<!DOCTYPE x [<!ENTITY a "b">]>' + metadata.read_text()[55:])
    elif damage == "image":
        next(product.rglob("*_B05.jp2")).unlink()
    else:
        product.write_bytes(product.read_bytes()[:5000])
    with pytest.raises(DataError, match="cannot read") as error:
        open_scene([product])
    assert "\n" not in str(error.value)


def test_a_json_that_is_no_stac_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    for text in ("{", '{"type": "Feature"}', "[]"):
        path.write_text(text)
        with pytest.raises(DataError, match="as STAC"):
            open_scene([path])
    path.write_text('{"type": "FeatureCollection", "features": []}')
    with pytest.raises(InputError, match="no items"):
        open_scene([path])


def test_a_folder_that_is_no_zarr_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(DataError, match="as a Zarr store"):
        open_scene([tmp_path / "a.zarr"])


def test_wrong_numbers_of_dates_and_masks_are_errors(tmp_path: Path) -> None:
    files = makers.write_geotiff_scene(tmp_path, makers.dn_stack())
    with pytest.raises(InputError, match="2 dates for 3 images"):
        open_scene(files, dates=["2018-06-01", "2018-06-11"])
    with pytest.raises(InputError, match="1 masks for 3 images"):
        open_scene(files, masks=files[:1])
    with pytest.raises(InputError, match="both: around=DATE, count=T"):
        open_scene(files, around="2018-06-01")
    with pytest.raises(InputError, match="baseline 'five'"):
        open_scene(files, baseline="five")


def test_an_offset_that_was_not_removed_warns(tmp_path: Path) -> None:
    clear = makers.dn_stack(("2023-06-01",)).s2 * 0.3
    clear[:, 10] = 0.001
    stack = Stack(np.rint(clear * 10000) / 10000, ["2023-06-01"])
    dn = makers.digital_numbers(stack, -1000)[0]
    path = makers.write_raster(tmp_path / "20230601.tif", dn, makers.GRID)
    with pytest.warns(UndercastWarning, match="carried the \\+1000"):
        open_scene([path])
    open_scene([path], offset=0)  # who says so is believed


def test_an_offset_that_was_removed_before_warns(tmp_path: Path) -> None:
    stack = Stack(makers.dn_stack().s2 * 0.2, makers.dn_stack().dates)
    path = makers.write_stac(tmp_path, stack)
    path.write_text(path.read_text().replace('"offset": 0.0', '"offset": -0.1'))
    with pytest.warns(UndercastWarning, match="it was removed before"):
        open_scene([path])
    assert np.nanmin(open_scene([path], offset=0).read(WHOLE).s2) > 0


# Dates


def test_choice_prefers_near_and_clear() -> None:
    dates = ["2018-01-01", "2018-05-30", "2018-06-01", "2018-06-03", "2018-06-10"]
    chosen = choose_dates(dates, [0.0, 0.2, 0.9, 0.3, 0.1], "2018-06-01", 3)
    assert chosen.tolist() == [
        1,
        3,
        4,
    ]  # not the clear one of winter, not the cloudy one of the day


@given(
    gaps=st.lists(st.integers(-200, 200), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_choice_ignores_order_and_clearing_a_chosen_date_keeps_it(
    gaps: list[int], seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    dates = np.datetime64("2018-06-01") + np.array(gaps)
    cover = rng.random(len(gaps))
    count = data.draw(st.integers(1, len(gaps)))
    chosen = choose_dates(dates, cover, "2018-06-01", count)
    assert len(set(chosen.tolist())) == count
    assert (np.diff(dates[chosen].astype(int)) >= 0).all()
    order = rng.permutation(len(gaps))
    again = order[choose_dates(dates[order], cover[order], "2018-06-01", count)]
    np.testing.assert_allclose(np.sort(cover[again]), np.sort(cover[chosen]))
    cover[chosen[0]] *= 0.5
    assert chosen[0] in choose_dates(dates, cover, "2018-06-01", count)


def test_choice_refuses_impossible_counts_and_covers() -> None:
    with pytest.raises(InputError, match="count 3 for 2 dates"):
        choose_dates(["2018-06-01", "2018-06-02"], [0, 0], "2018-06-01", 3)
    with pytest.raises(InputError, match="between 0 and 1"):
        choose_dates(["2018-06-01"], [45.0], "2018-06-01", 1)


def test_around_and_count_pick_clear_dates_from_files(tmp_path: Path) -> None:
    stack = makers.dn_stack(("2018-06-01", "2018-06-06", "2018-06-11", "2018-06-16"))
    cloudy = np.zeros((4, 132, 120), np.uint8)
    cloudy[1] = 1
    cloudy[2, :100] = 1
    masks = [
        makers.write_raster(tmp_path / "masks" / f"{i}.tif", mask[None], makers.GRID)
        for i, mask in enumerate(cloudy)
    ]
    files = makers.write_geotiff_scene(tmp_path, stack)
    scene = open_scene(files, masks=masks, around="2018-06-06", count=2)
    assert scene.dates.astype(str).tolist() == ["2018-06-01", "2018-06-16"]


def test_around_and_count_find_clouds_themselves(tmp_path: Path) -> None:
    clear = makers.dn_stack(("2018-06-01", "2018-06-06", "2018-06-11"))
    s2 = clear.s2 * 0.2
    s2[:, 10] = 0.001
    s2[1] = 0.7
    s2[1, 10] = 0.05
    stack = Stack(np.rint(s2 * 10000) / 10000, clear.dates)
    scene = open_scene(makers.write_geotiff_scene(tmp_path, stack), around="2018-06-06", count=2)
    assert scene.dates.astype(str).tolist() == ["2018-06-01", "2018-06-11"]


@given(height=st.integers(1, 900), width=st.integers(1, 900))
def test_samples_lie_inside_and_reach_both_ends(height: int, width: int) -> None:
    tiles = sample_tiles(Grid("EPSG:32631", (10, 0, 0, 0, -10, 0), height, width))
    assert len(set(tiles)) == len(tiles) <= 16
    assert min(t.row for t in tiles) == min(t.col for t in tiles) == 0
    assert max(t.row + t.height for t in tiles) == height
    assert max(t.col + t.width for t in tiles) == width


# A STAC API on this machine


class Api(BaseHTTPRequestHandler):
    """The two answers of a STAC API that a search needs."""

    def __init__(self, items: Path, *args: object) -> None:
        self.items = items
        super().__init__(*args)

    def do_GET(self) -> None:
        root = f"http://{self.headers['Host']}"
        self._answer(
            {
                "type": "Catalog", "id": "api", "stac_version": "1.0.0", "description": "test",
                "conformsTo": ["https://api.stacspec.org/v1.0.0/core",
                               "https://api.stacspec.org/v1.0.0/item-search"],
                "links": [{"rel": "self", "href": root}, {"rel": "root", "href": root},
                          {"rel": "search", "href": f"{root}/search", "method": "POST",
                           "type": "application/geo+json"}],
            }
        )  # fmt: skip

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = json.loads(self.items.read_text())
        for item in found["features"]:
            for asset in item["assets"].values():
                asset["href"] = str(self.items.parent / asset["href"])
        found["features"] = [
            i for i in found["features"] if i["collection"] in asked["collections"]
        ]
        self._answer(found)

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def test_a_search_of_a_stac_api_is_a_scene(tmp_path: Path) -> None:
    stack = makers.dn_stack()
    items = makers.write_stac(tmp_path, stack)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Api, items))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/search?collections="
        scene = open_scene([address + "sentinel-2-l1c"])
        np.testing.assert_array_equal(scene.read(WHOLE).s2, stack.s2)
        with pytest.raises(InputError, match="no items"):
            open_scene([address + "sentinel-2-l2a"])
    finally:
        server.shutdown()
        server.server_close()
