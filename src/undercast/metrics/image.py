"""How near an image is to its target: RMSE, MAE, PSNR, SSIM, SAM, and the correlation within it.

Each is computed for every image and then averaged over images, as the paper does. Missing (NaN)
values are left out. The maps are computed once and can be averaged over several sets of pixels.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undercast.errors import InputError

IMAGE_METRICS = ("RMSE", "MAE", "PSNR", "SSIM", "SAM")
BAND_METRICS = ("RMSE", "MAE", "PSNR", "SSIM", "correlation")
_WINDOW, _SIGMA = 11, 1.5  # px, of the Gaussian window of SSIM
_C1, _C2 = 0.01**2, 0.03**2  # for data of range 1
_FLAT = 1e-12  # variance in reflectance² below which an image has no structure (σ = 0.01 DN)


class ErrorMaps(NamedTuple):
    """What the metrics average, for images (N, C, H, W) in float64."""

    target: Tensor  # (N C H W), 0 where not valid
    mean: Tensor  # (N C H W), 0 where not valid
    valid: Tensor  # (N C H W) bool
    ssim: Tensor  # (N C H W)
    angle: Tensor  # (N H W) degrees, NaN where a band is missing or a spectrum is all zero


class Scores(NamedTuple):
    """Metrics of each image; NaN where an image has no pixel to count."""

    image: dict[str, Tensor]  # name of IMAGE_METRICS → (N,)
    band: dict[str, Tensor]  # name of BAND_METRICS → (N, C)


def image_metrics(target: Any, mean: Any, where: Any = None) -> dict[str, float]:
    """RMSE, MAE, PSNR (dB), SSIM, SAM (degrees), each the mean over images.

    target, mean: (C, H, W) or (N, C, H, W) reflectance, numpy or torch; NaN is left out.
    where: (H, W) or (N, H, W) bool, the pixels that count; None = all. An image without any pixel
    to count is left out of the mean; without any image the value is NaN.

    >>> import numpy as np
    >>> target = np.full((13, 16, 16), 0.2)
    >>> found = image_metrics(target, target + 0.1)
    >>> round(found["RMSE"], 6), round(found["PSNR"], 6), round(found["SAM"], 3)
    (0.1, 20.0, 0.0)
    """
    found = scores(error_maps(target, mean), where)
    return {name: _mean(values) for name, values in found.image.items()}


def within_image_correlation(target: Any, mean: Any, where: Any = None) -> list[float]:
    """Pearson correlation over the pixels of an image, for each band, averaged over images.

    A structureless prediction scores 0. A structureless target is left out: there is nothing to
    correlate with.
    """
    found = scores(error_maps(target, mean), where).band["correlation"]
    return [_mean(found[:, band]) for band in range(found.shape[1])]


def error_maps(target: Any, mean: Any) -> ErrorMaps:
    """The maps that `scores` averages; see `image_metrics` for the arguments."""
    target, mean = as_images(target, "target"), as_images(mean, "mean")
    if target.shape != mean.shape:
        raise InputError(
            f"got a target of shape {tuple(target.shape)} and a mean of shape "
            f"{tuple(mean.shape)}, expected equal shapes"
        )
    valid = torch.isfinite(target) & torch.isfinite(mean)
    # A missing value becomes 0 in both images, so that the windows of its neighbours see no error.
    target, mean = target.where(valid, 0.0), mean.where(valid, 0.0)
    return ErrorMaps(target, mean, valid, _ssim_map(target, mean), _angle_map(target, mean, valid))


def scores(maps: ErrorMaps, where: Any = None) -> Scores:
    """The metrics of each image over the pixels `where` (None = all)."""
    counted = maps.valid if where is None else maps.valid & as_where(where, maps.valid)[:, None]
    error = maps.mean - maps.target
    weight = counted.double()
    n = weight.sum((2, 3))
    squared = _sum(error**2, weight)
    absolute = _sum(error.abs(), weight)
    ssim = _sum(maps.ssim, weight)
    total = n.sum(1)
    angles = torch.isfinite(maps.angle) & counted.any(1)
    rmse = (squared.sum(1) / total).sqrt()
    band_rmse = (squared / n).sqrt()
    return Scores(
        {
            "RMSE": rmse,
            "MAE": absolute.sum(1) / total,
            "PSNR": _psnr(rmse),
            "SSIM": ssim.sum(1) / total,
            "SAM": maps.angle.where(angles, 0.0).sum((1, 2)) / angles.sum((1, 2)),
        },
        {
            "RMSE": band_rmse,
            "MAE": absolute / n,
            "PSNR": _psnr(band_rmse),
            "SSIM": ssim / n,
            "correlation": _correlation(maps, weight, n),
        },
    )


def as_images(values: Any, name: str) -> Tensor:
    """(C, H, W) or (N, C, H, W), numpy or torch, as float64 (N, C, H, W)."""
    if isinstance(values, Tensor):
        images = values.detach().double()
    else:
        images = torch.from_numpy(np.array(values, dtype=np.float64))
    if images.ndim == 3:
        images = images[None]
    if images.ndim != 4 or 0 in images.shape:
        raise InputError(
            f"got a {name} of shape {tuple(images.shape)}, expected (C, H, W) or (N, C, H, W)"
        )
    return images


def as_where(where: Any, images: Tensor) -> Tensor:
    """(H, W) or (N, H, W) bool as (N, H, W) for images (N, C, H, W)."""
    chosen = torch.as_tensor(where)
    n, _, height, width = images.shape
    if chosen.dtype != torch.bool or chosen.shape not in ((height, width), (n, height, width)):
        raise InputError(
            f"got where of shape {tuple(chosen.shape)} and type {chosen.dtype}, "
            f"expected bool of shape {(height, width)} or {(n, height, width)}"
        )
    return chosen.to(images.device).expand(n, height, width)


def _sum(values: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("nchw,nchw->nc", values, weight)


def _psnr(rmse: Tensor) -> Tensor:
    return -20 * rmse.log10()  # the peak is a reflectance of 1


def _correlation(maps: ErrorMaps, weight: Tensor, n: Tensor) -> Tensor:
    def deviation(values: Tensor) -> Tensor:
        mean = _sum(values, weight) / n.clamp(min=1)
        return (values - mean[..., None, None]) * weight

    target, mean = deviation(maps.target), deviation(maps.mean)
    spread_target, spread_mean = _sum(target, target) / n, _sum(mean, mean) / n
    product = _sum(target, mean) / n
    found = product / (spread_target * spread_mean).sqrt()
    found = found.where(spread_mean > _FLAT, 0.0)
    return found.where(spread_target > _FLAT, math.nan)


def _ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """SSIM of each pixel: 11 × 11 Gaussian window, zeros outside the image, no clipping."""
    mean_a, mean_b, aa, bb, ab = _blur(torch.stack([a, b, a * a, b * b, a * b]))
    variance_a, variance_b = aa - mean_a**2, bb - mean_b**2
    covariance = ab - mean_a * mean_b
    luminance: Tensor = (2 * mean_a * mean_b + _C1) / (mean_a**2 + mean_b**2 + _C1)
    structure: Tensor = (2 * covariance + _C2) / (variance_a + variance_b + _C2)
    return luminance * structure


def _blur(images: Tensor) -> Tensor:
    """The Gaussian window as two multiplications by a band matrix: rows, then columns."""
    height, width = images.shape[-2:]
    rows = _window_matrix(height).to(images.device)
    columns = _window_matrix(width).to(images.device)
    return rows @ images @ columns


@functools.lru_cache(maxsize=8)
def _window_matrix(size: int) -> Tensor:
    offset = torch.arange(size)[:, None] - torch.arange(size)[None, :]
    weights = torch.exp(-(offset.double() ** 2) / (2 * _SIGMA**2))
    reach = torch.arange(-(_WINDOW // 2), _WINDOW // 2 + 1).double()
    norm = torch.exp(-(reach**2) / (2 * _SIGMA**2)).sum()
    return weights.where(offset.abs() <= _WINDOW // 2, 0.0) / norm


def _angle_map(target: Tensor, mean: Tensor, valid: Tensor) -> Tensor:
    lengths = target.norm(dim=1) * mean.norm(dim=1)
    cosine = (target * mean).sum(1) / lengths
    angle = torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))
    return angle.where(valid.all(1) & (lengths > 0), math.nan)


def _mean(values: Tensor) -> float:
    """The mean of what is not NaN."""
    return float(values.nanmean())
