"""Gradients of an MBConv block on the CPU from a quarter of the memory, image strip by image strip.

Of the block's eight intermediate images only two are kept, the depthwise convolution's output e and
the projection's p; the backward pass computes the others again while a strip is in the cache. What
makes that cheap is that a norm is an affine map once its statistics are known, forwards and
backwards, so most of it folds into the matrices of the 1×1 convolutions:

    x ─ norm 0 ─ expand ─ norm 1 ─ gelu ─ depthwise ─ norm 2 ─ gelu ─ gate ─ project ─ norm 3 ─ + x
                        h         hn     a           e        z      g               p

Images are (h w c), channels last. A norm's statistics belong to a unit: one image for a group norm,
all images together for a batch norm. Sums over pixels are kept in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast.models.mbconv_parts import (
    Affine,
    Norms,
    add_products,
    add_sums,
    nhwc,
    strips,
    with_frame,
)
from undercast.models.strips import flat, linear, linear_gelu, nchw

LARGE = 2**22  # numbers of an input; smaller ones are quicker in one go, and take little memory

_gelu = torch.ops.aten.gelu.out
_gelu_backward = torch.ops.aten.gelu_backward.grad_input
_convolution_backward = torch.ops.aten.convolution_backward


def is_suited(block: Any, x: Tensor) -> bool:
    """Whether the block is to be trained this way: large, on a CPU, in float32, not in a graph.

    Other norms than these two, such as those whose statistics span processes, cannot; nor can batch
    norms whose statistics are frozen.
    """
    return (
        type(block.pre_norm) in (nn.GroupNorm, nn.BatchNorm2d)
        and block.pre_norm.training
        and min(x.shape[-2:]) >= 4
        and is_large(x)
    )


def is_large(x: Tensor) -> bool:
    """Whether gradients of x are best computed strip by strip: on a CPU, in float32, no graph."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and x.numel() >= LARGE
    )


def trained(block: Any, x: Tensor) -> Tensor:
    """`block(x)` in training mode, batch-norm averages brought up to date."""
    norms = (block.pre_norm, block.expand_norm, block.depthwise_norm, block.project_norm)
    weights = [w for norm in norms for w in (norm.weight, norm.bias)]
    weights += [block.expand.weight, block.depthwise.weight, block.project.weight]
    weights += [block.excite.squeeze.weight, block.excite.excite.weight]
    out: Tensor = _Trained.apply(x, norms, *weights)  # type: ignore[no-untyped-call]
    return out


class _Expansion(NamedTuple):
    """h = x·matrix + bias with norm 0 folded in, and hn = x·full + full_bias with norm 1 too."""

    pre: Affine
    post: Affine
    matrix: Tensor  # (units d 2d), float64
    bias: Tensor
    full: Tensor  # float32
    full_bias: Tensor


class _Trained(torch.autograd.Function):
    """The block as one function of its input and its weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norms: tuple[Any, ...], *weights: Tensor) -> Tensor:
        image = x.permute(0, 2, 3, 1).contiguous()  # (n h w d)
        kernels = _Kernels(*weights[8:])
        units = Norms(norms[0], len(image), image[0, ..., 0].numel())
        moments = _moments(image, units)
        expansion = _expansion(norms, kernels, moments, units)
        e, sums = _expand(image, expansion, kernels, units)
        second = units.affine(norms[2], *sums)
        means, p, sums = _project(e, second, kernels, units)
        third = units.affine(norms[3], *sums)
        scale, shift = third.scale.float(), third.shift.float()
        out = torch.empty_like(image)
        for n in range(len(image)):
            u = units.unit(n)
            torch.addcmul(image[n], p[n], scale[u], out=out[n]).add_(shift[u])
        ctx.save_for_backward(image, e, p, means, *weights)
        ctx.rest = (moments, expansion, second, third, units)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        image, e, p, means, *weights = ctx.saved_tensors
        moments, expansion, second, third, units = ctx.rest
        kernels = _Kernels(*weights[8:])
        go = gradients[0].permute(0, 2, 3, 1).contiguous()
        coefficients, of_norm3 = units.backward(third, weights[6], *_products(go, p, units))
        dz, sums, of_gate, d_project = _project_backward(
            (go, p, e, means), coefficients, second, kernels, units
        )
        coefficients, of_norm2 = units.backward(second, weights[4], *sums)
        outer, d_depthwise = _expand_backward(
            image, (dz, e), coefficients, expansion, kernels, units
        )
        dx, d_expand, of_norm1, of_norm0 = _input_backward(
            image, go, dz, outer, moments, expansion, kernels, (weights[2], weights[0]), units
        )
        return (
            dx.permute(0, 3, 1, 2), None, *of_norm0, *of_norm1, *of_norm2, *of_norm3,
            d_expand, d_depthwise, d_project, *of_gate,
        )  # fmt: skip


class _Kernels(NamedTuple):
    """The weights that are no norm's, as convolutions and linear layers have them."""

    expand: Tensor  # (2d d 1 1)
    depthwise: Tensor  # (2d 1 3 3)
    project: Tensor  # (d 2d 1 1)
    squeeze: Tensor
    excite: Tensor

    def gate(self, means: Tensor) -> Tensor:
        """The squeeze-excitation gates (n 2d) of channel means (n 2d)."""
        return torch.sigmoid(F.linear(F.gelu(F.linear(means, self.squeeze)), self.excite))


def _moments(image: Tensor, units: Norms) -> tuple[Tensor, Tensor]:
    """Means (units d) and covariances (units d d) of the input's channels.

    Sums are taken around a guess of the mean: far from zero, squares would lose the digits.
    """
    d = image.shape[-1]
    guess = image[: units.units].mean(dim=(1, 2))
    sums = torch.zeros(units.units, d, dtype=torch.float64)
    products = torch.zeros(units.units, d, d, dtype=torch.float64)
    for n, a, b in strips(image):
        u = units.unit(n)
        pixels = flat(image[n, a:b]) - guess[u]
        sums[u] += pixels.sum(0)
        products[u] += pixels.T @ pixels
    offset = sums / units.count
    return guess + offset, products / units.count - offset[:, :, None] * offset[:, None]


def _expansion(
    norms: tuple[Any, ...], kernels: _Kernels, moments: tuple[Tensor, Tensor], units: Norms
) -> _Expansion:
    mean, covariance = moments
    pre = units.affine(norms[0], mean, covariance.diagonal(dim1=1, dim2=2) + mean.square())
    weight = kernels.expand.flatten(1).T.double()
    matrix, bias = pre.scale[:, :, None] * weight, pre.shift @ weight
    out = torch.einsum("ud,udc->uc", mean, matrix) + bias
    square = ((covariance @ matrix) * matrix).sum(1) + out.square()
    post = units.affine(norms[1], out, square)
    full, full_bias = matrix * post.scale[:, None], bias * post.scale + post.shift
    return _Expansion(pre, post, matrix, bias, full.float(), full_bias.float())


def _expand(
    image: Tensor, expansion: _Expansion, kernels: _Kernels, units: Norms
) -> tuple[Tensor, Tensor]:
    """e (n h w 2d), and the means of e and e² (2, units, 2d)."""
    channels = kernels.depthwise.shape[0]
    e = image.new_empty(*image.shape[:3], channels)
    sums = torch.zeros(2, units.units, channels, dtype=torch.float64)
    turned = expansion.full.mT.contiguous()
    for n, a, b in strips(image):
        u, rows = units.unit(n), with_frame(image[n], a, b)
        hidden = linear_gelu(flat(rows), turned[u], expansion.full_bias[u])
        hidden = hidden.view(*rows.shape[:2], -1)
        e[n, a:b] = nhwc(F.conv2d(nchw(hidden), kernels.depthwise, groups=channels))
        add_sums(sums[:, units.unit(n)], flat(e[n, a:b]))
    return e, sums / units.count


def _project(
    e: Tensor, norm: Affine, kernels: _Kernels, units: Norms
) -> tuple[Tensor, Tensor, Tensor]:
    """Channel means of g (n 2d), p (n h w d), and the means of p and p² (2, units, d)."""
    matrix = kernels.project.flatten(1).T  # (2d d)
    p = e.new_empty(*e.shape[:3], matrix.shape[1])
    means = e.new_empty(len(e), e.shape[-1])
    sums = torch.zeros(2, units.units, matrix.shape[1], dtype=torch.float64)
    g = torch.empty_like(e[0])
    scale, shift = norm.scale.float(), norm.shift.float()
    for n in range(len(e)):
        u = units.unit(n)
        total = torch.zeros(e.shape[-1], dtype=torch.float64)
        for _, a, b in strips(e[n : n + 1]):
            torch.addcmul(shift[u], e[n, a:b], scale[u], out=g[a:b])
            _gelu(g[a:b], out=g[a:b])
            total += flat(g[a:b]).sum(0)
        means[n] = total / g[..., 0].numel()
        gated = kernels.gate(means[n])[:, None] * matrix
        for _, a, b in strips(e[n : n + 1]):
            torch.mm(flat(g[a:b]), gated, out=flat(p[n, a:b]))
            add_sums(sums[:, u], flat(p[n, a:b]))
    return means, p, sums / units.count


def _products(g: Tensor, x: Tensor, units: Norms) -> Tensor:
    """Σ g and Σ g·x over the pixels of each unit."""
    sums = torch.zeros(2, units.units, g.shape[-1], dtype=torch.float64)
    for n, a, b in strips(g):
        add_products(sums[:, units.unit(n)], flat(g[n, a:b]), flat(x[n, a:b]))
    return sums


def _project_backward(
    images: tuple[Tensor, Tensor, Tensor, Tensor],
    coefficients: tuple[Tensor, Tensor, Tensor],
    norm: Affine,
    kernels: _Kernels,
    units: Norms,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """dz (n h w 2d), its Σ dz and Σ dz·e, and the gradients of the gate's and project's weights."""
    go, p, e, means = images
    matrix = kernels.project.flatten(1)  # (d 2d)
    dz, of_project = torch.empty_like(e), torch.zeros_like(matrix)
    sums = torch.zeros(2, units.units, e.shape[-1], dtype=torch.float64)
    of_gate = [torch.zeros_like(w) for w in (kernels.squeeze, kernels.excite)]
    alpha, beta, delta = (c.float() for c in coefficients)
    scale, shift = norm.scale.float(), norm.shift.float()
    dp, pixels = torch.empty_like(go[0]), go[0, ..., 0].numel()
    for n in range(len(e)):
        u = units.unit(n)
        outer = torch.zeros(matrix.shape)  # dpᵀ·g
        for _, a, b in strips(e[n : n + 1]):
            torch.addcmul(delta[u], go[n, a:b], alpha[u], out=dp[a:b]).addcmul_(p[n, a:b], beta[u])
            z = torch.addcmul(shift[u], e[n, a:b], scale[u], out=dz[n, a:b])
            outer.addmm_(flat(dp[a:b]).T, flat(F.gelu(z)))
        gate, of_means = _gate_backward(kernels, means[n], (outer * matrix).sum(0), of_gate)
        of_project += outer * gate
        gated, constant = (matrix * gate).T.contiguous(), of_means / pixels
        for _, a, b in strips(e[n : n + 1]):
            dg = linear(flat(dp[a:b]), gated, constant)
            z = flat(dz[n, a:b])
            _gelu_backward(dg, z, grad_input=z)
            add_products(sums[:, u], z, flat(e[n, a:b]))
    return dz, sums, (of_gate[0], of_gate[1]), of_project[:, :, None, None]


def _gate_backward(
    kernels: _Kernels, means: Tensor, of_values: Tensor, of_gate: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The gate and the gradient of the channel means; adds those of the gate's weights."""
    with torch.enable_grad():
        means = means.detach().requires_grad_()
        weights = [w.detach().requires_grad_() for w in (kernels.squeeze, kernels.excite)]
        gate = kernels._replace(squeeze=weights[0], excite=weights[1]).gate(means)
    of_means, *found = torch.autograd.grad(gate, (means, *weights), of_values)
    for total, part in zip(of_gate, found, strict=True):
        total += part
    return gate.detach(), of_means


def _expand_backward(
    image: Tensor,
    buffers: tuple[Tensor, Tensor],
    coefficients: tuple[Tensor, Tensor, Tensor],
    expansion: _Expansion,
    kernels: _Kernels,
    units: Norms,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Turns dz into d(hn), in place; gives Σ d(hn), Σ x·d(hn)ᵀ and the depthwise gradient."""
    dz, e = buffers
    height, channels = image.shape[1], dz.shape[-1]
    total = torch.zeros(units.units, channels, dtype=torch.float64)
    outer = torch.zeros(units.units, image.shape[-1], channels, dtype=torch.float64)
    of_depthwise = torch.zeros_like(kernels.depthwise)
    alpha, beta, delta = (c.float() for c in coefficients)
    turned, full = kernels.depthwise.flip(2, 3), expansion.full.mT.contiguous()
    above: Tensor | None = None
    for n, a, b in strips(image):
        u = units.unit(n)
        low, high = (a if a else -1), (b if b < height else b + 1)  # rows of the padded image
        first, last = max(low - 1, 0), min(high + 1, height)
        de = dz.new_empty(high - low + 2, *dz.shape[2:])
        inner = de[first - low + 1 : last - low + 1]
        de[: first - low + 1], de[last - low + 1 :] = 0, 0
        torch.addcmul(delta[u], dz[n, first:last], alpha[u], out=inner)
        inner.addcmul_(e[n, first:last], beta[u])
        if a and above is not None:
            de[0] = above
        above = de[b - low].clone()  # row b − 1, which is overwritten below
        rows = with_frame(image[n], a, b)
        hn = linear(flat(rows), full[u], expansion.full_bias[u]).view(*rows.shape[:2], -1)
        of_depthwise += _weight_gradient(de[a - low + 1 : b - low + 1], F.gelu(hn), kernels)
        da = nhwc(F.conv2d(nchw(de), turned, padding=(0, 2), groups=channels))
        da = _folded(da, a - low, high - b)
        _gelu_backward(da, hn[1:-1, 1:-1], grad_input=dz[n, a:b])
        total[u] += flat(dz[n, a:b]).sum(0)
        outer[u] += flat(image[n, a:b]).T @ flat(dz[n, a:b])
    return (total, outer), of_depthwise


def _weight_gradient(de: Tensor, a: Tensor, kernels: _Kernels) -> Tensor:
    """The depthwise kernel's gradient from rows of de (r w c) and of a (r+2 w+2 c)."""
    found = _convolution_backward(
        nchw(de), nchw(a), kernels.depthwise, None, [1, 1], [0, 0], [1, 1], False, [0, 0],
        len(kernels.depthwise), [False, True, False],
    )  # fmt: skip
    gradient: Tensor = found[1]
    return gradient


def _folded(da: Tensor, top: int, bottom: int) -> Tensor:
    """The gradient of a strip from that of its padded columns, and rows at the image's edges."""
    if top:
        da[2] += da[0]
    if bottom:
        da[-3] += da[-1]
    da = da[top : len(da) - bottom]
    da[:, 2] += da[:, 0]
    da[:, -3] += da[:, -1]
    return da[:, 1:-1]


def _input_backward(
    image: Tensor,
    go: Tensor,
    dhn: Tensor,
    sums: tuple[Tensor, Tensor],
    moments: tuple[Tensor, Tensor],
    expansion: _Expansion,
    kernels: _Kernels,
    norm_weights: tuple[Tensor, Tensor],
    units: Norms,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """dx, and the gradients of the expansion, of norm 1 and of norm 0.

    d(hn) → dh = α dhn + β h + δ → d(xn) = dh·Wᵀ → dx is linear in d(hn) and x: two matrices.
    """
    total, outer = sums
    matrix, bias = expansion.matrix, expansion.bias
    mean, products = (
        moments[0] * units.count,
        units.count * (moments[1] + moments[0][:, :, None] * moments[0][:, None]),
    )
    weight = kernels.expand.flatten(1).T.double()  # (d 2d)
    (alpha, beta, delta), of_norm1 = units.backward(
        expansion.post, norm_weights[0], total, (outer * matrix).sum(1) + total * bias
    )
    x_h = products @ matrix + mean[:, :, None] * bias[:, None]  # Σ x·hᵀ
    x_dh = outer * alpha[:, None] + x_h * beta[:, None] + mean[:, :, None] * delta[:, None]
    sum_h = torch.einsum("ud,udc->uc", mean, matrix) + units.count * bias
    sum_dh = total * alpha + sum_h * beta + units.count * delta
    pre = expansion.pre
    of_expand = (pre.scale[:, :, None] * x_dh + pre.shift[:, :, None] * sum_dh[:, None]).sum(0)
    (alpha0, beta0, delta0), of_norm0 = units.backward(
        pre, norm_weights[1], sum_dh @ weight.T, (x_dh * weight).sum(2)
    )
    of_dhn = (alpha[:, :, None] * weight.T * alpha0[:, None]).float()
    of_x = (matrix * beta[:, None]) @ weight.T * alpha0[:, None] + torch.diag_embed(beta0)
    constant = ((bias * beta + delta) @ weight.T * alpha0 + delta0).float()
    of_x, dx = of_x.float(), torch.empty_like(image)
    for n, a, b in strips(image):
        u, rows = units.unit(n), flat(dx[n, a:b])
        torch.add(flat(go[n, a:b]), constant[u], out=rows)
        rows.addmm_(flat(image[n, a:b]), of_x[u]).addmm_(flat(dhn[n, a:b]), of_dhn[u])
    return dx, of_expand.T.float()[:, :, None, None], of_norm1, of_norm0
