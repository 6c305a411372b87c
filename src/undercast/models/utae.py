"""U-TAE (Garnot & Landrieu, ICCV 2021) as the paper adapted it to reconstruct one image.

(b t 15 h w) ─ encoder, date by date ─ L-TAE at 1/8 ─ decoder, skips summed over dates
             ─ mean (b 13 h w)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.land import start_at_land
from undercast.models.ltae import TemporalAttention, group_norm_over_dates, positional_encoding
from undercast.models.sizes import crop_like, pad_to_multiple
from undercast.models.system import Batch, Output, Recipe, System

GROUPS = 4  # of the encoder's group norm


@dataclass(frozen=True)
class UTAEConfig:
    """The paper's setting; decoder widths (32, 32, 64, 128) are those of the original U-TAE."""

    encoder_widths: tuple[int, ...] = (64, 64, 64, 128)
    decoder_widths: tuple[int, ...] = (64, 64, 64, 128)
    heads: int = 16
    d_k: int = 4
    d_model: int = 256
    dropout: float = 0.2  # after the temporal encoder's perceptron
    attention_dropout: float = 0.1
    sar: bool = True
    scale: float = 10.0
    mean_activation: Literal["sigmoid", "linear"] = "sigmoid"

    def __post_init__(self) -> None:
        # a config read from a file brings lists
        object.__setattr__(self, "encoder_widths", tuple(self.encoder_widths))
        object.__setattr__(self, "decoder_widths", tuple(self.decoder_widths))
        encoder, decoder = self.encoder_widths, self.decoder_widths
        if len(encoder) < 2 or len(encoder) != len(decoder) or encoder[-1] != decoder[-1]:
            raise ConfigError(
                f"got widths {encoder} and {decoder}, expected two or more levels, the same number "
                "for both, with equal last ones"
            )
        if any(width % GROUPS for width in encoder):
            raise ConfigError(f"got encoder widths {encoder}, expected multiples of {GROUPS}")
        grouped = (self.d_model, *encoder)  # each head weights an equal share of the channels
        if any(width % self.heads for width in grouped):
            raise ConfigError(
                f"got {self.heads} heads, expected a divisor of d_model {self.d_model} and of the "
                f"encoder widths {encoder}"
            )

    @property
    def in_channels(self) -> int:
        return bands.N_S2 + (bands.N_S1 if self.sar else 0)


class UTAE(System):
    """U-Net over dates with one attention for all levels; 1.26 M parameters."""

    title = "U-TAE (Garnot 2021)"
    recipe = Recipe(loss="l2")
    Config = UTAEConfig

    def __init__(self, config: UTAEConfig) -> None:
        super().__init__(config)
        encoder, decoder = config.encoder_widths, config.decoder_widths
        self.embed = ConvLayer(config.in_channels, encoder[0], "group", kernel=1)
        self.down = nn.ModuleList(DownBlock(w_in, w_out) for w_in, w_out in pairwise(encoder))
        self.attention = TemporalEncoder(config)
        self.up = nn.ModuleList(
            UpBlock(decoder[level], decoder[level - 1], encoder[level - 1])
            for level in range(len(decoder) - 1, 0, -1)
        )
        self.head = nn.Conv2d(decoder[0], bands.N_S2, 1)
        start_at_land(self.head, config.mean_activation, config.scale)

    @property
    def uses_s1(self) -> bool:  # type: ignore[override]
        return self.config.sar

    def forward(self, batch: Batch) -> Output:
        """Any size: padded by its edges to a multiple of 8 (of 2^levels), and cropped again."""
        x = bands.scale_s2(batch.s2)
        if self.config.sar:
            x = torch.cat((bands.scale_s1(batch.s1), x), dim=2)
        multiple = 2 ** len(self.down)
        x = pad_to_multiple(x * self.config.scale, multiple, smallest=2 * multiple)
        mean = self.reconstruct(x, batch.days, batch.valid) / self.config.scale
        return Output(crop_like(mean, batch.s2))

    def reconstruct(self, x: Tensor, days: Tensor, valid: Tensor) -> Tensor:
        """The network in its own units: x (b t c h w), S1 first, times `scale`."""
        b, t = x.shape[:2]
        levels = [self.embed(x.flatten(0, 1))]  # (b·t c h w) each
        for down in self.down:
            levels.append(down(levels[-1]))
        levels = [level.unflatten(0, (b, t)) for level in levels]
        y, attention = self.attention(levels[-1], days, valid)
        for up, level in zip(self.up, reversed(levels[:-1]), strict=True):
            y = up(y, sum_over_dates(level, attention))
        mean: Tensor = self.head(y).float()
        if self.config.mean_activation == "sigmoid":
            mean = self.config.scale * torch.sigmoid(mean)
        return mean


def sum_over_dates(features: Tensor, attention: Tensor) -> Tensor:
    """Features (b t c h w) summed with the attention (b n t g g) of their group of channels."""
    b, t, _, h, w = features.shape
    heads = attention.shape[1]
    weights = F.interpolate(
        attention.flatten(0, 1), (h, w), mode="bilinear", align_corners=False
    ).unflatten(0, (b, heads))  # (b n t h w)
    groups = features.unflatten(2, (heads, -1))  # (b t n c h w)
    total = groups[:, 0] * weights[:, :, 0, None]
    for date in range(1, t):
        total = total + groups[:, date] * weights[:, :, date, None]
    return total.flatten(1, 2)


class TemporalEncoder(TemporalAttention):
    """The whole L-TAE: (b t c h w) to features (b c h w) and attention (b n t h w)."""

    def __init__(self, config: UTAEConfig) -> None:
        width = config.encoder_widths[-1]
        super().__init__(width, config.heads, config.d_k, config.d_model)
        self.attention_dropout = config.attention_dropout
        self.dropout = config.dropout
        self.perceptron = nn.Linear(config.d_model, width)
        self.perceptron_norm = nn.BatchNorm1d(width)
        self.out_norm = nn.GroupNorm(config.heads, width)

    def forward(  # type: ignore[override]
        self, features: Tensor, days: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        b, t, _, h, w = features.shape
        x = features.permute(0, 3, 4, 2, 1).reshape(b * h * w, -1, t)  # (b·h·w c t)
        dates_of_pixel = valid[:, None].expand(b, h * w, t).reshape(b * h * w, t)
        x = self.project(group_norm_over_dates(x, dates_of_pixel, self.norm)).transpose(1, 2)
        position = positional_encoding(days, self.d_model // self.heads).repeat(1, 1, self.heads)
        x = x + position[:, None].expand(b, h * w, t, self.d_model).reshape(x.shape)
        keys = self.key(x).unflatten(2, (self.heads, self.d_k))
        scores = (keys * self.query).sum(-1) / math.sqrt(self.d_k)  # (b·h·w t n)
        weights = scores.masked_fill(~dates_of_pixel[..., None], -1e3).softmax(dim=1)
        weights = F.dropout(weights, self.attention_dropout, self.training)
        values = x.unflatten(2, (self.heads, -1))  # (b·h·w t n d)
        y = (weights[..., None] * values).sum(dim=1).flatten(1)
        y = F.relu(self.perceptron_norm(self.perceptron(y)))
        y = self.out_norm(F.dropout(y, self.dropout, self.training))
        y = y.reshape(b, h, w, -1).permute(0, 3, 1, 2)
        return y, weights.reshape(b, h, w, t, self.heads).permute(0, 4, 3, 1, 2)


class ConvLayer(nn.Module):
    """Convolution with reflected borders, normalisation and, unless `linear`, ReLU."""

    def __init__(
        self,
        w_in: int,
        w_out: int,
        norm: Literal["group", "batch"],
        *,
        kernel: int = 3,
        stride: int = 1,
        linear: bool = False,
    ) -> None:
        super().__init__()
        padding = {1: 0, 3: 1, 4: 1}[kernel]
        self.conv = nn.Conv2d(w_in, w_out, kernel, stride, padding, padding_mode="reflect")
        self.norm = nn.GroupNorm(GROUPS, w_out) if norm == "group" else nn.BatchNorm2d(w_out)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        return y if self.linear else F.relu(y)


class DownBlock(nn.Module):
    """Half the size, then a convolution and a residual one."""

    def __init__(self, w_in: int, w_out: int) -> None:
        super().__init__()
        self.halve = ConvLayer(w_in, w_in, "group", kernel=4, stride=2)
        self.first = ConvLayer(w_in, w_out, "group")
        self.second = ConvLayer(w_out, w_out, "group", linear=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(self.halve(x))
        return y + self.second(y)


class UpBlock(nn.Module):
    """Twice the size, joined with the skip, then a convolution and a residual one."""

    def __init__(self, w_in: int, w_out: int, w_skip: int) -> None:
        super().__init__()
        self.skip = ConvLayer(w_skip, w_skip, "batch", kernel=1)
        self.grow = nn.ConvTranspose2d(w_in, w_out, 4, 2, 1)
        self.grow_norm = nn.BatchNorm2d(w_out)
        self.first = ConvLayer(w_out + w_skip, w_out, "batch")
        self.second = ConvLayer(w_out, w_out, "batch", linear=True)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        doubled = F.relu(self.grow_norm(self.grow(x)))
        y: Tensor = self.first(torch.cat((doubled, self.skip(skip)), dim=1))
        return y + self.second(y)
