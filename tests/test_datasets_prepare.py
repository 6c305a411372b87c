"""`prepare`: masks once, resumable after a kill, in parallel; and the commands end to end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import rasterio

from fake_dataset import TS_ROIS, cr_path, write_cr, write_tif, write_ts
from undercast import masks
from undercast.cli import main
from undercast.datasets import audit, open_dataset, open_index, prepare
from undercast.datasets.journal import writing
from undercast.datasets.preparing import _results, prepared_masks
from undercast.errors import ConfigError, DataError, MissingDependencyError

COMMAND = [sys.executable, "-c", "import sys, undercast.cli as c; sys.exit(c.main())"]


def lines(root: Path, method: str) -> list[str]:
    file = root / ".undercast" / f"{method}.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line)["path"] for line in text.splitlines(keepends=True) if line[-1] == "\n"]


def test_stored_masks_and_covers_are_those_of_the_detector(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=4)
    prepare(root)
    index = open_index(root)
    found = prepared_masks(index)
    assert found is not None
    assert found.method == "s2cloudless"
    for image in index.patches[0].optical:
        with rasterio.open(root / image.path) as file:
            s2 = file.read().astype(np.float32) / np.float32(10000)
        expected = masks.cloud_mask(s2[None], "s2cloudless")[0]
        np.testing.assert_array_equal(found.read(image.path), expected)
        assert found.cover(image.path) == expected.mean()
    assert len({found.cover(image.path) for image in index.patches[0].optical}) > 2


def test_both_images_of_a_pair_are_prepared(tmp_path: Path) -> None:
    root = write_cr(tmp_path, rois=("1158/1",), patches=2)
    assert prepare(root, method="rules").computed == 4


def test_a_second_run_computes_only_what_changed(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=4)
    assert prepare(root, method="rules").computed == 4
    path = next(root.glob("ROIs1868/36/S2/1/*.tif"))
    write_tif(path, np.full((13, 32, 32), 7000, np.uint16))
    again = prepare(root, method="rules")
    assert (again.computed, again.reused) == (1, 3)
    found = prepared_masks(open_index(root))
    assert found is not None
    assert found.cover(str(path.relative_to(root))) == 1


def test_s2cloudless_masks_are_preferred_and_a_method_can_be_named(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=3)
    prepare(root, method="rules")
    assert open_dataset(root, "train").masks.method == "rules"
    prepare(root, method="s2cloudless")
    assert open_dataset(root, "train").masks.method == "s2cloudless"
    assert open_dataset(root, "train", masks="rules").masks.method == "rules"


@pytest.mark.slow
def test_a_killed_run_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    root = write_ts(tmp_path / "a", rois=TS_ROIS[:1], patches=3, dates=30)
    whole = tmp_path / "b"
    shutil.copytree(root, whole)
    prepare(whole, method="s2cloudless")
    command = [*COMMAND, "data", "prepare", str(root), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(lines(root, "s2cloudless")) < 10 and process.poll() is None:
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    survived = lines(root, "s2cloudless")
    assert 10 <= len(survived) < 90, "the kill must come in the middle"
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == [], "workers end with their parent"
    again = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, check=True)
    done = json.loads(again.stdout)
    assert (done["computed"], done["reused"]) == (90 - len(survived), len(survived))
    finished = lines(root, "s2cloudless")
    assert finished[: len(survived)] == survived
    assert len(finished) == len(set(finished)) == 90
    one, other = prepared_masks(open_index(root)), prepared_masks(open_index(whole))
    assert one is not None
    assert other is not None
    for path in finished:
        np.testing.assert_array_equal(one.read(path), other.read(path))


def test_traces_of_a_kill_in_the_middle_of_a_write_are_cut_off(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=4)
    prepare(root, method="rules")
    store = root / ".undercast"
    journal, bits = store / "rules.jsonl", store / "rules.masks"
    kept = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(kept[:2]) + kept[2][:25])
    bits.write_bytes(bits.read_bytes() + b"half a mask")
    again = prepare(root, method="rules")
    assert (again.computed, again.reused) == (2, 2)
    assert len(lines(root, "rules")) == 4
    assert len({tuple(s.stack.mask.sum(axis=(1, 2))) for s in open_dataset(root, "train")}) == 1


def test_a_damaged_mask_is_noticed(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=3)
    prepare(root, method="rules")
    bits = root / ".undercast" / "rules.masks"
    bits.write_bytes(bytes(len(bits.read_bytes())))
    with pytest.raises(DataError, match="damaged"):
        open_dataset(root, "train")[0]


def test_only_one_run_writes_at_a_time(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=3)
    prepare(root, method="rules")
    with (
        writing(root / ".undercast", "rules"),
        pytest.raises(DataError, match="another `undercast data prepare`"),
    ):
        prepare(root, method="rules")


def test_a_file_that_only_reading_shows_to_be_broken_is_reported_and_left_out(
    tmp_path: Path,
) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=4)
    path = next(root.glob("ROIs1868/36/S2/1/*.tif"))
    with rasterio.open(path) as file:
        image = file.read()
        profile = file.profile | {"compress": "deflate", "blockysize": 4}
    with rasterio.open(path, "w", **profile) as file:
        file.write(image)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = bytes(2000)  # the last rows stay whole
    path.write_bytes(bytes(content))
    assert open_index(root).problems == ()
    done = prepare(root, method="rules")
    assert [(p.kind, p.path) for p in done.problems] == [("broken", str(path.relative_to(root)))]
    assert prepare(root, method="rules").computed == 0
    assert audit(root)["datasets"][0]["problem_counts"] == {"broken": 1}
    sample = open_dataset(root, "train", t=4)[0]
    assert 1 not in (*sample.provenance.inputs, sample.provenance.target)


@pytest.mark.slow
def test_a_worker_that_dies_says_to_run_again() -> None:
    kills_itself = _results(signal.raise_signal, [signal.SIGKILL, signal.SIGKILL], 2)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="fewer --workers"):
        list(kills_itself)


def test_settings_that_cannot_work_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_ts(tmp_path, rois=TS_ROIS[:1], patches=1, dates=3)
    with pytest.raises(ConfigError, match="s2cloudless rules"):
        prepare(root, method="magic")
    with pytest.raises(ConfigError, match="0 workers"):
        prepare(root, workers=0)
    monkeypatch.setitem(sys.modules, "s2cloudless", None)
    masks._s2cloudless.cache_clear()
    with pytest.raises(MissingDependencyError, match="the method rules needs none"):
        prepare(root)
    assert not (root / ".undercast" / "s2cloudless.jsonl").exists()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["sen12mscrts", "sen12mscr"])
def test_simulate_prepare_audit_and_iterate(
    tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from undercast.simulate import write_dataset

    root = tmp_path / "data"
    write_dataset(root, layout=layout, rois=3, patches=1, dates=4, size=64, seed=1)
    code, out, _ = run(capsys, "data", "prepare", str(root), "--workers", "1")
    assert code == 0
    assert "3 ROIs, 3 patches" in out
    code, out, _ = run(capsys, "data", "audit", str(root), "--json", "-")
    assert code == 0
    found = json.loads(out)["datasets"][0]
    assert found["problems"] == found["overlaps"] == []
    assert [found["splits"][split]["rois"] for split in ("train", "val", "test")] == [1, 1, 1]
    for split in ("train", "val", "test"):
        for sample in open_dataset(root, split, t=3):
            assert np.isfinite(sample.target).all()
            assert sample.provenance.target_path not in sample.provenance.input_paths
            assert 0 <= sample.provenance.cover <= 1


def test_the_audit_prints_leaks_and_problems_of_a_damaged_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_cr(tmp_path / "cr", patches=1)
    series = write_ts(tmp_path / "ts", patches=1, dates=3)
    cr_path(pairs, "1158/1", "s2_cloudy", 30).write_bytes(b"II*\0nonsense")
    code, out, _ = run(capsys, "data", "audit", str(pairs), str(series), "--split-rule", "legacy")
    assert code == 0
    assert "6 of 10 test ROIs leak" in out
    assert "3 of 10 val ROIs leak" in out
    assert "1158/106 in train and test, matched by the entry 1158/1" in out
    assert "1868/100 in sen12mscr:train and sen12mscrts:test" in out
    assert "broken: ROIs1158_spring_s2_cloudy" in out


def test_bad_folders_end_with_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("prepare", "audit"):
        code, out, err = run(capsys, "data", command, str(tmp_path))
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "expected names such as" in err
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
