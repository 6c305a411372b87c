"""Muon: momentum whose matrices are made orthogonal, and Adam for everything else.

A step of Adam on a matrix is dominated by few directions. Muon gives each direction of the momentum
the same length, which takes fewer steps for the same loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
RMS = 0.2  # of an update of a matrix at a rate of 1: about that of Adam, so that rates carry over
# The quintic whose repetition drives singular values into 0.7 to 1.2, fast rather than exactly.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SMALLEST = 10  # inputs of a row below which a kernel is no matrix: depthwise ones have 9


class Muon(torch.optim.Optimizer):
    """For the matrices of a module and, by Adam, its other weights."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        groups = [
            {"params": list(matrices), "orthogonal": True},
            {"params": list(others), "orthogonal": False},
        ]
        groups = [group for group in groups if group["params"]]
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update. A closure is not called: the gradients are there."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                rule = self._orthogonal if group["orthogonal"] else self._adam
                rule(weight, group, self.state[weight])

    def _orthogonal(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.lerp_(weight.grad, 1 - MOMENTUM)
        ahead = weight.grad.lerp(momentum, MOMENTUM)  # type: ignore[union-attr]
        matrix = orthogonalised(ahead.flatten(1))
        length = RMS * math.sqrt(max(matrix.shape))
        weight.sub_(matrix.view_as(weight), alpha=group["lr"] * length)

    def _adam(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        first = state.setdefault("first", torch.zeros_like(weight))
        second = state.setdefault("second", torch.zeros_like(weight))
        state["steps"] = state.get("steps", 0) + 1
        fast, slow = group["betas"]
        first.lerp_(weight.grad, 1 - fast)
        second.lerp_(weight.grad.square(), 1 - slow)  # type: ignore[union-attr]
        spread = (second / (1 - slow ** state["steps"])).sqrt() + 1e-8
        weight.addcdiv_(first, spread, value=-group["lr"] / (1 - fast ** state["steps"]))


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U·Vᵀ of matrix = U·S·Vᵀ, by matrix products alone."""
    a, b, c = QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def split_weights(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices inside a network, and the rest.

    The rest are biases, norms, depthwise kernels, and the layers that touch the bands: those whose
    name begins with `embed` or `head`.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in module.named_parameters():
        if not weight.requires_grad:
            continue
        inner = not name.startswith(("embed", "head"))
        is_matrix = inner and weight.ndim > 1 and weight[0].numel() >= SMALLEST
        (matrices if is_matrix else others).append(weight)
    return matrices, others
