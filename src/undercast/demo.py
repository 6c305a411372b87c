"""The whole flow on one simulated scene: cloudy dates in, a cloud-free image beside the truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undercast.checkpoint import load_model, packaged
from undercast.metrics import image_metrics
from undercast.pipeline import predict
from undercast.quicklook import colour_map, natural_gain, panel, rgb, write_png
from undercast.simulate import simulate_series
from undercast.types import Estimate, FloatArray, Stack

COMPOSITES = ("least-cloudy", "mosaic", "median")
DATES = ("2018-05-28", "2018-06-12", "2018-06-22", "2018-07-07")
BIOME = "cropland"
TARGET = 2  # this date is the truth, the others are the inputs
SIGMA_SHOWN, ERROR_SHOWN = 0.1, 0.1  # reflectance at the bright end of the colour map


@dataclass(frozen=True, eq=False)
class DemoScene:
    """Three cloudy dates, and the clear image of a date between them."""

    stack: Stack
    target: FloatArray  # (13, H, W)


def demo_scene(seed: int = 1, size: int = 256) -> DemoScene:
    """A simulated scene; the target date is never among the inputs."""
    series = simulate_series(seed, size=size, dates=DATES, biome=BIOME)
    others = [date for date in range(len(DATES)) if date != TARGET]
    return DemoScene(series.stack.select(others), series.clear[TARGET])


def systems() -> list[str]:
    """What the demo compares: the composites, and the packaged weights where there are some."""
    return [*COMPOSITES, *(["default"] if "default" in packaged() else [])]


def run_demo(out: Path, seed: int = 1, size: int = 256) -> list[dict[str, Any]]:
    """Writes quicklook.png into `out` and returns one row of figures a system, best last."""
    scene = demo_scene(seed, size)
    estimates = {name: predict(load_model(name), scene.stack) for name in systems()}
    rows: list[dict[str, Any]] = [
        {"system": name, **_figures(scene, estimate)} for name, estimate in estimates.items()
    ]
    rows.sort(key=lambda row: float(row["PSNR"]))
    best = str(rows[-1]["system"])
    write_png(out / "quicklook.png", picture(scene, best, estimates[best]))
    return rows


def _figures(scene: DemoScene, estimate: Estimate) -> dict[str, float]:
    figures = image_metrics(scene.target, estimate.mean)
    if estimate.sigma is not None:
        inside = np.abs(scene.target - estimate.mean) <= 1.6449 * estimate.sigma
        figures["coverage_90"] = float(inside.mean())
    return figures


def picture(scene: DemoScene, name: str, estimate: Estimate) -> Any:
    """Inputs above; result, truth, sigma and error below."""
    gain = natural_gain(scene.target)
    inputs = [
        (f"input {date}", rgb(image, gain))
        for date, image in zip(scene.stack.dates, scene.stack.s2, strict=True)
    ]
    error = np.abs(estimate.mean - scene.target).mean(axis=0)
    results = [(name, rgb(estimate.mean, gain)), ("truth", rgb(scene.target, gain))]
    if estimate.sigma is not None:
        shown = colour_map(estimate.sigma.mean(axis=0), 0, SIGMA_SHOWN)
        results.append((f"sigma 0-{SIGMA_SHOWN}", shown))
    results.append((f"error 0-{ERROR_SHOWN}", colour_map(error, 0, ERROR_SHOWN)))
    return panel([inputs, results])
