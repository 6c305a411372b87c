"""Parts of the training path of an MBConv block: its norms as affine maps, and strips of images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

STRIP_PIXELS = 4096  # of 256 channels: 4 MiB


class Affine(NamedTuple):
    """A norm with its statistics, each (units, channels): y = scale · x + shift."""

    mean: Tensor
    inverse: Tensor  # of the standard deviation
    scale: Tensor
    shift: Tensor


class Norms:
    """What the four norms of a block have in common."""

    def __init__(self, norm: nn.Module, images: int, pixels: int) -> None:
        self._groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else None
        self.units = 1 if self._groups is None else images
        self.count = images * pixels // self.units  # pixels of a unit

    def unit(self, image: int) -> int:
        """The unit an image belongs to."""
        return 0 if self._groups is None else image

    def affine(self, norm: Any, mean: Tensor, square: Tensor) -> Affine:
        """From the means and mean squares (units, channels); batch norms remember them."""
        mean, square = self._average(mean), self._average(square)
        variance = (square - mean.square()).clamp_min(0.0)
        if isinstance(norm, nn.BatchNorm2d):
            self._remember(norm, mean[0], variance[0])
        inverse = torch.rsqrt(variance + norm.eps)
        scale = inverse * norm.weight
        return Affine(mean, inverse, scale, norm.bias - mean * scale)

    def backward(
        self, affine: Affine, weight: Tensor, g: Tensor, gx: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """From Σ dy and Σ dy·x (units, channels) the coefficients of dx = α dy + β x + δ.

        Second, the gradients of the norm's own weight and bias.
        """
        mean, inverse = affine.mean, affine.inverse
        normalised = inverse * (gx - mean * g)  # Σ dy·x̂
        first = self._average(weight * g / self.count)
        second = self._average(weight * normalised / self.count)
        slope = -inverse.square() * second
        coefficients = (inverse * weight, slope, -inverse * first - slope * mean)
        return coefficients, (normalised.sum(0).float(), g.sum(0).float())

    def _average(self, values: Tensor) -> Tensor:
        if self._groups is None:
            return values
        return values.unflatten(1, (self._groups, -1)).mean(2, keepdim=True).expand(
            -1, -1, values.shape[1] // self._groups
        ).flatten(1)  # fmt: skip

    def _remember(self, norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
        if norm.running_mean is None or norm.running_var is None:
            return
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        share = norm.momentum
        if share is None:
            share = 1.0 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.float(), share)
        norm.running_var.lerp_((variance * (self.count / max(self.count - 1, 1))).float(), share)


def strips(images: Tensor) -> Iterator[tuple[int, int, int]]:
    """Image, first and last row of each strip, none shorter than 3 rows unless the image is."""
    height, width = images.shape[1:3]
    count = max(1, min(height * width // STRIP_PIXELS, height // 3))
    edges = [height * i // count for i in range(count + 1)]
    for n in range(len(images)):
        for a, b in pairwise(edges):
            yield n, a, b


def with_frame(image: Tensor, a: int, b: int) -> Tensor:
    """Rows a−1 to b of an image (h w c) and a column on each side, reflected at the edges."""
    height, width, channels = image.shape
    framed = image.new_empty(b - a + 2, width + 2, channels)
    low, high = max(a - 1, 0), min(b + 1, height)
    framed[low - a + 1 : high - a + 1, 1:-1] = image[low:high]
    if a == 0:
        framed[0, 1:-1] = image[1]
    if b == height:
        framed[-1, 1:-1] = image[height - 2]
    framed[:, 0], framed[:, -1] = framed[:, 2], framed[:, -3]
    return framed


def add_sums(sums: Tensor, pixels: Tensor) -> None:
    """Adds Σ x and Σ x² of pixels (p c)."""
    sums[0] += pixels.sum(0)
    sums[1] += pixels.square().sum(0)


def add_products(sums: Tensor, g: Tensor, x: Tensor) -> None:
    """Adds Σ g and Σ g·x of pixels (p c)."""
    sums[0] += g.sum(0)
    sums[1] += (g * x).sum(0)


def nhwc(images: Tensor) -> Tensor:
    """The opposite of `nchw`."""
    return images[0].permute(1, 2, 0)
