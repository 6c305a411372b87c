"""Attention inside windows of two streams, as GLF-CR fuses optical and radar images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FORBIDDEN = -100.0  # added to the scores of pixels that a shifted window only seems to join


class FusedWindowAttention(nn.Module):
    """Self-attention in windows for optical and radar features (b h w c) of one size.

    The radar attends by its own scores; the optical scores are a learnt mixture of both streams'.
    `shifted` windows lie half a window further and wrap around, where a mask for the actual size
    keeps pixels of opposite borders apart. Height and width are multiples of the window.
    """

    def __init__(self, channels: int, heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.window, self.shift = window, window // 2 if shifted else 0
        self.optical = WindowScores(channels, heads, window)
        self.radar = WindowScores(channels, heads, window)
        self.mix = nn.Conv2d(2 * heads, heads, 1)

    def forward(self, optical: Tensor, radar: Tensor) -> tuple[Tensor, Tensor]:
        _, h, w, _ = optical.shape
        o_scores, o_values = self.optical(self._windows(optical))  # (b·windows n p p), (… n p d)
        r_scores, r_values = self.radar(self._windows(radar))
        o_scores = self.mix(torch.cat((o_scores, r_scores), dim=1))
        if self.shift:
            mask = shift_mask(h, w, self.window, self.shift, optical.device)
            o_scores, r_scores = (masked(scores, mask) for scores in (o_scores, r_scores))
        o = self.optical.output(o_scores.softmax(dim=-1) @ o_values)
        r = self.radar.output(r_scores.softmax(dim=-1) @ r_values)
        return self._image(o, h, w), self._image(r, h, w)

    def _windows(self, x: Tensor) -> Tensor:
        x = x.roll((-self.shift, -self.shift), dims=(1, 2)) if self.shift else x
        return to_windows(x, self.window)

    def _image(self, x: Tensor, h: int, w: int) -> Tensor:
        x = from_windows(x, self.window, h, w)
        return x.roll((self.shift, self.shift), dims=(1, 2)) if self.shift else x


class WindowScores(nn.Module):
    """One stream's scores and values in windows of p = window² pixels."""

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, channels)
        self.position = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.position, std=0.02)
        self.register_buffer("offset", relative_offsets(window), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(m p c) to scores (m n p p) before the softmax and values (m n p d)."""
        m, p, _ = x.shape
        parts = self.qkv(self.norm(x)).reshape(m, p, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, values = parts.unbind(0)
        assert isinstance(self.offset, Tensor)
        bias = self.position[self.offset].permute(2, 0, 1)  # (n p p)
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias, values

    def output(self, x: Tensor) -> Tensor:
        """Attended values (m n p d) to features (m p c)."""
        y: Tensor = self.project(x.transpose(1, 2).flatten(2))
        return y


def to_windows(x: Tensor, window: int) -> Tensor:
    """(b h w c) to (b·windows p c), row by row."""
    b, h, w, c = x.shape
    x = x.reshape(b, h // window, window, w // window, window, c)
    return x.transpose(2, 3).reshape(-1, window * window, c)


def from_windows(x: Tensor, window: int, h: int, w: int) -> Tensor:
    """The inverse of `to_windows`.

    >>> x = torch.rand(2, 16, 8, 3)
    >>> torch.equal(from_windows(to_windows(x, 4), 4, 16, 8), x)
    True
    """
    x = x.reshape(-1, h // window, w // window, window, window, x.shape[-1])
    return x.transpose(2, 3).reshape(-1, h, w, x.shape[-1])


def relative_offsets(window: int) -> Tensor:
    """(p p) number of the row and column offset between any two pixels of a window.

    >>> relative_offsets(2)[0].tolist()
    [4, 3, 1, 0]
    """
    index = torch.arange(window)
    pixels = torch.stack(torch.meshgrid(index, index, indexing="ij")).flatten(1)  # (2 p)
    offset = pixels[:, :, None] - pixels[:, None] + window - 1
    return offset[0] * (2 * window - 1) + offset[1]


def shift_mask(h: int, w: int, window: int, shift: int, device: torch.device) -> Tensor:
    """(windows p p) True where two pixels of a shifted window were not neighbours."""

    def region(size: int) -> Tensor:
        position = torch.arange(size, device=device)
        return (position >= size - window).int() + (position >= size - shift).int()

    regions = (3 * region(h)[:, None] + region(w)[None])[None, :, :, None]
    of_window = to_windows(regions, window)[..., 0]  # (windows p)
    return of_window[:, :, None] != of_window[:, None]


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores (b·windows n p p) with the forbidden pairs of a mask (windows p p) pushed down."""
    m, n, p, _ = scores.shape
    penalty = mask.to(scores.dtype)[:, None] * FORBIDDEN
    return (scores.reshape(-1, mask.shape[0], n, p, p) + penalty).reshape(m, n, p, p)


class DropPath(nn.Module):
    """While training, drops a whole branch of a sample with probability `rate`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        kept = F.dropout(torch.ones(x.shape[0], device=x.device, dtype=x.dtype), self.rate)
        return x * kept.reshape(-1, *([1] * (x.ndim - 1)))
