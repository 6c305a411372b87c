"""A model on stacks that fit into one forward: batches in, estimates out, no data kept no data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch

from undercast import bands
from undercast.errors import UndercastWarning
from undercast.models.ensemble import Ensemble
from undercast.models.system import Model, Output, batch_of
from undercast.types import BoolArray, Estimate, FloatArray, Stack


def infer(model: Model, stacks: Sequence[Stack]) -> list[Estimate]:
    """The estimates of stacks of one size, in one forward at their native size.

    Dates without any observation are left out, stack by stack; each must have at least one left. A
    pixel that is NaN on every date is NaN in the estimate.
    """
    used = [_with_observations(stack) for stack in stacks]
    for stack in used:
        warn_of_missing_radar(model, stack)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.eval()
    with torch.inference_mode():
        output = model(batch_of(used).to(device))
    return [_estimate(output, i, ~stack.observed) for i, stack in enumerate(used)]


def _with_observations(stack: Stack) -> Stack:
    """The dates of a stack that have any."""
    seen = stack.valid_dates
    return stack if seen.all() else stack.select(np.flatnonzero(seen))


def infer_some(model: Model, stacks: Sequence[Stack]) -> list[Estimate]:
    """As `infer`, with an estimate of NaN for each stack that has no observation at all."""
    some = [i for i, stack in enumerate(stacks) if stack.valid_dates.any()]
    estimates = [_nothing(model, stack) for stack in stacks]
    for i, estimate in zip(
        some, infer(model, [stacks[i] for i in some]) if some else (), strict=True
    ):
        estimates[i] = estimate
    return estimates


def _nothing(model: Model, stack: Stack) -> Estimate:
    nan = np.full((bands.N_S2, *stack.shape[1:]), np.nan, np.float32)
    several, has_variance = isinstance(model.network, Ensemble), model.network.gives_variance
    return Estimate(
        nan,
        nan if has_variance else None,
        nan if several and has_variance else None,
        nan if several else None,
    )


def _estimate(output: Output, i: int, nodata: BoolArray) -> Estimate:
    some = bool(nodata.any())

    def image(tensor: torch.Tensor | None) -> FloatArray | None:
        if tensor is None:
            return None
        values = tensor[i].float().cpu().numpy()
        return np.where(nodata, np.float32(np.nan), values) if some else values

    mean = image(output.mean)
    assert mean is not None
    return Estimate(mean, image(output.variance), image(output.aleatoric), image(output.epistemic))


def warn_of_missing_radar(model: Model, stack: Stack) -> None:
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
