"""Small networks with random weights, inputs for them, and when two outputs count as equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from undercast.models import create
from undercast.models.system import Batch, Model, Output

SMALL: dict[str, Any] = {"d_m": 16, "heads": 4, "n_d": 2}


def random_model(seed: int = 0, **config: Any) -> Model:
    """Random weights and norms, running statistics too: to fold a norm of 0 and 1 shows nothing."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = create("uncrtaints", **{**SMALL, **config}).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.3, generator=generator)
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return model


def random_batch(b: int = 1, t: int = 3, h: int = 32, w: int = 64, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    s2 = torch.rand(b, t, 13, h, w, generator=generator) * 1.2 - 0.1
    s1 = -30 * torch.rand(b, t, 2, h, w, generator=generator)
    s2[0, 0, :, 0, 0] = float("nan")
    s1[0, -1] = float("nan")
    days = 1500 + 60 * torch.rand(b, t, generator=generator)
    return Batch(s2, s1, days, torch.ones(b, t, dtype=torch.bool))


def assert_close(got: Output, expected: Output, mean: float = 1e-5, variance: float = 1e-3) -> None:
    assert got.mean.shape == expected.mean.shape
    assert float((got.mean - expected.mean).abs().max()) <= mean
    assert (got.variance is None) == (expected.variance is None)
    if got.variance is not None and expected.variance is not None:
        assert got.variance.shape == expected.variance.shape
        assert float((got.variance / expected.variance - 1).abs().max()) <= variance
