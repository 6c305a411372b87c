"""The index: pairing by name, problems reported, rebuilt on change, read-only folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fake_dataset import (
    CR_ROIS,
    TS_ROIS,
    cr_path,
    optical,
    radar,
    ts_path,
    write_cr,
    write_tif,
    write_ts,
)
from undercast.datasets import audit, open_dataset, open_index, prepare
from undercast.datasets import index as indexing
from undercast.datasets.index import stores
from undercast.errors import DataError, InputError


def truncate(path: Path, share: float = 0.6) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def date_of(number: int, shift: int = 0) -> str:
    return str(np.datetime64("2018-01-04") + 12 * number + shift)


@pytest.fixture
def series(tmp_path: Path) -> Path:
    return write_ts(tmp_path / "ts", rois=("1868/36", "1868/73"), patches=2, dates=4)


def kinds(root: Path) -> list[tuple[str, str]]:
    return [(problem.kind, problem.path) for problem in open_index(root).problems]


def test_a_whole_tree_has_no_problems_and_every_patch_in_order(series: Path) -> None:
    index = open_index(series)
    assert index.layout == "sen12mscrts"
    assert index.problems == ()
    assert [(p.roi, p.number) for p in index.patches] == [
        ("1868/36", 100), ("1868/36", 101), ("1868/73", 100), ("1868/73", 101),
    ]  # fmt: skip
    assert all([o.number for o in p.observations] == [0, 1, 2, 3] for p in index.patches)


def test_every_image_of_a_patch_carries_its_own_name(series: Path) -> None:
    for patch in open_index(series).patches:
        for seen in patch.observations:
            assert seen.s1 is not None
            for image in (seen.s1, seen.s2):
                assert f"_ImgNo_{seen.number}_{image.date}_patch_{patch.number}.tif" in image.path
            assert np.datetime64(seen.s1.date) - np.datetime64(seen.s2.date) == 2


def test_a_missing_a_truncated_and_a_wrong_sized_file_are_all_reported(series: Path) -> None:
    ts_path(series, "1868/36", "s2", 1, date_of(1), 100).unlink()
    broken = ts_path(series, "1868/36", "s2", 2, date_of(2), 101)
    truncate(broken)
    small = ts_path(series, "1868/73", "s2", 3, date_of(3), 100)
    write_tif(small, optical(0, size=16))
    found = kinds(series)
    assert found == [
        ("broken", str(broken.relative_to(series))),
        ("missing", "1868/36 patch 100 date 1 s2"),
        ("wrong_size", str(small.relative_to(series))),
    ]
    dates = {
        (p.roi, p.number): [o.number for o in p.observations] for p in open_index(series).patches
    }
    assert dates == {
        ("1868/36", 100): [0, 2, 3], ("1868/36", 101): [0, 1, 3],
        ("1868/73", 100): [0, 1, 2], ("1868/73", 101): [0, 1, 2, 3],
    }  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.5, 0.99])
def test_truncation_is_found_wherever_the_file_ends(series: Path, share: float) -> None:
    path = ts_path(series, "1868/36", "s2", 2, date_of(2), 101)
    truncate(path, share)
    assert kinds(series) == [("broken", str(path.relative_to(series)))]


def test_pairing_is_by_name_where_positions_disagree(series: Path) -> None:
    """Patch 100 is missing on one date: by position its neighbour would take its place."""
    for kind, shift in (("s1", 2), ("s2", 0)):
        ts_path(series, "1868/36", kind, 0, date_of(0, shift), 100).unlink()
    first, second = open_index(series).patches[:2]
    assert [o.number for o in first.observations] == [1, 2, 3]
    assert [o.number for o in second.observations] == [0, 1, 2, 3]


def test_a_missing_radar_image_leaves_the_date_usable(series: Path) -> None:
    ts_path(series, "1868/36", "s1", 1, date_of(1, 2), 100).unlink()
    patch = open_index(series).patches[0]
    assert [o.s1 is None for o in patch.observations] == [False, True, False, False]
    assert kinds(series) == [("missing", "1868/36 patch 100 date 1 s1")]


def test_a_date_that_a_whole_roi_lacks_is_one_problem(series: Path) -> None:
    for kind, shift in (("s1", 2), ("s2", 0)):
        for patch in (100, 101):
            ts_path(series, "1868/36", kind, 2, date_of(2, shift), patch).unlink()
    assert kinds(series) == [("missing", "1868/36 date 2")]


def test_strange_files_are_reported_and_not_used(series: Path) -> None:
    write_tif(series / "notes.tif", optical(0))
    write_tif(ts_path(series, "1868/1", "s2", 0, date_of(0), 7), optical(0))
    bands = ts_path(series, "1868/73", "s1", 0, date_of(0, 2), 100)
    write_tif(bands, radar(0)[:1])
    double = ts_path(series, "1868/73", "s2", 0, "2018-12-31", 100)
    write_tif(double, optical(9))
    moved = ts_path(series, "1868/36", "s1", 3, date_of(3, 2), 101)
    moved.rename(series / moved.name)
    found = {path: kind for kind, path in kinds(series)}
    assert found[str(bands.relative_to(series))] == "wrong_bands"
    assert found[str(double.relative_to(series))] == "duplicate"
    assert found[moved.name] == "misplaced"
    assert found["notes.tif"] == "unknown_name"
    assert found["1868/1"] == "unknown_roi"
    placed = next(p for p in open_index(series).patches if (p.roi, p.number) == ("1868/36", 101))
    assert placed.observations[3].s1 is not None


def test_sen12mscr_pairs_by_patch_and_takes_the_season_for_a_date(tmp_path: Path) -> None:
    root = write_cr(tmp_path / "cr", patches=2)
    cr_path(root, "1158/1", "s2", 30).unlink()
    cr_path(root, "1158/17", "s1", 31).unlink()
    index = open_index(root)
    assert index.layout == "sen12mscr"
    assert [p.kind for p in index.problems] == ["missing", "missing", "unusable"]
    assert len(index.patches) == 2 * len(CR_ROIS) - 1
    spring = index.patches[0]
    assert (spring.roi, spring.number) == ("1158/1", 31)
    assert (spring.roi, spring.number, spring.observations[0].s2.date) == (
        "1158/1",
        31,
        "2018-04-15",
    )
    assert spring.clear is not None
    assert spring.clear.path.endswith("ROIs1158_spring_s2_1_p31.tif")


def test_the_index_is_stored_and_only_changed_files_are_read_again(
    series: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = indexing.read_header
    monkeypatch.setattr(indexing, "read_header", lambda p: (read.append(p.name), original(p))[1])
    first = open_index(series)
    assert len(read) == 32
    assert open_index(series).hash == first.hash
    assert len(read) == 32
    changed = ts_path(series, "1868/36", "s2", 1, date_of(1), 100)
    write_tif(changed, optical(77, size=16))
    second = open_index(series)
    assert read[32:] == [changed.name]
    assert second.hash != first.hash
    assert [p.kind for p in second.problems] == ["wrong_size"]
    stored = json.loads((series / ".undercast" / "index.json").read_text())
    assert stored["hash"] == second.hash


def test_a_damaged_index_is_built_again(series: Path) -> None:
    hash_before = open_index(series).hash
    (series / ".undercast" / "index.json").write_text('{"format": 1, "fil')
    assert open_index(series).hash == hash_before
    assert json.loads((series / ".undercast" / "index.json").read_text())["hash"] == hash_before


@pytest.fixture
def read_only(series: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes no new files; root may write anywhere, so a file blocks the way."""
    monkeypatch.setenv("UNDERCAST_CACHE", str(tmp_path / "cache"))
    if os.geteuid() == 0:
        (series / ".undercast").touch()
    else:
        series.chmod(0o555)
    return series


def test_a_read_only_dataset_is_indexed_and_prepared_in_the_cache(read_only: Path) -> None:
    assert prepare(read_only, method="rules").computed == 16
    again = prepare(read_only, method="rules")
    assert (again.computed, again.reused) == (0, 16)
    beside, cached = stores(read_only)
    assert not beside.is_dir()
    assert {f.name for f in cached.iterdir()} >= {"index.json", "rules.jsonl", "rules.masks"}
    assert open_dataset(read_only, "train")[0].stack.mask is not None


def test_what_is_prepared_beside_read_only_data_is_not_computed_again(
    series: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(series, method="rules")
    cache = tmp_path / "cache"
    monkeypatch.setattr("undercast.datasets.preparing.writable_store", lambda root: cache)
    cache.mkdir()
    monkeypatch.setattr(
        "undercast.datasets.preparing.stores", lambda root: [root / ".undercast", cache]
    )
    again = prepare(series, method="rules")
    assert (again.computed, again.reused) == (0, 16)


def test_the_layout_must_be_recognisable(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        open_index(tmp_path / "absent")
    with pytest.raises(DataError, match="expected names such as"):
        open_index(tmp_path)
    write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=2)
    write_cr(tmp_path, rois=CR_ROIS[:1], patches=1)
    with pytest.raises(DataError, match="name one as layout"):
        open_index(tmp_path)
    assert len(open_index(tmp_path, "sen12mscr").patches) == 1
    with pytest.raises(InputError, match="expected auto or one of"):
        open_index(tmp_path, "eurosat")


def test_the_audit_counts_images_and_reports_leaks_and_problems(tmp_path: Path) -> None:
    series, pairs = write_ts(tmp_path / "ts"), write_cr(tmp_path / "cr")
    truncate(cr_path(pairs, "2017/63", "s1", 30))
    prepare(series, method="rules")
    found = audit(series, pairs)
    ts, cr = found["datasets"]
    assert {name: (s["rois"], s["patches"], s["images"]) for name, s in ts["splits"].items()} == {
        "train": (2, 4, 48), "val": (1, 2, 24), "test": (2, 4, 48),
    }  # fmt: skip
    assert ts["overlaps"] == cr["overlaps"] == []
    assert ts["splits"]["train"]["cover"]["images"] == 24
    assert cr["splits"]["train"]["cover"] is None
    assert cr["problem_counts"] == {"broken": 1}
    assert cr["splits"]["test"]["images"] == 11
    assert [(o["roi"], o["splits"]) for o in found["cross_overlaps"]] == [
        ("1868/100", ["sen12mscrts:test", "sen12mscr:train"])
    ]
    legacy = audit(pairs, split_rule="legacy")["datasets"][0]
    assert [(o["roi"], o["via"], o["patches"]) for o in legacy["overlaps"]] == [
        ("1158/17", "1158/1", 2), ("1158/106", "1158/1", 2),
    ]  # fmt: skip
    assert legacy["splits"]["train"]["rois"] == 4
