"""From a stack to its estimate, from files to a product: the six calls of the flow."""

from __future__ import annotations

import numpy as np

from undercast.blend import Blend, Part, join
from undercast.errors import InputError
from undercast.inference import infer, infer_some
from undercast.models.system import Model
from undercast.tiles import SIZE, TilePlan
from undercast.types import Estimate, Stack


def predict(model: Model, stack: Stack, *, plan: TilePlan | None = None) -> Estimate:
    """The cloud-free image under the clouds of a stack, with its variance where there is one.

    mean and variance are (13, H, W) in reflectance and reflectance². Any number of dates; a date
    that is NaN everywhere is left out; a pixel that is NaN on every date is NaN in the estimate.
    Up to 256 × 256 pixels are one forward at that size; more are tiles, blended. `plan` sets other
    tiles.
    """
    if not stack.valid_dates.any():
        raise InputError(
            "got a stack that is NaN on every date, expected at least one observation: "
            "check the nodata value and the area that was read"
        )
    _, height, width = stack.shape
    if plan is None and max(height, width) <= SIZE:
        return infer(model, [stack])[0]
    return _predict_tiles(model, stack, plan or TilePlan(height, width))


def _predict_tiles(model: Model, stack: Stack, plan: TilePlan) -> Estimate:
    """Tile by tile, blended. In an ensemble, what tiles disagree about counts as epistemic."""
    total, aleatoric = Blend(plan), Blend(plan)
    for tile in plan:
        estimate = infer_some(model, [stack.crop(tile)])[0]
        spread = estimate.epistemic if estimate.variance is None else estimate.variance
        total.feed(tile, Part(estimate.mean, spread))
        if estimate.aleatoric is not None:
            aleatoric.feed(tile, Part(estimate.aleatoric))
    whole, within = join(list(total.rows())), list(aleatoric.rows())
    if not model.network.gives_variance:
        return Estimate(whole.mean, epistemic=whole.variance)
    if not within or whole.variance is None:
        return Estimate(whole.mean, whole.variance)
    part = join(within).mean
    return Estimate(whole.mean, whole.variance, part, np.maximum(whole.variance - part, 0))
