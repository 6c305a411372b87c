"""Real Dask workers: the same files as one process, also after a worker was killed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from rasterio.transform import from_origin

from undercast import predict_scene
from undercast.checkpoint import save_model
from undercast.errors import DataError, UndercastError
from undercast.models import create
from undercast.product import WORK

pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.slow
NAMES = ("mean.tif", "sigma.tif", "quality.tif", "quicklook.png")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Inputs, weights and options: 11 rows of one narrow tile, one torch thread a process."""
    folder = tmp_path_factory.mktemp("cluster")
    rng = np.random.default_rng(0)
    files = []
    for date in ("2018-06-01", "2018-06-11"):
        dn = np.kron(rng.integers(200, 3000, (13, 116, 2)), np.ones((1, 16, 16))).astype(np.uint16)
        files.append(folder / f"s2_{date}.tif")
        with rasterio.open(
            files[-1], "w", driver="GTiff", count=13, height=1856, width=32, dtype="uint16",
            crs="EPSG:32631", transform=from_origin(500000, 4600000, 10, 10), nodata=0,
        ) as file:  # fmt: skip
            file.write(dn)
    torch.manual_seed(0)
    weights = folder / "tiny.safetensors"
    save_model(create("uncrtaints", d_m=16, heads=4, n_d=1, sar=False), weights)
    return {
        "inputs": files, "model": weights, "threads": 1, "progress": False, "clouds": "rules",
    }  # fmt: skip


@pytest.fixture(scope="module")
def serial(run: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("serial") / "out"
    predict_scene(out=out, **run)
    return contents(out)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in NAMES}


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_writes_the_files_of_the_serial_run(
    run: dict[str, Any], serial: dict[str, bytes], tmp_path: Path, workers: int
) -> None:
    predict_scene(out=tmp_path / "out", workers=workers, **run)
    assert contents(tmp_path / "out") == serial


def test_a_worker_with_two_threads_writes_the_files_of_a_run_with_two(
    run: dict[str, Any], tmp_path: Path
) -> None:
    """Of a plain network, whose rounding depends on the threads: each tile has one in both."""
    torch.manual_seed(0)
    small = {"encoder_widths": (8, 8, 8, 8), "decoder_widths": (8, 8, 8, 8), "sar": False}
    save_model(create("utae", **small, heads=2, d_k=2, d_model=8), tmp_path / "utae.safetensors")
    two = {**run, "model": tmp_path / "utae.safetensors", "threads": 2}
    predict_scene(out=tmp_path / "here", **two)
    predict_scene(out=tmp_path / "there", workers=1, **two)
    assert (tmp_path / "here" / "mean.tif").read_bytes() == (
        tmp_path / "there" / "mean.tif"
    ).read_bytes()


def test_a_worker_killed_in_the_middle_changes_nothing(
    run: dict[str, Any], serial: dict[str, bytes], tmp_path: Path
) -> None:
    """One worker only: what it held is lost, and its successor must get it again."""
    killed: list[int] = []
    done = threading.Event()

    def kill_one() -> None:
        while not (tmp_path / "out" / WORK / "state.npz").exists():
            if done.wait(0.002):
                return
        for child in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
                killed.append(child.pid)
                return

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        predict_scene(out=tmp_path / "out", workers=1, **run)
    finally:
        done.set()
        killer.join()
    assert killed
    assert contents(tmp_path / "out") == serial


def test_a_tile_that_fails_on_a_worker_names_itself_and_fails_the_run(
    run: dict[str, Any], tmp_path: Path
) -> None:
    broken = tmp_path / "s2_2018-06-21.tif"
    with rasterio.open(run["inputs"][0]) as file:
        profile = {**file.profile, "compress": "deflate", "blockysize": 16}
        values = file.read()
    with rasterio.open(broken, "w", **profile) as file:
        file.write(values)
    data = bytearray(broken.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    broken.write_bytes(data)
    started = time.monotonic()
    with pytest.raises(UndercastError, match=r"the tile at row \d+, column 0 failed"):
        predict_scene(out=tmp_path / "out", workers=1, **{**run, "inputs": [broken]})
    assert time.monotonic() - started < 120
    assert not (tmp_path / "out" / "mean.tif").exists()


def test_a_running_scheduler_is_used_and_left_running(
    run: dict[str, Any], serial: dict[str, bytes], tmp_path: Path
) -> None:
    from distributed import Client, LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory=tmp_path
    ) as cluster:
        predict_scene(out=tmp_path / "out", scheduler=cluster.scheduler_address, **run)
        assert contents(tmp_path / "out") == serial
        with Client(cluster) as client:
            assert client.submit(sum, (1, 2)).result() == 3


def test_no_scheduler_at_the_address_is_one_line(
    run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("undercast.cluster.WAIT_SECONDS", 1)
    with pytest.raises(DataError, match=r"no answer from the scheduler tcp://127\.0\.0\.1:9"):
        predict_scene(out=tmp_path / "out", scheduler="tcp://127.0.0.1:9", **run)
    assert not (tmp_path / "out").exists()
