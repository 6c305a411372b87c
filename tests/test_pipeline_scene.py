"""From files to a product: pixels, nodata, kept pixels, resume, disks and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from rasterio.env import get_gdal_config
from rasterio.transform import from_origin

from undercast import bands, load_model, predict, predict_scene, tilework
from undercast.checkpoint import save_model
from undercast.cli import main
from undercast.errors import ConfigError, DataError, InputError, UndercastError, UndercastWarning
from undercast.inference import infer_some
from undercast.models import create
from undercast.models.system import Model
from undercast.pipeline import open_scene
from undercast.product import WORK, read_product
from undercast.products.quality import Flag
from undercast.tilework import cache_bytes, gdal_cache
from undercast.types import Estimate, Stack, Tile

DATES = ("2018-06-01", "2018-06-11", "2018-06-21")
HEIGHT, WIDTH = 600, 40  # four rows of tiles, each one narrow tile
EMPTY_ROWS = 20


def write_tif(path: Path, values: np.ndarray, **extra: Any) -> Path:
    count, height, width = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", count=count, height=height, width=width, dtype=values.dtype,
        crs="EPSG:32631", transform=from_origin(500000, 4600000, 10, 10), **extra,
    ) as file:  # fmt: skip
        file.write(values)
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three dates with a cloud each, masks, and no data at the top, as GeoTIFFs."""
    folder = tmp_path_factory.mktemp("scene")
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(0.02, 0.3, (1, 13, 40, 5)))
    ground = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic")[0].numpy()
    files, masks, numbers, clouds = [], [], [], []
    for i, date in enumerate(DATES):
        cloud = np.zeros((HEIGHT, WIDTH), bool)
        cloud[100 + 150 * i : 260 + 150 * i] = True  # rows 250..260 are never without cloud
        cloud[250:260] = True
        dn = np.clip(np.rint(10000 * (ground + rng.normal(0, 0.004, ground.shape))), 1, 10000)
        dn[:, cloud] = 7500
        dn[:, :EMPTY_ROWS] = 0
        files.append(write_tif(folder / f"s2_{date}.tif", dn.astype(np.uint16), nodata=0))
        masks.append(write_tif(folder / f"mask_{date}.tif", cloud[None].astype(np.uint8)))
        numbers.append(dn)
        clouds.append(cloud)
    return {
        "files": files, "masks": masks, "dn": np.array(numbers), "cloud": np.array(clouds),
        "folder": folder,
    }  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create("uncrtaints", d_m=16, heads=4, n_d=1, sar=False)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_model(model, path)
    return path


@pytest.fixture(scope="module")
def product(scene: dict[str, Any], weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished product, not to be changed."""
    out = tmp_path_factory.mktemp("product") / "out"
    predict_scene(scene["files"], out, weights, masks=scene["masks"], progress=False)
    return out


def stored(folder: Path, name: str) -> np.ndarray:
    with rasterio.open(folder / f"{name}.tif") as file:
        return np.asarray(file.read())


def test_the_product_is_the_prediction_of_the_stack_to_the_stored_number(
    scene: dict[str, Any], weights: Path, product: Path
) -> None:
    read = open_scene(scene["files"]).read(Tile(0, 0, HEIGHT, WIDTH))
    expected = predict(load_model(weights), read)
    found = read_product(product)
    np.testing.assert_allclose(found["mean"], expected.mean, atol=0.51e-4)
    np.testing.assert_allclose(found["sigma"], expected.sigma, atol=0.51e-5)
    assert np.isnan(found["mean"][:, :EMPTY_ROWS]).all()
    assert np.isfinite(found["mean"][:, EMPTY_ROWS:]).all()


def test_quality_counts_clear_dates_and_flags_what_the_model_made_up(
    scene: dict[str, Any], product: Path
) -> None:
    count, days, flags = stored(product, "quality")
    clear = ~scene["cloud"]
    np.testing.assert_array_equal(count[EMPTY_ROWS:], clear.sum(axis=0)[EMPTY_ROWS:])
    assert (count[:EMPTY_ROWS] == -32768).all()
    assert (flags[:EMPTY_ROWS] == Flag.NODATA).all()
    assert (flags[252] == Flag.EXTRAPOLATED | Flag.MISSING_SAR).all()
    assert (flags[90] == Flag.MISSING_SAR).all()
    assert (days[252] == -32768).all()
    assert (days[90] == 0).all()  # clear on the middle date
    assert (days[265] == -10).all()  # clear on the first and the last: the earlier in a tie


def test_the_item_says_when_where_what_and_how(scene: dict[str, Any], product: Path) -> None:
    item = json.loads((product / "item.json").read_text())
    properties = item["properties"]
    assert properties["start_datetime"] == "2018-06-01T00:00:00Z"
    assert properties["end_datetime"] == "2018-06-21T23:59:59Z"
    assert properties["undercast:reference_date"] == "2018-06-11"
    assert [entry["date"] for entry in properties["undercast:inputs"]] == list(DATES)
    assert all(len(entry["sha256"]) == 64 for entry in properties["undercast:inputs"])
    assert properties["undercast:model"]["name"] == "uncrtaints"
    assert set(item["assets"]) == {"mean", "sigma", "quality", "quicklook"}
    assert not (product / WORK).exists()
    assert (product / "quicklook.png").read_bytes().startswith(b"\x89PNG")


def test_clear_pixels_of_the_reference_date_are_kept_to_the_digital_number(
    scene: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    predict_scene(
        scene["files"], out, weights, masks=scene["masks"], keep_clear=True, progress=False
    )
    mean, sigma, flags = stored(out, "mean"), stored(out, "sigma"), stored(out, "quality")[2]
    keep = ~scene["cloud"][1]
    keep[:EMPTY_ROWS] = False
    np.testing.assert_array_equal(mean[:, keep], scene["dn"][1][:, keep])
    assert (sigma[:, keep] == 316).all()  # √1e-5 reflectance
    np.testing.assert_array_equal((flags & Flag.KEPT) > 0, keep)
    changed = ~keep
    changed[:EMPTY_ROWS] = False
    assert (mean[:, changed] != scene["dn"][1][:, changed]).mean() > 0.9


def test_uncertain_pixels_become_no_data_and_say_so(
    scene: dict[str, Any], weights: Path, product: Path, tmp_path: Path
) -> None:
    sigma = read_product(product)["sigma"]
    rms = np.sqrt((sigma**2).mean(axis=0))
    limit = float(np.nanmedian(rms))
    out = tmp_path / "out"
    predict_scene(
        scene["files"], out, weights, masks=scene["masks"], mask_above=limit, progress=False
    )
    masked = np.isnan(read_product(out)["mean"]).all(axis=0)
    decided = np.abs(rms - limit) > 1e-5  # further than the rounding of the stored sigma
    np.testing.assert_array_equal(masked[decided], ~(rms <= limit)[decided])
    flagged = (stored(out, "quality")[2] & Flag.UNCERTAIN) > 0
    np.testing.assert_array_equal(flagged[EMPTY_ROWS:], masked[EMPTY_ROWS:])
    np.testing.assert_array_equal(stored(out, "sigma"), stored(product, "sigma"))


def test_float32_and_zarr_hold_the_same_numbers(
    scene: dict[str, Any], weights: Path, product: Path, tmp_path: Path
) -> None:
    xarray = pytest.importorskip("xarray")
    out = tmp_path / "out"
    predict_scene(
        scene["files"], out, weights, masks=scene["masks"], dtype="float32", zarr=True,
        progress=False,
    )  # fmt: skip
    found, rounded = read_product(out), read_product(product)
    np.testing.assert_allclose(found["mean"], rounded["mean"], atol=0.51e-4)
    store = xarray.open_zarr(out / "product.zarr", consolidated=False)
    np.testing.assert_array_equal(store["mean"].values, found["mean"])
    raw = xarray.open_zarr(out / "product.zarr", consolidated=False, mask_and_scale=False)
    np.testing.assert_array_equal(raw["quality"].values, stored(out, "quality"))
    assert store["mean_band"].values.tolist() == list(bands.S2)
    assert store["x"].values[:2].tolist() == [500005.0, 500015.0]


def test_scaled_zarr_is_decoded_by_xarray(
    scene: dict[str, Any], product: Path, tmp_path: Path
) -> None:
    xarray = pytest.importorskip("xarray")
    predict_scene(
        scene["files"], tmp_path / "out", "mosaic", masks=scene["masks"], zarr=True, progress=False
    )
    store = xarray.open_zarr(tmp_path / "out" / "product.zarr", consolidated=False)
    expected = read_product(tmp_path / "out")
    np.testing.assert_allclose(store["mean"].values, expected["mean"], atol=1e-6)
    np.testing.assert_allclose(store["sigma"].values, expected["sigma"], atol=1e-6)


def test_a_composite_needs_no_weights_and_averages_clear_dates(
    scene: dict[str, Any], tmp_path: Path
) -> None:
    predict_scene(scene["files"], tmp_path / "out", "mosaic", masks=scene["masks"], progress=False)
    usable = np.where(scene["cloud"].all(axis=0), True, ~scene["cloud"])
    expected = np.where(usable[:, None], scene["dn"], np.nan)
    expected = np.nanmean(expected, axis=0)[:, EMPTY_ROWS:]
    np.testing.assert_allclose(
        stored(tmp_path / "out", "mean")[:, EMPTY_ROWS:], expected, atol=0.51
    )


def test_batches_change_nothing_but_rounding(
    scene: dict[str, Any], weights: Path, product: Path, tmp_path: Path
) -> None:
    wide = tmp_path / "wide.tif"
    dn = np.concatenate([scene["dn"][0]] * 12, axis=2).astype(np.uint16)[:, :256]
    write_tif(wide, dn, nodata=0)
    for batch in (1, 3):
        predict_scene(
            wide, tmp_path / f"{batch}", weights, dates=["2018-06-01"], batch=batch, progress=False
        )
    one, three = (stored(tmp_path / f"{n}", "mean").astype(int) for n in (1, 3))
    assert np.abs(one - three).max() <= 1


class _Counting:
    """Counts the tiles that are read, and fails at one of them if told to."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.tiles: list[Tile] = []
        self.fail_at = fail_at

    def __call__(self, inputs: Any, **options: Any) -> Any:
        opened, counting = open_scene(inputs, **options), self

        class Wrapped:
            grid, dates, s1_dates, info = opened.grid, opened.dates, opened.s1_dates, opened.info
            has_masks = opened.has_masks

            def read(self, tile: Tile) -> Stack:
                counting.tiles.append(tile)
                if len(counting.tiles) - 1 == counting.fail_at:
                    raise ValueError("lightning")
                return opened.read(tile)

        return Wrapped()


def test_a_network_is_told_of_masks_but_not_of_those_by_rules(
    scene: dict[str, Any], weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[np.ndarray | None] = []

    def listening(model: Model, stacks: Sequence[Stack]) -> list[Estimate]:
        told.extend(stack.mask for stack in stacks)
        return infer_some(model, stacks)

    monkeypatch.setattr(tilework, "infer_some", listening)

    def masks_told(name: str, model: Any, **options: Any) -> list[np.ndarray | None]:
        told.clear()
        predict_scene(scene["files"], tmp_path / name, model, progress=False, **options)
        return list(told)

    empty = np.arange(HEIGHT)[:, None] < EMPTY_ROWS
    given = masks_told("given", weights, masks=scene["masks"])
    np.testing.assert_array_equal(given[0], (scene["cloud"] | empty)[:, :256])
    assert masks_told("rules", weights) == [None] * len(given)
    detected = masks_told("detected", weights, clouds="s2cloudless")
    assert all(mask is not None and mask.any() for mask in detected)
    # a composite cannot do without
    assert all(mask is not None for mask in masks_told("mosaic", "mosaic", clouds="rules"))
    # and the quality layer has the masks of rules in any case
    clear = stored(tmp_path / "rules", "quality")[0]
    assert 0 < (clear[EMPTY_ROWS:] == len(DATES)).mean() < 1


def test_the_number_of_threads_changes_no_file(
    scene: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    for threads in (1, 2):
        predict_scene(scene["files"], tmp_path / str(threads), weights, masks=scene["masks"],
                      progress=False, threads=threads)  # fmt: skip
    for name in ("mean.tif", "sigma.tif", "quality.tif"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_a_failed_tile_names_itself_and_resume_repeats_no_finished_row(
    scene: dict[str, Any], weights: Path, product: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = {"masks": scene["masks"], "progress": False}
    failing, counting = _Counting(fail_at=3), _Counting()
    monkeypatch.setattr("undercast.pipeline.open_scene", failing)
    with pytest.raises(UndercastError, match=r"row 344, column 0 failed: ValueError: lightning"):
        predict_scene(scene["files"], tmp_path / "out", weights, **run)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [WORK]
    with pytest.raises(DataError, match="unfinished run"):
        predict_scene(scene["files"], tmp_path / "out", weights, **run)
    with pytest.raises(InputError, match="other parameters"):
        predict_scene(scene["files"], tmp_path / "out", weights, resume=True, batch=2, **run)
    monkeypatch.setattr("undercast.pipeline.open_scene", counting)
    predict_scene(scene["files"], tmp_path / "out", weights, resume=True, **run)
    assert [tile.row for tile in counting.tiles] == [344]
    for name in ("mean", "sigma", "quality"):
        same = (tmp_path / "out" / f"{name}.tif").read_bytes()
        assert same == (product / f"{name}.tif").read_bytes(), name


def test_a_failure_before_the_first_row_leaves_nothing(
    scene: dict[str, Any], weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("undercast.pipeline.open_scene", _Counting(fail_at=0))
    with pytest.raises(UndercastError, match="row 0, column 0"):
        predict_scene(scene["files"], tmp_path / "out", weights, progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_run_leaves_no_final_file_and_is_resumed_to_the_same_bytes(
    scene: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    tall = [tmp_path / path.name for path in scene["files"]]
    for path, dn in zip(tall, scene["dn"], strict=True):
        write_tif(path, np.concatenate([dn] * 6, axis=1).astype(np.uint16), nodata=0)
    command = [sys.executable, "-m", "undercast", "predict", *map(str, tall), "--model",
               str(weights), "--threads", "1", "-o"]  # fmt: skip
    out, whole = tmp_path / "killed", tmp_path / "whole"
    run = subprocess.Popen([*command, str(out)], stderr=subprocess.DEVNULL)
    while not (out / WORK / "state.npz").exists() and run.poll() is None:
        time.sleep(0.002)
    os.kill(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [WORK]
    for folder, more in ((out, ["--resume"]), (whole, [])):
        subprocess.run([*command, str(folder), *more], check=True, capture_output=True)
    for name in ("mean.tif", "sigma.tif", "quality.tif", "quicklook.png"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize(
    ("size", "more", "said"),
    [
        ("1m", (), "expected at least"),  # too little from the beginning
        ("2m", (), "the disk is full"),  # while rows are written
        ("4600k", ("--float32",), ".tif: "),  # at the COGs
    ],
)
def test_a_full_disk_is_one_line_and_leaves_no_final_file(
    scene: dict[str, Any],
    tmp_path: Path,
    size: str,
    more: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        files = [str(path) for path in scene["files"]]
        masks = [str(path) for path in scene["masks"]]
        code = main(["predict", *files, "-o", str(disk / "out"), "--model", "mosaic",
                     "--masks", *masks, *more])  # fmt: skip
        captured = capsys.readouterr().err.splitlines()
        assert code == 2
        assert captured[-1].startswith("undercast: error: cannot write")
        assert "disk" in captured[-1]
        assert said in captured[-1]
        assert {p.name for p in disk.glob("out/*")} <= {WORK}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_height(scene: dict[str, Any], tmp_path: Path) -> None:
    """All arrays of numpy together; `benchmarks/scene.py` measures the whole process.

    Mean and variance of the three times taller scene alone would be 10 MB more, as much as the
    whole peak is. The peak itself varies, as reading, computing and writing overlap by chance.
    """
    peaks = []
    for times in (2, 6):
        path = tmp_path / f"tall{times}.tif"
        dn = np.concatenate([scene["dn"][0]] * times, axis=1).astype(np.uint16)
        write_tif(path, dn, nodata=0, tiled=True, blockxsize=16, blockysize=256)
        tracemalloc.start()
        predict_scene(
            path, tmp_path / f"out{times}", "mosaic", dates=DATES[:1], clouds="rules",
            progress=False,
        )  # fmt: skip
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    held = 2 * 13 * 4 * 4 * HEIGHT * WIDTH  # bytes that keeping mean and variance would add
    assert peaks[1] - peaks[0] < held / 2


def test_gdal_keeps_the_blocks_under_a_row_of_tiles(scene: dict[str, Any]) -> None:
    opened = open_scene(scene["files"])
    with gdal_cache(opened):
        inside = get_gdal_config("GDAL_CACHEMAX")
    assert inside == cache_bytes(opened) >= 64 << 20  # bytes, not megabytes
    wide = replace(opened, grid=replace(opened.grid, width=10980))
    high = replace(opened, grid=replace(opened.grid, height=10980))
    assert cache_bytes(high) == cache_bytes(opened) < cache_bytes(wide) <= 1 << 30


def test_an_existing_product_is_kept_unless_told_otherwise(
    scene: dict[str, Any], tmp_path: Path
) -> None:
    run = {"masks": scene["masks"], "progress": False}
    out = tmp_path / "out"
    predict_scene(scene["files"][:1], out, "mosaic", masks=scene["masks"][:1], progress=False)
    before = (out / "mean.tif").read_bytes()
    with pytest.raises(DataError, match=r"already holds mean\.tif"):
        predict_scene(scene["files"], out, "mosaic", **run)
    with pytest.raises(DataError, match="already holds"):  # there is nothing to resume
        predict_scene(scene["files"], out, "mosaic", resume=True, **run)
    assert (out / "mean.tif").read_bytes() == before
    predict_scene(scene["files"], out, "mosaic", overwrite=True, **run)
    assert (out / "mean.tif").read_bytes() != before


def test_bad_options_and_folders_are_refused(scene: dict[str, Any], tmp_path: Path) -> None:
    files = scene["files"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="unknown option colour"):
        predict_scene(files, tmp_path / "out", "mosaic", colour="red")
    with pytest.raises(ConfigError, match="batch"):
        predict_scene(files, tmp_path / "out", "mosaic", batch=0)
    with pytest.raises(InputError, match="dtype"):
        predict_scene(files, tmp_path / "out", "mosaic", dtype="int8", progress=False)
    with pytest.raises(DataError, match="is a file"):
        predict_scene(files, tmp_path / "file", "mosaic", progress=False)
    with pytest.raises(DataError, match="cannot write"):
        predict_scene(files, tmp_path / "file" / "out", "mosaic", progress=False)
    assert not (tmp_path / "out").exists()


def test_the_command_fails_in_one_line_with_exit_code_2(
    scene: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(path) for path in scene["files"]]
    out = ["-o", str(tmp_path / "out")]
    empty = write_tif(tmp_path / "e_2018-07-01.tif", np.zeros((13, 30, 30), np.uint16), nodata=0)
    for arguments, message in (
        ([*files, "--model", "nonsense"], "mosaic"),
        ([str(empty), "--model", "mosaic"], "no data"),
        ([files[0], files[0], "--model", "mosaic"], "twice"),
    ):
        assert main(["predict", *arguments, *out]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("undercast: error:")
        assert message in line
        assert not (tmp_path / "out").exists()


def test_the_command_writes_the_item_as_json(
    scene: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(path) for path in scene["files"]]
    masks = [str(path) for path in scene["masks"]]
    assert main(["predict", *files, "-o", str(tmp_path / "out"), "--model", "mosaic", "--masks",
                 *masks, "--float32", "--json", "-"]) == 0  # fmt: skip
    captured = capsys.readouterr()
    assert json.loads(captured.out)["type"] == "Feature"
    assert "4/4" in captured.err


def test_level_2a_for_weights_of_level_1c_warns(
    scene: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    level_2a = write_tif(
        tmp_path / "S2A_MSIL2A_20180601.tif", scene["dn"][0][:, 100:140].astype(np.uint16), nodata=0
    )
    with rasterio.open(level_2a, "r+") as file:
        file.update_tags(PROCESSING_LEVEL="Level-2A")
    assert open_scene([level_2a]).info.level == "L2A"
    with pytest.warns(UndercastWarning, match="trained on L1C and the scene is L2A"):
        predict_scene(level_2a, tmp_path / "out", weights, progress=False)
