"""Packages trained weights: calibrates, measures, writes weights, figures, pictures and card.

    python recipes/default/package.py --run runs/default --pool POOL --real DIR --simulated SIM

`--out` gets default.safetensors, default.json (every figure of the card) and default.md (the card);
`--pictures` gets the failure cases. The stages can be run one by one: see README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import failures
from backgrounds import training_backgrounds
from card import write_cards
from measure import mean_spectrum, measure_all, print_sets
from package_calibration import fit, predictions
from package_choice import again, choose
from simulated import evaluate_simulated, make_data, print_settings

from undercast import load_model
from undercast.checkpoint import save_model
from undercast.errors import CheckpointError
from undercast.files import final_file

HERE = Path(__file__).resolve().parent
LARGEST = 5_000_000  # bytes
# What decides the weights; the calibration and the figures come later.
RECIPE = (
    "pool.py",
    "glint.py",
    "train.py",
    "mix.py",
    "ground.py",
    "echoes.py",
    "views.py",
    "backgrounds.py",
    "places.json",
)
DATA = {
    "eurosat": ("EuroSAT, clear patches of Europe", "MIT"),
    "cities": ("OSCD, cities with two dates and VV", "Copernicus Sentinel data"),
    "pairs": ("SEN12MS-CR, pairs of training regions", "CC BY 4.0"),
    "triplets": ("SEN12MS-CR, triplets with Sentinel-1", "CC BY 4.0"),
    "scenes": ("Sen1Floods11 (Spain) and scenes of eo-learn", "Copernicus Sentinel data; MIT"),
}


def provenance(real: Path, pool: Path, spectrum: Any) -> dict[str, Any]:
    """What the checkpoint says about itself besides what training wrote down."""
    images = {kind: len(found) for kind, found in training_backgrounds(real).items()}
    data = [
        {"name": name, "licence": licence, "places": images[kind]}
        for kind, (name, licence) in DATA.items()
    ]
    series = len(list(pool.glob("series_*[0-9].npy")))
    data.append(
        {"name": "undercast.simulate, seeds from 20000", "licence": "MIT", "places": series}
    )
    return {
        "level": "L1C",
        "recipe": "recipes/default",
        "recipe_commit": recipe_commit(),
        "training_data": data,
        "mean_spectrum": [round(float(x), 5) for x in spectrum],
    }


def recipe_commit() -> str:
    """The last commit that changed the recipe; an error where its files differ from it."""
    git = ["git", "-C", str(HERE)]
    changed = subprocess.run([*git, "status", "--porcelain", "--", *RECIPE],
                             capture_output=True, text=True, check=True).stdout  # fmt: skip
    if changed:
        raise CheckpointError(
            f"got changed files of the recipe, expected committed ones: {changed}"
        )
    found = subprocess.run([*git, "log", "-1", "--format=%H", "--", *RECIPE],
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    return found.strip()


def facts(path: Path) -> dict[str, Any]:
    """Size, hash, parameters, and the time to load once everything is imported."""
    started = time.perf_counter()
    model = load_model(path)
    seconds = time.perf_counter() - started
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "load_seconds": round(seconds, 3),
        "surroundings": model.config["surroundings"],
        "provenance": model.provenance,
    }


def stage(runs: str) -> list[Path]:
    """The folders of one stage, from the command line."""
    return [Path(run) for run in runs.split(",")]


def ended_with(text: str) -> tuple[str, Path]:
    """A stage and the weights it ended with, from the command line."""
    number, file = text.split("=", 1)
    return number, Path(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=stage, nargs="+", default=[],
                        help="folder of train.py; several: every stage in order, "
                        "with a comma between runs that differ by their seed; "
                        "none: the weights of --before again")  # fmt: skip
    parser.add_argument("--before", type=Path, default=None,
                        help="packaged weights that the first run began with")  # fmt: skip
    parser.add_argument("--mean", type=ended_with, nargs="+", default=[], metavar="STAGE=FILE",
                        help="what earlier stages ended with, to be averaged with")  # fmt: skip
    parser.add_argument("--pool", type=Path, required=True, help="folder of pool.py")
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--simulated", type=Path, required=True, help="made if it is not there")
    parser.add_argument("--out", type=Path, default=Path("src/undercast/weights"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/models"))
    parser.add_argument("--models", type=Path, default=HERE.parents[1] / "MODELS.md")
    parser.add_argument(
        "--weights", default="auto", help="best, last; of several runs also mean last"
    )
    parser.add_argument("--limit", type=int, default=None, help="samples a simulated setting")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if not args.run and args.before is None:
        parser.error("got neither --run nor --before, expected one of them at least")
    weights = args.out / "default.safetensors"
    spectrum = mean_spectrum(args.real)
    if args.run:
        origin = provenance(args.real, args.pool, spectrum)
        model = choose(args.run, args.real, args.weights, args.before, dict(args.mean))
        model.provenance |= origin
    else:
        model = again(args.before)
    calibration, report = fit(predictions(model, args.real))
    model.calibration = calibration
    save_model(model, weights)
    if weights.stat().st_size > LARGEST:
        raise CheckpointError(f"got {weights.stat().st_size} bytes, expected at most {LARGEST}")
    print(json.dumps(report, indent=2))

    model = load_model(weights)
    results: dict[str, Any] = {"weights": facts(weights), "calibration": report}
    results["real"] = measure_all(model, args.real, "measure", spectrum)
    print_sets(results["real"])
    make_data(args.simulated, args.workers)
    results["simulated"] = evaluate_simulated(str(weights), args.simulated, args.limit)
    print_settings(results["simulated"])
    results["failures"] = failures.run(model, args.pictures)
    with final_file(args.out / "default.json") as temporary:
        temporary.write_text(json.dumps(results, indent=1) + "\n")
    write_cards(args.out / "default.json", args.pictures, args.models)


if __name__ == "__main__":
    main()
