"""Evaluation and calibration of models on datasets held in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from undercast import metrics, predict
from undercast.calibrate import calibrate, halves
from undercast.checkpoint import load_model, save_model
from undercast.cli import main
from undercast.datasets import prepare
from undercast.datasets.samples import Provenance, Sample
from undercast.errors import ConfigError, InputError
from undercast.evaluate import evaluate, mean_spectrum
from undercast.models import create
from undercast.models.system import Batch, Model, Output, System
from undercast.simulate import write_dataset
from undercast.types import Stack, Tile


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny images: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class NoisyConfig:
    stated: float = 0.01  # variance that the system claims


class Noisy(System):
    """The last date as the mean: with the noise that `Samples` puts there, of known variance."""

    Config = NoisyConfig

    @property
    def gives_variance(self) -> bool:
        return self.config.stated > 0

    def forward(self, batch: Batch) -> Output:
        mean = batch.s2[:, -1]
        if not self.gives_variance:
            return Output(mean)
        return Output(mean, torch.full_like(mean, self.config.stated))


class Samples:
    """Samples of covers 0 to 1; the first date is clear, the last date is target + N(0, 0.01)."""

    def __init__(self, n: int, size: int = 16, masks: bool = True) -> None:
        self.n, self.size, self.masks = n, size, masks

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Sample:
        if i >= self.n:
            raise IndexError(i)
        rng = np.random.default_rng(i)
        target = rng.uniform(0.1, 0.4, (13, self.size, self.size)).astype(np.float32)
        noise = rng.normal(0, 0.1, target.shape)
        s2 = np.stack([target + 0.01, target + noise]).astype(np.float32)
        cover = i / max(self.n - 1, 1)
        mask = np.zeros((2, self.size, self.size), bool)
        mask[:, :, : round(cover * self.size)] = True
        s2[0][:, mask[0]] = 0.9
        provenance = Provenance(
            "memory", f"r{i % 3}", i, "test", (0, 1), 2, cover, 0.0, ("a", "b"), (None, None), "c",
            Tile(0, 0, self.size, self.size),
        )  # fmt: skip
        stack = Stack(s2, ["2018-06-01", "2018-06-06"], mask=mask if self.masks else None)
        return Sample(
            stack, target, np.zeros(mask.shape[1:], bool), np.datetime64("2018-06-11"), provenance
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self.n))


def noisy(stated: float = 0.01) -> Model:
    return Model("noisy", Noisy(NoisyConfig(stated)))


def run(n: int = 12, **options: object) -> dict[str, object]:
    options = {"train_spectrum": np.full(13, 0.25), "progress": False} | options
    return evaluate(noisy(), Samples(n), **options).to_dict()  # type: ignore[arg-type]


def test_one_pass_equals_the_metrics_of_all_images_at_once() -> None:
    samples = Samples(12)
    target = np.stack([s.target for s in samples])
    mean = np.stack([s.stack.s2[-1] for s in samples])
    covered = np.stack([s.stack.mask.all(0) for s in samples])  # type: ignore[union-attr]
    found = run()["systems"]["noisy"]  # type: ignore[index]
    assert found["image"]["all"]["images"] == 12
    for region, where in (
        ("all", None), ("covered_on_every_date", covered), ("clear_at_least_once", ~covered),
    ):  # fmt: skip
        expected = metrics.image_metrics(target, mean, where)
        for name, value in expected.items():
            assert found["image"][region][name] == pytest.approx(value, rel=1e-9), name
        variance = np.full_like(mean, 0.01)
        calibration = metrics.calibration_metrics(target, mean, variance, where)
        for name in ("NLL", "CRPS", "coverage_90", "UCE_im"):
            assert found["calibration"][region][name] == pytest.approx(calibration[name], rel=1e-6)
    band = metrics.image_metrics(target[:, 8:9], mean[:, 8:9])
    assert found["per_band"]["B8A"]["RMSE"] == pytest.approx(band["RMSE"], rel=1e-9)
    assert found["calibration"]["all"]["dispersion"] == pytest.approx(1.0, abs=0.02)


def test_strata_hold_their_images_and_sum_up_to_all() -> None:
    found = run()
    assert found["info"]["images_per_cover"] == {  # type: ignore[index]
        "cover_0_10": 2, "cover_10_50": 4, "cover_50_90": 4, "cover_90_100": 2,
    }  # fmt: skip
    rows = found["systems"]["noisy"]["per_cover"]  # type: ignore[index]
    mean = sum(r["images"] * r["RMSE"] for r in rows.values()) / 12
    assert mean == pytest.approx(found["systems"]["noisy"]["image"]["all"]["RMSE"], rel=1e-9)  # type: ignore[index]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_results_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    one, other = run()["systems"], run(batch_size=batch_size)["systems"]
    for name in one:  # type: ignore[attr-defined]
        assert one[name]["image"]["all"] == pytest.approx(other[name]["image"]["all"], rel=1e-9)  # type: ignore[index]
    assert one["noisy"]["calibration"]["all"] == pytest.approx(  # type: ignore[index]
        other["noisy"]["calibration"]["all"], rel=1e-9  # type: ignore[index]
    )  # fmt: skip


def test_composites_and_flat_images_stand_beside_the_model() -> None:
    systems = run()["systems"]
    assert list(systems) == [  # type: ignore[call-overload]
        "noisy", "least-cloudy", "mosaic", "median", "flat-train-mean", "flat-scene-median",
    ]  # fmt: skip
    for name in ("flat-train-mean", "flat-scene-median"):
        assert systems[name]["image"]["all"]["correlation"] == 0.0  # type: ignore[index]
        assert systems[name]["calibration"] is None  # type: ignore[index]
    target = np.stack([s.target for s in Samples(12)])
    expected = metrics.image_metrics(target, np.full_like(target, 0.25))
    assert systems["flat-train-mean"]["image"]["all"]["PSNR"] == pytest.approx(expected["PSNR"])  # type: ignore[index]
    clear = systems["least-cloudy"]["image"]["clear_at_least_once"]  # type: ignore[index]
    assert clear["RMSE"] < systems["noisy"]["image"]["clear_at_least_once"]["RMSE"]  # type: ignore[index]


def test_no_covered_pixel_is_null_in_json_not_nan() -> None:
    class Clear(Samples):
        def __getitem__(self, i: int) -> Sample:
            return Samples(1000)[i]  # the first ones have hardly any cloud

    found = evaluate(noisy(), Clear(2), progress=False).to_dict()
    json.dumps(found, allow_nan=False)
    row = found["systems"]["noisy"]["image"]["covered_on_every_date"]
    assert row["images"] == 0
    assert row["RMSE"] is None
    assert "no training data" in found["info"]["notes"][0]


def test_model_without_variance_has_no_calibration() -> None:
    found = evaluate(noisy(0.0), Samples(2), baselines=False, progress=False).to_dict()
    assert found["systems"]["noisy"]["calibration"] is None
    assert list(found["systems"]) == ["noisy"]


def test_dataset_without_masks_says_what_is_missing() -> None:
    found = evaluate(noisy(), Samples(2, masks=False), progress=False)
    assert list(found.systems) == ["noisy"]
    assert any("data prepare" in note for note in found.info["notes"])


def test_pixels_that_no_date_observes_count_for_no_system() -> None:
    class Holes(Samples):
        def __getitem__(self, i: int) -> Sample:
            sample = super().__getitem__(i)
            sample.stack.s2[:, :, :4] = np.nan
            return sample

    class Cut(Samples):
        def __getitem__(self, i: int) -> Sample:
            sample = super().__getitem__(i)
            sample.target[:, :4] = np.nan
            return sample

    holes = evaluate(noisy(), Holes(4), progress=False).systems
    cut = evaluate(noisy(), Cut(4), progress=False).systems
    for name in ("noisy", "mosaic"):
        for metric in ("RMSE", "SAM"):
            assert holes[name]["image"]["all"][metric] == cut[name]["image"]["all"][metric]


def test_samples_without_any_observation_are_left_out_and_all_of_them_is_an_error() -> None:
    class Blind(Samples):
        def __getitem__(self, i: int) -> Sample:
            sample = super().__getitem__(i)
            if i != 1:
                sample.stack.s2[:] = np.nan
            return sample

    found = evaluate(noisy(), Blind(3), batch_size=1, progress=False)
    assert found.info["images"] == 1
    assert any("left out" in note for note in found.info["notes"])
    with pytest.raises(InputError, match="without any usable sample"):
        evaluate(noisy(), Blind(1), progress=False)


def test_clear_targets_only_leaves_masked_target_pixels_out() -> None:
    class Cloudy(Samples):
        def __getitem__(self, i: int) -> Sample:
            sample = super().__getitem__(i)
            sample.target[:, :2] = 1.0
            assert sample.target_mask is not None
            sample.target_mask[:2] = True
            return sample

    kept = evaluate(noisy(), Cloudy(3), clear_targets_only=True, progress=False).systems["noisy"]
    every = evaluate(noisy(), Cloudy(3), progress=False).systems["noisy"]
    assert kept["image"]["all"]["RMSE"] == pytest.approx(0.1, abs=0.01)
    assert every["image"]["all"]["RMSE"] > 0.2


def test_mean_spectrum_is_the_mean_of_all_targets() -> None:
    samples = Samples(5)
    expected = np.stack([s.target for s in samples]).mean((0, 2, 3))
    np.testing.assert_allclose(mean_spectrum(samples), expected, rtol=1e-6)
    some = np.stack([samples[i].target for i in (0, 4)]).mean((0, 2, 3))
    np.testing.assert_allclose(mean_spectrum(samples, limit=2), some, rtol=1e-6)


def test_examples_run_from_clear_to_covered() -> None:
    found = evaluate(noisy(), Samples(30), baselines=False, progress=False)
    covers = [example.cover for example in found.examples]
    assert len(covers) == 6
    assert covers == sorted(covers)
    assert covers[0] < 1 / 6 < 5 / 6 <= covers[-1]


def test_real_network_runs_through() -> None:
    tiny = create("uncrtaints", d_m=16, n_e=0, n_d=1, heads=2, d_k=2)
    found = evaluate(tiny, Samples(2, size=32), progress=False)
    assert found.systems["uncrtaints"]["image"]["all"]["PSNR"] > 0
    assert found.systems["uncrtaints"]["calibration"] is not None


def test_calibration_recovers_a_wrong_variance_on_the_other_half() -> None:
    model, report = calibrate(noisy(stated=0.04), Samples(12), method="scale", progress=False)
    assert model.calibration is not None
    np.testing.assert_allclose(model.calibration.scale, 0.25, rtol=0.15)
    assert report.table["raw"]["dispersion"] == pytest.approx(0.5, abs=0.02)
    assert report.table["scale"]["dispersion"] == pytest.approx(1.0, abs=0.03)
    assert report.table["scale"]["UCE"] < 0.1 * report.table["raw"]["UCE"]
    assert report.images == (6, 6)
    factors = dict(model.calibration.conformal)[0.9]
    np.testing.assert_allclose(factors, 1.645, rtol=0.1)
    json.dumps(report.to_dict(), allow_nan=False)
    batch = evaluate(model, Samples(12), baselines=False, progress=False).systems["noisy"]
    assert batch["calibration"]["all"]["coverage_90"] == pytest.approx(0.9, abs=0.01)


def test_auto_takes_the_method_of_smaller_held_out_nll_and_leaves_the_model_alone() -> None:
    before = noisy(stated=0.04)
    _, report = calibrate(before, Samples(8), progress=False)
    nll = {name: row["NLL"] for name, row in report.table.items()}
    assert set(nll) == {"raw", "scale", "power", "floor", "monotone"}
    assert report.method == min(nll, key=nll.__getitem__) != "raw"
    assert before.calibration is None


def test_a_calibration_is_fitted_to_the_network_alone() -> None:
    """What is made of hidden ground comes after it, and would be counted twice."""
    settings = {"d_m": 16, "n_e": 0, "n_d": 1, "heads": 2, "d_k": 2, "sar": False}
    torch.manual_seed(0)
    alone = create("uncrtaints", **settings)
    finished = create("uncrtaints", **settings, surroundings=8)
    finished.network.load_state_dict(alone.network.state_dict())
    samples = Samples(4, size=32)
    (a, of_alone), (b, of_finished) = (
        calibrate(model, samples, progress=False) for model in (alone, finished)
    )
    assert a.calibration == b.calibration
    assert of_alone.table == of_finished.table
    stack = samples[0].stack
    assert np.abs(predict(a, stack).mean - predict(b, stack).mean).max() > 1e-3


def test_auto_corrects_nothing_where_the_correction_is_wrong_for_other_places() -> None:
    class Uneven(Samples):
        """The half that is measured has errors as stated, the half that is fitted smaller ones."""

        def __getitem__(self, i: int) -> Sample:
            sample = super().__getitem__(i)
            wild = np.random.default_rng(i).normal(0, 0.2 if i % 2 else 0.0, sample.target.shape)
            return replace(sample, target=(sample.target + wild).astype(np.float32))

    model, report = calibrate(noisy(stated=0.04), Uneven(8), progress=False)
    assert report.method == "raw"
    assert report.table["raw"]["NLL"] < report.table["scale"]["NLL"]
    assert model.calibration is not None
    variance = np.full((13, 4, 4), 0.04, np.float32)
    np.testing.assert_array_equal(model.calibration.apply(variance), variance)
    assert model.calibration.conformal  # intervals are exact in any case


def test_halves_share_no_region() -> None:
    rois = ["a"] * 5 + ["b"] * 3 + ["c"] * 4
    dataset = Samples(12)
    dataset.patches = [SimpleNamespace(roi=r) for r in rois]  # type: ignore[attr-defined]
    first, second = halves(dataset)
    assert not {rois[i] for i in first} & {rois[i] for i in second}
    assert sorted(first + second) == list(range(12))
    part = torch.utils.data.Subset(dataset, [0, 5, 8, 9])  # type: ignore[arg-type]
    first, second = halves(part)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert {rois[part.indices[i]] for i in first} == {"c"}


def test_impossible_calibrations_are_one_clear_error() -> None:
    with pytest.raises(InputError, match="predicts no variance"):
        calibrate(noisy(0.0), Samples(4), progress=False)
    with pytest.raises(ConfigError, match="expected one of auto"):
        calibrate(noisy(), Samples(4), method="magic", progress=False)
    with pytest.raises(InputError, match="at least two"):
        calibrate(noisy(), Samples(1), progress=False)


def test_python_memory_does_not_grow_with_the_number_of_images() -> None:
    def peak(n: int) -> int:
        tracemalloc.start()
        evaluate(noisy(), Samples(n, size=8), baselines=False, progress=False)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(6)
    small, large = peak(20), peak(100)
    assert large < 1.05 * small


PEAK = """
import importlib.util, sys, torch
from undercast.benchmark_costs import peak_mb
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("t", sys.argv[1])
t = importlib.util.module_from_spec(spec)
sys.modules["t"] = t
spec.loader.exec_module(t)
t.evaluate(t.noisy(), t.Samples(int(sys.argv[2]), size=32), batch_size=20, progress=False)
print(peak_mb())
"""


@pytest.mark.slow
def test_peak_memory_of_1000_images_equals_that_of_100() -> None:
    def peak(n: int) -> float:
        command = [sys.executable, "-c", PEAK, __file__, str(n)]
        # Large arrays straight from the system: what the allocator keeps for later is not counted.
        calm = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=calm)
        return float(done.stdout)

    assert peak(1000) == pytest.approx(peak(100), rel=0.05)


def test_wrong_commands_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken.safetensors"
    taken.write_bytes(b"")
    data = ["--data", str(tmp_path / "none")]
    for command, message in (
        (["evaluate", "--model", "median", *data], "none"),
        (["evaluate", "--model", "nothing", *data], "nothing"),
        (["calibrate", "--model", "median", *data, "-o", str(taken)], "--overwrite"),
        (["calibrate", "--model", "median", *data, "-o", str(tmp_path / "x")], ".safetensors"),
    ):
        assert main(command) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert message in lines[0]
    assert [p.name for p in tmp_path.iterdir()] == ["taken.safetensors"]


@pytest.mark.slow
def test_calibrate_and_evaluate_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "calibrated.safetensors"
    write_dataset(data, rois=3, patches=2, dates=5, size=32, seed=1)
    prepare(data, method="rules")
    fresh = create("uncrtaints", d_m=16, n_e=0, n_d=1, heads=2, attention_grid=8)
    save_model(fresh, tmp_path / "fresh.safetensors")
    source = ["--model", str(tmp_path / "fresh.safetensors"), "--data", str(data), "--split", "all"]
    assert main(["calibrate", *source, "-o", str(out), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    calibrated = load_model(out)
    assert calibrated.calibration is not None
    assert calibrated.calibration.to_dict() == report["calibration"]
    nll = {name: metrics["NLL"] for name, metrics in report["held_out"].items()}
    assert nll[report["method"]] == min(nll.values())
    source[1] = str(out)
    assert main(["evaluate", *source, "--out", str(tmp_path / "r")]) == 0
    table = capsys.readouterr().out
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    assert results["info"]["images"] == 6
    assert "flat-train-mean" in table
    assert "flat-train-mean" in results["systems"]
    assert (tmp_path / "r" / "report.html").stat().st_size > 10_000
    assert main(["evaluate", *source, "--out", str(tmp_path / "r")]) == 2  # it is already there
    assert "--overwrite" in capsys.readouterr().err
