"""What systems share: a `Batch` in, an `Output` out, a `Recipe` to train by, a `Model` around.

Systems speak physical units: reflectance, dB, days. Each scales its own inputs as it was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from undercast import bands
from undercast.calibration import Calibration
from undercast.errors import InputError
from undercast.types import Stack


class Batch(NamedTuple):
    """Stacks of equal size; shorter ones are padded in time with invalid dates."""

    s2: Tensor  # (b t 13 h w) reflectance, NaN = no data
    s1: Tensor  # (b t 2 h w) dB, NaN = missing
    days: Tensor  # (b t) days since the reference date
    valid: Tensor  # (b t) bool, False = padding or a date without any observation
    mask: Tensor | None = None  # (b t h w) bool, True = unusable

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(*(None if x is None else x.to(device) for x in self))  # type: ignore[arg-type]


class Output(NamedTuple):
    """The reconstruction. Variances are None for a system that predicts none."""

    mean: Tensor  # (b 13 h w) reflectance
    variance: Tensor | None = None  # (b 13 h w) reflectance², total
    aleatoric: Tensor | None = None  # (b 13 h w) ensembles only: mean of the members' variances
    epistemic: Tensor | None = None  # (b 13 h w) ensembles only: variance of the members' means


@dataclass(frozen=True)
class Recipe:
    """How a system was trained when it was published; `undercast train` takes these as defaults."""

    loss: str = "l2"
    optimiser: str = "adam"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    decay_per_epoch: float = 0.8
    epochs: int = 20
    batch_size: int = 4
    adversarial_weight: float = 0.0  # weight of the GAN term in the generator's loss; 0 = no GAN
    gan: str = "vanilla"  # vanilla | lsgan


class Criterion(Protocol):
    """A loss: output, target (b 13 h w) and the batch it came from, to a scalar."""

    def __call__(self, output: Output, target: Tensor, batch: Batch) -> Tensor: ...


class System(nn.Module):
    """A network (or a rule) from a batch of stacks to one cloud-free image each.

    A subclass sets the class attributes, keeps its frozen config in `self.config`, and implements
    `forward`. A system with an adversary also implements `adversary` and `judge`.
    """

    title: ClassVar[str] = ""
    temporal: ClassVar[str] = "multi"  # multi | mono
    uses_s1: ClassVar[bool] = True
    learns: ClassVar[bool] = True  # False for rules without weights
    needs_mask: ClassVar[bool] = False
    recipe: ClassVar[Recipe] = Recipe()
    Config: ClassVar[type[Any]]  # its frozen dataclass of settings
    config: Any

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @property
    def gives_variance(self) -> bool:
        """Whether `Output.variance` is there."""
        return False

    def forward(self, batch: Batch) -> Output:
        """The cloud-free image of each stack, in reflectance."""
        raise NotImplementedError(f"{type(self).__name__} must implement forward")

    def finish(self, output: Output, batch: Batch) -> Output:
        """What is made of the calibrated output in the end; no part of training."""
        return output

    def training_loss(self, batch: Batch, target: Tensor, criterion: Criterion) -> LossParts:
        """The reconstruction loss of one step, with the output for the adversary to judge."""
        output = self(batch)
        return LossParts(criterion(output, target, batch), output)

    def adversary(self) -> nn.Module | None:
        """A freshly built discriminator, or None for a system that is trained without one."""
        return None

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        """The adversary's logits for a real or reconstructed image (b 13 h w), given its inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no adversary")


class LossParts(NamedTuple):
    """What a training step needs."""

    loss: Tensor
    output: Output


class Model(nn.Module):
    """A system ready for use: network, name, config, calibration and where it came from.

    Calling it gives the calibrated output; `model.network` is the bare system.
    """

    def __init__(
        self,
        name: str,
        network: System,
        calibration: Calibration | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.network = network
        self.calibration = calibration
        self.provenance = provenance or {}
        self.warned_of_radar = False

    @property
    def config(self) -> dict[str, Any]:
        """The system's settings as plain values."""
        return asdict(self.network.config)

    @property
    def sar_required(self) -> bool:
        """Whether the weights were trained with radar on every date."""
        return self.network.uses_s1 and not self.provenance.get("sar_dropout", False)

    def forward(self, batch: Batch) -> Output:
        """The calibrated output of the network."""
        return self.finished(self.network(batch), batch)

    def finished(self, output: Output, batch: Batch) -> Output:
        """The network's output, calibrated and finished."""
        return self.network.finish(calibrated(output, self.calibration), batch)


class Bare(Model):
    """A model whose output is the network's own, which is what a calibration is fitted to."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.name, model.network, None, model.provenance)

    def finished(self, output: Output, batch: Batch) -> Output:
        return output


def calibrated(output: Output, calibration: Calibration | None) -> Output:
    """The output with its variance calibrated; unchanged where there is nothing to calibrate.

    The parts of an ensemble's variance grow by the factor of the total, so they still add up.
    """
    if calibration is None or output.variance is None:
        return output
    variance = calibration.apply(output.variance)
    if output.aleatoric is None or output.epistemic is None:
        return output._replace(variance=variance)
    factor = variance / output.variance
    return Output(output.mean, variance, output.aleatoric * factor, output.epistemic * factor)


def batch_of(stacks: Sequence[Stack]) -> Batch:
    """Stacks of one height and width as tensors, shorter ones padded in time.

    >>> short = Stack(np.zeros((1, 13, 8, 8)), ["2018-06-21"])
    >>> long = Stack(np.zeros((2, 13, 8, 8)), ["2018-06-21", "2018-06-26"])
    >>> batch_of([short, long]).valid.tolist()
    [[True, False], [True, True]]
    """
    sizes = {stack.shape[1:] for stack in stacks}
    if len(sizes) != 1:
        raise InputError(f"got stacks of sizes {sorted(sizes)}, expected one height and width")
    length = max(stack.shape[0] for stack in stacks)
    masks = [stack.mask for stack in stacks]
    return Batch(
        s2=_padded([stack.s2 for stack in stacks], length, np.nan),
        s1=_padded([_radar(stack) for stack in stacks], length, np.nan),
        days=_padded([stack.days().astype(np.float32) for stack in stacks], length, 0),
        valid=_padded([stack.valid_dates for stack in stacks], length, False),
        mask=_padded(masks, length, True) if all(m is not None for m in masks) else None,
    )


def _radar(stack: Stack) -> np.ndarray[Any, Any]:
    if stack.s1 is not None:
        return stack.s1
    n_dates, height, width = stack.shape
    return np.broadcast_to(np.float32(np.nan), (n_dates, bands.N_S1, height, width))


def _padded(arrays: Sequence[Any], length: int, fill: Any) -> Tensor:
    first = arrays[0]
    if len(arrays) == 1 and len(first) == length:
        return torch.from_numpy(np.require(first, requirements=("C", "W")))[None]  # seldom a copy
    out = np.full((len(arrays), length, *first.shape[1:]), fill, dtype=first.dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)
