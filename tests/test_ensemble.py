"""Ensembles are mixtures: total variance = aleatoric + epistemic, never less than either."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from undercast import Stack, load_model, predict
from undercast.calibration import Calibration
from undercast.checkpoint import save_model
from undercast.errors import CheckpointError
from undercast.gaussian import mixture_moments
from undercast.models import create


@pytest.fixture
def stack() -> Stack:
    rng = np.random.default_rng(0)
    s2 = rng.random((3, 13, 40, 40))
    s1 = -25 * rng.random((3, 2, 40, 40))
    return Stack(s2, ["2018-06-01", "2018-06-11", "2018-06-21"], s1=s1)


@pytest.fixture
def members(tmp_path):
    paths = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = create("uncrtaints", d_m=16, heads=4, n_d=1)
        paths.append(tmp_path / f"{seed}.safetensors")
        save_model(model, paths[-1])
    return paths


def test_mixture_moments_are_those_of_torch_distributions() -> None:
    torch.manual_seed(0)
    means, variances = torch.randn(4, 50).double(), torch.rand(4, 50).double()
    weights = torch.rand(4, 50).double()
    for w in (None, weights):
        moments = mixture_moments(means, variances, w)
        mixture = MixtureSameFamily(
            Categorical((torch.ones(4, 50) if w is None else w).T),
            Normal(means.T, variances.T.sqrt()),
        )
        torch.testing.assert_close(moments.mean, mixture.mean)
        torch.testing.assert_close(moments.variance, mixture.variance)


def test_between_variance_is_never_negative_even_for_equal_float32_members() -> None:
    means = np.full((5, 1000), 0.123456789, dtype=np.float32)
    moments = mixture_moments(means, np.full_like(means, 1e-12))
    assert (moments.between >= 0).all()
    assert (moments.variance >= moments.within).all()


def test_an_ensemble_is_the_mixture_of_its_members(members, stack) -> None:
    estimate = predict(load_model(members), stack)
    alone = [predict(load_model(path), stack) for path in members]
    means = np.stack([e.mean for e in alone])
    aleatoric = np.stack([e.variance for e in alone]).mean(0)
    np.testing.assert_allclose(estimate.mean, means.mean(0), atol=1e-6)
    np.testing.assert_allclose(estimate.aleatoric, aleatoric, rtol=1e-5)
    np.testing.assert_allclose(estimate.epistemic, means.var(0), rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(
        estimate.variance, estimate.aleatoric + estimate.epistemic, rtol=1e-6
    )
    assert (estimate.variance >= estimate.aleatoric).all()


def test_members_are_calibrated_before_they_are_mixed(members, stack, tmp_path) -> None:
    model = load_model(members[0])
    plain = predict(model, stack)
    model.calibration = Calibration(scale=(4.0,) * 13)
    save_model(model, tmp_path / "calibrated.safetensors")
    both = predict(load_model([tmp_path / "calibrated.safetensors", members[0]]), stack)
    np.testing.assert_allclose(both.aleatoric, 2.5 * plain.variance, rtol=1e-5)
    np.testing.assert_allclose(both.epistemic, 0, atol=1e-12)


def test_an_ensemble_calibrated_as_a_whole_keeps_its_parts_adding_up(members, stack) -> None:
    model = load_model(members)
    plain = predict(model, stack)
    model.calibration = Calibration(scale=(0.25,) * 13)
    estimate = predict(model, stack)
    np.testing.assert_allclose(estimate.variance, plain.variance / 4, rtol=1e-5)
    np.testing.assert_allclose(estimate.aleatoric, plain.aleatoric / 4, rtol=1e-5)
    np.testing.assert_allclose(
        estimate.variance, estimate.aleatoric + estimate.epistemic, rtol=1e-5
    )


def test_an_ensemble_is_saved_as_one_file(members, stack, tmp_path) -> None:
    model = load_model(members)
    model.calibration = Calibration(scale=(2.0,) * 13)
    save_model(model, tmp_path / "all.safetensors")
    a, b = predict(model, stack), predict(load_model(tmp_path / "all.safetensors"), stack)
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.variance, b.variance)


def test_members_without_variance_give_an_epistemic_part_only(stack, tmp_path) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        model = create("uncrtaints", d_m=16, heads=4, n_d=1, covariance="none")
        save_model(model, tmp_path / f"{seed}.safetensors")
    estimate = predict(load_model([tmp_path / "0.safetensors", tmp_path / "1.safetensors"]), stack)
    assert estimate.variance is None
    assert (estimate.epistemic > 0).any()


def test_members_of_two_kinds_or_none_are_refused(members, tmp_path) -> None:
    save_model(create("uncrtaints", d_m=16, heads=4, covariance="none"), tmp_path / "n.safetensors")
    with pytest.raises(CheckpointError, match="with and without variance"):
        load_model([members[0], tmp_path / "n.safetensors"])
    with pytest.raises(CheckpointError, match="empty list"):
        load_model([])
