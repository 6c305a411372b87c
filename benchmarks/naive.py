"""UnCRtainTS written the obvious way: the yardstick of `undercast benchmark`.

Plain NCHW float32, every step a separate operation, nothing folded, fused, reordered or cached.
FROZEN: every ratio in docs/performance.md is against this file, so it is never optimised.
Its parameters carry the names of `undercast.models.uncrtaints`, so weights load strictly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.models.ltae import positional_encoding
from undercast.models.system import Batch, Output
from undercast.models.uncrtaints import UnCRtainTS, UnCRtainTSConfig


def naive_copy(network: UnCRtainTS) -> NaiveUnCRtainTS:
    """The naive module with the weights of `network`."""
    naive = NaiveUnCRtainTS(network.config)
    naive.load_state_dict(network.state_dict())
    return naive.train(network.training)


class NaiveUnCRtainTS(nn.Module):
    """Encoder, attention over dates, decoder, head; all dates at once."""

    def __init__(self, config: UnCRtainTSConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_m
        self.embed = nn.Conv2d(config.in_channels, d, 1)
        self.embed_norm = nn.GroupNorm(4, d)
        self.encoder = nn.Sequential(*(NaiveMBConv(d, "group") for _ in range(config.n_e)))
        self.attention = None if config.mono else NaiveAttention(config)
        self.decoder = nn.Sequential(*(NaiveMBConv(d, "batch") for _ in range(config.n_d)))
        self.head = nn.Conv2d(d, bands.N_S2 + config.variance_channels, 1)

    def forward(self, batch: Batch) -> Output:
        x = bands.scale_s2(batch.s2)
        if self.config.sar:
            x = torch.cat((bands.scale_s1(batch.s1), x), dim=2)
        x = x * self.config.scale
        b, t, c, h, w = x.shape
        x = F.relu(self.embed_norm(self.embed(x.reshape(b * t, c, h, w))))
        x = self.encoder(x)
        x = x.reshape(b, t, -1, h, w)
        x = x[:, 0] if self.attention is None else self.attention(x, batch.days, batch.valid)
        y = self.head(self.decoder(x))
        mean, variance = y[:, : bands.N_S2], y[:, bands.N_S2 :]
        if self.config.mean_activation == "sigmoid":
            mean = self.config.scale * torch.sigmoid(mean)
        mean = mean / self.config.scale
        if self.config.covariance == "none":
            return Output(mean)
        variance = F.softplus(variance) + self.config.variance_floor
        variance = variance.expand(mean.shape) / self.config.scale**2
        return Output(mean, variance)


class NaiveMBConv(nn.Module):
    """Norm, expand, norm, GELU, pad, depthwise, norm, GELU, squeeze-excitation, project, norm."""

    def __init__(self, d: int, norm: str) -> None:
        super().__init__()
        new_norm = (lambda c: nn.GroupNorm(4, c)) if norm == "group" else nn.BatchNorm2d
        self.pre_norm = new_norm(d)
        self.expand = nn.Conv2d(d, 2 * d, 1, bias=False)
        self.expand_norm = new_norm(2 * d)
        self.depthwise = nn.Conv2d(2 * d, 2 * d, 3, groups=2 * d, bias=False)
        self.depthwise_norm = new_norm(2 * d)
        self.excite = NaiveExcitation(2 * d, d // 4)
        self.project = nn.Conv2d(2 * d, d, 1, bias=False)
        self.project_norm = new_norm(d)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pre_norm(x)
        y = self.expand(y)
        y = self.expand_norm(y)
        y = F.gelu(y)
        y = F.pad(y, (1, 1, 1, 1), mode="reflect")
        y = self.depthwise(y)
        y = self.depthwise_norm(y)
        y = F.gelu(y)
        y = self.excite(y)
        y = self.project(y)
        y = self.project_norm(y)
        return x + y


class NaiveExcitation(nn.Module):
    """Each channel times a gate."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, squeezed, bias=False)
        self.excite = nn.Linear(squeezed, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.adaptive_avg_pool2d(x, 1).flatten(1)
        gate = torch.sigmoid(self.excite(F.gelu(self.squeeze(gate))))
        return x * gate[:, :, None, None].expand_as(x)


class NaiveAttention(nn.Module):
    """The L-TAE masks at 32×32, brought to full size, one copy for each head, times features."""

    def __init__(self, config: UnCRtainTSConfig) -> None:
        super().__init__()
        self.config = config
        d_model = 2 * config.d_m
        self.norm = nn.GroupNorm(config.heads, config.d_m)
        self.project = nn.Conv1d(config.d_m, d_model, 1)
        self.query = nn.Parameter(torch.empty(config.heads, config.d_k))
        self.key = nn.Linear(d_model, config.heads * config.d_k)

    def forward(self, features: Tensor, days: Tensor, valid: Tensor) -> Tensor:
        b, t, d, h, w = features.shape
        n, grid = self.config.heads, self.config.attention_grid
        coarse = F.adaptive_max_pool2d(features.reshape(b * t, d, h, w), grid)
        weights = self.masks(coarse.reshape(b, t, d, grid, grid), days, valid)  # (n b t g g)
        weights = weights.reshape(n * b, t, grid, grid)
        if h > grid and w > grid:
            weights = F.interpolate(weights, (h, w), mode="bilinear", align_corners=False)
        else:
            weights = F.adaptive_avg_pool2d(weights, (h, w))
        weights = F.dropout(weights, self.config.dropout, self.training)
        weights = weights.reshape(n, b, t, h, w)
        heads = torch.stack(features.chunk(n, dim=2))  # (n b t d/n h w)
        out = (weights[:, :, :, None] * heads).sum(dim=2)  # (n b d/n h w)
        return torch.cat(list(out), dim=1)

    def masks(self, x: Tensor, days: Tensor, valid: Tensor) -> Tensor:
        b, t, d, h, w = x.shape
        if not bool(valid.all()):
            raise ValueError("got padding dates, expected none: the naive module times full stacks")
        x = x.permute(0, 3, 4, 2, 1).contiguous().view(b * h * w, d, t)
        x = self.project(self.norm(x)).permute(0, 2, 1)  # (b·h·w t d_model)
        n, d_k = self.config.heads, self.config.d_k
        position = positional_encoding(days, 2 * d // n).repeat(1, 1, n)
        position = position[:, None].repeat(1, h * w, 1, 1).view(b * h * w, t, 2 * d)
        keys = self.key(x + position).view(b * h * w, t, n, d_k).permute(2, 0, 1, 3)
        scores = torch.matmul(keys, self.query[:, None, :, None]).squeeze(-1) / math.sqrt(d_k)
        weights = torch.softmax(scores, dim=-1)  # (n b·h·w t)
        return weights.view(n, b, h, w, t).permute(0, 1, 4, 2, 3).contiguous()
