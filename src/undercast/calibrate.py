"""Fit a model's calibration on a held-out split: one half fits, the other half proves it.

Each sample is predicted once. The halves share no region where there are at least two, so that the
table is about places that the fit has not seen; conformal factors come from the second half, as
their guarantee demands.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Subset
from tqdm import tqdm

from undercast import bands
from undercast.calibration import Calibration, ConformalFit, VarianceFit
from undercast.datasets.samples import SampleBatch
from undercast.errors import ConfigError, InputError
from undercast.evaluate import observed, plain, sample_loader
from undercast.metrics import CalibrationAccumulator
from undercast.metrics.calibration import LEVELS
from undercast.models.system import Bare, Model

METHODS = ("auto", "scale", "power", "floor", "monotone")
RAW = "raw"


@dataclass(frozen=True)
class CalibrationReport:
    """What was fitted and how the second half looks before and after."""

    method: str  # scale | power | floor | monotone | raw
    calibration: Calibration
    table: dict[str, dict[str, float]]  # raw, scale, … → metrics on the second half
    per_band: dict[str, dict[str, dict[str, float]]]  # the same for each band: raw and the chosen
    images: tuple[int, int]  # fitted on, measured on

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found: dict[str, Any] = plain(
            {
                "method": self.method,
                "images_fitted": self.images[0],
                "images_measured": self.images[1],
                "held_out": self.table,
                "held_out_per_band": self.per_band,
            }
        )
        return found | {"calibration": self.calibration.to_dict()}


def calibrate(
    model: Model,
    dataset: Any,
    *,
    method: str = "auto",
    levels: Sequence[float] = LEVELS,
    batch_size: int = 4,
    workers: int = 0,
    device: str = "cpu",
    progress: bool = True,
) -> tuple[Model, CalibrationReport]:
    """The model with a calibration fitted on a dataset of `Sample`s, and the proof.

    method: scale (a factor for each band), power or floor (a factor and a power, or a factor and a
    floor, for all bands), monotone (a curve in the predicted variance for each band), or auto: what
    has the smallest NLL on the second half, the raw variance among them. A calibration that the
    model already has is replaced. The model itself is not changed.
    """
    if method not in METHODS:
        raise ConfigError(f"got method {method!r}, expected one of {', '.join(METHODS)}")
    if not model.network.gives_variance:
        raise InputError(f"got {model.name}, which predicts no variance: nothing to calibrate")
    bare = Bare(model).to(device).eval()
    first, second = halves(dataset)

    def each(half: list[int], use: Callable[[Any, Any, Any], None], title: str) -> None:
        loader = sample_loader(Subset(dataset, half), batch_size, workers)
        for loaded in tqdm(loader, desc=title, unit="batch", disable=not progress):
            part = observed(loaded.to(device), clear_targets_only=False)
            if part is not None:
                use(*_prediction(bare, part))

    fit = VarianceFit()
    each(first, fit.feed, "fit")
    fits = {name: getattr(fit, name) for name in METHODS if name != "auto"}
    wanted = fits if method == "auto" else {"scale", method}
    candidates = {RAW: Calibration()} | {name: fits[name]() for name in fits if name in wanted}
    trials = {name: _Trial(calibration) for name, calibration in candidates.items()}

    def measure(target: Any, mean: Any, variance: Any) -> None:
        for trial in trials.values():
            trial.feed(target, mean, variance)

    each(second, measure, "measure")
    report = _report(trials, method, levels, (len(first), len(second)))
    calibrated = Model(
        model.name, copy.deepcopy(model.network), report.calibration, dict(model.provenance)
    )
    return calibrated.eval(), report


def halves(dataset: Any) -> tuple[list[int], list[int]]:
    """Indices of two halves that share no region; every other sample where there is one region.

    Regions are known for datasets of `open_dataset`; other sequences are split by position.
    """
    n = len(dataset)
    if n < 2:
        raise InputError(f"got {n} sample, expected at least two: one to fit, one to measure")
    patches = getattr(dataset, "patches", None)
    if isinstance(dataset, Subset):
        outer = getattr(dataset.dataset, "patches", None)
        patches = None if outer is None else [outer[i] for i in dataset.indices]
    rois = None if patches is None else [patch.roi for patch in patches]
    if rois is None or len(set(rois)) < 2:
        return list(range(0, n, 2)), list(range(1, n, 2))
    chosen: set[str] = set()
    size = 0
    for roi in sorted(set(rois), key=lambda r: (-rois.count(r), r)):  # large ones first
        if size + rois.count(roi) <= n / 2 or not chosen:
            chosen.add(roi)
            size += rois.count(roi)
    first = [i for i, roi in enumerate(rois) if roi in chosen]
    return first, [i for i, roi in enumerate(rois) if roi not in chosen]


class _Trial:
    """One candidate on the second half."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.metrics = CalibrationAccumulator(bands.N_S2, per_band=True)
        self.conformal = ConformalFit()

    def feed(self, target: Any, mean: Any, variance: Any) -> None:
        calibrated = self.calibration.apply(variance)
        self.metrics.feed(target, mean, calibrated)
        self.conformal.feed(target, mean, calibrated)


def _prediction(model: Model, part: SampleBatch) -> tuple[Any, Any, Any]:
    with torch.inference_mode():
        output = model(part.batch)
    return part.target, output.mean, output.variance


def _report(
    trials: dict[str, _Trial], method: str, levels: Sequence[float], images: tuple[int, int]
) -> CalibrationReport:
    table = {name: trial.metrics.result() for name, trial in trials.items()}
    if method == "auto":
        method = min(table, key=lambda name: table[name]["NLL"])
    chosen = trials[method]
    conformal = tuple((level, chosen.conformal.factors(level)) for level in levels)
    return CalibrationReport(
        method,
        replace(chosen.calibration, conformal=conformal),
        table,
        {name: trials[name].metrics.per_band() for name in (RAW, method)},
        images,
    )


def table_rows(report: CalibrationReport) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the before/after table, on the second half."""
    columns = (
        "UCE", "UCE_im", "NLL", "CRPS", "ENCE", "dispersion", "sharpness",
        "coverage_50", "coverage_80", "coverage_90", "coverage_95",
    )  # fmt: skip
    rows = [
        [column, *(f"{metrics[column]:.4g}" for metrics in report.table.values())]
        for column in columns
    ]
    return ["held out", *report.table], rows
