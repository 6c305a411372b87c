"""A model on the real validation places, beside composites and flat images."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from backgrounds import Case, series_cases, training_backgrounds, triplet_cases

from undercast import Stack, load_model, predict
from undercast.metrics import calibration_metrics, image_metrics, within_image_correlation

COMPOSITES = ("least-cloudy", "mosaic", "median")


def estimates(case: Case, model: Any, flat: np.ndarray, radar: bool) -> dict[str, Any]:
    """name → (mean, variance or None)."""
    stack = Stack(case.s2, case.dates, case.s1 if radar else None, mask=case.mask)
    found: dict[str, Any] = {}
    for name in COMPOSITES:
        found[name] = (predict(load_model(name), stack).mean, None)
    mosaic = found["mosaic"][0]
    size = case.target.shape[1:]
    found["flat mean"] = (np.broadcast_to(flat[:, None, None], (13, *size)), None)
    median = np.median(mosaic.reshape(13, -1), axis=1)
    found["flat median"] = (np.broadcast_to(median[:, None, None], (13, *size)), None)
    if model is not None:
        estimate = predict(model, stack)
        found["model"] = (estimate.mean, estimate.variance)
    return found


def measure(cases: list[Case], model: Any, flat: np.ndarray, radar: bool) -> dict[str, Any]:
    """Each metric averaged over cases, each place with equal weight."""
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    together: list[tuple[np.ndarray, ...]] = []
    for case in cases:
        target = np.where(case.usable, np.clip(case.target, 0, 1), np.nan)
        for name, (mean, variance) in estimates(case, model, flat, radar).items():
            row = image_metrics(target, mean)
            row["correlation"] = float(np.nanmean(within_image_correlation(target, mean)))
            if variance is not None:
                row |= calibration_metrics(target, mean, variance)
                together.append((target, mean, variance))
            places = table.setdefault(name, {})
            for key, value in row.items():
                places.setdefault(key, {}).setdefault(case.place, []).append(value)  # type: ignore[arg-type]
    return {
        name: {
            k: float(np.mean([np.mean(v) for v in by_place.values()]))
            for k, by_place in row.items()
        }  # type: ignore[union-attr]
        for name, row in table.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--part", default="measure", choices=("select", "calibrate", "measure"))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    kinds = training_backgrounds(args.real)
    flat = np.mean([b.clear.mean(axis=(0, 2, 3)) for kind in kinds.values() for b in kind], axis=0)
    model = None if args.model is None else load_model(args.model)
    results = {
        "series, three dates, no S1": measure(
            series_cases(args.real, args.part), model, flat, False
        ),
        "triplets, one date, S1": measure(triplet_cases(args.real, args.part), model, flat, True),
    }
    for title, table in results.items():
        print(f"\n{title}")
        for name, row in table.items():
            shown = ["PSNR", "SSIM", "SAM", "correlation", "coverage_90", "UCE"]
            print(f"{name:14s}", "  ".join(f"{k} {row[k]:.4f}" for k in shown if k in row))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
