"""Training losses: L1, L2, the Gaussian likelihood and its variants, DSen2-CR's adaptive loss.

The functions on tensors are pure; `criterion(name)` gives the form that training needs, which reads
an output and its batch and leaves pixels without a target (NaN) out of the mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undercast.errors import ConfigError, InputError

if TYPE_CHECKING:  # structural: this file comes before the models and never imports them
    from undercast.models.system import Batch, Criterion, Output

# The released clamps, the first one from its ×10 space to reflectance².
LEGACY_VARIANCE_FLOOR = 1e-10
LEGACY_DISTANCE_FLOOR = 1e-9
# Mean squared error of an image that is good enough: 40 dB.
LOWEST_MSE = 1e-4


def gaussian_nll(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """The mean over all elements of ½(log σ² + e²/σ²), e = target − mean: a scalar.

    Equal shapes with any leading dimensions. The mean makes value, gradient and optimum (σ² = e²)
    independent of the batch size. It is the diagonal Gaussian's negative log-likelihood for each
    band, without the constant ½ log 2π. An isotropic Σ = σ²I is the same formula with one σ²
    expanded to the K bands: K times it is ½(K·log σ² + |e|²/σ²).

    >>> float(gaussian_nll(torch.zeros(4), torch.ones(4), torch.full((4,), 2.0)))
    2.0
    """
    return _nll(mean, variance, target).mean()


def l1(mean: Tensor, target: Tensor) -> Tensor:
    """The mean absolute error over all elements."""
    return (target - mean).abs().mean()


def l2(mean: Tensor, target: Tensor) -> Tensor:
    """The mean squared error over all elements."""
    return (target - mean).square().mean()


def beta_nll(mean: Tensor, variance: Tensor, target: Tensor, beta: float = 0.5) -> Tensor:
    """The Gaussian NLL of each element times a constant σ^2β (Seitzer et al., ICLR 2022).

    The weight takes no gradient. β = 0 is the likelihood; β = 1 gives the mean L2's gradient, so
    that badly fitted pixels are not explained away by a large variance.
    """
    return (variance.detach() ** beta * _nll(mean, variance, target)).mean()


def image_nll(mean: Tensor, target: Tensor) -> Tensor:
    """The mean over images (b …) of ½ log(mse + 1e-4), mse that of the whole image.

    It is the Gaussian NLL where each image has one variance and that is known, and falls by 0.115
    for a dB of mean PSNR. A few images with large errors do not decide it, as they do L2: where
    nothing tells images apart, it asks for what most of them are, not for the mean of all.
    """
    return _image_nll(torch.ones_like(target, dtype=torch.bool), mean, target)


def nll_legacy(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """The released multivariate NLL of images (b k h w), whose optimum σ² is e²/b.

    The log-determinant of each pixel is summed over the batch and then added to every sample's
    Mahalanobis distance, so a larger batch means a smaller variance. Kept for comparison only.
    """
    if mean.ndim != 4:
        raise InputError(f"got images of shape {tuple(mean.shape)}, expected (b, bands, h, w)")
    clamped = variance.detach().clamp(min=LEGACY_VARIANCE_FLOOR)
    variance = variance + (clamped - variance.detach())  # the clamp passes the gradient through
    log_det = variance.log().sum(dim=(0, 1))  # (h w): here the batch gets lost
    distance = ((target - mean).square() / variance).sum(dim=1)  # (b h w)
    return 0.5 * (log_det + distance.clamp(min=LEGACY_DISTANCE_FLOOR)).mean()


def carl(
    mean: Tensor, target: Tensor, cloudy: Tensor, mask: Tensor, target_weight: float = 1.0
) -> Tensor:
    """The cloud-adaptive regularised loss of DSen2-CR (Meraner et al. 2020).

    Clear pixels stay near the input, cloudy ones approach the target, and an L1 towards the target
    is added everywhere. mean, target, cloudy: (b k h w); mask (b h w) True = cloud or shadow.
    """
    error = (target - mean).abs()
    adaptive = torch.where(mask[:, None], error, (cloudy - mean).abs())
    return adaptive.mean() + target_weight * error.mean()


def criterion(name: str, **options: Any) -> Criterion:
    """A loss by name as training calls it: `(output, target, batch) -> scalar`.

    A NaN in the target is a pixel without truth and is left out of every mean.

    >>> criterion("l3")
    Traceback (most recent call last):
    undercast.errors.ConfigError: got loss 'l3', expected one of l1, l2, gaussian_nll, beta_nll, \
nll_legacy, carl
    """
    if name not in _CRITERIA:
        raise ConfigError(f"got loss {name!r}, expected one of {', '.join(_CRITERIA)}")
    function = _CRITERIA[name]
    known = [p for p in inspect.signature(function).parameters if p not in _FIXED]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"got unknown option {', '.join(unknown)} of loss {name}, "
            f"expected some of {', '.join(known) or '(none: it has no options)'}"
        )

    def evaluate(output: Output, target: Tensor, batch: Batch) -> Tensor:
        return function(output, target, batch, **options)

    return evaluate


def _nll(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (variance.log() + (target - mean).square() / variance)


def _image_nll(valid: Tensor, mean: Tensor, target: Tensor) -> Tensor:
    n = valid.flatten(1).sum(dim=1)
    squares = torch.where(valid, (target - mean).square(), 0.0).flatten(1).sum(dim=1)
    nll = 0.5 * (squares / n.clamp(min=1) + LOWEST_MSE).log()
    return _mean_where(n > 0, nll)


def _left_out(output: Output, target: Tensor) -> tuple[Tensor, Tensor]:
    """Where there is truth, and a target whose gaps hold the prediction: no error, no gradient."""
    valid = ~torch.isnan(target)
    return valid, torch.where(valid, target, output.mean.detach())


def _mean_where(valid: Tensor, values: Tensor) -> Tensor:
    """The mean over the valid elements; NaN where there is none, so that training notices."""
    return torch.where(valid, values, 0.0).sum() / valid.sum()


def _variance(output: Output, name: str) -> Tensor:
    if output.variance is None:
        raise ConfigError(
            f"got loss {name} for a system that predicts no variance: take loss l2 or l1, "
            "or a system with a covariance"
        )
    return output.variance


def _l1(output: Output, target: Tensor, batch: Batch) -> Tensor:
    valid, filled = _left_out(output, target)
    return _mean_where(valid, (filled - output.mean).abs())


def _l2(output: Output, target: Tensor, batch: Batch) -> Tensor:
    valid, filled = _left_out(output, target)
    return _mean_where(valid, (filled - output.mean).square())


def _gaussian_nll(output: Output, target: Tensor, batch: Batch) -> Tensor:
    valid, filled = _left_out(output, target)
    return _mean_where(valid, _nll(output.mean, _variance(output, "gaussian_nll"), filled))


def _beta_nll(
    output: Output, target: Tensor, batch: Batch, beta: float = 0.5, images: float = 0.0
) -> Tensor:
    """images: the weight of the same images' `image_nll`, to be added."""
    valid, filled = _left_out(output, target)
    variance = _variance(output, "beta_nll")
    loss = _mean_where(valid, variance.detach() ** beta * _nll(output.mean, variance, filled))
    return loss + images * _image_nll(valid, output.mean, filled) if images else loss


def _nll_legacy(output: Output, target: Tensor, batch: Batch) -> Tensor:
    valid, filled = _left_out(output, target)
    variance = torch.where(valid, _variance(output, "nll_legacy"), 1.0)
    # A gap has the variance 1 and no error: log 1 + 0 adds nothing to any pixel's sum.
    return nll_legacy(torch.where(valid, output.mean, filled), variance, filled)


def _carl(output: Output, target: Tensor, batch: Batch, target_weight: float = 1.0) -> Tensor:
    if batch.mask is None:
        raise InputError(
            "got a batch without cloud masks, which the loss carl needs: compute them with "
            "`undercast data prepare`, or take loss l1"
        )
    if batch.s2.shape[1] != 1:
        raise InputError(f"got {batch.s2.shape[1]} dates for the loss carl, expected 1")
    valid, filled = _left_out(output, target)
    cloudy = batch.s2[:, 0]
    unusable = batch.mask[:, 0, None] | torch.isnan(cloudy)
    error = (filled - output.mean).abs()
    kept = torch.where(unusable, filled, cloudy)  # clear pixels stay as they were observed
    return _mean_where(valid, (kept - output.mean).abs() + target_weight * error)


_FIXED = ("output", "target", "batch")
_CRITERIA: dict[str, Callable[..., Tensor]] = {
    "l1": _l1,
    "l2": _l2,
    "gaussian_nll": _gaussian_nll,
    "beta_nll": _beta_nll,
    "nll_legacy": _nll_legacy,
    "carl": _carl,
}
