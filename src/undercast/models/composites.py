"""Composites: the cloud-free image without learning, from the mask of each date.

Their variance says how far another clear date may lie from the composite. With s² the sample
variance of a pixel's n clear observations (the image's average of it where n < 2), a mean or median
has s²·(1 + 1/n) and a single date 2·s². A pixel that is never clear takes all its observations,
clouds included, for both, so its variance is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undercast.errors import InputError
from undercast.models.mono import clearest_first, select_dates
from undercast.models.system import Batch, Output, System

VARIANCE_FLOOR = 1e-5  # reflectance²: the noise of a sensor and its calibration


@dataclass(frozen=True)
class CompositeConfig:
    """Composites have no settings."""


class Composite(System):
    """What the three composites share."""

    uses_s1 = False
    learns = False
    needs_mask = True
    Config = CompositeConfig

    @property
    def gives_variance(self) -> bool:
        return True


class LeastCloudy(Composite):
    """The date with the smallest masked part; its gaps are filled from the next clearest dates."""

    title = "least cloudy date"

    def forward(self, batch: Batch) -> Output:
        usable = usable_dates(batch)
        ordered = select_dates(batch, clearest_first(batch)).s2
        mean = ordered[:, 0]
        for date in range(1, ordered.shape[1]):
            mean = torch.where(mean.isnan(), ordered[:, date], mean)
        return Output(mean, 2 * spread(batch.s2, usable))


class Mosaic(Composite):
    """The mean of the clear observations of each pixel."""

    title = "mean of clear pixels"

    def forward(self, batch: Batch) -> Output:
        usable = usable_dates(batch)
        clear = torch.where(usable[:, :, None], batch.s2, torch.nan)
        return Output(clear.nanmean(dim=1), _spread_around_average(batch.s2, usable))


class Median(Composite):
    """The median of the clear observations of each pixel (the mean of the middle two)."""

    title = "median of clear pixels"

    def forward(self, batch: Batch) -> Output:
        usable = usable_dates(batch)
        clear = torch.where(usable[:, :, None], batch.s2, torch.nan)
        return Output(clear.nanquantile(0.5, dim=1), _spread_around_average(batch.s2, usable))


def usable_dates(batch: Batch) -> Tensor:
    """(b t h w) True where a composite takes a date: observed and not masked.

    A pixel that is masked on every date is usable wherever it was observed.
    """
    if batch.mask is None:
        raise InputError(
            "got a stack without a mask, expected one for a composite: "
            "pass mask=undercast.masks.cloud_mask(s2) to Stack"
        )
    observed = batch.s2.isfinite().all(dim=2) & batch.valid[:, :, None, None]
    clear = observed & ~batch.mask
    return torch.where(clear.any(dim=1, keepdim=True), clear, observed)


def spread(s2: Tensor, usable: Tensor) -> Tensor:
    """Sample variance over the usable dates: s2 (b t c h w), usable (b t h w) to (b c h w).

    Pixels with fewer than two usable dates take the average over the image's other pixels, or the
    spatial variance of the image where no pixel has two.
    """
    values = torch.where(usable[:, :, None], s2, torch.nan)
    count = usable.sum(dim=1)[:, None]  # (b 1 h w)
    deviation = values - values.nanmean(dim=1, keepdim=True)
    sample = deviation.square().nansum(dim=1) / (count - 1).clamp(min=1)
    repeated = count >= 2
    pooled = torch.where(repeated, sample, torch.nan).nanmean(dim=(2, 3), keepdim=True)
    centred = values - values.nanmean(dim=(1, 3, 4), keepdim=True)
    spatial = centred.square().nanmean(dim=(1, 3, 4))[:, :, None, None]
    pooled = torch.where(pooled.isnan(), spatial, pooled)
    return torch.where(repeated, sample, pooled.expand_as(sample)).clamp(min=VARIANCE_FLOOR)


def _spread_around_average(s2: Tensor, usable: Tensor) -> Tensor:
    count = usable.sum(dim=1)[:, None].clamp(min=1)
    return spread(s2, usable) * (1 + 1 / count)
