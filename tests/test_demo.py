"""The demo: simulated scenes, a table of systems, a picture, a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from undercast import load_model, predict
from undercast.checkpoint import save_model
from undercast.cli import main
from undercast.demo import BIOMES, DATES, TARGET, DemoScenes, run_demo
from undercast.errors import InputError
from undercast.metrics import image_metrics
from undercast.models import create

BASELINES = {"least-cloudy", "mosaic", "median", "flat-scene-median"}


def small_weights(folder: Path) -> Path:
    """A checkpoint of the size of a test, with a mean spectrum in its provenance."""
    model = create("uncrtaints", d_m=16, n_d=1, heads=4, attention_grid=8)
    model.provenance = {"mean_spectrum": [0.1] * 13}
    save_model(model, folder / "small.safetensors")
    return folder / "small.safetensors"


def test_the_target_date_is_never_among_the_inputs() -> None:
    for sample in (DemoScenes(2, size=32)[i] for i in range(2)):
        assert str(sample.target_date) == DATES[TARGET]
        assert sample.target_date not in sample.stack.dates


def test_scenes_are_of_different_land_and_the_same_for_the_same_seed() -> None:
    first, again = DemoScenes(6, seed=3, size=32), DemoScenes(6, seed=3, size=32)
    assert [first[i].provenance.roi for i in range(6)] == list(BIOMES)
    np.testing.assert_array_equal(first[1].stack.s2, again[1].stack.s2)
    assert not np.array_equal(first[1].target, DemoScenes(6, seed=4, size=32)[1].target)


def test_the_table_holds_the_means_of_each_system_over_the_scenes() -> None:
    demo = run_demo("mosaic", scenes=2, size=48)
    samples = [DemoScenes(2, size=48)[i] for i in range(2)]
    for name in ("mosaic", "median"):
        model = load_model(name)
        expected = np.mean(
            [image_metrics(s.target, predict(model, s.stack).mean)["PSNR"] for s in samples]
        )
        row = demo.evaluation.systems[name]["image"]["all"]
        assert row["PSNR"] == pytest.approx(expected, rel=1e-5)
    assert set(demo.evaluation.systems) == BASELINES


def test_weights_stand_under_their_own_name_beside_both_flat_images(tmp_path: Path) -> None:
    path = str(small_weights(tmp_path))
    demo = run_demo(path, scenes=1, size=32)
    assert set(demo.evaluation.systems) == BASELINES | {path, "flat-train-mean"}
    assert demo.evaluation.info["model"] == path
    assert demo.picture.dtype == np.uint8


def test_no_scene_is_refused() -> None:
    with pytest.raises(InputError, match="got 0 scenes"):
        DemoScenes(0)


def test_the_command_ends_with_a_table_a_picture_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    model = str(small_weights(tmp_path))
    code = main(["demo", "--out", str(out), "--model", model, "--scenes", "1", "--size", "32"])
    printed = capsys.readouterr().out
    assert code == 0
    assert all(name in printed for name in BASELINES | {model, "PSNR", "coverage_90"})
    assert (out / "quicklook.png").read_bytes().startswith(b"\x89PNG")
    assert "How near to the truth" in (out / "report.html").read_text()


def test_a_missing_model_is_an_error_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--model", "no-such-weights", "--scenes", "1"]) == 2
    assert "no-such-weights" in capsys.readouterr().err
    assert not out.exists()


def test_without_a_report_there_is_the_picture_alone(tmp_path: Path) -> None:
    command = ["demo", "--out", str(tmp_path), "--scenes", "1", "--size", "32", "--no-report"]
    assert main([*command, "--model", "mosaic"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["quicklook.png"]
