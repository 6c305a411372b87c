"""Runs that stop: failed tiles, kills, full disks, folders in the way and bad input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scene_files import (
    Counting,
    write_tif,
)
from undercast import predict_scene
from undercast.cli import main
from undercast.errors import ConfigError, DataError, InputError, UndercastError
from undercast.product import WORK


def test_a_failed_tile_names_itself_and_resume_repeats_no_finished_row(
    scene: dict[str, Any], weights: Path, product: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = {"masks": scene["masks"], "progress": False}
    failing, counting = Counting(fail_at=3), Counting()
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
    monkeypatch.setattr("undercast.pipeline.open_scene", Counting(fail_at=0))
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
