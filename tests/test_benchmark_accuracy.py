"""What engines change is measured against the plain network, and judged by the limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from undercast import benchmark_accuracy, engines, load_model
from undercast.benchmark_accuracy import check_engines, within
from undercast.calibration import Calibration
from undercast.checkpoint import save_model
from undercast.cli import main
from undercast.datasets import collate, open_dataset, prepare
from undercast.errors import ConfigError
from undercast.metrics import calibration_metrics, image_metrics
from undercast.models import create
from undercast.models.system import Batch, Model, Output
from undercast.simulate import write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "simulated"
    write_dataset(root, layout="sen12mscrts", rois=3, patches=2, dates=4, size=32, seed=0)
    prepare(root, method="rules")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create("uncrtaints", d_m=16, heads=4, n_d=1)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_model(model, path)
    return path


class Changed(torch.nn.Module):
    """A model whose mean and variance are off by known amounts."""

    def __init__(self, model: Model, shift: float, factor: float) -> None:
        super().__init__()
        self.model, self.shift, self.factor = model, shift, factor

    def forward(self, batch: Batch) -> Output:
        output = self.model(batch)
        return Output(output.mean + self.shift, output.variance * self.factor)


def test_the_eager_engine_changes_nothing(weights: Path, data: Path) -> None:
    checked = check_engines(weights, data, ["eager"])
    eager = checked["engines"]["eager"]
    assert set(checked["engines"]) == {"network", "eager"}
    assert eager["holds"]
    assert eager["max_abs_diff"] <= 1e-5
    assert abs(eager["psnr_change"]) < 1e-3
    assert eager["mean_rel_variance"] < 1e-3
    json.dumps(checked, allow_nan=False)


def test_the_figures_of_the_network_are_those_of_the_metrics(weights: Path, data: Path) -> None:
    row = check_engines(weights, data, ["eager"])["engines"]["network"]
    dataset, model = open_dataset(data, "test", t=3), load_model(weights)
    with torch.inference_mode():
        parts = [collate([dataset[i]]) for i in range(len(dataset))]
        outputs = [model(part.batch) for part in parts]
    target = torch.cat([part.target for part in parts])
    mean, variance = (torch.cat([getattr(o, n) for o in outputs]) for n in ("mean", "variance"))
    each = [image_metrics(t, m)["PSNR"] for t, m in zip(target, mean, strict=True)]
    assert row["psnr"] == pytest.approx(np.mean(each), abs=1e-3)
    expected = calibration_metrics(target, mean, variance)["coverage_90"]
    assert row["coverage_90"] == pytest.approx(expected, abs=1e-4)
    assert (row["psnr_change"], row["mean_rel_variance"], row["holds"]) == (0, 0, True)


@pytest.mark.parametrize(
    ("shift", "factor", "holds"),
    [(0.0, 1.0, True), (0.0, 1.015, True), (0.0, 1.03, False), (0.3, 1.0, False)],
)
def test_an_engine_that_changes_too_much_does_not_hold(
    weights: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    shift: float,
    factor: float,
    holds: bool,
) -> None:
    def attach(model: Model, _: str) -> Changed:
        return Changed(model, shift, factor)

    monkeypatch.setattr(benchmark_accuracy.engines, "attach", attach)
    row = check_engines(weights, data, ["auto"], limit=2)["engines"]["auto"]
    assert row["holds"] is holds
    assert row["mean_rel_variance"] == pytest.approx(factor - 1, abs=1e-6)
    assert row["max_abs_diff"] == pytest.approx(shift, abs=1e-6)


def test_limits_are_those_of_the_documents() -> None:
    assert within("psnr_change", -0.05)
    assert not within("psnr_change", 0.051)
    assert within("mean_rel_variance", 0.02)
    assert not within("coverage_90_change", -0.01)
    assert not within("psnr_change", float("nan"))


def test_calibration_is_part_of_the_check(weights: Path, data: Path, tmp_path: Path) -> None:
    model = load_model(weights)
    model.calibration = Calibration((4.0,) * 13)
    save_model(model, tmp_path / "wide.safetensors")
    narrow, wide = (
        check_engines(path, data, ["eager"], limit=2)["engines"]["eager"]
        for path in (weights, tmp_path / "wide.safetensors")
    )
    assert wide["psnr"] == narrow["psnr"]
    assert wide["coverage_90"] > narrow["coverage_90"]


def test_a_system_without_variance_is_checked_by_its_image(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_model(create("dsen2-cr", features=16, blocks=1), tmp_path / "w.safetensors")
    row = check_engines(tmp_path / "w.safetensors", data, ["eager"], limit=1)["engines"]["eager"]
    assert "coverage_90" not in row
    assert row["holds"]


def test_the_command_prints_a_table(
    weights: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["benchmark", "--check", str(weights), "--data", str(data), "--samples", "1"]
    files = ["--markdown", str(tmp_path / "t.md"), "--json", str(tmp_path / "t.json")]
    assert main([*command, "--engines", "eager", *files]) == 0
    assert "engines on 1 samples" in capsys.readouterr().out
    assert "| eager |" in (tmp_path / "t.md").read_text()
    found: dict[str, Any] = json.loads((tmp_path / "t.json").read_text())
    assert found["engines"]["eager"]["holds"] is True


@pytest.mark.parametrize(
    ("more", "said"),
    [([], "--check without --data"), (["--data", ".", "--engines", "warp"], "got engine 'warp'")],
)
def test_an_impossible_check_is_an_error(
    weights: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", "--check", str(weights), *more]) == 2
    assert said in capsys.readouterr().err


def test_only_installed_engines_are_checked(
    weights: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "installed", lambda: ["eager"])
    assert set(check_engines(weights, data, limit=1)["engines"]) == {"network", "eager"}
    with pytest.raises(ConfigError, match="expected some of eager"):
        check_engines(weights, data, ["openvino"], limit=1)
