"""Losses against torch.distributions, closed-form optima and hand-computed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from undercast import losses
from undercast.errors import ConfigError, InputError
from undercast.models.system import Batch, Output

K = 13


def sample(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    mean, target = (torch.rand(shape, generator=g, dtype=torch.float64) for _ in range(2))
    variance = torch.rand(shape, generator=g, dtype=torch.float64) * 0.1 + 1e-3
    return mean, variance, target


def empty_batch(b: int, h: int, w: int, mask: torch.Tensor | None = None) -> Batch:
    return Batch(
        s2=torch.full((b, 1, K, h, w), 0.3, dtype=torch.float64),
        s1=torch.zeros(b, 1, 2, h, w, dtype=torch.float64),
        days=torch.zeros(b, 1),
        valid=torch.ones(b, 1, dtype=torch.bool),
        mask=mask,
    )


@pytest.mark.parametrize("shape", [(5,), (2, K, 4, 6), (3, 1, 2, K, 4, 4)])
def test_gaussian_nll_is_the_negative_log_likelihood_of_a_normal(shape: tuple[int, ...]) -> None:
    mean, variance, target = sample(*shape)
    oracle = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(target).mean()
    constant = 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(losses.gaussian_nll(mean, variance, target) + constant, oracle)


def test_isotropic_nll_is_the_multivariate_normal_with_one_variance() -> None:
    mean, variance, target = sample(7, K)
    one = variance[:, :1]
    oracle = torch.distributions.MultivariateNormal(
        mean, one[..., None] * torch.eye(K, dtype=torch.float64)
    )
    ours = K * losses.gaussian_nll(mean, one.expand_as(mean), target)
    constant = 0.5 * K * math.log(2 * math.pi)
    torch.testing.assert_close(ours + constant, -oracle.log_prob(target).mean())


def optimum(loss: str, batch_size: int, error: float) -> torch.Tensor:
    """The variance (b k 2 2) at which the loss is stationary, by Newton's method on log σ²."""
    target = torch.full((batch_size, K, 2, 2), error, dtype=torch.float64)
    log_variance = torch.full_like(target, math.log(error**2) - 1).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [log_variance], max_iter=200, tolerance_grad=1e-14, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip
    function = losses.criterion(loss)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        output = Output(torch.zeros_like(target), log_variance.exp())
        value = function(output, target, empty_batch(batch_size, 2, 2)) * target.numel()
        value.backward()
        return value

    optimiser.step(closure)
    return log_variance.detach().exp()


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_nll_optimum_is_the_squared_error_for_any_batch_size(batch_size: int) -> None:
    found = optimum("gaussian_nll", batch_size, error=0.2)
    torch.testing.assert_close(found, torch.full_like(found, 0.04), rtol=1e-6, atol=0)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_legacy_nll_optimum_is_the_squared_error_over_the_batch_size(batch_size: int) -> None:
    found = optimum("nll_legacy", batch_size, error=0.2)
    torch.testing.assert_close(found, torch.full_like(found, 0.04 / batch_size), rtol=1e-6, atol=0)


@pytest.mark.parametrize("batch_size", [2, 4])
def test_nll_value_and_gradient_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    mean, variance, target = sample(1, K, 4, 4)
    values, gradients = [], []
    for b in (1, batch_size):
        m, v = (x.repeat(b, 1, 1, 1).requires_grad_() for x in (mean, variance))
        value = losses.gaussian_nll(m, v, target.repeat(b, 1, 1, 1))
        value.backward()
        values.append(value.detach())
        assert v.grad is not None
        gradients.append(b * v.grad[:1])  # the mean of b equal samples: 1/b of the gradient each
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_legacy_nll_of_one_sample_is_the_multivariate_normal() -> None:
    mean, variance, target = sample(1, K, 3, 5)
    last = [x.movedim(1, -1) for x in (mean, variance, target)]
    oracle = torch.distributions.MultivariateNormal(last[0], torch.diag_embed(last[1]))
    constant = 0.5 * K * math.log(2 * math.pi)
    torch.testing.assert_close(
        losses.nll_legacy(mean, variance, target) + constant, -oracle.log_prob(last[2]).mean()
    )


def test_legacy_nll_sums_the_log_determinant_over_the_batch() -> None:
    mean, variance, target = sample(3, K, 2, 2)
    expected = 0.0
    for row in range(2):
        for col in range(2):
            log_det = sum(math.log(variance[b, k, row, col]) for b in range(3) for k in range(K))
            for b in range(3):
                e = (target - mean)[b, :, row, col]
                expected += 0.5 * (log_det + float((e**2 / variance[b, :, row, col]).sum()))
    assert float(losses.nll_legacy(mean, variance, target)) == pytest.approx(expected / 12)


def test_legacy_nll_of_one_band_image_only() -> None:
    with pytest.raises(InputError, match="expected"):
        losses.nll_legacy(*sample(3, 5))


def test_beta_nll_is_the_nll_for_beta_zero_and_has_the_gradient_of_l2_for_beta_one() -> None:
    mean, variance, target = sample(2, K, 3, 3)
    torch.testing.assert_close(
        losses.beta_nll(mean, variance, target, beta=0.0),
        losses.gaussian_nll(mean, variance, target),
    )
    mean.requires_grad_()
    (ours,) = torch.autograd.grad(losses.beta_nll(mean, variance, target, beta=1.0), mean)
    (oracle,) = torch.autograd.grad(0.5 * losses.l2(mean, target), mean)
    torch.testing.assert_close(ours, oracle)


def test_the_nll_of_images_falls_by_their_decibels() -> None:
    target = torch.zeros(2, K, 4, 4, dtype=torch.float64)
    scale = torch.tensor([0.05, 0.4], dtype=torch.float64).reshape(2, 1, 1, 1)
    value = float(losses.image_nll(scale.expand_as(target), target))
    floor = losses.LOWEST_MSE
    psnr = [-10 * math.log10(e**2 + floor) for e in (0.05, 0.4)]
    assert value == pytest.approx(-math.log(10) / 20 * np.mean(psnr))


def test_where_nothing_tells_images_apart_their_nll_asks_for_what_most_are() -> None:
    """Nine of one level and one far above: L2 asks for the mean of all, this for the nine."""
    target = torch.full((10, K, 2, 2), 0.2)
    target[9] = 0.8
    levels = torch.linspace(0.1, 0.9, 801)
    found = [float(losses.image_nll(v.expand_as(target), target)) for v in levels]
    squares = [float(losses.l2(v.expand_as(target), target)) for v in levels]
    assert float(levels[int(np.argmin(squares))]) == pytest.approx(0.26, abs=0.002)
    assert float(levels[int(np.argmin(found))]) == pytest.approx(0.2, abs=0.002)


def test_the_nll_of_images_is_added_to_that_of_pixels_and_leaves_gaps_out() -> None:
    mean, variance, target = sample(3, K, 4, 4)
    target[1] = math.nan  # one image without any truth
    target[2, :, 1:] = math.nan
    both = losses.criterion("beta_nll", images=0.3)(
        Output(mean, variance), target, empty_batch(3, 4, 4)
    )
    pixels = losses.criterion("beta_nll")(Output(mean, variance), target, empty_batch(3, 4, 4))
    images = [losses.image_nll(m[None], t[None]) for m, t in
              ((mean[0], target[0]), (mean[2, :, :1], target[2, :, :1]))]  # fmt: skip
    torch.testing.assert_close(both, pixels + 0.3 * (images[0] + images[1]) / 2)


def test_l1_and_l2_equal_torch() -> None:
    mean, _, target = sample(2, K, 3, 3)
    torch.testing.assert_close(losses.l1(mean, target), torch.nn.functional.l1_loss(mean, target))
    torch.testing.assert_close(losses.l2(mean, target), torch.nn.functional.mse_loss(mean, target))


def test_carl_keeps_clear_pixels_near_the_input_and_moves_cloudy_ones_to_the_target() -> None:
    mask = torch.tensor([[[True, False]]])
    mean, target, cloudy = (torch.full((1, K, 1, 2), v) for v in (0.5, 0.1, 0.8))
    # cloudy pixel |0.1−0.5| = 0.4, clear one |0.8−0.5| = 0.3: mean 0.35; plus the L1 of 0.4
    assert float(losses.carl(mean, target, cloudy, mask)) == pytest.approx(0.75)


def test_carl_criterion_equals_the_function_and_needs_a_mask_and_one_date() -> None:
    mean, _, target = sample(2, K, 4, 4)
    mask = torch.arange(32).reshape(2, 1, 4, 4) % 3 == 0
    batch = empty_batch(2, 4, 4, mask)
    function = losses.criterion("carl")
    expected = losses.carl(mean, target, batch.s2[:, 0], mask[:, 0])
    torch.testing.assert_close(function(Output(mean), target, batch), expected)
    with pytest.raises(InputError, match="cloud masks"):
        function(Output(mean), target, empty_batch(2, 4, 4))
    two = batch._replace(s2=batch.s2.repeat(1, 2, 1, 1, 1))
    with pytest.raises(InputError, match="2 dates"):
        function(Output(mean), target, two)


@pytest.mark.parametrize("name", ["l1", "l2", "gaussian_nll", "beta_nll"])
def test_criterion_equals_the_pure_function(name: str) -> None:
    mean, variance, target = sample(2, K, 4, 4)
    arguments = (mean, variance, target) if "nll" in name else (mean, target)
    ours = losses.criterion(name)(Output(mean, variance), target, empty_batch(2, 4, 4))
    torch.testing.assert_close(ours, getattr(losses, name)(*arguments))


@given(
    name=st.sampled_from(["l1", "l2", "gaussian_nll", "beta_nll"]),
    gaps=st.integers(1, 15),
    seed=st.integers(0, 99),
)
def test_gaps_in_the_target_are_left_out_of_value_and_gradient(
    name: str, gaps: int, seed: int
) -> None:
    mean, variance, target = sample(1, K, 4, 4, seed=seed)
    flat = [x.flatten(2)[:, :, gaps:] for x in (mean, variance, target)]
    target.flatten(2)[:, :, :gaps] = math.nan
    mean.requires_grad_()
    function = losses.criterion(name)
    value = function(Output(mean, variance), target, empty_batch(1, 4, 4))
    expected = function(Output(flat[0], flat[1]), flat[2], empty_batch(1, 4, 4))
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, mean)
    assert torch.isfinite(gradient).all()
    assert (gradient.flatten(2)[:, :, :gaps] == 0).all()


def test_legacy_gaps_add_nothing() -> None:
    mean, variance, target = sample(2, K, 2, 2)
    target[:, :, 0] = math.nan
    function = losses.criterion("nll_legacy")
    value = function(Output(mean, variance), target, empty_batch(2, 2, 2))
    rest = losses.nll_legacy(*(x[:, :, 1:] for x in (mean, variance, target)))
    torch.testing.assert_close(value, rest / 2, atol=1e-8, rtol=1e-8)


def test_a_target_without_any_truth_gives_nan_and_not_zero() -> None:
    mean, variance, target = sample(1, K, 2, 2)
    value = losses.criterion("l2")(
        Output(mean, variance), torch.full_like(target, math.nan), empty_batch(1, 2, 2)
    )
    assert torch.isnan(value)


def test_wrong_names_options_and_systems_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown option gamma"):
        losses.criterion("beta_nll", gamma=1)
    mean, _, target = sample(1, K, 2, 2)
    with pytest.raises(ConfigError, match="predicts no variance"):
        losses.criterion("gaussian_nll")(Output(mean), target, empty_batch(1, 2, 2))
