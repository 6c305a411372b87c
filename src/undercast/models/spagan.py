"""SpA-GAN (Pan 2020): residual blocks under a spatial attention map that is itself supervised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.mono import MonoSystem, least_cloudy_date
from undercast.models.pix2pix import PairDiscriminator
from undercast.models.system import Batch, Criterion, LossParts, Output, Recipe

ATTENTION_WEIGHT = 1 / 100  # published: GAN + 100·L1 + MSE of the attention, here over 100
BYTE = 255.0  # the attention's target was defined on 8-bit images


@dataclass(frozen=True)
class SpAGANConfig:
    """The published sizes."""

    width: int = 32
    judge_width: int = 64

    def __post_init__(self) -> None:
        if min(self.width, self.judge_width) < 2 or self.width % 2 or self.judge_width % 2:
            raise ConfigError(
                f"got width {self.width}, judge_width {self.judge_width}, expected even numbers ≥ 2"
            )


class SpAGAN(MonoSystem):
    """13 cloudy bands to 13 clear ones, without radar; 0.22 M parameters."""

    title = "SpA-GAN (Pan 2020)"
    uses_s1 = False
    recipe = Recipe(
        loss="l1",
        learning_rate=4e-4,
        betas=(0.5, 0.999),
        weight_decay=1e-5,
        decay_per_epoch=1.0,
        epochs=200,
        batch_size=1,
        adversarial_weight=1 / 100,
    )
    Config = SpAGANConfig

    def __init__(self, config: SpAGANConfig) -> None:
        super().__init__(config)
        self.generator = SPANet(bands.N_S2, bands.N_S2, config.width)

    def restore(self, batch: Batch) -> Output:
        return self._restored(batch)[0]

    def training_loss(self, batch: Batch, target: Tensor, criterion: Criterion) -> LossParts:
        """The criterion, plus the squared distance of the attention map to its target."""
        batch = least_cloudy_date(batch)
        output, attention = self._restored(batch)
        wanted = attention_target(target, bands.scale_s2(batch.s2[:, 0]))
        loss = criterion(output, target, batch)
        return LossParts(loss + ATTENTION_WEIGHT * F.mse_loss(attention, wanted), output)

    def adversary(self) -> nn.Module:
        return PairDiscriminator(bands.N_S2, bands.N_S2, self.config.judge_width)

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        cloudy = bands.scale_s2(least_cloudy_date(batch).s2[:, 0])
        logits: Tensor = adversary(cloudy, image.nan_to_num(0.0))
        return logits

    def _restored(self, batch: Batch) -> tuple[Output, Tensor]:
        """Clipped to 0..1 outside training; while training the clip would stop gradients."""
        mean, attention = self.generator(bands.scale_s2(batch.s2[:, 0]))
        mean = mean.float()
        return Output(mean if self.training else mean.clip(0.0, 1.0)), attention


def attention_target(target: Tensor, cloudy: Tensor) -> Tensor:
    """Where the attention should lie, as released: (b c h w) images to (b 1 h w) in 0..1.

    The sum over bands of (clear − cloudy) on a scale of 0..255, clipped to 0..1. It has a sign: it
    marks pixels that are darker in the cloudy image, shadows and not clouds.

    >>> clear = torch.tensor([0.2, 0.2]).reshape(1, 1, 1, 2)
    >>> attention_target(clear, torch.tensor([0.1, 0.8]).reshape(1, 1, 1, 2)).flatten().tolist()
    [1.0, 0.0]
    """
    brighter = (target - cloudy).nan_to_num(0.0).sum(dim=1, keepdim=True)
    return (brighter * BYTE).clip(0.0, 1.0)


class SPANet(nn.Module):
    """The generator: (b c h w) to an image (b out h w) and the last attention map (b 1 h w)."""

    GROUPS, BLOCKS = 4, 3

    def __init__(self, in_channels: int, out_channels: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.before = nn.ModuleList(bottleneck(width) for _ in range(self.BLOCKS))
        self.attention = SpatialAttention(width)  # one, for all groups
        self.groups = nn.ModuleList(
            nn.ModuleList(bottleneck(width) for _ in range(self.BLOCKS)) for _ in range(self.GROUPS)
        )
        self.after = nn.ModuleList(bottleneck(width) for _ in range(2))
        self.last = nn.Conv2d(width, out_channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.first(x))
        for block in self.before:
            y = F.relu(y + block(y))
        for group in self.groups:
            assert isinstance(group, nn.ModuleList)
            attention = self.attention(y)
            for block in group:
                y = F.relu(y + attention * block(y))
        for block in self.after:
            y = F.relu(y + block(y))
        return self.last(y), attention


def bottleneck(width: int) -> nn.Sequential:
    """1×1, dilated 3×3, 1×1 without biases."""
    return nn.Sequential(
        nn.Conv2d(width, width, 1, bias=False),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=2, dilation=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(width, width, 1, bias=False),
    )


class SpatialAttention(nn.Module):
    """Two rounds of looking in four directions, weighted by direction: (b c h w) to (b 1 h w)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.enter = nn.Conv2d(width, width, 1)
        self.look = nn.ModuleList(FourDirections(width) for _ in range(2))
        self.join = nn.ModuleList(nn.Conv2d(4 * width, width, 1) for _ in range(2))
        self.directions = nn.Sequential(
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, 4, 1),
            nn.Sigmoid(),
        )
        self.last = nn.Conv2d(width, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.directions(x)[:, :, None]  # (b 4 1 h w)
        y = self.enter(F.relu(self.first(x)))
        for look, join in zip(self.look, self.join, strict=True):
            y = join((look(y) * weights).flatten(1, 2))
        return torch.sigmoid(self.last(F.relu(y)))


class FourDirections(nn.Module):
    """relu(x + w · neighbour) for the neighbour in each direction: (b c h w) to (b 4 c h w)."""

    STEPS = ((0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0))  # up, down, left, right

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Conv2d(width, width, 1, groups=width) for _ in self.STEPS)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        seen = []
        for step, weight in zip(self.STEPS, self.weights, strict=True):
            _, right, _, bottom = step  # what was added at the end is what to skip at the front
            shifted = F.pad(weight(x), step)[..., bottom : bottom + height, right : right + width]
            seen.append(F.relu(x + shifted))
        return torch.stack(seen, dim=1)
