"""The benchmark measures what it says, and its naive module is the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from undercast import benchmark, benchmark_costs, benchmark_tables
from undercast.cli import main
from undercast.errors import ConfigError
from undercast.models.uncrtaints import UnCRtainTSConfig

SMALL = UnCRtainTSConfig(d_m=16, heads=4, n_d=1)


def small_plan(**told: Any) -> benchmark.Plan:
    return benchmark.Plan(
        **{
            "engines": ("naive", "eager"), "sizes": (48,), "dates": (2,), "repeat": 2,
            "train_size": 32, "train_batch": 1, "trainings": ("naive", "channels-last"),
            "sections": ("forward",), "config": SMALL, **told,
        }
    )  # fmt: skip


@pytest.mark.parametrize("config", [{}, {"covariance": "isotropic"}, {"sar": False}, {"n_e": 0}])
@pytest.mark.parametrize("size", [24, 40])
def test_the_naive_module_is_the_network(config: dict[str, Any], size: int) -> None:
    model = benchmark.paper_model(UnCRtainTSConfig(d_m=16, heads=4, n_d=1, **config))
    naive, batch = benchmark.naive_copy(model), benchmark.random_batch(2, 3, size)
    assert naive is not None
    with torch.inference_mode():
        got, expected = naive(batch), model(batch)
    torch.testing.assert_close(got.mean, expected.mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.variance, expected.variance, atol=0, rtol=1e-3)


def test_the_naive_module_learns_as_the_network_does() -> None:
    batch, target = benchmark.random_batch(1, 2, 32), torch.rand(1, 13, 32, 32)
    gradients = []
    for network in (
        benchmark.naive_copy(benchmark.paper_model(UnCRtainTSConfig(dropout=0, d_m=16, heads=4))),
        benchmark.paper_model(UnCRtainTSConfig(dropout=0, d_m=16, heads=4)).network,
    ):
        assert network is not None
        network.train()(batch).mean.sub(target).square().mean().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters()})
    naive, readable = gradients
    for name in ("embed.weight", "attention.query", "decoder.4.project.weight"):
        torch.testing.assert_close(naive[name], readable[name], atol=1e-6, rtol=1e-3)


def test_forward_figures_have_the_promised_keys() -> None:
    results = benchmark.run(small_plan(sizes=(48, 32), dates=(2, 1)))
    assert set(results["engines"]) == {"naive", "eager"}
    assert set(results["forward"]) == {"48x48x2", "32x32x2", "48x48x1"}
    eager = results["engines"]["eager"]
    assert {"seconds", "spread", "ratio", "max_abs_diff"} <= set(eager)
    assert results["engines"]["naive"]["ratio"] == 1.0
    assert eager["max_abs_diff"] <= 1e-5
    assert eager["max_rel_variance"] <= 1e-3
    naive = results["engines"]["naive"]
    assert eager["ratio"] == pytest.approx(naive["seconds"] / eager["seconds"], rel=0.05)
    json.dumps(results, allow_nan=False)


def test_without_a_checkout_there_are_seconds_but_no_ratios(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "NAIVE", tmp_path / "naive.py")
    monkeypatch.setattr(benchmark_tables, "NAIVE", tmp_path / "naive.py")
    results = benchmark.run(small_plan())
    assert set(results["engines"]) == {"eager"}
    assert results["engines"]["eager"]["ratio"] is None
    assert "benchmarks/naive.py is in the repository" in benchmark_tables.markdown(results)


def test_training_and_scaling_are_measured() -> None:
    results = benchmark.run(small_plan(sections=("train", "scaling")))
    assert results["train"]["naive"]["ratio"] == 1.0
    assert set(results["train"]) == {"naive", "channels-last"}
    assert set(results["scaling"]) == {"area", "dates", "members", "threads"}
    assert set(results["scaling"]["dates"]) == {"1", "2", "3", "4", "5"}


@pytest.mark.slow
def test_memory_is_that_of_another_process() -> None:
    found = benchmark_costs.measure_memory(
        small_plan(engines=("naive",), sizes=(256,), trainings=())
    )
    # the naive module holds at least one image of 2·d_m channels for each of two dates
    assert found["forward"]["naive"] > 2 * 256 * 256 * 32 * 4 / 2**20
    assert found["train"] == {}


@pytest.mark.slow
def test_throughput_is_measured() -> None:
    found = benchmark_costs.measure_throughput(small_plan(sizes=(64,)))
    assert set(found) == {
        "simulated_patches_per_s", "predicted_tiles_per_s", "loaded_samples_per_s",
    }  # fmt: skip
    assert all(value > 0 for value in found.values())


@pytest.mark.parametrize(
    "told", [{"engines": ("warp",)}, {"sections": ("speed",)}, {"sizes": (0,)}, {"repeat": 0}]
)
def test_an_impossible_plan_is_an_error(told: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="got"):
        small_plan(**told)


@pytest.mark.slow
def test_command_writes_json_and_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["benchmark", "--quick", "--sections", "forward", "--repeat", "1"]
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert main([*command, *files]) == 0
    results = json.loads((tmp_path / "r.json").read_text())
    assert results["engines"]["eager"]["max_abs_diff"] <= 1e-5
    assert "| eager |" in (tmp_path / "r.md").read_text()
    assert "forward, H x W x T = 64x64x2" in capsys.readouterr().out


def test_command_refuses_an_unknown_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "--engines", "warp"]) == 2
    assert "got engine 'warp'" in capsys.readouterr().err
