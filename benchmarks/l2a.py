"""What level 2A costs weights that were trained on level 1C, on places known at both levels.

    python benchmarks/l2a.py --model default --real ../shared/realdata [--seeds 4] [--json FILE]

DIR holds terramesh_*.npz: s2l1c (13, H, W), s2l2a (12, H, W, no B10), s1rtc_db (2, H, W) and
dn_offset_to_subtract. Of each place and level, three dates of its clear image go under the same
simulated clouds; B10 of level 2A is filled by rule afterwards, as when files are read. Each
prediction is compared with the clear image of its own level, in the twelve bands that both have.
The mosaic composite has learnt nothing: its row says how much of a difference is the images' own.
Its height says nothing, since the ground is the same on all dates and it knows the true masks.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undercast import bands, load_model, predict
from undercast.cli.common import print_table, write_json
from undercast.errors import DataError, UndercastWarning
from undercast.metrics import calibration_metrics, image_metrics, within_image_correlation
from undercast.models.system import Model
from undercast.readers.filling import fill_bands
from undercast.simulate import add_clouds
from undercast.types import Stack

DATES = ("2020-06-01", "2020-06-11", "2020-06-21")
LEVELS = ("L1C", "L2A")
SHARED = [i for i, band in enumerate(bands.S2) if band != "B10"]
COVER = 0.5
METRICS = ("PSNR", "SAM", "correlation", "coverage_90")


def clear_image(place: Any, level: str) -> np.ndarray:
    """(13, H, W) reflectance; B10 of level 2A is filled by rule."""
    numbers = place["s2l1c"] if level == "L1C" else place["s2l2a"]
    numbers = numbers.astype(np.float32) - np.float32(place["dn_offset_to_subtract"])
    image = np.full((bands.N_S2, *numbers.shape[1:]), np.nan, np.float32)
    image[SHARED if level == "L2A" else slice(None)] = numbers / np.float32(
        bands.DN_PER_REFLECTANCE
    )
    return fill_bands(image, ("B10",)) if level == "L2A" else image


def cloudy_stack(place: Any, level: str, seed: int) -> tuple[Stack, np.ndarray]:
    """Three dates under clouds, and the clear image below."""
    clear = clear_image(place, level)
    radar = np.repeat(place["s1rtc_db"][None].astype(np.float32), len(DATES), axis=0)
    stack = Stack(np.repeat(clear[None], len(DATES), axis=0), list(DATES), radar)
    cloudy = add_clouds(stack, seed, COVER)
    s2 = cloudy.s2.copy()
    if level == "L2A":  # a cloud would show in B10, which such a product does not have
        for image in s2:
            fill_bands(image, ("B10",))
    return Stack(s2, list(DATES), radar, mask=cloudy.mask), clear


def figures(model: Model, stack: Stack, clear: np.ndarray) -> dict[str, float]:
    """The metrics of one prediction in the shared bands."""
    estimate = predict(model, stack)
    target, mean = clear[SHARED], estimate.mean[SHARED]
    found = image_metrics(target, mean)
    row = {"PSNR": found["PSNR"], "SAM": found["SAM"]}
    row["correlation"] = float(np.nanmean(within_image_correlation(target, mean)))
    if estimate.variance is not None:
        row |= {"coverage_90": coverage(target, mean, estimate.variance[SHARED])}
    return row


def coverage(target: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    return float(calibration_metrics(target, mean, variance)["coverage_90"])


def measure(source: str, places: dict[str, Any], seeds: int) -> list[dict[str, Any]]:
    """One row for each system, place, level and seed."""
    models = {"model": load_model(source), "mosaic": load_model("mosaic")}
    rows = []
    for place, data in places.items():
        for seed in range(seeds):
            for level in LEVELS:
                stack, clear = cloudy_stack(data, level, seed)
                for name, model in models.items():
                    about = {"system": name, "place": place, "level": level, "seed": seed}
                    rows.append(about | figures(model, stack, clear))
    return rows


def penalties(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """System → metric → mean at each level, and what level 2A changes."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for system in ("model", "mosaic"):
        found[system] = {}
        for metric in METRICS:
            level = {
                name: [r[metric] for r in rows if (r["system"], r["level"]) == (system, name)]
                for name in LEVELS
                if all(metric in r for r in rows if r["system"] == system)
            }
            if level:
                means = {name: float(np.mean(values)) for name, values in level.items()}
                found[system][metric] = means | {"penalty": means["L2A"] - means["L1C"]}
    return found


def open_places(folder: Path) -> dict[str, Any]:
    """Name → arrays of each place."""
    paths = sorted(folder.glob("terramesh_*.npz"))
    if not paths:
        raise DataError(f"got {folder} without terramesh_*.npz, expected places at both levels")
    return {path.stem.removeprefix("terramesh_"): dict(np.load(path)) for path in paths}


def main(told: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--real", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=4, help="cloud covers of each place")
    parser.add_argument("--json", default=None, metavar="FILE", help="rows and penalties")
    args = parser.parse_args(told)
    warnings.simplefilter("ignore", UndercastWarning)
    places = open_places(args.real)
    rows = measure(args.model, places, args.seeds)
    found = penalties(rows)
    write_json(args.json, {"rows": rows, "penalties": found})
    print(f"{len(places)} places × {args.seeds} seeds, {len(DATES)} dates, cover {COVER}, 12 bands")
    print_table(
        ["", "L1C", "L2A", "penalty"],
        [
            [f"{system}, {metric}", *(f"{value:.3f}" for value in levels.values())]
            for system, table in found.items()
            for metric, levels in table.items()
        ],
    )


if __name__ == "__main__":
    main()
