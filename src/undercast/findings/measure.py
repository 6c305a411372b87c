"""What a model does on each test image, kept so that images can be drawn again without the model.

UCE is no mean over images, so that each image keeps its histogram of log variance.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from undercast.errors import DataError, InputError
from undercast.evaluate import observed, sample_loader
from undercast.experiments import machine
from undercast.files import final_file
from undercast.findings.intervals import Floats
from undercast.metrics import bins, calibration
from undercast.metrics.calibration import ImageMoments
from undercast.metrics.image import IMAGE_METRICS, error_maps, scores
from undercast.metrics.streaming import N_CELLS, cell_of
from undercast.models.system import Model, Output

METRICS = (
    "RMSE", "PSNR", "SSIM", "SAM", "UCE", "UCE_im", "UCE_legacy", "NLL", "CRPS", "coverage_90",
    "sharpness",
)  # fmt: skip
PARTS = ("aleatoric", "epistemic", "variance")  # means, in reflectance²
HALF = "half_error"  # MSE of the most certain half of the images, as a share of that of all


@dataclass(frozen=True, eq=False)
class Measured:
    """One row for each of n images; every field is an array, so that it can be stored."""

    names: NDArray[np.str_]  # (n,) patches
    regions: NDArray[np.str_]  # (n,)
    image: Floats  # (n, len(IMAGE_METRICS))
    sums: Floats  # (n, 9) of `calibration.value_sums`, over bands
    moments: Floats  # (n, 3) squared error, variance, signed error
    parts: Floats  # (n, 2) mean aleatoric and epistemic variance
    cells: Floats  # (n, 4, k) count, squared error, variance, squared signed error
    seconds: Floats  # () of the evaluation
    machine: NDArray[np.str_]  # ()


@dataclass(frozen=True)
class Scored:
    """Metrics of all images, and of each bootstrap draw of them (draws,)."""

    values: Mapping[str, float]
    draws: Mapping[str, Floats]


def measure(model: Model, dataset: Any, device: str = "cpu", batch_size: int = 4) -> Measured:
    """Every image of a dataset of `Sample`s, for a model that predicts a variance."""
    if not model.network.gives_variance:
        raise InputError(f"got {model.name} without a variance, expected a model that has one")
    model, began = model.to(device).eval(), time.monotonic()
    rows: list[dict[str, Any]] = []
    for loaded in tqdm(sample_loader(dataset, batch_size, 0), desc="measure", unit="batch"):
        part = observed(loaded.to(device), clear_targets_only=False)
        if part is None:
            continue
        with torch.inference_mode():
            output = model(part.batch)
        for i, sample in enumerate(part.samples):
            one = Output(*(None if x is None else x[i : i + 1] for x in output))  # type: ignore[arg-type]
            rows.append(
                {"names": sample.id, "regions": sample.roi, **_row(part.target[i : i + 1], one)}
            )
    if not rows:
        raise InputError("got a dataset without any usable sample, expected at least one")
    columns = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    filled = columns["cells"][:, 0].sum(0) > 0  # an empty cell is in no bin
    columns["cells"] = columns["cells"][:, :, filled]
    seconds = np.array(time.monotonic() - began)
    return Measured(**columns, seconds=seconds, machine=np.array(machine()))


def _row(target: torch.Tensor, output: Output) -> dict[str, Any]:
    """The numbers of one image (1 13 h w)."""
    found = scores(error_maps(target, output.mean)).image
    counted = calibration.samples(target, output.mean, output.variance)
    squared, signed, spread = calibration.pixel_moments(counted)
    cell = cell_of(spread)
    columns = (np.ones_like(squared), squared, spread, signed**2)
    moments = calibration.image_moments(counted)
    return {
        "image": np.array([float(found[name][0]) for name in IMAGE_METRICS]),
        "sums": calibration.value_sums(counted).sum(0),
        "moments": np.array([float(field[0]) for field in moments]),
        "parts": np.array([np.nan if x is None else float(x.mean()) for x in output[2:]]),
        "cells": np.stack([np.bincount(cell, weights=c, minlength=N_CELLS) for c in columns]),
    }


def metrics_of(measured: Measured, weights: NDArray[np.int64] | None = None) -> dict[str, float]:
    """The metrics where image i counts `weights[i]` times (None = once)."""
    n = len(measured.names)
    w = np.ones(n, dtype=np.int64) if weights is None else weights
    count, squared, spread, signed = np.tensordot(w.astype(np.float64), measured.cells, 1)
    images = ImageMoments(*np.repeat(measured.moments, w, axis=0).T)
    curve = calibration.discard_curve(images)
    values = calibration.value_metrics(w @ measured.sums)
    aleatoric, epistemic = np.average(measured.parts, axis=0, weights=w).tolist()
    return {
        **dict(zip(IMAGE_METRICS, np.average(measured.image, axis=0, weights=w), strict=True)),
        "UCE": bins.reliability(bins.Groups(count, squared, spread), "equal_mass").uce,
        "UCE_legacy": bins.reliability(bins.Groups(count, signed, spread), "legacy").uce,
        "UCE_im": bins.reliability(calibration.image_groups(images)[0], "equal_mass").uce,
        **values,
        "aleatoric": aleatoric,
        "epistemic": epistemic,
        "variance": float(images.variance.mean()),
        HALF: float(curve.mse[len(curve.mse) // 2 - 1] / curve.mse[-1]),
    }


def scored(measured: Measured, weights: NDArray[np.int64]) -> Scored:
    """Metrics of the images and of the draws (draws, n)."""
    kept = (*METRICS, *PARTS, HALF)
    every = metrics_of(measured)
    drawn = [metrics_of(measured, w) for w in weights]
    return Scored(
        {name: float(every[name]) for name in kept},
        {name: np.array([draw[name] for draw in drawn]) for name in kept},
    )


def curve_of(measured: Measured) -> dict[str, list[float]]:
    """The discard curve over images."""
    found = calibration.discard_curve(ImageMoments(*measured.moments.T))
    return {"kept": found.kept.tolist(), "mse": found.mse.tolist()}


def save(measured: Measured, path: Path) -> None:
    """All fields as one file, under its name when complete."""
    arrays = {field.name: getattr(measured, field.name) for field in fields(Measured)}
    with final_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path) -> Measured:
    """What `save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return Measured(**{field.name: stored[field.name] for field in fields(Measured)})
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot read {path} ({error}): delete it to measure again") from error
