"""Where the weights fail, looked for on simulated scenes: one picture for each kind of trouble.

Every kind is simulated a few times. The table has the means; the picture is the scene on which the
model does worst against the best composite.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from glint import add_glint

from undercast import Estimate, Stack, load_model, predict
from undercast.bands import N_S2
from undercast.evaluate import plain
from undercast.gaussian import half_width
from undercast.metrics import image_metrics, within_image_correlation
from undercast.quicklook import Rgb, colour_map, natural_gain, panel, rgb, write_png
from undercast.simulate import SimulatedSeries
from undercast.simulate.series import draw_region, simulate_patch

SIZE, SEEDS = 256, (501, 502, 503, 504)
SUMMER = ("2018-06-02", "2018-06-12", "2018-06-17", "2018-06-27")
WINTER = ("2018-01-03", "2018-01-13", "2018-01-18", "2018-01-28")
TARGET = 2  # of four dates; the others are the inputs
COMPOSITES = ("least-cloudy", "mosaic", "median")
SIGMA_SHOWN = ERROR_SHOWN = 0.1  # reflectance at the bright end of the colours
# A quarter of the pixels is enough for a page, and steps of colour make smaller files.
SHRINK, STEP_SHOWN = 2, 12

Change = Callable[[SimulatedSeries, Stack, int], Stack]


@dataclass(frozen=True, eq=False)
class Trouble:
    """One kind: where, when, how cloudy each date is, and what else is done to the inputs."""

    title: str
    biome: str
    covers: tuple[float, ...]
    dates: tuple[str, ...] = SUMMER
    inputs: tuple[int, ...] = (0, 1, 3)
    change: Change | None = None


def glinting(series: SimulatedSeries, stack: Stack, seed: int) -> Stack:
    """Glint on every input date."""
    return add_glint(series, stack, seed, [0.10] * len(stack.dates))


TROUBLES = {
    "permanent-cloud": Trouble("Permanent cloud: overcast on every date", "cropland",
                               (1.0, 1.0, 0.0, 1.0)),
    "snow": Trouble("Snow under clouds, mountains in January", "mountain",
                    (0.5, 0.6, 0.0, 0.4), WINTER),
    "sunglint": Trouble("Sunglint on water on every input date", "coast",
                        (0.4, 0.3, 0.0, 0.5), change=glinting),
    "city": Trouble("City: structure finer than the clouds let through", "city",
                    (0.6, 0.8, 0.0, 0.6)),
    "desert": Trouble("Desert: bright ground, little contrast", "dryland", (0.6, 0.8, 0.0, 0.6)),
    "one-date": Trouble("One date only, three quarters cloudy", "cropland",
                        (0.0, 0.75, 0.0, 0.0), inputs=(1,)),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Found:
    """One scene with what model and composites make of it."""

    seed: int
    stack: Stack
    target: np.ndarray
    estimate: Estimate
    figures: dict[str, Any]

    @property
    def margin(self) -> float:
        """dB above the best composite."""
        return float(self.figures["PSNR"] - self.figures["composite_PSNR"])


def scene(trouble: Trouble, seed: int) -> tuple[Stack, np.ndarray]:
    """Inputs with radar and mask, and the clear image of the target date, (13, H, W)."""
    region = draw_region(seed, (), trouble.dates, cover=trouble.covers, biome=trouble.biome)
    series = simulate_patch(region, 0, SIZE)
    stack = series.stack.select(list(trouble.inputs))
    if trouble.change is not None:
        stack = trouble.change(series, stack, seed)
    return stack, series.clear[TARGET]


def look(model: Any, trouble: Trouble, seed: int) -> Found:
    """Model without and with S1, and the composite that is best here."""
    stack, target = scene(trouble, seed)
    blind = Stack(stack.s2, stack.dates, mask=stack.mask)
    estimate, with_s1 = predict(model, blind), predict(model, stack)
    rows = {name: _row(target, predict(load_model(name), blind).mean) for name in COMPOSITES}
    best = max(rows, key=lambda name: rows[name]["PSNR"])
    figures = _row(target, estimate.mean) | {
        "coverage_90": _coverage(target, estimate),
        "PSNR_s1": _row(target, with_s1.mean)["PSNR"],
        "coverage_90_s1": _coverage(target, with_s1),
        "composite": best,
        **{f"composite_{key}": value for key, value in rows[best].items()},
    }
    return Found(seed, blind, target, estimate, figures)


def _row(target: np.ndarray, mean: np.ndarray) -> dict[str, float]:
    correlation = float(np.nanmean(within_image_correlation(target, mean)))
    found = image_metrics(target, mean)
    return {"PSNR": found["PSNR"], "SSIM": found["SSIM"], "correlation": correlation}


def _coverage(target: np.ndarray, estimate: Estimate) -> float:
    assert estimate.sigma is not None
    inside = np.abs(target - estimate.mean) <= half_width(0.9) * estimate.sigma
    return float(inside.mean())


def picture(found: Found) -> Rgb:
    """Input dates above; mean, truth, sigma and error below, at half the size."""
    target, mean, sigma = map(_smaller, (found.target, found.estimate.mean, found.estimate.sigma))
    gain = natural_gain(target)
    inputs = [
        (f"input {date}", rgb(_smaller(image), gain))
        for date, image in zip(found.stack.dates, found.stack.s2, strict=True)
    ]
    error = np.abs(mean - target).mean(axis=0)
    results = [
        ("mean", rgb(mean, gain)),
        ("truth", rgb(target, gain)),
        (f"sigma 0-{SIGMA_SHOWN}", colour_map(sigma.mean(axis=0), 0, SIGMA_SHOWN)),
        (f"error 0-{ERROR_SHOWN}", colour_map(error, 0, ERROR_SHOWN)),
    ]
    rows = [[(title, _fewer(p)) for title, p in row] for row in (inputs, results)]
    return panel(rows)


def _smaller(image: Any) -> np.ndarray:
    """Means of SHRINK² pixels of (13, H, W)."""
    size = SIZE // SHRINK
    return np.asarray(image).reshape(N_S2, size, SHRINK, size, SHRINK).mean(axis=(2, 4))


def _fewer(picture: Rgb) -> Rgb:
    step = STEP_SHOWN
    return np.minimum((picture.astype(int) + step // 2) // step * step, 255).astype(np.uint8)


def run(model: Any, pictures: Path, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """Every kind of trouble: figures, and a picture of the worst scene in the folder."""
    results = {}
    for key, trouble in TROUBLES.items():
        found = [look(model, trouble, seed) for seed in seeds]
        worst = min(found, key=lambda one: one.margin)
        write_png(pictures / f"{key}.png", picture(worst))
        numbers = [k for k, v in worst.figures.items() if not isinstance(v, str)]
        results[key] = {
            "title": trouble.title,
            "picture": f"{key}.png",
            "scenes": len(found),
            "mean": {k: float(np.mean([one.figures[k] for one in found])) for k in numbers},
            "shown": {"seed": worst.seed} | worst.figures,
        }
        row = results[key]["mean"]
        print(f"{key:16s}", "  ".join(f"{k} {v:.3f}" for k, v in row.items()), flush=True)
    return plain(results)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--pictures", type=Path, default=Path("docs/models"))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    results = run(load_model(args.model), args.pictures)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
