"""The benchmark measures what it says, and its naive module is the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from undercast import benchmark, benchmark_costs, benchmark_scene, benchmark_tables
from undercast.cli import build_parser, main
from undercast.errors import ConfigError
from undercast.models.uncrtaints import UnCRtainTSConfig
from undercast.scene import open_scene
from undercast.types import Tile

SMALL = UnCRtainTSConfig(d_m=16, heads=4, n_d=1)


def small_plan(**told: Any) -> benchmark.Plan:
    return benchmark.Plan(
        **{
            "engines": ("naive", "eager"), "sizes": (48,), "dates": (2,), "repeat": 2,
            "train_size": 32, "train_batch": 1, "trainings": ("naive", "eager"),
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


def test_training_and_scaling_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_scene, "time_workers", lambda plan: {"0": 1.0, "2": 0.5})
    threads = torch.get_num_threads()
    results = benchmark.run(small_plan(sections=("train", "scaling")))
    assert results["train"]["naive"]["ratio"] == 1.0
    assert set(results["train"]) == {"naive", "eager"}
    assert set(results["scaling"]) == {"area", "dates", "members", "threads", "workers"}
    assert set(results["scaling"]["dates"]) == {"1", "2", "3", "4", "5"}
    assert set(results["scaling"]["threads"]) == {"1", str(threads)}
    assert torch.get_num_threads() == threads
    assert "| 2 | 0.500 |" in benchmark_tables.markdown(results)


@pytest.mark.slow
def test_scenes_are_timed_in_this_process_and_on_workers() -> None:
    pytest.importorskip("distributed")
    found = benchmark_scene.time_workers(small_plan(scene=96, repeat=1))
    assert set(found) == {"0", "1", "2"}
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize(
    ("side", "tiles", "scene", "holds"), [(270, 4, 1.0, False), (64, 1, 0.76, True)]
)
def test_the_overhead_of_a_scene_is_its_time_beyond_the_network(
    monkeypatch: pytest.MonkeyPatch, side: int, tiles: int, scene: float, holds: bool
) -> None:
    def timed(calls: dict[str, Any], repeat: int) -> dict[str, list[float]]:
        for call in calls.values():
            call()
        return {"scene": [scene] * repeat, "network": [0.72] * repeat, "rest": [0.5] * repeat}

    monkeypatch.setattr(benchmark_scene, "interleaved", timed)
    found = benchmark.run(small_plan(sections=("scene",), scene=side))["scene"]
    assert (found["size"], found["tiles"]) == (side, tiles)
    assert found["overhead_ms"] == pytest.approx(1000 * (scene - 0.72) / tiles)
    assert (found["rest"], found["holds"]) == (0.5 / tiles, holds)
    assert found["rest_cpu"] > 0
    table = benchmark_tables.tables({"machine": {}, "scene": found})[-1]
    assert ["overhead ms", str(found["overhead_ms"])] in table[2]


def test_a_scene_of_the_benchmark_can_be_read(tmp_path: Path) -> None:
    files = benchmark_scene.write_scene(tmp_path, 300, 40, 2)
    s1 = benchmark_scene.write_scene(tmp_path, 300, 40, 2, radar=True)
    scene = open_scene(files, s1=s1)
    stack = scene.read(Tile(0, 0, 300, 40))
    assert stack.valid_dates.all()
    assert [str(date) for date in scene.dates] == ["2018-06-01", "2018-06-11"]
    assert 0 < stack.s2.min() < stack.s2.max() <= 0.75
    assert stack.s1 is not None
    assert stack.s1[:, 0].mean() == pytest.approx(-10, abs=0.5)


@pytest.mark.parametrize(
    ("told", "sections", "side"),
    [
        (["--scaling"], {"scaling"}, 1536),
        (["--scene"], {"scene"}, 1536),
        (["--scene", "512", "--scaling"], {"scaling", "scene"}, 512),
    ],
)
def test_options_add_sections(told: list[str], sections: set[str], side: int) -> None:
    args = build_parser().parse_args(["benchmark", *told, "--sizes", "256", "64", "128"])
    plan = benchmark_tables.plan_of(args.benchmark)
    assert set(plan.sections) == {"forward", "train", "memory", "throughput", *sections}
    assert (plan.scene, plan.sizes) == (side, (256, 64, 128))


def test_the_free_system_gives_the_first_date() -> None:
    batch = benchmark.random_batch(1, 2, 8)
    output = benchmark_scene.Free(benchmark_scene.FreeConfig())(batch)
    torch.testing.assert_close(output.mean, batch.s2[:, 0])
    assert output.variance is not None
    assert (output.variance > 0).all()


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
