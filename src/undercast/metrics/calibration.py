"""How far a variance can be trusted: UCE, likelihood, CRPS, coverage, sharpness, discard curve.

A sample is a pixel: its squared error and variance are averaged over its bands before binning. NLL,
CRPS, coverage and sharpness are means over all values (pixels × bands). Everything is in
reflectance. These functions hold all samples at once; `streaming` has the same in constant memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undercast import bands, gaussian
from undercast.errors import InputError
from undercast.metrics import bins
from undercast.metrics.bins import Floats
from undercast.metrics.image import as_images, as_where

LEVELS = (0.5, 0.8, 0.9, 0.95)
TABLE = ("NLL", "CRPS", "sharpness", "dispersion", *(f"coverage_{round(100 * p)}" for p in LEVELS))


class Samples(NamedTuple):
    """Images (N, C, H, W) with what counts: finite, and in `where`."""

    error: Tensor  # mean − target, 0 where not counted
    variance: Tensor  # 1 where not counted
    counted: Tensor  # bool


class ImageMoments(NamedTuple):
    """Averages over the pixels (and bands) of each image; NaN for an image without a pixel."""

    squared_error: Floats
    variance: Floats
    signed_error: Floats


def calibration_metrics(
    target: Any, mean: Any, variance: Any, where: Any = None
) -> dict[str, float]:
    """Every calibration metric of images (N, 13, H, W) or (13, H, W), numpy or torch.

    variance: reflectance², above 0. where: (H, W) or (N, H, W) bool, the pixels that count.
    UCE is over pixels and UCE_im over images, both with 20 bins of equal mass; the suffixes
    _equal_width and _legacy name the other binnings. NLL holds the constant ½ log 2π.

    >>> rng = np.random.default_rng(0)
    >>> target = rng.normal(0.3, 0.1, (4, 13, 64, 64))
    >>> found = calibration_metrics(target, np.full_like(target, 0.3), np.full_like(target, 0.01))
    >>> round(found["coverage_90"], 2), round(found["UCE"], 3)
    (0.9, 0.0)
    """
    return _metrics_of(samples(target, mean, variance, where))


def calibration_metrics_per_band(
    target: Any, mean: Any, variance: Any, where: Any = None
) -> list[dict[str, float]]:
    """`calibration_metrics` of each band alone."""
    found = samples(target, mean, variance, where)
    n_bands = found.error.shape[1]
    return [_metrics_of(Samples(*(x[:, c : c + 1] for x in found))) for c in range(n_bands)]


def _metrics_of(found: Samples) -> dict[str, float]:
    squared, signed, spread = pixel_moments(found)
    images = image_moments(found)
    exact = bins.exact_groups(squared, spread)
    legacy = bins.exact_groups(signed**2, spread)
    return {
        **uce_values(exact, legacy, ""),
        **uce_values(*image_groups(images), "_im"),
        "ENCE": bins.reliability(exact, "equal_mass").ence,
        "AUSE": bins.ause(exact, bins.exact_groups(squared, squared)),
        "discard_area": discard_curve(images).area,
        **value_metrics(value_sums(found).sum(0)),
    }


def uce_values(groups: bins.Groups, legacy: bins.Groups, suffix: str) -> dict[str, float]:
    """UCE with each binning; `legacy` groups hold the squares of signed mean errors."""
    return {
        f"UCE{suffix}": bins.reliability(groups, "equal_mass").uce,
        f"UCE{suffix}_equal_width": bins.reliability(groups, "equal_width").uce,
        f"UCE{suffix}_legacy": bins.reliability(legacy, "legacy").uce,
    }


def samples(target: Any, mean: Any, variance: Any, where: Any = None) -> Samples:
    """Checked images and which of their values count."""
    images = [
        as_images(x, n) for x, n in ((target, "target"), (mean, "mean"), (variance, "variance"))
    ]
    if len({image.shape for image in images}) != 1:
        shapes = ", ".join(str(tuple(image.shape)) for image in images)
        raise InputError(f"got target, mean and variance of shapes {shapes}, expected equal ones")
    target, mean, variance = images
    counted = torch.isfinite(target) & torch.isfinite(mean) & torch.isfinite(variance)
    if where is not None:
        counted &= as_where(where, target)[:, None]
    if bool((variance[counted] <= 0).any()):
        raise InputError("got a variance of 0 or below, expected it above 0 everywhere")
    return Samples((mean - target).where(counted, 0.0), variance.where(counted, 1.0), counted)


def pixel_moments(found: Samples) -> tuple[Floats, Floats, Floats]:
    """Squared error, signed error and variance of each counted pixel, averaged over its bands."""
    n = found.counted.sum(1)
    keep = n > 0
    squared = (found.error**2).sum(1)[keep] / n[keep]
    signed = found.error.sum(1)[keep] / n[keep]
    spread = found.variance.where(found.counted, 0.0).sum(1)[keep] / n[keep]
    return squared.cpu().numpy(), signed.cpu().numpy(), spread.cpu().numpy()


def image_moments(found: Samples, per_band: bool = False) -> ImageMoments:
    """Squared error, variance and signed error of each image, (N,), or of its bands, (N, C)."""
    dims = (2, 3) if per_band else (1, 2, 3)
    n = found.counted.sum(dims)
    spread = found.variance.where(found.counted, 0.0)
    means = (x.sum(dims) / n for x in (found.error**2, spread, found.error))
    return ImageMoments(*(x.cpu().numpy() for x in means))


def image_groups(images: ImageMoments) -> tuple[bins.Groups, bins.Groups]:
    """Groups for UCE_im: of the image-wise squared error, and of the released signed one."""
    some = np.isfinite(images.variance)
    squared, spread, signed = (field[some] for field in images)
    return bins.exact_groups(squared, spread), bins.exact_groups(signed**2, spread)


def discard_curve(images: ImageMoments) -> bins.DiscardCurve:
    """Mean squared error of the x % most certain images, sorted by their mean variance."""
    some = np.isfinite(images.variance)
    return bins.discard_curve(images.squared_error[some], images.variance[some])


def value_sums(found: Samples) -> Floats:
    """(C, 1 + len(TABLE)) sums over the values of each band: count, NLL, CRPS, σ, z², covered."""
    error, variance, counted = found
    sigma = variance.sqrt()
    z = error.abs() / sigma
    zero = torch.zeros_like(error)
    columns = [
        torch.ones_like(error),
        -gaussian.log_density(error, zero, variance),
        gaussian.crps(error, zero, variance),
        sigma,
        z**2,
        *((z <= gaussian.half_width(level)).double() for level in LEVELS),
    ]
    weight = counted.double()
    sums = [torch.einsum("nchw,nchw->c", column, weight) for column in columns]
    return np.asarray(torch.stack(sums, dim=1).cpu().numpy())


def value_metrics(sums: Floats) -> dict[str, float]:
    """Means of the columns of `value_sums`; dispersion is the root of the mean z² (1 = right)."""
    with np.errstate(invalid="ignore"):
        means = sums[1:] / sums[0]
    found = dict(zip(TABLE, means.tolist(), strict=True))
    found["dispersion"] = float(np.sqrt(found["dispersion"]))
    return found


def band_names(n_bands: int) -> tuple[str, ...]:
    """Sentinel-2 names for 13 bands, numbers otherwise."""
    return bands.S2 if n_bands == bands.N_S2 else tuple(str(i) for i in range(n_bands))
