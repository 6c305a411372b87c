"""From a stack to its estimate: the six calls of the flow."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from undercast.errors import InputError, UndercastWarning
from undercast.models.system import Model, Output, batch_of
from undercast.types import Estimate, FloatArray, Stack


def predict(model: Model, stack: Stack) -> Estimate:
    """The cloud-free image under the clouds of a stack, with its variance where there is one.

    mean and variance are (13, H, W) in reflectance and reflectance². Any number of dates; a date
    that is NaN everywhere is left out; a pixel that is NaN on every date is NaN in the estimate.
    """
    if not stack.valid_dates.any():
        raise InputError(
            "got a stack that is NaN on every date, expected at least one observation: "
            "check the nodata value and the area that was read"
        )
    _warn_of_missing_radar(model, stack)
    return _forward(model, stack.select(np.flatnonzero(stack.valid_dates)))


def _forward(model: Model, stack: Stack) -> Estimate:
    """One forward at the native size."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.eval()
    with torch.inference_mode():
        output: Output = model(batch_of([stack]).to(device))
    nodata = ~stack.observed

    def image(tensor: torch.Tensor | None) -> FloatArray | None:
        if tensor is None:
            return None
        array = tensor[0].float().cpu().numpy()
        return np.where(nodata, np.float32(np.nan), array)

    mean = image(output.mean)
    assert mean is not None
    return Estimate(mean, image(output.variance), image(output.aleatoric), image(output.epistemic))


def _warn_of_missing_radar(model: Model, stack: Stack) -> None:
    """Once a model: its weights were trained with radar on every date, and some has none."""
    has_s1 = stack.s1 is not None and bool(
        np.isfinite(stack.s1[stack.valid_dates]).any(axis=(1, 2, 3)).all()
    )
    if has_s1 or not model.sar_required or model.warned_of_radar:
        return
    model.warned_of_radar = True
    warnings.warn(
        f"{model.name} was trained with Sentinel-1 on every date and got dates without: "
        "expect a worse image and too small a variance; pass s1, or other weights",
        UndercastWarning,
        stacklevel=3,
    )
