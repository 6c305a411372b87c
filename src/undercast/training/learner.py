"""One training step: reconstruction, the adversary where there is one, and the optimisers."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import losses
from undercast.errors import ConfigError, TrainingError
from undercast.models.system import Batch, Criterion, LossParts, System
from undercast.training.config import TrainConfig
from undercast.training.data import Item
from undercast.training.group import Group, synchronise
from undercast.training.muon import Muon, split_weights


class StepResult(NamedTuple):
    """What a step reports, averaged over ranks."""

    loss: float
    psnr: float
    gradient: float  # norm before clipping


class _Reconstruction(nn.Module):
    """The system and its loss as one module, which is what data parallelism wraps."""

    def __init__(self, network: System, criterion: Criterion) -> None:
        super().__init__()
        self.network, self._criterion = network, criterion

    def forward(self, batch: Batch, target: Tensor) -> LossParts:
        return self.network.training_loss(batch, target, self._criterion)


class _Judgement(nn.Module):
    """The adversary's logits for the truth and for the reconstruction."""

    def __init__(self, adversary: nn.Module, network: System) -> None:
        super().__init__()
        self.adversary = adversary
        self._judge = network.judge  # a bound method: the system is no part of this module

    def forward(self, batch: Batch, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        judge = self._judge
        return judge(self.adversary, batch, real), judge(self.adversary, batch, fake)


class Learner:
    """A system with everything that changes while it learns."""

    def __init__(self, config: TrainConfig, network: System, group: Group) -> None:
        assert config.loss is not None
        self._config, self._group = config, group
        self.criterion = losses.criterion(config.loss, **config.loss_options)
        self.network = network
        self.adversary = network.adversary() if config.adversarial_weight else None
        # Copied while its norms are still plain: the average is only ever evaluated.
        self.averaged = None if config.average is None else Average(network, config.average)
        for module in (self.network, self.adversary):
            if module is not None:
                synchronise(module, group)
                self._place(module)
        if self.averaged is not None:
            self._place(self.averaged.network)
        self.optimiser = make_optimiser(config, network)
        self._reconstruction = group.parallel(_Reconstruction(network, self.criterion))
        self.adversary_optimiser = None
        if self.adversary is not None:
            self.adversary_optimiser = make_optimiser(config, self.adversary)
            self._judgement = group.parallel(_Judgement(self.adversary, network))
        if config.compile:
            network.compile(dynamic=False)

    def _place(self, module: nn.Module) -> None:
        module.to(self._group.device)
        if self._config.channels_last:
            for weight in module.parameters():
                if weight.ndim == 4:  # Module.to would also try the 5-D weights of 3-D kernels
                    weight.data = weight.data.contiguous(memory_format=torch.channels_last)

    def set_epoch(self, epoch: int) -> float:
        """The learning rate decays by a factor each epoch; a pure function of the epoch."""
        assert self._config.lr is not None
        assert self._config.decay is not None
        rate = self._config.lr * self._config.decay**epoch
        for optimiser in (self.optimiser, self.adversary_optimiser):
            for group in [] if optimiser is None else optimiser.param_groups:
                group["lr"] = rate
        return rate

    @property
    def outcome(self) -> System:
        """What is validated and kept: the averaged network if there is one."""
        return self.network if self.averaged is None else self.averaged.network

    def autocast(self) -> torch.autocast:
        """Mixed precision where the config asks for it."""
        return torch.autocast(
            self._group.device.type, torch.bfloat16, enabled=self._config.precision == "bf16"
        )

    def step(self, item: Item) -> StepResult:
        """One update of the weights; raises before the update where a number is not finite."""
        self.network.train()
        if self._config.frozen_norms:
            freeze_norms(self.network)
        with self.autocast():
            loss, output = self._reconstruction(item.batch, item.target)
            value = self._average(loss)
            if self.adversary is not None:
                self._step_adversary(item, output.mean.detach())
                loss = loss + self._fooling(item.batch, output.mean)
        require_finite(value, "the loss", item)
        gradient = self._update(self.optimiser, loss, item)
        if self.averaged is not None:
            self.averaged.follow(self.network)
        return StepResult(value, self._average(psnr(output.mean.detach(), item.target)), gradient)

    def _step_adversary(self, item: Item, fake: Tensor) -> None:
        assert self.adversary is not None
        assert self.adversary_optimiser is not None
        self.adversary.train().requires_grad_(True)
        truth = torch.where(item.target.isnan(), fake, item.target)
        on_real, on_fake = self._judgement(item.batch, truth, fake)
        kind = self.network.recipe.gan
        loss = 0.5 * (gan_loss(kind, on_real, True) + gan_loss(kind, on_fake, False))
        require_finite(self._average(loss), "the adversary's loss", item)
        self._update(self.adversary_optimiser, loss, item)

    def _fooling(self, batch: Batch, fake: Tensor) -> Tensor:
        """The generator's part of the game; the adversary's weights stand still meanwhile."""
        assert self.adversary is not None
        self.adversary.requires_grad_(False)
        logits = self.network.judge(self.adversary, batch, fake)
        return (self._config.adversarial_weight or 0.0) * gan_loss(
            self.network.recipe.gan, logits, True
        )

    def _update(self, optimiser: torch.optim.Optimizer, loss: Tensor, item: Item) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        weights = [p for group in optimiser.param_groups for p in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(weights, self._config.clip_grad or math.inf))
        require_finite(norm, "the gradient", item)
        optimiser.step()
        return norm

    def _average(self, value: Tensor) -> float:
        return float(self._group.total(value.detach().float()) / self._group.world)

    def state(self) -> dict[str, Any]:
        """Weights and optimisers, as plain tensors and numbers."""
        adversary, optimiser = self.adversary, self.adversary_optimiser
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state(),
            "adversary": None if adversary is None else adversary.state_dict(),
            "adversary_optimiser": None if optimiser is None else optimiser.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The opposite of `state`."""
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.averaged is not None:
            self.averaged.restore(state["averaged"])
        if self.adversary is not None and self.adversary_optimiser is not None:
            self.adversary.load_state_dict(state["adversary"])
            self.adversary_optimiser.load_state_dict(state["adversary_optimiser"])


class Average:
    """A network whose numbers are the exponential averages of another one's over its steps.

    The first steps weigh less, so that the initial weights are soon forgotten.
    """

    def __init__(self, network: System, keep: float) -> None:
        self.network = deepcopy(network).requires_grad_(False)
        self._keep, self._steps = keep, 0

    @torch.no_grad()
    def follow(self, network: System) -> None:
        """One step towards what `network` is now."""
        self._steps += 1
        keep = min(self._keep, self._steps / (self._steps + 9))
        theirs = network.state_dict()
        for name, mine in self.network.state_dict().items():
            if mine.is_floating_point():
                mine.lerp_(theirs[name], 1 - keep)
            else:
                mine.copy_(theirs[name])

    def state(self) -> dict[str, Any]:
        """As plain tensors and numbers."""
        return {"network": self.network.state_dict(), "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        """The opposite of `state`."""
        self.network.load_state_dict(state["network"])
        self._steps = state["steps"]


def freeze_norms(module: nn.Module) -> None:
    """Lets batch norms use their running statistics, and leave these as they are."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()


def make_optimiser(config: TrainConfig, module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a config over the weights of a module."""
    assert config.lr is not None
    assert config.betas is not None
    assert config.weight_decay is not None
    weights = [p for p in module.parameters() if p.requires_grad]
    if not weights:
        raise ConfigError(f"got {type(module).__name__} without weights, so nothing can be trained")
    if config.optimiser == "muon":
        return Muon(*split_weights(module), config.lr, config.betas, config.weight_decay)
    if config.optimiser == "sgd":
        return torch.optim.SGD(
            weights, config.lr, config.betas[0], weight_decay=config.weight_decay
        )
    kinds: dict[str, Any] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "nadam": torch.optim.NAdam,
    }
    if config.optimiser is None or config.optimiser not in kinds:
        raise ConfigError(
            f"got optimiser {config.optimiser!r}, expected sgd, muon or one of {', '.join(kinds)}"
        )
    made: torch.optim.Optimizer = kinds[config.optimiser](
        weights, config.lr, betas=config.betas, weight_decay=config.weight_decay
    )
    return made


def gan_loss(kind: str, logits: Tensor, real: bool) -> Tensor:
    """How far the adversary's logits are from calling an image real (or reconstructed).

    >>> round(float(gan_loss("vanilla", torch.zeros(3), True)), 4)  # log 2
    0.6931
    >>> float(gan_loss("lsgan", torch.full((3,), 0.5), False))
    0.25
    """
    goal = torch.full_like(logits, 1.0 if real else 0.0)
    if kind == "vanilla":
        return F.binary_cross_entropy_with_logits(logits, goal)
    if kind == "lsgan":
        return F.mse_loss(logits, goal)
    raise ConfigError(f"got GAN type {kind!r}, expected vanilla or lsgan")


def psnr(mean: Tensor, target: Tensor) -> Tensor:
    """The average over images (b 13 h w) of 20·log10(1/RMSE), gaps in the target left out.

    >>> round(float(psnr(torch.zeros(2, 13, 4, 4), torch.full((2, 13, 4, 4), 0.1))), 4)
    20.0
    """
    mse = (mean - target).square().flatten(1).nanmean(dim=1)
    return (-10 * mse.clamp(min=1e-12).log10()).mean()


def require_finite(value: float, what: str, item: Item) -> None:
    """Stops training at a number that is none."""
    if not math.isfinite(value):
        raise TrainingError(
            f"{what} became {value} on {item.names}: check these files for NaN, lower lr, "
            "or set clip_grad"
        )
