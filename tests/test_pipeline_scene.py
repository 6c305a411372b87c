"""From files to a product: pixels, nodata, kept pixels, resume, disks and bad input."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.env import get_gdal_config

from scene_files import (
    DATES,
    EMPTY_ROWS,
    HEIGHT,
    WIDTH,
    stored,
    write_tif,
)
from undercast import bands, load_model, predict, predict_scene, tilework
from undercast.cli import main
from undercast.errors import UndercastWarning
from undercast.inference import infer_some
from undercast.models.system import Model
from undercast.pipeline import open_scene
from undercast.product import WORK, read_product
from undercast.products.quality import Flag
from undercast.tilework import cache_bytes, gdal_cache
from undercast.types import Estimate, Stack, Tile


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
    kept = masks_told("kept", weights, keep_clear=True)
    assert all(mask is not None for mask in kept)  # by s2cloudless
    with monkeypatch.context() as without:
        without.setattr("undercast.masks._has_s2cloudless", lambda: False)
        with pytest.warns(UndercastWarning, match="by rules instead"):
            kept = masks_told("kept by rules", weights, keep_clear=True)
        assert kept == [None] * len(given)
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
