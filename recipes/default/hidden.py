"""What the surroundings of hidden ground give, on places held out from training and not measured.

The packaged network alone, calibrated, and what is made of its hidden ground with the masks of the
places, without any, and with those of both detectors: PSNR and NLL over the sets of `measure.py`,
over closed single dates (`chance.py`), and over clear ground. The calibration was fitted to the
calibrating places; the surroundings' settings were chosen by these figures.

    python recipes/default/hidden.py --model default --real DIR
    python recipes/default/hidden.py --model default --real DIR --set MASKED=0.7    another setting
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from backgrounds import series_cases, triplet_cases
from chance import of_places
from measure import SETS, clear_stack, stack_of, target_of
from tqdm import tqdm

from undercast import Stack, load_model, predict
from undercast.masks import cloud_mask
from undercast.metrics import calibration_metrics, image_metrics
from undercast.models import create, surroundings
from undercast.models.system import Model

PARTS = ("select", "calibrate")
ALONE, GIVEN, WITHOUT = "network alone", "given masks", "no masks"
DETECTORS = ("s2cloudless", "rules")
CLEAR = "clear"  # the set in which nothing is hidden


def asked(real: Path) -> Iterator[tuple[str, str, Stack, np.ndarray]]:
    """Set, place, inputs and truth of every question."""
    for part in PARTS:
        for key, chosen in SETS.items():
            for case in chosen.cases(real, part):
                yield f"{part} {key}", case.place, stack_of(case, chosen.radar), target_of(case)
        for case in series_cases(real, part) + triplet_cases(real, part):
            yield f"{part} {CLEAR}", case.place, clear_stack(case), target_of(case)
    for case in of_places(real):
        yield "closed", case.place, stack_of(case, case.s1 is not None), target_of(case)


def alone(model: Model) -> Model:
    """The same weights and calibration without surroundings."""
    bare = create(model.name, **(model.config | {"surroundings": 0}))
    bare.network.load_state_dict(model.network.state_dict())
    return Model(bare.name, bare.network, model.calibration, model.provenance).eval()


def ways(
    model: Model, bare: Model, stack: Stack, masks: bool
) -> Iterator[tuple[str, Model, Stack]]:
    """Name, model and inputs of every way to put a question; bare: as of `alone`; masks: also
    without the masks of the places, and with those of detectors."""
    yield ALONE, bare, stack
    yield GIVEN, model, stack
    if not masks:
        return
    yield WITHOUT, model, stack.without_mask()
    for name in DETECTORS:
        yield name, model, stack.with_mask(cloud_mask(stack.s2, name))


def figures(model: Model, stack: Stack, target: np.ndarray) -> dict[str, float]:
    """PSNR and NLL of one estimate."""
    found = predict(model, stack)
    own = calibration_metrics(target, found.mean, found.variance)
    return {"PSNR": image_metrics(target, found.mean)["PSNR"], "NLL": own["NLL"]}


def table(model: Model, real: Path, masks: bool = True) -> dict[str, dict[str, dict[str, float]]]:
    """Set → way → figures, means over images and then over places."""
    rows: dict[str, dict[str, dict[str, list[dict[str, float]]]]] = {}
    bare = alone(model)
    for name, place, stack, target in tqdm(list(asked(real)), desc="hidden ground"):
        for way, chosen, inputs in ways(model, bare, stack, masks):
            places = rows.setdefault(name, {}).setdefault(way, {})
            places.setdefault(place, []).append(figures(chosen, inputs, target))
    return {
        name: {way: _mean_of_places(places) for way, places in row.items()}
        for name, row in rows.items()
    }


def _mean_of_places(places: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    return {
        key: float(np.mean([np.mean([one[key] for one in images]) for images in places.values()]))
        for key in ("PSNR", "NLL")
    }


def mean_of_sets(found: dict[str, Any], way: str) -> dict[str, float]:
    """Over the sets of the selecting and calibrating places in which ground is hidden."""
    rows = [row[way] for name, row in found.items() if name.startswith(PARTS) and CLEAR not in name]
    return {key: float(np.mean([row[key] for row in rows])) for key in ("PSNR", "NLL")}


def setting(text: str) -> tuple[str, float]:
    """A number of `undercast.models.surroundings` and its value, from the command line."""
    name, _, value = text.partition("=")
    if not isinstance(getattr(surroundings, name, None), float):
        known = [key for key, found in vars(surroundings).items() if isinstance(found, float)]
        raise argparse.ArgumentTypeError(f"got {name}, expected one of {', '.join(known)}")
    return name, float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--set", type=setting, nargs="+", default=[], metavar="NAME=VALUE",
                        help="other settings, with the masks of the places alone")  # fmt: skip
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    for name, value in args.set:
        setattr(surroundings, name, value)
    found: dict[str, Any] = table(load_model(args.model), args.real, masks=not args.set)
    print(f"{'':26s}" + "".join(f"{way:>18s}" for way in next(iter(found.values()))))
    for name, row in found.items():
        cells = (f"{one['PSNR']:.2f} ({one['NLL']:.2f})" for one in row.values())
        print(f"{name:26s}" + "".join(f"{cell:>18s}" for cell in cells))
    means = [mean_of_sets(found, way) for way in next(iter(found.values()))]
    cells = (f"{one['PSNR']:.3f} ({one['NLL']:.4f})" for one in means)
    print(f"{'mean of select, calibrate':26s}" + "".join(f"{cell:>18s}" for cell in cells))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
