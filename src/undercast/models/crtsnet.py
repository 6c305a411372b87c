"""CR-TS Net (Ebel et al., TGRS 2022): a residual network a date, then convolutions over time.

(b T 15 h w) ─ 2-D residual network, date by date ─ 3-D residual blocks ─ T dates to one image
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.dsen2cr import initialise_he, residual_body, scale_s1, scale_s2
from undercast.models.mono import choose_dates
from undercast.models.system import Batch, Output, Recipe, System


@dataclass(frozen=True)
class CRTSNetConfig:
    """The published sizes; `dates` is the depth of the last kernel, so of the input."""

    features: int = 256
    blocks: int = 16  # 2-D, each date by itself
    temporal_blocks: int = 5  # 3-D
    residual_scale: float = 0.1
    dates: int = 3
    sar: bool = True

    def __post_init__(self) -> None:
        if min(self.features, self.dates) < 1 or min(self.blocks, self.temporal_blocks) < 0:
            raise ConfigError(
                f"got features {self.features}, dates {self.dates}, blocks {self.blocks}, "
                f"temporal_blocks {self.temporal_blocks}, expected ≥ 1, ≥ 1, ≥ 0, ≥ 0"
            )

    @property
    def in_channels(self) -> int:
        return bands.N_S2 + (bands.N_S1 if self.sar else 0)


class CRTSNet(System):
    """Exactly `dates` dates, 3 as published; 38.5 M parameters.

    Of more dates the least cloudy are taken, fewer are repeated; they enter by their day.
    """

    title = "CR-TS Net (Ebel 2022)"
    recipe = Recipe(
        loss="l1",
        learning_rate=2e-4,
        betas=(0.5, 0.999),
        decay_per_epoch=1.0,
        batch_size=1,
    )
    Config = CRTSNetConfig

    def __init__(self, config: CRTSNetConfig) -> None:
        super().__init__(config)
        features, scale = config.features, config.residual_scale
        self.body = residual_body(config.in_channels, features, config.blocks, scale)
        self.mix = Conv3d(features, features)
        self.temporal_body = nn.Sequential(
            *(TemporalBlock(features, scale) for _ in range(config.temporal_blocks))
        )
        self.tail = nn.Conv3d(features, bands.N_S2, (config.dates, 3, 3))
        initialise_he(self)

    @property
    def uses_s1(self) -> bool:  # type: ignore[override]
        return self.config.sar

    def forward(self, batch: Batch) -> Output:
        chosen = choose_dates(batch, self.config.dates)
        x = scale_s2(chosen.s2)
        if self.config.sar:
            x = torch.cat((x, scale_s1(chosen.s1)), dim=2)
        f = self.body(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        f = self.temporal_body(F.relu(self.mix(f.transpose(1, 2))))  # (b c T h w)
        y = self.tail(F.pad(f, (1, 1, 1, 1, 0, 0), mode="reflect"))[:, :, 0].float()
        # Published: 5·(tanh + 1)/2 in units of 2000 digital numbers, which is reflectance 0..1.
        return Output((y.tanh() + 1) / 2)


class Conv3d(nn.Conv3d):
    """3×3×3 convolution that reflects rows and columns and repeats the first and last date."""

    def __init__(self, w_in: int, w_out: int) -> None:
        super().__init__(w_in, w_out, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 1, 1, 1, 0, 0), mode="reflect")
        return super().forward(F.pad(x, (0, 0, 0, 0, 1, 1), mode="replicate"))


class TemporalBlock(nn.Module):
    """relu(x + scale · conv(relu(conv(x)))) over rows, columns and dates."""

    def __init__(self, features: int, scale: float) -> None:
        super().__init__()
        self.first = Conv3d(features, features)
        self.second = Conv3d(features, features)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.scale * self.second(F.relu(self.first(x))))
