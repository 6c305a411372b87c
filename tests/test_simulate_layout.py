"""Simulated datasets on disk: names, encoding, determinism, and what is never overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import rasterio

from undercast import bands
from undercast.cli import main
from undercast.datasets import splits
from undercast.errors import DataError, InputError
from undercast.simulate import layout, write_dataset
from undercast.simulate.rois import roi_names

SERIES = re.compile(
    r"ROIs(1158|1868|1970|2017)/\d+/(S1|S2)/(\d+)/"
    r"(s1|s2)_ROIs\1_\d+_ImgNo_\3_2018-\d\d-\d\d_patch_\d+\.tif"
)
PAIR = re.compile(
    r"(ROIs1158_spring|ROIs1868_summer|ROIs1970_fall|ROIs2017_winter)_(s1|s2|s2_cloudy)/"
    r"\2_(\d+)/\1_\2_\3_p\d+\.tif"
)


def files_of(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*.tif"))}


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "series"
    write_dataset(root, rois=3, patches=2, dates=3, size=32, seed=7)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sen12mscrts", "sen12mscr"])
def test_files_are_the_same_for_any_number_of_workers(tmp_path, kind):
    for workers in (1, 2):
        write_dataset(
            tmp_path / str(workers), kind, rois=2, patches=2, dates=2, size=32, workers=workers
        )
    one, two = files_of(tmp_path / "1"), files_of(tmp_path / "2")
    assert len(one) == (16 if kind == "sen12mscrts" else 12)
    assert one == two


def test_series_have_the_names_of_sen12mscrts(series):
    names = list(files_of(series))
    assert len(names) == 3 * 2 * 3 * 2
    for name in names:
        match = SERIES.fullmatch(name)
        assert match, name
        assert match[2].lower() == match[4]


def test_pairs_have_the_names_of_sen12mscr(tmp_path):
    result = write_dataset(tmp_path / "pairs", "sen12mscr", rois=3, patches=2, size=32)
    names = list(files_of(tmp_path / "pairs"))
    assert result["files"] == len(names) == 3 * 2 * 3
    assert all(PAIR.fullmatch(name) for name in names)


def test_geotiffs_are_encoded_as_the_real_ones(series):
    for path in sorted(series.rglob("*.tif")):
        with rasterio.open(path) as file:
            optical = path.name.startswith("s2")
            assert file.count == (bands.N_S2 if optical else bands.N_S1)
            assert set(file.dtypes) == {"uint16" if optical else "float32"}
            assert (file.width, file.height) == (32, 32)
            assert 32601 <= file.crs.to_epsg() <= 32760
            assert (file.transform.a, file.transform.e) == (10.0, -10.0)
            values = file.read()
        if optical:
            assert 100 < np.median(values) < 20000
        else:
            assert -35 < np.median(values) < 0


def test_all_dates_of_a_patch_share_a_grid_and_patches_lie_side_by_side(series):
    roi = next(p for p in (series / "ROIs1868").iterdir())
    corners: dict[str, set[tuple[float, float]]] = {}
    for path in roi.rglob("*.tif"):
        with rasterio.open(path) as file:
            corner = (file.transform.c, file.transform.f)
        corners.setdefault(path.stem.rsplit("_", 1)[1], set()).add(corner)
    (first,), (second,) = corners["0"], corners["1"]
    assert (second[0] - first[0], second[1] - first[1]) == (320.0, 0.0)


def test_every_date_folder_holds_every_patch_of_a_region(series):
    for folder in series.glob("*/*/S[12]/*"):
        patches = sorted(int(p.stem.rsplit("_", 1)[1]) for p in folder.iterdir())
        assert patches == [0, 1]
        assert len({p.name.split("_")[5] for p in folder.iterdir()}) == 1  # one date


@pytest.mark.parametrize("kind", ["sen12mscrts", "sen12mscr"])
def test_regions_are_real_and_three_serve_all_splits(kind):
    of_split = {s: set(splits.listed(kind, s)) for s in splits.SPLITS}
    total = sum(len(v) for v in of_split.values())

    def count(n: int) -> dict[str, int]:
        names = {f"{season[4:8]}/{number}" for season, number in roi_names(kind, n)}
        assert len(names) == n
        return {s: len(names & listed) for s, listed in of_split.items()}

    assert count(3) == {"train": 1, "val": 1, "test": 1}
    assert count(total) == {s: len(v) for s, v in of_split.items()}
    half = count(total // 2)
    for split, listed in of_split.items():
        assert abs(half[split] - len(listed) / 2) <= 1
    with pytest.raises(InputError, match=f"expected 1 to {total}"):
        roi_names(kind, total + 1)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(DataError, match="holds other files"):
        write_dataset(tmp_path, rois=1, patches=1, dates=1, size=16)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.doc"]
    with pytest.raises(DataError, match="is a file"):
        write_dataset(tmp_path / "thesis.doc", rois=1, patches=1, dates=1, size=16)


def test_an_earlier_simulation_is_replaced_and_other_files_in_it_stay(tmp_path):
    root = tmp_path / "set"
    write_dataset(root, rois=2, patches=1, dates=2, size=16)
    (root / "notes.txt").write_text("mine")
    write_dataset(root, rois=1, patches=1, dates=1, size=16, seed=1)
    assert len(files_of(root)) == 2
    assert (root / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in root.iterdir()) == ["ROIs1868", "notes.txt", layout.MARKER]


def test_a_failed_run_leaves_nothing_and_keeps_the_earlier_set(tmp_path, monkeypatch):
    root = tmp_path / "set"
    write_dataset(root, rois=1, patches=1, dates=1, size=16)
    before = files_of(root)
    monkeypatch.setattr(layout, "_write", lambda *_: (_ for _ in ()).throw(DataError("disk full")))
    for target in (root, tmp_path / "new"):
        with pytest.raises(DataError, match="disk full"):
            write_dataset(target, rois=1, patches=2, dates=1, size=16)
    assert files_of(root) == before
    assert not any((tmp_path / "new").rglob("*"))


def test_the_remains_of_a_killed_run_are_no_obstacle(tmp_path):
    (tmp_path / ".simulating-abc" / "ROIs1868").mkdir(parents=True)
    write_dataset(tmp_path, rois=1, patches=1, dates=1, size=16)
    assert not list(tmp_path.glob(".simulating-*"))


def test_offset_and_nodata_are_in_the_digital_numbers(tmp_path):
    for name, offset in (("plain", False), ("offset", True)):
        write_dataset(
            tmp_path / name, rois=1, patches=1, dates=2, size=32, nodata=1.0, baseline_offset=offset
        )
    for path in (tmp_path / "plain").rglob("s2_*.tif"):
        with rasterio.open(path) as file:
            plain = file.read().astype(int)
        with rasterio.open(tmp_path / "offset" / path.relative_to(tmp_path / "plain")) as file:
            shifted = file.read().astype(int)
        missing = (plain == 0).all(axis=0)
        assert 0 < missing.mean() < 1
        np.testing.assert_array_equal(shifted[:, missing], 0)
        np.testing.assert_array_equal(shifted[:, ~missing], plain[:, ~missing] + 1000)


def test_the_command_writes_a_set_and_says_so_in_json(tmp_path, capsys):
    root = tmp_path / "data"
    code = main(
        ["simulate", str(root), "--rois", "3", "--patches", "1", "--dates", "2", "--size", "16",
         "--workers", "1", "--json", "-"]
    )  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert result["files"] == len(files_of(root)) == 12
    assert result["regions"] == ["ROIs1868/36", "ROIs1158/106", "ROIs1868/127"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rois", "99"], "got 99 regions"),
        (["--dates", "0"], "got 0 dates"),
        (["--cover", "2"], "cover = 2"),
        (["--size", "4"], "size = 4"),
        (["--workers", "0"], "workers = 0"),
    ],
)
def test_the_command_refuses_impossible_options_with_code_2(tmp_path, capsys, options, words):
    assert main(["simulate", str(tmp_path / "x"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
