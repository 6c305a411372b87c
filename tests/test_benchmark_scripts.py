"""The scripts of benchmarks/ that take a checkpoint do what they say, on small or made-up data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import rasterio
import torch

from undercast.checkpoint import save_model
from undercast.errors import DataError
from undercast.models import create

SCRIPTS = Path(__file__).resolve().parents[1] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"undercast_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_model(create("uncrtaints", d_m=16, heads=4, n_d=1), path)
    return path


def place(offset: int = 0, other_level: float = 1.0, size: int = 40) -> dict[str, np.ndarray]:
    """A place whose level 2A is its level 1C times a factor; B10 is what the rule gives."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(500, 4000, (13, size, size)).astype(np.int16)
    numbers[10] = 13
    twelve = np.delete(np.rint(numbers * other_level).astype(np.int16), 10, axis=0)
    return {
        "s2l1c": numbers + np.int16(offset),
        "s2l2a": twelve + np.int16(offset),
        "s1rtc_db": rng.uniform(-20, -5, (2, size, size)).astype(np.float32),
        "dn_offset_to_subtract": np.array(offset),
    }


def test_images_of_both_levels_lose_their_offset_and_get_a_filled_band() -> None:
    l2a = script("l2a")
    plain, shifted = place(), place(1000)
    for level in l2a.LEVELS:
        np.testing.assert_array_equal(
            l2a.clear_image(plain, level), l2a.clear_image(shifted, level)
        )
    np.testing.assert_allclose(l2a.clear_image(plain, "L1C"), plain["s2l1c"] / 1e4, rtol=1e-6)
    np.testing.assert_allclose(l2a.clear_image(plain, "L2A")[10], 0.0013, rtol=1e-6)


def test_both_levels_have_the_same_clouds_and_level_2a_no_cirrus() -> None:
    l2a = script("l2a")
    one, _ = l2a.cloudy_stack(place(), "L1C", 3)
    other, _ = l2a.cloudy_stack(place(), "L2A", 3)
    np.testing.assert_array_equal(one.mask, other.mask)
    assert one.mask.any()
    np.testing.assert_allclose(other.s2[:, 10], 0.0013, rtol=1e-6)
    np.testing.assert_array_equal(one.s2[:, l2a.SHARED], other.s2[:, l2a.SHARED])


def test_the_penalty_is_zero_where_the_levels_are_the_same_for_a_composite() -> None:
    l2a = script("l2a")
    rows = l2a.measure("mosaic", {"here": place()}, 2)
    assert len(rows) == 1 * 2 * 2 * 2
    for table in l2a.penalties(rows).values():
        assert set(table) == set(l2a.METRICS)
        assert all(levels["penalty"] == pytest.approx(0, abs=1e-6) for levels in table.values())


def test_the_penalty_is_the_difference_of_the_means() -> None:
    l2a = script("l2a")
    rows = [
        {"system": system, "level": level, **dict.fromkeys(l2a.METRICS, value)}
        for system in ("model", "mosaic")
        for level, values in (("L1C", (1.0, 3.0)), ("L2A", (0.0, 1.0)))
        for value in values
    ]
    assert l2a.penalties(rows)["model"]["PSNR"] == {"L1C": 2.0, "L2A": 0.5, "penalty": -1.5}


def test_the_level_2a_script_prints_a_table(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "terramesh_a.npz", **place(1000, 0.8))
    told = ["--model", str(weights), "--real", str(tmp_path), "--seeds", "1"]
    script("l2a").main([*told, "--json", str(tmp_path / "found.json")])
    assert "model, PSNR" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["penalties"]["model"]) == {"PSNR", "SAM", "correlation", "coverage_90"}
    assert len(found["rows"]) == 4


def test_a_folder_without_places_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="terramesh"):
        script("l2a").open_places(tmp_path)


def test_a_simulated_scene_becomes_a_product_and_a_picture(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["--model", str(weights), "--simulated", "--size", "64", "--out", str(tmp_path / "out")]
    script("spain").main([*told, "--picture", str(tmp_path / "docs.png"), "--shown", "32"])
    assert (tmp_path / "out/product/item.json").is_file()
    assert (tmp_path / "out/picture.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "docs.png").stat().st_size < 400_000
    found = json.loads((tmp_path / "out/figures.json").read_text())
    assert 0 <= found["covered_share"] <= 1
    assert found["all"]["PSNR"] > 0
    assert "undercast predict" in capsys.readouterr().out


def test_a_real_scene_keeps_its_grid_and_its_pixels_out_of_the_documents(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spain, rng = script("spain"), np.random.default_rng(0)
    s2 = rng.integers(300, 3000, (13, 48, 48)).astype(np.uint16)
    s1 = rng.uniform(-20, -5, (2, 48, 48)).astype(np.float32)
    s1[0, 3, 4] = 0
    np.savez(
        tmp_path / "spain_s1_s2_512px.npz",
        s2=s2,
        s1_db=s1,
        crs=np.array("EPSG:32630"),
        transform=np.array([10.0, 0, 600000, 0, -10, 4400000]),
    )
    told = ["--model", str(weights), "--real", str(tmp_path), "--out", str(tmp_path / "out")]
    spain.main([*told, "--seed", "1"])
    item = json.loads((tmp_path / "out/product/item.json").read_text())
    assert item["properties"]["proj:code"] == "EPSG:32630"
    stack, clear, _ = spain.real_scene(tmp_path, 1)
    np.testing.assert_allclose(clear, s2 / 1e4, rtol=1e-6)
    assert np.isnan(stack.s1[:, 0, 3, 4]).all()  # exactly 0 dB is no measurement
    with rasterio.open(tmp_path / "out/s2_2018-06-11.tif") as file:
        np.testing.assert_array_equal(file.read(), np.rint(stack.s2[1] * 1e4).clip(1))
    with pytest.raises(SystemExit):
        spain.main([*told, "--picture", str(tmp_path / "docs.png")])
    assert "real pixels stay" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        spain.main(["--out", str(tmp_path / "out")])


@pytest.mark.slow
def test_seams_can_be_measured_with_a_checkpoint(weights: Path) -> None:
    found = script("scene").seam_ratio(640, 16, str(weights), scenes=1)
    assert found["model"] == str(weights)
    assert found["ratio"] == pytest.approx(found["edges"] / found["elsewhere"])
