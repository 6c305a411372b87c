"""Weights fit a network exactly, or the error names what does not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from undercast.errors import CheckpointError


def load_strictly(network: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Loads weights; a missing, extra or misshapen key is an error that names it."""
    expected = network.state_dict()
    problems = [f"missing {key}" for key in expected if key not in tensors]
    problems += [f"unexpected {key}" for key in tensors if key not in expected]
    problems += [
        f"{key} is {tuple(tensors[key].shape)}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    if problems:
        more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
        raise CheckpointError(
            f"the weights of {where} do not fit the network: {'; '.join(problems[:4])}{more}"
        )
    with torch.no_grad():
        network.load_state_dict(dict(tensors))
