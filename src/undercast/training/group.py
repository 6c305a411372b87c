"""Several processes as one: the group that torchrun starts, and batch norm across it.

Without torchrun everything here is the identity, so that training has a single code path.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from undercast.errors import ConfigError


@dataclass(frozen=True)
class Group:
    """This process among `world` ones; rank 0 is the one that writes."""

    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            dist.barrier()

    def total(self, values: Tensor) -> Tensor:
        """The sum over processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def parallel(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over processes; itself where there is only one."""
        if self.world == 1 or not any(p.requires_grad for p in module.parameters()):
            return module
        return DistributedDataParallel(module)


@contextmanager
def process_group(device: str = "auto") -> Iterator[Group]:
    """The group of this process, from torchrun's environment; left again at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    place = _device(device)
    started = world > 1 and not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Group(rank, world, place)
    finally:
        if started:
            gc.collect()  # wrapped modules hold threads of the group: they go before it does
            dist.destroy_process_group()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"got device {name!r}, but there is no CUDA device here: take device cpu")
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(name)
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"got device {name!r}, expected auto, cpu or cuda") from error


class _Sum(torch.autograd.Function):
    """The sum over processes, which every process's loss depends on: so is its gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum over processes, with its gradient."""
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose statistics span all processes, on any backend.

    torch's SyncBatchNorm runs on GPUs only. Sums are all-reduced by an operation that passes
    gradients, so two ranks equal one process with the doubled batch. Ranks have equal batches.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of spatial dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        """As torch's batch norm; x is (b c …)."""
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        count = x.numel() // x.shape[1] * dist.get_world_size()
        others = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1, *([1] * (x.ndim - 2))]
        wide = x.float()
        mean = sum_over_ranks(wide.sum(dim=others)) / count
        centred = wide - mean.view(shape)
        variance = sum_over_ranks(centred.square().sum(dim=others)) / count
        self._remember(mean.detach(), variance.detach() * count / max(count - 1, 1))
        y: Tensor = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)

    def _remember(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(unbiased, momentum)


def synchronise(module: nn.Module, group: Group) -> None:
    """Replaces each batch norm in a module by one across processes; weights keep their names."""
    if group.world == 1:
        return
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, _synced(child))


def _synced(norm: nn.modules.batchnorm._BatchNorm) -> SyncedBatchNorm:
    new = SyncedBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    new.weight, new.bias = norm.weight, norm.bias
    new.running_mean, new.running_var = norm.running_mean, norm.running_var
    new.num_batches_tracked = norm.num_batches_tracked
    # Communication stays out of compiled graphs.
    new.forward = torch.compiler.disable(new.forward)  # type: ignore[method-assign]
    return new.train(norm.training)
