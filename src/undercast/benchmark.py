"""Timings of everything that costs time, as ratios to a naive module, within one process run.

Machines are noisy, so variants are interleaved: each repetition runs every variant once, and what
is reported is the median, with the spread (third minus first quartile) beside it.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from undercast import bands, engines
from undercast.errors import ConfigError
from undercast.models import create
from undercast.models.system import Batch, Model, Output
from undercast.models.uncrtaints import UnCRtainTS, UnCRtainTSConfig

NAIVE = Path(__file__).resolve().parents[2] / "benchmarks" / "naive.py"
SECTIONS = ("forward", "train", "memory", "throughput", "scaling", "scene")
TRAININGS = ("naive", "eager", "compiled", "compiled-bf16")
Results = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured; the first size and the first number of dates are the reference."""

    engines: tuple[str, ...] = ("naive", "eager", "compiled", "onnx", "openvino", "openvino-bf16")
    sizes: tuple[int, ...] = (256, 64, 128, 512)
    dates: tuple[int, ...] = (3, 1, 5)
    sections: tuple[str, ...] = SECTIONS[:4]
    trainings: tuple[str, ...] = TRAININGS
    train_size: int = 128
    train_batch: int = 4
    repeat: int = 5
    scene: int = 1536  # pixels a side
    config: UnCRtainTSConfig = field(default_factory=UnCRtainTSConfig)

    def __post_init__(self) -> None:
        for name, got, known in (
            ("engine", self.engines, ("naive", *engines.NAMES)),
            ("section", self.sections, SECTIONS),
            ("training", self.trainings, TRAININGS),
        ):
            if unknown := sorted(set(got) - set(known)):
                raise ConfigError(f"got {name} {unknown[0]!r}, expected some of {', '.join(known)}")
        if min(*self.sizes, *self.dates, self.repeat, self.scene) < 1:
            raise ConfigError("got a size, number of dates or repetitions below 1")


def run(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Results:
    """Every section of the plan; `engines` are the figures at the reference size."""
    results: Results = {"machine": machine()}
    reference = plan.sizes[0], plan.dates[0]
    if "forward" in plan.sections:
        cases = [reference]
        cases += [(size, reference[1]) for size in plan.sizes[1:]]
        cases += [(reference[0], t) for t in plan.dates[1:]]
        forwards = {}
        for size, t in cases:
            progress(f"forward {size}² T={t}")
            forwards[f"{size}x{size}x{t}"] = time_forward(plan, size, t)
        results |= {"engines": forwards[f"{reference[0]}x{reference[0]}x{reference[1]}"]}
        results["forward"] = forwards
    from undercast import benchmark_costs as costs  # which use this file
    from undercast.benchmark_scene import measure_scene
    from undercast.benchmark_training import time_training

    sections: tuple[tuple[str, Callable[[Plan], Results]], ...] = (
        ("train", time_training),
        ("memory", costs.measure_memory),
        ("throughput", costs.measure_throughput),
        ("scaling", costs.measure_scaling),
        ("scene", measure_scene),
    )
    for name, measure in sections:
        if name in plan.sections:
            progress(name)
            results[name] = measure(plan)
    return results


def machine() -> Results:
    """Threads, versions, and what a matrix multiply reaches here, in GFLOP/s."""
    return {
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "gflops_f32": matmul_gflops(torch.float32),
        "gflops_bf16": matmul_gflops(torch.bfloat16),
    }


def matmul_gflops(dtype: torch.dtype, n: int = 1024) -> float:
    """The best of five multiplications of n × n matrices."""
    a, b = (torch.rand(n, n).to(dtype) for _ in range(2))
    seconds = min(interleaved({"": lambda: a @ b}, 5)[""])
    return round(2 * n**3 / seconds / 1e9, 1)


def time_forward(plan: Plan, size: int, t: int) -> Results:
    """Each engine on one sample: seconds, ratio to naive, differences from it, GMAC/s."""
    model, batch = paper_model(plan.config), random_batch(1, t, size)
    runs: dict[str, Callable[[], Output]] = {}
    for name in plan.engines:
        runner = runner_of(name, model)
        if runner is not None:
            runs[name] = bound(runner, batch)
    with torch.inference_mode():
        outputs, startup = {}, {}
        for name, call in runs.items():  # the first call exports, compiles and warms up
            begin = time.perf_counter()
            outputs[name] = call()
            startup[name] = time.perf_counter() - begin
        times = interleaved(runs, plan.repeat)
    expected = outputs.get("naive")
    gmac = macs(plan.config, size * size, t) / 1e9
    return {
        name: summary(times[name], times.get("naive"))
        | {
            "first_call": round(startup[name], 3),
            "gmac_per_s": round(gmac / median(times[name]), 1),
        }
        | ({} if expected is None else differences(outputs[name], expected))
        for name in runs
    }


def bound(runner: Callable[[Batch], Output], batch: Batch) -> Callable[[], Output]:
    return lambda: runner(batch)


def runner_of(name: str, model: Model) -> Callable[[Batch], Output] | None:
    """What runs an engine; None for naive outside a checkout and for engines not installed."""
    if name == "naive":
        naive = naive_copy(model)
        return None if naive is None else naive.__call__
    if name != "auto" and name not in engines.installed():
        return None
    return engines.attach(model, name).eval().__call__


def naive_copy(model: Model) -> nn.Module | None:
    """The frozen naive module with the model's weights, where the repository is checked out."""
    if not NAIVE.is_file():
        return None
    spec = importlib.util.spec_from_file_location("undercast_naive", NAIVE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: nn.Module = module.naive_copy(model.network)
    return made


def differences(got: Output, expected: Output) -> Results:
    """Largest difference of the means; largest and mean relative difference of the variances."""
    gaps = {"max_abs_diff": float((got.mean - expected.mean).abs().max())}
    if got.variance is not None and expected.variance is not None:
        relative = (got.variance / expected.variance - 1).abs()
        gaps["max_rel_variance"] = float(relative.max())
        gaps["mean_rel_variance"] = float(relative.mean())
    return gaps


def interleaved(calls: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    """Wall times of `repeat` rounds, each of which runs every call once.

    >>> {name: len(times) for name, times in interleaved({"a": list, "b": dict}, 3).items()}
    {'a': 3, 'b': 3}
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            gc.collect()
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times


def summary(times: Sequence[float], naive: Sequence[float] | None) -> Results:
    """Median and spread in seconds; the ratio is None without the naive module.

    >>> summary([1.0, 2.0, 3.0], [8.0, 8.0, 9.0])
    {'seconds': 2.0, 'spread': 1.0, 'ratio': 4.0}
    """
    low, high = np.quantile(times, (0.25, 0.75))
    ratio = None if naive is None else round(median(naive) / median(times), 2)
    return {
        "seconds": round(median(times), 4),
        "spread": round(float(high - low), 4),
        "ratio": ratio,
    }


def median(times: Iterable[float]) -> float:
    return statistics.median(times)


def macs(config: UnCRtainTSConfig, pixels: int, t: int) -> float:
    """Multiply-accumulates of the convolutions for one sample.

    >>> round(2 * macs(UnCRtainTSConfig(), 256 * 256, 3) / 1e9)  # GFLOP
    72
    """
    d = config.d_m
    block = 2 * d * d * 2 + 2 * d * 9
    encoder = config.in_channels * d + config.n_e * block
    head = d * (bands.N_S2 + config.variance_channels)
    return float(pixels) * (t * encoder + config.n_d * block + head)


def paper_model(config: UnCRtainTSConfig, seed: int = 0) -> Model:
    """Random weights, with norms and running statistics that are not 0 and 1."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = create("uncrtaints", **vars(config)).eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.1)
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    assert isinstance(model.network, UnCRtainTS)
    return model


def random_batch(b: int, t: int, size: int) -> Batch:
    """Random images of size × size pixels, all dates valid, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return Batch(
        s2=torch.rand(b, t, bands.N_S2, size, size, generator=generator),
        s1=-25 * torch.rand(b, t, bands.N_S1, size, size, generator=generator),
        days=1500.0 + 5 * torch.arange(t).expand(b, t),
        valid=torch.ones(b, t, dtype=torch.bool),
    )
