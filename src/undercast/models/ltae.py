"""The attention masks of the lightweight temporal attention encoder (L-TAE, Garnot et al. 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PERIOD = 1000.0


class TemporalAttention(nn.Module):
    """Attention over dates for every position: features (b t c h w) to weights (b n t h w).

    Of the L-TAE only the attention masks are computed (paper, Sec. 3.1): group norm over channels
    and dates, projection to `d_model`, positional encoding, keys, one learnt query a head.
    Invalid dates take no part in the normalisation and get weight 0, so padding changes nothing.
    """

    def __init__(self, channels: int, heads: int, d_k: int, d_model: int) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_model = heads, d_k, d_model
        self.norm = nn.GroupNorm(heads, channels)
        self.project = nn.Conv1d(channels, d_model, 1)
        self.query = nn.Parameter(torch.empty(heads, d_k))
        self.key = nn.Linear(d_model, heads * d_k)
        nn.init.normal_(self.query, std=math.sqrt(2.0 / d_k))

    def forward(self, features: Tensor, days: Tensor, valid: Tensor) -> Tensor:
        b, t, _, h, w = features.shape
        x = features.permute(0, 3, 4, 2, 1).reshape(b * h * w, -1, t)  # (b·h·w c t)
        dates_of_pixel = valid[:, None].expand(b, h * w, t).reshape(b * h * w, t)
        x = self.project(group_norm_over_dates(x, dates_of_pixel, self.norm))
        position = positional_encoding(days, self.d_model // self.heads).repeat(1, 1, self.heads)
        x = x.transpose(1, 2).reshape(b, h * w, t, self.d_model) + position[:, None]
        keys = self.key(x).reshape(b, h * w, t, self.heads, self.d_k)
        scores = (keys * self.query).sum(-1) / math.sqrt(self.d_k)  # (b h·w t n)
        scores = scores.masked_fill(~valid[:, None, :, None], -1e3)
        return scores.softmax(dim=2).permute(0, 3, 2, 1).reshape(b, self.heads, t, h, w)


def group_norm_over_dates(x: Tensor, valid: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Group norm of x (n c t) whose statistics leave out invalid dates; valid is (n t).

    With every date valid this is `norm(x)`.
    """
    n, c, t = x.shape
    grouped = x.reshape(n, norm.num_groups, c // norm.num_groups, t)
    weight = valid[:, None, None, :].to(x.dtype)
    count = weight.sum(dim=(2, 3), keepdim=True) * grouped.shape[2]
    mean = (grouped * weight).sum(dim=(2, 3), keepdim=True) / count
    variance = ((grouped - mean).square() * weight).sum(dim=(2, 3), keepdim=True) / count
    normal = ((grouped - mean) * torch.rsqrt(variance + norm.eps)).reshape(n, c, t)
    return normal * norm.weight[:, None] + norm.bias[:, None]


def positional_encoding(days: Tensor, size: int) -> Tensor:
    """Sine (even) and cosine (odd) of the day at `size` rates: (b t) to (b t size).

    >>> positional_encoding(torch.tensor([[0.0]]), 4).tolist()
    [[[0.0, 1.0, 0.0, 1.0]]]
    """
    position = torch.arange(size, device=days.device)
    rate = PERIOD ** (2 * torch.div(position, 2, rounding_mode="floor") / size)
    angle = days[..., None].float() / rate
    return torch.where(position % 2 == 0, angle.sin(), angle.cos())
