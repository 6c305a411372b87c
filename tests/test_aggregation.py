"""The weighted sum over dates and its gradients are those of plain operations."""

import pytest
import torch
from torch import Tensor

from undercast.models import create, mbconv, mbconv_parts
from undercast.models.aggregation import weighted_sum
from undercast.models.system import Batch


def plain(features: Tensor, weights: Tensor) -> Tensor:
    """The same in one line: a head for each group of channels."""
    groups = features.unflatten(2, (weights.shape[1], -1))
    return torch.einsum("btnchw,bnthw->bnchw", groups, weights).flatten(1, 2)


@pytest.mark.parametrize("strip", [20, 4096])
def test_gradients_are_those_of_finite_differences(
    strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mbconv_parts, "STRIP_PIXELS", strip)
    torch.manual_seed(0)
    features = torch.randn(2, 3, 6, 7, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, 3, 3, 7, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(weighted_sum(features, weights), plain(features, weights))
    assert torch.autograd.gradcheck(weighted_sum, (features, weights))


def test_a_network_in_training_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = create("uncrtaints", d_m=16, heads=4, n_e=0, n_d=0, dropout=0.0).network.train()
    batch = Batch(
        s2=torch.rand(2, 3, 13, 40, 36),
        s1=-20 * torch.rand(2, 3, 2, 40, 36),
        days=torch.tensor([[1500.0, 1510.0, 1530.0]] * 2),
        valid=torch.tensor([[True, True, True], [True, False, True]]),
    )
    found = []
    for large in (2**40, 0):
        monkeypatch.setattr(mbconv, "LARGE", large)
        network.zero_grad(set_to_none=True)
        output = network(batch)
        (output.mean.square().mean() + output.variance.mean()).backward()
        found.append((output.mean.detach(), [p.grad for p in network.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
