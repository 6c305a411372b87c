"""The calibration of the packaged weights: fitted on all calibrating places, judged place by place.

Every place is held out once. That says which correction is best on a place that the fit has not
seen (with few places that may be one factor for all bands, or none), whether what land is like
counts where no date shows it, by how much errors there are larger than it says, and gives the
conformal factors; the correction itself is then fitted on all places. Each place counts about the
same, however many images it has.
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
from undercast.land import Land, combined
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
PRIORS = (None, 4.0, 2.0, 1.0, 0.5, 0.25)  # differences that the network's variance counts for
SPREADS = (None, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)  # of the logarithm of land
NEAR = 0.01  # of the NLL, which few places cannot tell: then the weakest prior, the smallest UCE
SHOWN = ("UCE", "NLL", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "dispersion")


class Way(NamedTuple):
    """One way to calibrate: whether land counts, whether clear dates are asked, a correction."""

    spread: float | None = None
    prior: float | None = None
    method: str = RAW

    def __str__(self) -> str:
        first = [
            *([] if self.spread is None else [f"land (spread of {self.spread:g})"]),
            *([] if self.prior is None else [f"clear dates (prior of {self.prior:g})"]),
        ]
        return self.method + (f", after {' and '.join(first)}" if first else "")


@dataclass(frozen=True, eq=False)
class Seen:
    """Truth, mean and raw variance of one image, each (13, H, W), and its dates (T, 13, H, W)."""

    target: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    s2: np.ndarray

    def after(self, land: Land | None, prior: float | None) -> Seen:
        """The image with what land and clear dates make of the network's mean and variance."""
        mean, variance, s2 = (
            torch.from_numpy(x)[None] for x in (self.mean, self.variance, self.s2)
        )
        valid = torch.ones(s2.shape[:2], dtype=torch.bool)
        if land is not None:
            mean, variance = combined(mean, variance, s2, valid, land)
        if prior is not None:
            variance = posterior_variance(mean, variance, s2, valid, prior)
        return replace(self, mean=mean[0].numpy(), variance=variance[0].numpy())


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


def fit(seen: dict[str, list[Seen]], spectrum: np.ndarray) -> tuple[Calibration, dict[str, Any]]:
    """The calibration and what to write down about it; spectrum: of land (13).

    First is asked how much land counts, then how much clear dates do, then what corrects best.
    """
    held_out: dict[Way, _HeldOut] = {}
    table: dict[Way, dict[str, float]] = {}

    def land(spread: float | None) -> Land | None:
        return None if spread is None else Land(tuple(map(float, spectrum)), spread)

    def first_of(tried: list[Way]) -> Way:
        """The first one that does about as well as the best, each with the best of its methods."""
        nll = {}
        for way in tqdm(tried, desc="hold out"):
            if way not in held_out:
                held_out.update(_held_out(_after(seen, land(way.spread), way.prior), way))
            ways = [way._replace(method=method) for method in METHODS]
            table.update({w: held_out[w].metrics.result() for w in ways})
            nll[way] = min(table[w]["NLL"] for w in ways)
        return next(way for way in tried if nll[way] < min(nll.values()) + NEAR)

    known = first_of([Way(spread) for spread in SPREADS])
    asked = first_of([known._replace(prior=prior) for prior in PRIORS])
    ways = [asked._replace(method=method) for method in METHODS]
    lowest = min(table[way]["NLL"] for way in ways)
    near = [way for way in ways if table[way]["NLL"] < lowest + NEAR]
    best = min(near, key=lambda way: table[way]["UCE"])
    # Errors of a place go together, so those of the next one are larger than a fit to few tells.
    wider = 1.0 if best.method == RAW else table[best]["dispersion"] ** 2
    conformal = tuple(
        (level, tuple(f / wider**0.5 for f in held_out[best].conformal.factors(level)))
        for level in LEVELS
    )
    calibration = METHODS[best.method](_fitted(_after(seen, land(best.spread), best.prior)))
    calibration = replace(
        calibration,
        scale=tuple(wider * factor for factor in calibration.scale),
        conformal=conformal,
        prior_dates=best.prior,
        land=land(best.spread),
    )
    facts = {
        "method": best.method,
        "land_spread": best.spread,
        "prior_dates": best.prior,
        "taken": str(best),
        "wider": wider,
        "places": PLACES["cloudsen12"]["calibrate"] + PLACES["triplets"]["calibrate"],
        "images": sum(map(len, seen.values())),
        "held_out": plain({str(w): {key: row[key] for key in SHOWN} for w, row in table.items()}),
    }
    return calibration, facts


def _after(
    seen: dict[str, list[Seen]], land: Land | None, prior: float | None
) -> dict[str, list[Seen]]:
    return {place: [image.after(land, prior) for image in images] for place, images in seen.items()}


def _held_out(seen: dict[str, list[Seen]], way: Way) -> dict[Way, _HeldOut]:
    """Every method on every place, fitted on the others, after what a way does first."""
    found = {way._replace(method=method): _HeldOut() for method in METHODS}
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
