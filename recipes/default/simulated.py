"""The weights on the test split of a simulated world that training never saw, beside baselines.

`--data` is simulated and prepared where it is not there yet: `undercast simulate DIR --rois 30
--patches 2 --dates 7 --seed 4242`, `undercast data prepare DIR`. Training draws from the seeds
20000 and up (`pool.py`), and its series are no regions of a dataset.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from undercast import load_model
from undercast.datasets import prepare
from undercast.evaluate import evaluate, open_part, plain, train_spectrum_of
from undercast.simulate import write_dataset

WORLD: dict[str, Any] = {"rois": 30, "patches": 2, "dates": 7, "size": 256, "seed": 4242}
LENGTHS = (2, 3, 4)
IMAGE = ("PSNR", "SSIM", "SAM", "correlation")
VARIANCE = ("UCE", "UCE_im", "coverage_90", "NLL")


def make_data(root: Path, workers: int) -> None:
    """The simulated dataset with its masks; what is already there stays."""
    if not (root / "simulation.json").exists():
        write_dataset(root, workers=workers, progress=True, **WORLD)
    prepare(root, workers=workers)


def evaluate_simulated(model_source: str, root: Path, limit: int | None = None) -> dict[str, Any]:
    """Setting → {dates, s1, images, systems}, for each number of dates, without and with S1."""
    spectrum = train_spectrum_of(root)
    results = {}
    for dates in LENGTHS:
        for s1 in (False, True):
            part = open_part(root, "test", limit, t=dates, protocol="clean", sar=s1)
            found = evaluate(load_model(model_source), part, batch_size=1, train_spectrum=spectrum)
            name = f"T={dates}, {'with' if s1 else 'without'} S1"
            results[name] = {"dates": dates, "s1": s1, "images": found.info["images"],
                             "systems": _systems(found)}  # fmt: skip
    return {"world": WORLD, "settings": results}


def _systems(found: Any) -> dict[str, dict[str, float]]:
    """The figures of the card; the model goes by the name `model`."""
    rows = {}
    for name, tables in found.systems.items():
        row = {key: tables["image"]["all"][key] for key in IMAGE}
        if tables["calibration"] is not None:
            row |= {key: tables["calibration"]["all"][key] for key in VARIANCE}
            curve = tables["calibration"]["discard_curve"]
            row["mse_half"] = float(np.interp(0.5, curve["kept"], curve["mse"]))
            row["mse_all"] = curve["mse"][-1]
        rows["model" if name == found.info["model"] else name] = row
    return plain(rows)  # type: ignore[no-any-return]


def print_settings(results: dict[str, Any]) -> None:
    for name, setting in results["settings"].items():
        print(f"\n{name}, {setting['images']} images")
        for system, row in setting["systems"].items():
            cells = (f"{k} {v:.4g}" for k, v in row.items() if v is not None)
            print(f"{system:18s}", "  ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="samples of each setting")
    parser.add_argument("--workers", type=int, default=2, help="that simulate and mask")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    make_data(args.data, args.workers)
    results = evaluate_simulated(args.model, args.data, args.limit)
    print_settings(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
