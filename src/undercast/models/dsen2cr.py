"""DSen2-CR (Meraner et al., ISPRS 2020): a residual network that corrects one cloudy image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.mono import MonoSystem
from undercast.models.system import Batch, Output, Recipe

S2_SCALE = bands.DN_PER_REFLECTANCE / 2000.0  # reflectance 0..1 is 0..5 in the network
S1_DB_MIN = (-25.0, -32.5)  # VV, VH; up to 0 dB
S1_SCALE = 2.0  # the dB range is 0..2 in the network


@dataclass(frozen=True)
class DSen2CRConfig:
    """The published sizes."""

    features: int = 256
    blocks: int = 16
    residual_scale: float = 0.1
    sar: bool = True

    def __post_init__(self) -> None:
        if self.features < 1 or self.blocks < 0:
            raise ConfigError(
                f"got features {self.features}, blocks {self.blocks}, "
                "expected features ≥ 1 and blocks ≥ 0"
            )

    @property
    def in_channels(self) -> int:
        return bands.N_S2 + (bands.N_S1 if self.sar else 0)


class DSen2CR(MonoSystem):
    """The cloudy image plus a learnt correction; 18,947,341 parameters."""

    title = "DSen2-CR (Meraner 2020)"
    recipe = Recipe(
        loss="carl",
        optimiser="nadam",
        learning_rate=7e-5,
        decay_per_epoch=1.0,
        epochs=8,
        batch_size=16,
    )
    Config = DSen2CRConfig

    def __init__(self, config: DSen2CRConfig) -> None:
        super().__init__(config)
        self.body = residual_body(
            config.in_channels, config.features, config.blocks, config.residual_scale
        )
        self.tail = nn.Conv2d(config.features, bands.N_S2, 3, padding=1)
        initialise_he(self)

    @property
    def uses_s1(self) -> bool:  # type: ignore[override]
        return self.config.sar

    def restore(self, batch: Batch) -> Output:
        """Clipped to 0..1 outside training; while training the clip would stop gradients."""
        s2 = scale_s2(filled_by_mean(batch.s2[:, 0]))
        x = s2
        if self.config.sar:
            x = torch.cat((s2, scale_s1(filled_by_mean(batch.s1[:, 0]))), dim=1)
        mean = (s2 + self.tail(self.body(x))).float() / S2_SCALE
        return Output(mean if self.training else mean.clip(0.0, 1.0))


def scale_s2(reflectance: Tensor) -> Tensor:
    """Reflectance clipped to 0..1 as 0..5; NaN is 0."""
    scaled: Tensor = bands.scale_s2(reflectance) * S2_SCALE
    return scaled


def scale_s1(db: Tensor) -> Tensor:
    """VV of −25..0 dB and VH of −32.5..0 dB (… 2 h w) as 0..2; NaN is 0.

    >>> scale_s1(torch.tensor([-12.5, -32.5]).reshape(2, 1, 1)).flatten().tolist()
    [1.0, 0.0]
    """
    lowest = db.new_tensor(S1_DB_MIN)[:, None, None]
    return ((1 - db / lowest).clip(0.0, 1.0) * S1_SCALE).nan_to_num(0.0)


def filled_by_mean(image: Tensor) -> Tensor:
    """Images (b c h w) whose NaNs are the mean of all their other values, as published."""
    average = image.nanmean(dim=(1, 2, 3), keepdim=True)  # NaN for an image without any value
    return torch.where(image.isnan(), average, image)


def residual_body(in_channels: int, features: int, blocks: int, scale: float) -> nn.Sequential:
    """A convolution to `features` channels and the residual blocks; no normalisation."""
    return nn.Sequential(
        nn.Conv2d(in_channels, features, 3, padding=1),
        nn.ReLU(),
        *(ResidualBlock(features, scale) for _ in range(blocks)),
    )


class ResidualBlock(nn.Module):
    """x + scale · conv(relu(conv(x)))."""

    def __init__(self, features: int, scale: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, 3, padding=1)
        self.second = nn.Conv2d(features, features, 3, padding=1)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.second(F.relu(self.first(x)))


def initialise_he(network: nn.Module) -> None:
    """He-uniform convolutions and zero biases."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
