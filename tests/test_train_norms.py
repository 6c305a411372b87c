"""Batch norms that keep their statistics while everything else is trained."""

from __future__ import annotations

import pytest
import torch

from undercast.errors import ConfigError
from undercast.models import create
from undercast.models.system import Batch
from undercast.training.config import TrainConfig
from undercast.training.data import Item
from undercast.training.group import Group
from undercast.training.learner import Learner

SMALL = {"d_m": 16, "n_d": 1, "heads": 4, "attention_grid": 4, "dropout": 0.0}


def item() -> Item:
    torch.manual_seed(1)
    batch = Batch(
        torch.rand(2, 3, 13, 16, 16),
        -20 * torch.rand(2, 3, 2, 16, 16),
        10.0 * torch.arange(3).repeat(2, 1),
        torch.ones(2, 3, dtype=torch.bool),
    )
    return Item(batch, torch.rand(2, 13, 16, 16), "")


def test_frozen_norms_train_what_is_used() -> None:
    """The loss is that of the network in use, its gradients too, and statistics stay."""
    torch.manual_seed(0)
    network = create("uncrtaints", **SMALL).network
    for norm in network.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    used = create("uncrtaints", **SMALL).network.eval()
    used.load_state_dict(state)
    config = TrainConfig(
        model=SMALL, start="x", optimiser="sgd", lr=0.01, device="cpu", frozen_norms=True,
        channels_last=False,
    ).resolved()  # fmt: skip
    learner = Learner(config, network, Group(0, 1, torch.device("cpu")))
    found = learner.step(item())
    loss = learner.criterion(used(item().batch), item().target, item().batch)
    assert found.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    loss.backward()
    for name, weight in used.named_parameters():
        after = network.state_dict()[name]
        assert weight.grad is not None
        torch.testing.assert_close(after, state[name] - 0.01 * weight.grad, rtol=1e-4, atol=1e-6)
    for name, tensor in network.state_dict().items():
        if "running" in name or "tracked" in name:
            assert torch.equal(tensor, state[name])


def test_norms_that_nothing_was_learnt_for_cannot_be_frozen() -> None:
    with pytest.raises(ConfigError, match="frozen_norms without start"):
        TrainConfig(frozen_norms=True)
