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
from typing import Any, NamedTuple

import numpy as np
import torch
from backgrounds import PLACES
from measure import SETS, stack_of, target_of
from tqdm import tqdm

from undercast import predict
from undercast.bands import N_S2
from undercast.calibration import Calibration, ConformalFit, VarianceFit
from undercast.evaluate import plain
from undercast.evidence import posterior_variance
from undercast.metrics import CalibrationAccumulator
from undercast.metrics.calibration import LEVELS
from undercast.models.system import Model

# name → the correction from what was fed
RAW = "raw"
METHODS: dict[str, Callable[[VarianceFit], Calibration]] = {
    RAW: lambda fit: Calibration(),
    "one factor": lambda fit: Calibration((float(np.mean(fit.scale().scale)),) * N_S2),
    "factor and power": VarianceFit.power,
    "factor per band": VarianceFit.scale,
    "curve per band": VarianceFit.monotone,
}
PRIORS = (None, 4.0, 2.0, 1.0, 0.5, 0.25)  # dates that the network's variance counts for
SHOWN = ("UCE", "NLL", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "dispersion")


class Way(NamedTuple):
    """One way to calibrate: whether clear dates are asked first, then a correction."""

    method: str
    prior: float | None

    def __str__(self) -> str:
        asked = "" if self.prior is None else f", after clear dates (prior of {self.prior:g})"
        return f"{self.method}{asked}"


@dataclass(frozen=True, eq=False)
class Seen:
    """Truth, mean and raw variance of one image, each (13, H, W), and its dates (T, 13, H, W)."""

    target: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    s2: np.ndarray

    def after(self, prior: float | None) -> Seen:
        """The image with the variance that clear dates make of the raw one."""
        if prior is None:
            return self
        mean, variance, s2 = (
            torch.from_numpy(x)[None] for x in (self.mean, self.variance, self.s2)
        )
        valid = torch.ones(s2.shape[:2], dtype=torch.bool)
        found = posterior_variance(mean, variance, s2, valid, prior)
        return replace(self, variance=found[0].numpy())


def predictions(model: Model, real: Path) -> dict[str, list[Seen]]:
    """place → images: every set of `measure.SETS` on the calibrating places, raw variances."""
    bare = Model(model.name, model.network, None, model.provenance).eval()
    found: dict[str, list[Seen]] = {}
    asked = [(case, s.radar) for s in SETS.values() for case in s.cases(real, "calibrate")]
    for case, radar in tqdm(asked, desc="calibrate"):
        estimate = predict(bare, stack_of(case, radar))
        assert estimate.variance is not None  # the network is UnCRtainTS
        seen = Seen(target_of(case), estimate.mean, estimate.variance, case.s2)
        found.setdefault(case.place, []).append(seen)
    return found


def fit(seen: dict[str, list[Seen]]) -> tuple[Calibration, dict[str, Any]]:
    """The calibration and what to write down about it."""
    held_out: dict[Way, _HeldOut] = {}
    for prior in PRIORS:
        held_out |= _held_out(_after(seen, prior), prior)
    table = {way: judged.metrics.result() for way, judged in held_out.items()}
    best = min(table, key=lambda way: table[way]["NLL"])
    # Errors of a place go together, so those of the next one are larger than a fit to few tells.
    wider = 1.0 if best.method == RAW else table[best]["dispersion"] ** 2
    conformal = tuple(
        (level, tuple(f / wider**0.5 for f in held_out[best].conformal.factors(level)))
        for level in LEVELS
    )
    calibration = METHODS[best.method](_fitted(_after(seen, best.prior)))
    scale = tuple(wider * factor for factor in calibration.scale)
    calibration = replace(calibration, scale=scale, conformal=conformal, prior_dates=best.prior)
    facts = {
        "method": best.method,
        "prior_dates": best.prior,
        "taken": str(best),
        "wider": wider,
        "places": PLACES["cloudsen12"]["calibrate"] + PLACES["triplets"]["calibrate"],
        "images": sum(map(len, seen.values())),
        "held_out": plain({str(w): {key: row[key] for key in SHOWN} for w, row in table.items()}),
    }
    return calibration, facts


def _after(seen: dict[str, list[Seen]], prior: float | None) -> dict[str, list[Seen]]:
    return {place: [image.after(prior) for image in images] for place, images in seen.items()}


def _held_out(seen: dict[str, list[Seen]], prior: float | None) -> dict[Way, _HeldOut]:
    """Every method on every place, fitted on the others."""
    found = {Way(method, prior): _HeldOut() for method in METHODS}
    for place in seen:
        fitted = _fitted({name: images for name, images in seen.items() if name != place})
        for way, judged in found.items():
            calibration = METHODS[way.method](fitted)
            for _ in range(_repeats(seen)[place]):
                for image in seen[place]:
                    judged.feed(image, calibration)
    return found


class _HeldOut:
    """One way on places that it was not fitted on."""

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
