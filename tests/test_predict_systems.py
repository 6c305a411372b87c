"""Every system from a checkpoint and files to a product, by `undercast predict --model`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from makers import dn_stack, write_geotiff_scene, write_raster, write_s1
from test_models_systems import SMALL as SMALL_SYSTEMS
from undercast.checkpoint import load_model, save_model
from undercast.cli import main
from undercast.models import create, names
from undercast.models.registry import system_class
from undercast.pipeline import open_scene, predict
from undercast.product import read_product
from undercast.types import Grid, Stack, Tile

HEIGHT, WIDTH, EMPTY = 96, 80, 9
GRID = Grid("EPSG:32631", (10.0, 0.0, 600000.0, 0.0, -10.0, 5700000.0), HEIGHT, WIDTH)
NAMES = [name for name in names() if not name.startswith("fake")]  # those of other tests
SMALL = SMALL_SYSTEMS | {"uncrtaints": {"d_m": 16, "n_d": 1, "heads": 4}}  # with its variance


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Three dates with a cloud each, radar and masks; the top rows are never observed."""
    folder = tmp_path_factory.mktemp("scene")
    stack = dn_stack(grid=GRID, s1=True)
    s2, cloud = stack.s2.copy(), np.zeros((3, 1, HEIGHT, WIDTH), np.uint8)
    for date in range(3):
        cloud[date, :, 20 * date : 20 * date + 40] = 1
    s2 = np.where(cloud, np.float32(0.8), s2)
    s2[:, :, :EMPTY] = np.nan
    stack = Stack(s2, stack.dates, stack.s1)
    masks = [write_raster(folder / f"mask_{i}.tif", m, GRID) for i, m in enumerate(cloud)]
    made = {
        "s2": write_geotiff_scene(folder, stack, GRID, nodata=0),
        "s1": write_s1(folder, stack, GRID),
        "masks": masks,
    }
    return {name: [str(path) for path in paths] for name, paths in made.items()}


def source(name: str, folder: Path) -> str:
    """What `--model` takes: a checkpoint of fresh small weights, or the name of a composite."""
    if not system_class(name).learns:
        return name
    torch.manual_seed(0)
    save_model(create(name, **SMALL[name]), folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def command(files: dict[str, list[str]], out: Path, model: str) -> list[str]:
    inputs = [*files["s2"], "--s1", *files["s1"], "--masks", *files["masks"]]
    return ["predict", *inputs, "-o", str(out), "--model", model]


@pytest.mark.parametrize("name", NAMES)
def test_a_system_makes_a_product_that_holds_its_prediction(
    name: str, files: dict[str, list[str]], tmp_path: Path
) -> None:
    model, out = source(name, tmp_path), tmp_path / "out"
    assert main(command(files, out, model)) == 0
    variance = load_model(model).network.gives_variance
    assert variance == (name in ("uncrtaints", "mosaic", "median", "least-cloudy"))
    expected = {"mean.tif", "quality.tif", "item.json", "quicklook.png"}
    assert {p.name for p in out.iterdir()} == expected | ({"sigma.tif"} if variance else set())
    item = json.loads((out / "item.json").read_text())
    assert ("sigma" in item["assets"]) == variance
    assert item["properties"]["undercast:model"]["name"] == name
    found = read_product(out)
    assert set(found) == ({"mean", "sigma"} if variance else {"mean"})
    for values in found.values():
        assert values.shape == (13, HEIGHT, WIDTH)
        assert np.isnan(values[:, :EMPTY]).all()
        assert np.isfinite(values[:, EMPTY:]).all()
    scene = open_scene(files["s2"], s1=files["s1"], masks=files["masks"])
    whole = predict(load_model(model), scene.read(Tile(0, 0, HEIGHT, WIDTH)))
    np.testing.assert_allclose(found["mean"], whole.mean.clip(0, 6.5534), atol=0.51e-4)
    if whole.variance is not None:
        np.testing.assert_allclose(found["sigma"], whole.sigma.clip(1e-5, 0.65534), atol=0.51e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_leaves_its_stack_as_it_was(name: str, tmp_path: Path) -> None:
    """Arrays are not copied on their way into a network, so no network may write into them."""
    grown = dn_stack(grid=GRID, s1=True)
    s2 = grown.s2.copy()
    s2[:, :, :EMPTY] = np.nan
    stack = Stack(s2, grown.dates, grown.s1, mask=np.zeros((3, HEIGHT, WIDTH), bool))
    before = [stack.s2.tobytes(), stack.s1.tobytes(), stack.mask.tobytes()]
    predict(load_model(source(name, tmp_path)), stack)
    assert [stack.s2.tobytes(), stack.s1.tobytes(), stack.mask.tobytes()] == before


def test_every_system_has_a_small_checkpoint_here() -> None:
    assert set(SMALL) == {name for name in NAMES if system_class(name).learns}


def test_a_threshold_of_sigma_is_refused_for_a_system_without_variance(
    files: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = source("dsen2-cr", tmp_path)
    assert main([*command(files, tmp_path / "out", model), "--mask-above", "0.05"]) == 2
    assert "predicts no variance" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
