"""A coarse grid of cells, for what is smooth: means over cells, their blur, and pixels again."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

CELL = 8  # pixels
DEVIATIONS = 3  # of the Gaussian that is cut off beyond


def to_cells(image: Tensor) -> Tensor:
    """Sums over cells of CELL × CELL pixels, as a share of a whole one; the last may be smaller."""
    height, width = image.shape[-2:]
    more = (0, -width % CELL, 0, -height % CELL)
    return F.avg_pool2d(F.pad(image, more), CELL)


def to_pixels(cells: Tensor, height: int, width: int) -> Tensor:
    """(b c height width), linear between the middles of cells."""
    found = F.interpolate(cells, scale_factor=CELL, mode="bilinear", align_corners=False)
    return found[..., :height, :width]


def blurred(cells: Tensor, sigma: float) -> Tensor:
    """(b c h w) under a Gaussian of `sigma` cells; nothing lies beyond the edges."""
    radius = math.ceil(DEVIATIONS * sigma)
    steps = torch.arange(-radius, radius + 1, dtype=cells.dtype, device=cells.device)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    images = cells.flatten(0, 1)[:, None]
    images = F.conv2d(images, kernel[None, None, :, None], padding=(radius, 0))
    images = F.conv2d(images, kernel[None, None, None, :], padding=(0, radius))
    return images[:, 0].unflatten(0, cells.shape[:2])
