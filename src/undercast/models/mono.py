"""Which dates a system with a fixed number of inputs sees: the least cloudy ones.

A mono-temporal system that gets a time series restores its least cloudy date.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undercast import bands
from undercast.models.system import Batch, Criterion, LossParts, Output, System

BLUE = bands.index(("B2",))[0]


def least_cloudy_date(batch: Batch) -> Batch:
    """The one date of each stack that a mono-temporal system takes; see `choose_dates`."""
    return choose_dates(batch, 1)


def choose_dates(batch: Batch, count: int) -> Batch:
    """The `count` least cloudy valid dates of each stack, in the order of their days.

    Dates rank by `cloudiness`, equal ones by day. A stack with fewer valid dates repeats them, the
    least cloudy first. Padding, and with distinct days the order of the dates, change nothing.
    A stack without any valid date gives its first date as it is, marked invalid.

    >>> s2 = torch.full((1, 3, 13, 8, 8), 0.1)
    >>> mask = torch.zeros(1, 3, 8, 8, dtype=torch.bool)
    >>> mask[:, 0] = True
    >>> days = torch.tensor([[10.0, 20.0, 15.0]])
    >>> batch = Batch(s2, s2[:, :, :2], days, torch.ones(1, 3, dtype=torch.bool), mask)
    >>> choose_dates(batch, 1).days.tolist(), choose_dates(batch, 4).days.tolist()
    ([[15.0]], [[10.0, 15.0, 15.0, 20.0]])
    """
    if batch.s2.shape[1] == 1 == count:
        return batch
    ranked = clearest_first(batch)
    valid_dates = batch.valid.sum(dim=1, keepdim=True).clamp(min=1)
    rank = torch.arange(count, device=ranked.device)[None] % valid_dates
    chosen = ranked.gather(1, rank)
    in_order = torch.argsort(batch.days.gather(1, chosen), dim=1, stable=True)
    return select_dates(batch, chosen.gather(1, in_order))


def clearest_first(batch: Batch) -> Tensor:
    """The dates of each stack (b t), least cloudy first, equal ones by day, invalid ones last."""
    by_day = torch.argsort(batch.days, dim=1, stable=True)
    score = cloudiness(batch).masked_fill(~batch.valid, torch.inf).gather(1, by_day)
    return by_day.gather(1, torch.argsort(score, dim=1, stable=True))


def select_dates(batch: Batch, index: Tensor) -> Batch:
    """The dates at `index` (b n), which may repeat."""
    row = torch.arange(index.shape[0], device=index.device)[:, None]
    return Batch(*(None if x is None else x[row, index] for x in batch))  # type: ignore[arg-type]


def cloudiness(batch: Batch) -> Tensor:
    """How cloudy each date is, 0..1: (b t).

    With a mask: the share of pixels that are masked or without data. Without one: the mean blue
    (B2) top-of-atmosphere reflectance, clipped to 0..1, where a pixel without data counts as 1.
    Clouds are bright in blue while clear land and water are dark; snow misleads this rule.
    """
    if batch.mask is not None:
        missing = batch.s2.isnan().all(dim=2)
        return (batch.mask | missing).float().mean(dim=(2, 3))
    return batch.s2[:, :, BLUE].clip(0.0, 1.0).nan_to_num(1.0).float().mean(dim=(2, 3))


class MonoSystem(System):
    """A system that restores one date; of several it takes the least cloudy one.

    A subclass implements `restore`, which sees exactly one date.
    """

    temporal = "mono"

    def forward(self, batch: Batch) -> Output:
        return self.restore(least_cloudy_date(batch))

    def restore(self, batch: Batch) -> Output:
        """The cloud-free image from a batch with one date."""
        raise NotImplementedError(f"{type(self).__name__} must implement restore")

    def training_loss(self, batch: Batch, target: Tensor, criterion: Criterion) -> LossParts:
        return super().training_loss(least_cloudy_date(batch), target, criterion)
