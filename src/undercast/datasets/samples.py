"""What datasets yield: a `Sample` with its provenance, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undercast.errors import InputError
from undercast.models.system import Batch, batch_of
from undercast.types import BoolArray, FloatArray, Stack, Tile


@dataclass(frozen=True)
class Provenance:
    """Where a sample comes from. Dates are numbers in the series, paths relative to the dataset."""

    dataset: str
    roi: str
    patch: int
    split: str
    inputs: tuple[int, ...]
    target: int | None  # None in SEN12MS-CR, whose clear image is no date of the series
    cover: float  # mean cloud cover of the whole input images, NaN where it is not known
    target_cover: float
    input_paths: tuple[str, ...]
    s1_paths: tuple[str | None, ...]
    target_path: str
    tile: Tile  # the part of the patch

    @property
    def id(self) -> str:
        """The patch, whatever its dates: `sen12mscrts/1868/73/171`."""
        return f"{self.dataset}/{self.roi}/{self.patch}"


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs and target of one reconstruction.

    target: (13, H, W) reflectance clipped to 0..1, NaN = no data. target_mask: (H, W) True =
    cloud, shadow or no data, or None where the dataset was not prepared.
    """

    stack: Stack
    target: FloatArray
    target_mask: BoolArray | None
    target_date: np.datetime64
    provenance: Provenance


class SampleBatch(NamedTuple):
    """Samples as tensors."""

    batch: Batch
    target: Tensor  # (b 13 h w) reflectance, NaN = no data
    target_mask: Tensor | None  # (b h w) bool
    samples: tuple[Provenance, ...]

    def to(self, device: torch.device | str) -> SampleBatch:
        """The same batch on another device."""
        return SampleBatch(
            self.batch.to(device),
            self.target.to(device),
            None if self.target_mask is None else self.target_mask.to(device),
            self.samples,
        )

    def pin_memory(self) -> SampleBatch:
        """The same batch in page-locked memory; the loader calls it when it is told to pin."""
        return SampleBatch(
            Batch(*(None if x is None else x.pin_memory() for x in self.batch)),  # type: ignore[arg-type]
            self.target.pin_memory(),
            None if self.target_mask is None else self.target_mask.pin_memory(),
            self.samples,
        )


def collate(samples: Sequence[Sample]) -> SampleBatch:
    """A batch of samples of one size; shorter series are padded with invalid dates."""
    if not samples:
        raise InputError("got no samples, expected at least one")
    masks = [sample.target_mask for sample in samples]
    known = [mask for mask in masks if mask is not None]
    return SampleBatch(
        batch_of([sample.stack for sample in samples]),
        torch.from_numpy(np.stack([sample.target for sample in samples])),
        torch.from_numpy(np.stack(known)) if len(known) == len(masks) else None,
        tuple(sample.provenance for sample in samples),
    )
