"""A model on the real validation places, beside composites and flat images.

PSNR, SSIM, SAM and correlation are means over images, each place with equal weight. The figures of
the variance come twice: `pooled` over all pixels of a set (what coverage and UCE are claims about),
and `of_images`, the mean over places of each image's own figure, which is larger, since an image is
brighter or darker than predicted as a whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from backgrounds import Case, series_cases, training_backgrounds, triplet_cases

from undercast import Stack, load_model, predict
from undercast.bands import N_S2
from undercast.evaluate import plain
from undercast.metrics import (
    CalibrationAccumulator,
    calibration_metrics,
    image_metrics,
    within_image_correlation,
)

COMPOSITES = ("least-cloudy", "mosaic", "median")
CLOUDY = "cloudy input"  # what every composite of one date is
IMAGE = ("PSNR", "SSIM", "SAM", "correlation")
VARIANCE = ("UCE", "coverage_90", "NLL", "dispersion")
CLEAR = ("brightness", "bias", "PSNR")
HIDDEN = ("hidden_sigma", "hidden_error")
FEWEST = 0.03  # of the pixels, for a figure of their own


@dataclass(frozen=True)
class RealSet:
    """One way to put questions to the real places."""

    title: str
    radar: bool
    cases: Callable[[Path, str], list[Case]]


SETS = {
    "series_t3": RealSet("CloudSEN12 series, three dates, without S1", False, series_cases),
    "series_t2": RealSet(
        "CloudSEN12 series, two dates, without S1", False, lambda f, p: series_cases(f, p, 2)
    ),
    "series_t1": RealSet(
        "CloudSEN12 series, one date, without S1", False, lambda f, p: series_cases(f, p, 1)
    ),
    "triplets_s1": RealSet("SEN12MS-CR triplets, one date, with S1", True, triplet_cases),
    "triplets_no_s1": RealSet("SEN12MS-CR triplets, one date, without S1", False, triplet_cases),
}


def stack_of(case: Case, radar: bool) -> Stack:
    """The inputs of a case."""
    return Stack(case.s2, case.dates, case.s1 if radar else None, mask=case.mask)


def target_of(case: Case) -> np.ndarray:
    """(13, H, W) the clear image in 0..1, NaN where it is not clear."""
    return np.where(case.usable, np.clip(case.target, 0, 1), np.nan)


def estimates(case: Case, model: Any, flat: np.ndarray, radar: bool) -> dict[str, Any]:
    """name → (mean, variance or None)."""
    stack = stack_of(case, radar)
    found: dict[str, Any] = {}
    for name in COMPOSITES if len(case.s2) > 1 else ("mosaic",):
        estimate = predict(load_model(name), stack)
        found[name if len(case.s2) > 1 else CLOUDY] = (estimate.mean, estimate.variance)
    mosaic = found["mosaic" if len(case.s2) > 1 else CLOUDY][0]
    median = np.median(mosaic.reshape(N_S2, -1), axis=1)
    for name, spectrum in (("flat mean", flat), ("flat median", median)):
        found[name] = (np.broadcast_to(spectrum[:, None, None], case.target.shape), None)
    if model is not None:
        estimate = predict(model, stack)
        found["model"] = (estimate.mean, estimate.variance)
    return found


class Row:
    """The figures of one system over the cases of a set."""

    def __init__(self) -> None:
        self._image: dict[str, dict[str, list[float]]] = {}  # metric → place → values
        self._variance: dict[str, dict[str, list[float]]] = {}
        self._pooled = CalibrationAccumulator(N_S2, per_band=True)

    def feed(
        self, place: str, target: np.ndarray, mean: np.ndarray, variance: Any
    ) -> dict[str, float]:
        """Add an image; its own figures."""
        found = image_metrics(target, mean)
        found["correlation"] = float(np.nanmean(within_image_correlation(target, mean)))
        _add(self._image, place, {key: found[key] for key in IMAGE})
        if variance is not None:
            own = calibration_metrics(target, mean, variance)
            _add(self._variance, place, {key: own[key] for key in VARIANCE})
            self._pooled.feed(target, mean, variance)
            found |= own
        return found

    def result(self) -> dict[str, Any]:
        row: dict[str, Any] = _mean_of_places(self._image)
        if self._variance:
            pooled = self._pooled.result()
            row["pooled"] = {key: pooled[key] for key in VARIANCE} | half_of_pixels(self._pooled)
            row["of_images"] = _mean_of_places(self._variance)
            bands = self._pooled.per_band()
            row["bands"] = {band: found["coverage_90"] for band, found in bands.items()}
        return row


def half_of_pixels(found: CalibrationAccumulator) -> dict[str, float]:
    """Mean squared error of the most certain half of the pixels, and of all."""
    n, rmse, _ = found.reliability()
    half = np.clip(n.sum() / 2 - (np.cumsum(n) - n), 0, n)  # of each bin, by rising variance
    return {
        "mse_half": float((half * rmse**2).sum() / half.sum()),
        "mse_all": float((n * rmse**2).sum() / n.sum()),
    }


def _add(table: dict[str, dict[str, list[float]]], place: str, values: dict[str, float]) -> None:
    for key, value in values.items():
        table.setdefault(key, {}).setdefault(place, []).append(value)


def _mean_of_places(table: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    return {
        key: float(np.mean([np.mean(values) for values in places.values()]))
        for key, places in table.items()
    }


def measure(cases: list[Case], model: Any, flat: np.ndarray, radar: bool) -> dict[str, Any]:
    """{images, places, systems: name → figures, each: figures of every image} of one set."""
    rows: dict[str, Row] = {}
    each = []
    for case in cases:
        target, own = target_of(case), {}
        for name, (mean, variance) in estimates(case, model, flat, radar).items():
            row = rows.setdefault(name, Row())
            own[name] = row.feed(case.place, target, mean, variance)
            if name == "model":
                own[name] |= hidden_ground(case, target, mean, variance)
        if model is not None:
            each.append(
                {
                    "place": case.place,
                    "PSNR": own["model"]["PSNR"],
                    "flat_PSNR": own["flat mean"]["PSNR"],
                    **seen_ground(case, target),
                    **{key: own["model"][key] for key in ("coverage_90", *HIDDEN)},
                }
            )
    return {
        "images": len(cases),
        "places": sorted({case.place for case in cases}),
        "systems": plain({name: row.result() for name, row in rows.items()}),
        "each": plain(each),
    }


def seen_ground(case: Case, target: np.ndarray) -> dict[str, Any]:
    """How much of the inputs is clear, and the PSNR of that against the truth.

    It is the less, the more the ground, its light and the air differ between the dates.
    """
    clear = ~case.mask.astype(bool) & ~np.isnan(target).all(axis=0)
    off = (np.clip(case.s2, 0, 1) - target)[np.broadcast_to(clear[:, None], case.s2.shape)]
    psnr = float(-10 * np.log10(np.nanmean(off**2))) if off.size else None
    return {"clear": float(clear.mean()), "inputs_PSNR": psnr}


def hidden_ground(
    case: Case, target: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> dict[str, float | None]:
    """How many times larger sigma, and the error, are where no date shows the ground.

    Root mean squares over pixels and bands; sigma tells where not to trust an estimate if the two
    are alike. None where an image has hardly any pixels of one kind.
    """
    known = ~np.isnan(target).all(axis=0)
    hidden = case.mask.astype(bool).all(axis=0) & known
    seen = known & ~hidden
    if min(hidden.mean(), seen.mean()) < FEWEST:
        return dict.fromkeys(HIDDEN)
    squares = (variance, np.square(mean - target))
    ratios = (np.sqrt(np.nanmean(x[:, hidden]) / np.nanmean(x[:, seen])) for x in squares)
    return dict(zip(HIDDEN, map(float, ratios), strict=True))


def clear_stack(case: Case) -> Stack:
    """The clear image of a case as its only date; the median where it is not known."""
    target = target_of(case)
    usual = np.nanmedian(target, axis=(1, 2), keepdims=True)
    image = np.where(np.isnan(target), usual, target).astype(np.float32)
    return Stack(image[None], case.dates[:1], mask=np.zeros_like(case.mask[:1]))


def clear_ground(model: Any, cases: list[Case]) -> dict[str, dict[str, float]]:
    """place → what becomes of its clear image when that is the only input: it should stay.

    Its brightness (the mean over bands), by how much the estimate is brighter, and the PSNR.
    """
    found: dict[str, list[tuple[float, ...]]] = {}
    for case in cases:
        target = target_of(case)
        mean = predict(model, clear_stack(case)).mean
        psnr = image_metrics(target, mean)["PSNR"]
        figures = float(np.nanmean(target)), float(np.nanmean(mean - target)), psnr
        found.setdefault(case.place, []).append(figures)
    return {
        place: dict(zip(CLEAR, np.mean(rows, axis=0).tolist(), strict=True))
        for place, rows in found.items()
    }


def measure_all(model: Any, real: Path, part: str, flat: np.ndarray) -> dict[str, Any]:
    """Every set of `SETS` on one part of the places, and what becomes of clear ground there."""
    results = {
        key: {"title": chosen.title} | measure(chosen.cases(real, part), model, flat, chosen.radar)
        for key, chosen in SETS.items()
    }
    found: dict[str, Any] = {"part": part, "sets": results}
    if model is not None:
        found["clear"] = clear_ground(model, series_cases(real, part) + triplet_cases(real, part))
    return found


def mean_spectrum(real: Path) -> np.ndarray:
    """(13,) of the real training images: the flat image that knows the training data."""
    kinds = training_backgrounds(real)
    spectra = [b.clear.mean(axis=(0, 2, 3)) for kind in kinds.values() for b in kind]
    return np.asarray(np.mean(spectra, axis=0), dtype=np.float32)


def print_sets(results: dict[str, Any]) -> None:
    for found in results["sets"].values():
        print(f"\n{found['title']}: {found['images']} images of {', '.join(found['places'])}")
        for name, row in found["systems"].items():
            cells = [f"{key} {row[key]:.4f}" for key in IMAGE]
            for kind in ("pooled", "of_images"):
                if kind in row:
                    cells += [f"{key}[{kind}] {row[kind][key]:.4f}" for key in VARIANCE[:2]]
            print(f"{name:14s}", "  ".join(cells))
        if "model" in found["systems"]:
            covered = found["systems"]["model"]["bands"].items()
            print("in 90 %, by band:", "  ".join(f"{band} {share:.2f}" for band, share in covered))
    for place, row in results.get("clear", {}).items():
        print(f"clear ground of {place}:", "  ".join(f"{key} {row[key]:.3f}" for key in CLEAR))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="without: the baselines alone")
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--part", default="measure", choices=("select", "calibrate", "measure"))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    model = None if args.model is None else load_model(args.model)
    results = measure_all(model, args.real, args.part, mean_spectrum(args.real))
    print_sets(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
