"""The sum over dates of attention times features with gradients, strip by strip, on the CPU.

Plain operations would bring each head's mask to all of its channels and change the order of the
axes on the way, forwards and backwards: a twelfth of a training step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from undercast.models.mbconv_parts import strips
from undercast.models.strips import flat


def weighted_sum(features: Tensor, weights: Tensor) -> Tensor:
    """(b d h w): Σ over dates of features (b t d h w) times weights (b n t h w).

    A head n weighs d / n neighbouring channels.
    """
    out: Tensor = _WeightedSum.apply(features, weights)  # type: ignore[no-untyped-call]
    return out


class _WeightedSum(torch.autograd.Function):
    """Images are (h w c) inside, channels last; `spread` (n d) brings a head to its channels."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor) -> Tensor:
        f = features.permute(0, 1, 3, 4, 2).contiguous()
        w = weights.permute(0, 2, 3, 4, 1).contiguous()
        spread = torch.eye(w.shape[-1], dtype=f.dtype)
        spread = spread.repeat_interleave(f.shape[-1] // w.shape[-1], dim=1)
        out = torch.empty_like(f[:, 0])
        for n, a, b in strips(out):
            total = flat(out[n, a:b]).zero_()
            for date, weight in zip(f[n], w[n], strict=True):
                total.addcmul_(flat(date[a:b]), flat(weight[a:b]) @ spread)
        ctx.save_for_backward(f, w, spread)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        f, w, spread = ctx.saved_tensors
        g = gradients[0].permute(0, 2, 3, 1).contiguous()
        df, dw = torch.empty_like(f), torch.empty_like(w)
        for n, a, b in strips(g):
            go = flat(g[n, a:b])
            for t in range(f.shape[1]):
                torch.mul(go, flat(w[n, t, a:b]) @ spread, out=flat(df[n, t, a:b]))
                torch.mm(go * flat(f[n, t, a:b]), spread.T, out=flat(dw[n, t, a:b]))
        return df.permute(0, 1, 4, 2, 3), dw.permute(0, 4, 1, 2, 3)
