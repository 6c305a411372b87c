"""The calibration of the packaged weights: fitted on all calibrating places, judged place by place.

Every place is held out once. That says which correction is best on a place that the fit has not
seen (with few places that may be one factor for all bands, or none), by how much errors there are
larger than it says, and gives the conformal factors; the correction itself is then fitted on all
places. Each place counts about the same, however many images it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from backgrounds import PLACES
from measure import SETS, stack_of, target_of
from tqdm import tqdm

from undercast import predict
from undercast.bands import N_S2, S2
from undercast.calibration import Calibration, ConformalFit, VarianceFit
from undercast.evaluate import plain
from undercast.metrics import CalibrationAccumulator
from undercast.metrics.calibration import LEVELS
from undercast.models.system import Bare, Model

LAND = tuple(name for name in S2 if name != "B10")  # which shows cirrus, and hardly any ground
# name → the correction from what was fed
RAW = "raw"
METHODS: dict[str, Callable[[VarianceFit], Calibration]] = {
    RAW: lambda fit: Calibration(),
    "one factor": lambda fit: Calibration((float(np.mean(fit.scale().scale)),) * N_S2),
    "factor and power": VarianceFit.power,
    "factor and power, B10 apart": lambda fit: fit.power((LAND, ("B10",))),
    "factor and floor": VarianceFit.floor,
    "factor per band": VarianceFit.scale,
    "curve per band": VarianceFit.monotone,
}
SHOWN = ("UCE", "NLL", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "dispersion")


@dataclass(frozen=True, eq=False)
class Seen:
    """Truth, mean and raw variance of one image, each (13, H, W)."""

    target: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def predictions(model: Model, real: Path) -> dict[str, list[Seen]]:
    """place → images: every set of `measure.SETS` on the calibrating places, raw variances."""
    bare = Bare(model).eval()
    found: dict[str, list[Seen]] = {}
    asked = [(case, s.radar) for s in SETS.values() for case in s.cases(real, "calibrate")]
    for case, radar in tqdm(asked, desc="calibrate"):
        estimate = predict(bare, stack_of(case, radar))
        assert estimate.variance is not None  # the network is UnCRtainTS
        seen = Seen(target_of(case), estimate.mean, estimate.variance)
        found.setdefault(case.place, []).append(seen)
    return found


def fit(seen: dict[str, list[Seen]]) -> tuple[Calibration, dict[str, Any]]:
    """The calibration and what to write down about it."""
    held_out = {name: _HeldOut() for name in METHODS}
    for place in seen:
        others = {name: images for name, images in seen.items() if name != place}
        fitted = _fitted(others)
        for name, judged in held_out.items():
            calibration = METHODS[name](fitted)
            for _ in range(_repeats(seen)[place]):
                for image in seen[place]:
                    judged.feed(image, calibration)
    table = {name: judged.metrics.result() for name, judged in held_out.items()}
    method = min(METHODS, key=lambda name: table[name]["NLL"])
    # Errors of a place go together, so those of the next one are larger than a fit to few tells.
    wider = 1.0 if method == RAW else table[method]["dispersion"] ** 2
    conformal = tuple(
        (level, tuple(f / wider**0.5 for f in held_out[method].conformal.factors(level)))
        for level in LEVELS
    )
    calibration = METHODS[method](_fitted(seen))
    scale = tuple(wider * factor for factor in calibration.scale)
    calibration = replace(calibration, scale=scale, conformal=conformal)
    facts = {
        "method": method,
        "wider": wider,
        "places": PLACES["cloudsen12"]["calibrate"] + PLACES["triplets"]["calibrate"],
        "images": sum(map(len, seen.values())),
        "held_out": plain({n: {key: row[key] for key in SHOWN} for n, row in table.items()}),
    }
    return calibration, facts


class _HeldOut:
    """One method on places that it was not fitted on."""

    def __init__(self) -> None:
        self.metrics = CalibrationAccumulator(N_S2)
        self.conformal = ConformalFit()

    def feed(self, image: Seen, calibration: Calibration) -> None:
        variance = calibration.apply(image.variance)
        self.metrics.feed(image.target, image.mean, variance)
        self.conformal.feed(image.target, image.mean, variance)


def _fitted(seen: dict[str, list[Seen]]) -> VarianceFit:
    found = VarianceFit()
    for place, repeats in _repeats(seen).items():
        for _ in range(repeats):
            for image in seen[place]:
                found.feed(image.target, image.mean, image.variance)
    return found


def _repeats(seen: dict[str, list[Seen]]) -> dict[str, int]:
    most = max(map(len, seen.values()))
    return {place: round(most / len(images)) for place, images in seen.items()}
