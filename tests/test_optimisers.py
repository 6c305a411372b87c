"""Muon against a singular value decomposition and torch's own; averages against their sum."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from undercast.models import create
from undercast.training.learner import Average
from undercast.training.muon import Muon, orthogonalised, split_weights


@pytest.mark.parametrize("shape", [(16, 16), (12, 40), (40, 12)])
def test_orthogonalised_keeps_directions_and_makes_their_lengths_about_one(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    lengths = u.T @ orthogonalised(matrix) @ v.T
    diagonal = lengths.diagonal()
    assert 0.6 < diagonal.min() < diagonal.max() < 1.3
    torch.testing.assert_close(lengths, torch.diag(diagonal), atol=1e-4, rtol=0)


def test_orthogonalised_does_not_depend_on_the_size_and_stays_finite_at_zero() -> None:
    matrix = torch.randn(6, 9)
    torch.testing.assert_close(
        orthogonalised(1e3 * matrix), orthogonalised(matrix), atol=1e-4, rtol=1e-4
    )
    assert (orthogonalised(torch.zeros(6, 9)) == 0).all()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_matrices_move_as_in_torchs_muon() -> None:
    torch.manual_seed(1)
    ours = nn.Parameter(torch.randn(24, 32))
    theirs = nn.Parameter(ours.detach().clone())
    mine = Muon([ours], [], lr=0.02, weight_decay=0.1)
    other = torch.optim.Muon(
        [theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    start = ours.detach().clone()
    for _ in range(4):
        gradient = torch.randn(24, 32)
        for weight, optimiser in ((ours, mine), (theirs, other)):
            weight.grad = gradient.clone()
            optimiser.step()
    moved = (ours - start).norm()
    assert moved > 0.1
    assert (ours - theirs).norm() < 0.02 * moved  # torch's computes in bfloat16


def test_other_weights_move_as_in_adamw() -> None:
    torch.manual_seed(2)
    ours = nn.Parameter(torch.randn(7))
    theirs = nn.Parameter(ours.detach().clone())
    mine = Muon([], [ours], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    other = torch.optim.AdamW([theirs], 0.01, betas=(0.8, 0.95), weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(7)
        for weight, optimiser in ((ours, mine), (theirs, other)):
            weight.grad = gradient.clone()
            optimiser.step()
    torch.testing.assert_close(ours, theirs)


def test_matrices_are_the_pointwise_convolutions_inside() -> None:
    network = create("uncrtaints", d_m=16, heads=4).network
    names = {id(weight): name for name, weight in network.named_parameters()}
    matrices, others = ([names[id(w)] for w in part] for part in split_weights(network))
    assert sorted(matrices + others) == sorted(names.values())
    assert "decoder.0.expand.weight" in matrices
    assert "decoder.0.project.weight" in matrices
    for name in ("decoder.0.depthwise.weight", "head.weight", "embed.weight", "head.bias"):
        assert name in others


def test_the_average_is_the_weighted_sum_of_all_steps() -> None:
    network = create("uncrtaints", d_m=16, heads=4).network
    average = Average(network, keep=0.5)
    values, expected = [], network.head.weight.detach().clone()
    for step in range(1, 25):
        with torch.no_grad():
            network.head.weight.normal_()
            network.decoder[0].pre_norm.num_batches_tracked += 1
        values.append(network.head.weight.detach().clone())
        average.follow(network)
        keep = min(0.5, step / (step + 9))
        expected = keep * expected + (1 - keep) * values[-1]
    torch.testing.assert_close(average.network.head.weight, expected)
    recent = sum(0.5 ** (1 + i) * v for i, v in enumerate(values[::-1]))
    torch.testing.assert_close(average.network.head.weight, recent, atol=1e-3, rtol=0)
    assert average.network.decoder[0].pre_norm.num_batches_tracked == 24


def test_a_restored_average_goes_on_as_if_nothing_had_happened() -> None:
    network = create("uncrtaints", d_m=16, heads=4).network
    whole, first = Average(network, 0.9), Average(network, 0.9)
    for average in (whole, first):
        for factor in (1.5, 0.5):
            other = deepcopy(network)
            with torch.no_grad():
                other.head.weight.mul_(factor)
            average.follow(other)
    second = Average(network, 0.9)
    second.restore(first.state())
    whole.follow(network)
    second.follow(network)
    assert torch.equal(whole.network.head.weight, second.network.head.weight)
