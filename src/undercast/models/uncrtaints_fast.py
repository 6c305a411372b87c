"""UnCRtainTS for the CPU, rewritten for memory traffic: the same numbers, a fraction of the passes.

The network is read row strip by row strip, so that what one step writes is still in the cache when
the next one reads it. Five facts make that exact:

- a batch norm in evaluation is affine: it folds into the 1×1 or depthwise convolution beside it;
- a group norm of a 1×1 convolution's output needs only the second moments of its *input*;
- reflecting rows and columns commutes with everything that acts on each pixel alone;
- the squeeze-excitation gate scales the columns of the projection's matrix;
- a bias behind the residual sum can wait: it is carried to the next 1×1 convolution.

Images are (h w c) with channels last; all of it runs without gradients, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.heap import keep_freed_strips
from undercast.models.mono import least_cloudy_date
from undercast.models.strips import (
    STRIP_PIXELS,
    StripImage,
    Strips,
    Update,
    depthwise,
    depthwise_gelu,
    flat,
    gelu_into,
    nchw,
    pixel_sum,
    pixel_sums,
    reflect_columns,
)
from undercast.models.system import Batch, Output
from undercast.models.uncrtaints import (
    MBConv,
    SqueezeExcitation,
    UnCRtainTS,
    UnCRtainTSConfig,
    resize_attention,
)


@dataclass(frozen=True)
class _Folded:
    """A decoder block without norms: y = gelu(dw(gelu(x·expand + expand_bias)) ...)·project."""

    expand: Tensor  # (d 2d), both norms around the convolution folded in
    expand_bias: Tensor  # (2d)
    depthwise: Tensor  # (2d 1 3 3)
    depthwise_bias: Tensor  # (2d)
    excite: SqueezeExcitation
    project: Tensor  # (2d d)
    project_bias: Tensor  # (d)


class FastUnCRtainTS:
    """An evaluation-mode UnCRtainTS with its norms folded; call it as the network it came from."""

    def __init__(self, network: UnCRtainTS, strip_pixels: int = STRIP_PIXELS) -> None:
        keep_freed_strips()
        self.network = network
        self.config = network.config
        self.strip_pixels = strip_pixels
        self.decoder = [_fold(block) for block in network.decoder]  # type: ignore[arg-type]
        self.head = _matrix(network.head)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Output:
        """Physical units in and out, sample by sample."""
        if self.config.mono:
            batch = least_cloudy_date(batch)
        results = torch.stack([self._sample(batch, index) for index in range(len(batch.s2))])
        mean, variance = results.permute(0, 3, 1, 2).split(
            (bands.N_S2, self.config.variance_channels), dim=1
        )
        if self.config.mean_activation == "sigmoid":
            mean = torch.sigmoid(mean.contiguous())
        else:
            mean = mean.contiguous() / self.config.scale
        if not self.network.gives_variance:
            return Output(mean)
        variance = F.softplus(variance.contiguous()).add_(self.config.variance_floor)
        return Output(mean, variance.div_(self.config.scale**2).expand_as(mean))

    def _sample(self, batch: Batch, index: int) -> Tensor:
        """The head's numbers (h w 26) of one sample; dates that are not valid cost nothing."""
        height, width = batch.s2.shape[-2:]
        dates = [0] if self.config.mono else batch.valid[index].nonzero().flatten().tolist()
        with Strips(height, width, self.strip_pixels) as strips:
            features = self._encode_dates(batch, index, dates, strips)
            y = StripImage(strips)  # the one dense temporary, for all blocks
            if self.config.mono:
                return self._decode(features[0], _nothing, strips, y)
            masks = self._masks(features, batch.days[index, dates])
            return self._decode(*_aggregation(features, masks), strips, y)

    def _encode_dates(
        self, batch: Batch, index: int, dates: list[int], strips: Strips
    ) -> list[Tensor]:
        """As many dates at once as there are threads, each by one; the rest by all together."""
        count, features = strips.threads, []
        whole = len(dates) - len(dates) % count if count > 1 else 0
        for i in range(0, whole, count):
            tasks = [
                partial(self._encode, batch, index, date, strips.alone(), slot)
                for slot, date in enumerate(dates[i : i + count])
            ]
            features += strips.together(tasks)
        return features + [self._encode(batch, index, date, strips) for date in dates[whole:]]

    def _encode(self, batch: Batch, index: int, date: int, strips: Strips, slot: int = 0) -> Tensor:
        """The features (h w+2 d) of one date; dates that are encoded at once have other slots."""
        network, y = self.network, StripImage(strips)
        pixels = self._pixels(batch, index, date)  # (h w+2 c)
        weight, bias = _matrix(network.embed)
        scale, shift = _group_norm(
            Moments.of(pixels.double(), strips).through(weight, bias), network.embed_norm
        )
        weight, bias = weight * scale, bias * scale + shift
        f = strips.scratch(f"date {date}", self.config.d_m)

        def embed(a: int, b: int) -> Tensor | None:
            torch.addmm(bias, flat(pixels[a:b]), weight, out=flat(f[a:b])).relu_()
            return Moments.sums(f[a:b]) if len(network.encoder) else None  # for the first block

        sums = strips.each(embed)
        projected = strips.scratch(f"projected {slot}", self.config.d_m)
        for number, block in enumerate(network.encoder, start=1):
            moments, last = Moments(sums, strips.pixels), number == len(network.encoder)
            sums = _encoder_block(block, f, moments, projected, strips, y, last)  # type: ignore[arg-type]
        return f

    def _pixels(self, batch: Batch, index: int, date: int) -> Tensor:
        """The scaled input (h w+2 c) of one date, radar first."""
        x = scaled_input(self.config, batch.s2[index, date], batch.s1[index, date])
        return F.pad(x, (1, 1), mode="reflect").permute(1, 2, 0).contiguous()

    def _masks(self, features: list[Tensor], days: Tensor) -> Tensor:
        """The attention masks (n t grid grid) of one sample's valid dates."""
        assert self.network.attention is not None
        grid = self.config.attention_grid
        coarse = [_max_pool(f, grid) for f in features]
        valid = torch.ones(1, len(features), dtype=torch.bool)
        masks: Tensor = self.network.attention(torch.cat(coarse)[None], days[None], valid)[0]
        return masks

    def _decode(self, x: Tensor, update: Update, strips: Strips, y: StripImage) -> Tensor:
        """Each block is one pass; `update(a, b)` brings rows a to b of x up to date before it."""
        carry = torch.zeros(self.config.d_m)  # what is still to be added to every pixel of x
        for block in self.decoder:
            gate = _gate(block.excite, _decoder_pass(block, x, carry, update, strips, y))
            update = _residual(x, y, block.project * gate[:, None])
            carry = carry + block.project_bias
        weight, bias = self.head
        bias = torch.addmv(bias, weight.T, carry)
        out = strips.image(len(bias))

        def head(a: int, b: int) -> None:
            update(a, b)
            torch.addmm(bias, flat(x[a:b]), weight, out=flat(out[a:b]))

        strips.each(head)
        return out[:, 1:-1]


def _decoder_pass(
    block: _Folded, x: Tensor, carry: Tensor, update: Update, strips: Strips, y: StripImage
) -> Tensor:
    """Expansion and depthwise convolution into y; gives the channel means of y."""

    def spread(a: int, b: int, rows: Tensor) -> Tensor:
        return pixel_sum(y.put(a, depthwise_gelu(rows, block.depthwise, block.depthwise_bias)))

    bias = torch.addmv(block.expand_bias, block.expand.T, carry)
    return strips.each_expanded(x, block.expand, bias, update, spread) / strips.pixels


def scaled_input(config: UnCRtainTSConfig, s2: Tensor, s1: Tensor) -> Tensor:
    """What the network sees of s2 (… 13 h w) and s1 (… 2 h w): radar first, times `scale`."""
    x: Tensor = bands.scale_s2(s2)
    if config.sar:
        x = torch.cat((bands.scale_s1(s1), x), dim=-3)
    return x * config.scale


class Moments:
    """Means and second moments of the channels of an image, in float64."""

    def __init__(self, sums: Tensor, count: int) -> None:
        self.mean = sums[0] / count
        self.products = sums[1:] / count

    @classmethod
    def of(cls, image: Tensor, strips: Strips) -> Moments:
        """The moments of an image (h w+2 c)."""
        return cls(strips.each(lambda a, b: cls.sums(image[a:b])), strips.pixels)

    @staticmethod
    def sums(rows: Tensor) -> Tensor:
        """(1+c c): the sums of (r w+2 c) and of its products, without the two repeated columns."""
        pixels, edge = flat(rows), torch.cat((rows[:, 0], rows[:, -1]))
        return torch.cat((pixel_sum(rows)[None], pixels.T @ pixels - edge.T @ edge))

    def through(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and mean square of each channel of x·weight + bias."""
        w = weight.double()
        covariance = self.products - torch.outer(self.mean, self.mean)
        out = self.mean @ w + bias
        return out, ((covariance @ w) * w).sum(0) + out.square()

    @property
    def of_channels(self) -> tuple[Tensor, Tensor]:
        """Mean and mean square of each channel."""
        return self.mean, self.products.diagonal()


def _encoder_block(
    block: MBConv,
    f: Tensor,
    moments: Moments,
    projected: Tensor,
    strips: Strips,
    y: StripImage,
    last: bool,
) -> Tensor:
    """One group-norm block on f (h w+2 d), in place; the sums of its moments unless it is last."""
    weight, bias = _expansion(block, moments)

    def spread(a: int, b: int, rows: Tensor) -> Tensor:
        return pixel_sums(y.put(a, depthwise(rows, block.depthwise.weight)))

    sums = strips.each_expanded(f, weight, bias, _nothing, spread) / strips.pixels
    scale, shift = _group_norm((sums[0], sums[1]), block.depthwise_norm)

    def activate(a: int, b: int) -> Tensor:
        rows = y.strip(a)
        gelu_into(torch.addcmul(shift, rows, scale), out=rows)
        return pixel_sum(rows)

    gate = _gate(block.excite, strips.each(activate) / strips.pixels)
    matrix = _matrix(block.project)[0] * gate[:, None]

    def project(a: int, b: int) -> Tensor:
        torch.mm(flat(y.strip(a)), matrix, out=flat(projected[a:b]))
        return pixel_sums(projected[a:b])

    sums = strips.each(project) / strips.pixels
    scale, shift = _group_norm((sums[0], sums[1]), block.project_norm)

    def add(a: int, b: int) -> Tensor | None:
        f[a:b].addcmul_(projected[a:b], scale).add_(shift)
        reflect_columns(f[a:b])
        return None if last else Moments.sums(f[a:b])

    return strips.each(add)


def _expansion(block: MBConv, moments: Moments) -> tuple[Tensor, Tensor]:
    """Matrix and bias of the expansion, both group norms around it folded in."""
    scale, shift = _group_norm(moments.of_channels, block.pre_norm)
    weight = _matrix(block.expand)[0]
    weight, bias = scale[:, None] * weight, shift @ weight
    scale, shift = _group_norm(moments.through(weight, bias), block.expand_norm)
    return weight * scale, bias * scale + shift


def _group_norm(moments: tuple[Tensor, Tensor], norm: nn.Module) -> tuple[Tensor, Tensor]:
    """A group norm as scale and shift of each channel, from channel means and mean squares."""
    assert isinstance(norm, nn.GroupNorm)
    mean, square = (m.view(norm.num_groups, -1).mean(1) for m in moments)
    inverse = torch.rsqrt((square - mean.square()).clamp_min(0.0) + norm.eps)
    per_group = norm.num_channels // norm.num_groups
    scale = inverse.repeat_interleave(per_group) * norm.weight
    shift = norm.bias - mean.repeat_interleave(per_group) * scale
    return scale.float(), shift.float()


def _aggregation(features: list[Tensor], masks: Tensor) -> tuple[Tensor, Update]:
    """Σ over dates of masks times features, computed into the first date's array when asked.

    Bringing a mask to full size is linear in rows and in columns, so a strip of it is a product of
    two small matrices, and no head's mask is copied at full size.
    """
    first, (heads, grid) = features[0], (masks.shape[0], masks.shape[-1])
    height, width, d = first.shape
    rows = _resize_matrix(grid, height)
    columns = _resize_matrix(grid, width - 2)
    columns = torch.cat((columns[1:2], columns, columns[-2:-1]))
    small = masks.permute(1, 2, 3, 0).repeat_interleave(d // heads, dim=-1)  # (t g g d)

    def update(a: int, b: int) -> None:
        for date, f in enumerate(features):
            lines = torch.mm(rows[a:b], small[date].flatten(1)).view(b - a, grid, d)
            weights = torch.matmul(columns, lines)  # (rows w+2 d)
            if date == 0:
                first[a:b].mul_(weights)
            else:
                first[a:b].addcmul_(f[a:b], weights)

    return first, update


def _resize_matrix(grid: int, size: int) -> Tensor:
    """(size grid): what `resize_attention` does along one axis."""
    unit = torch.eye(grid)[None, :, :, None].expand(1, grid, grid, grid)
    return resize_attention(unit, size, grid)[0, :, :, 0].T.contiguous()


def _max_pool(f: Tensor, grid: int) -> Tensor:
    """(1 d grid grid): the adaptive maximum of f (h w+2 d), rows first where cells are equal."""
    height, width = f.shape[0], f.shape[1] - 2
    if height % grid or width % grid:
        return F.adaptive_max_pool2d(nchw(f[:, 1:-1]), grid)
    rows = f.unflatten(0, (grid, -1)).amax(1)
    return nchw(rows[:, 1:-1].unflatten(1, (grid, -1)).amax(2))


def _residual(x: Tensor, y: StripImage, matrix: Tensor) -> Update:
    def update(a: int, b: int) -> None:
        for first, end, rows in y.rows(a, b):
            flat(x[first:end]).addmm_(flat(rows), matrix)
        reflect_columns(x[a:b])

    return update


def _nothing(a: int, b: int) -> None:
    """Rows that are up to date already."""


def _gate(excite: SqueezeExcitation, means: Tensor) -> Tensor:
    squeezed = F.gelu(excite.squeeze(means.float()))
    return torch.sigmoid(excite.excite(squeezed))


def _fold(block: MBConv) -> _Folded:
    """The block's four batch norms folded into its three convolutions, in float64."""
    pre, pre_shift = _batch_norm(block.pre_norm)
    post, post_shift = _batch_norm(block.expand_norm)
    expand = _matrix(block.expand)[0].double()
    expand_bias = (pre_shift @ expand) * post + post_shift
    expand = pre[:, None] * expand * post
    scale, depthwise_bias = _batch_norm(block.depthwise_norm)
    depthwise = block.depthwise.weight.double() * scale[:, None, None, None]
    scale, project_bias = _batch_norm(block.project_norm)
    project = _matrix(block.project)[0].double() * scale
    tensors = (expand, expand_bias, depthwise, depthwise_bias, project, project_bias)
    e, eb, w, wb, p, pb = (t.detach().float().contiguous() for t in tensors)
    return _Folded(e, eb, w, wb, block.excite, p, pb)


def _batch_norm(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Scale and shift of a batch norm in evaluation, float64."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    return scale, norm.bias.double() - norm.running_mean.double() * scale


def _matrix(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """A 1×1 convolution as matrix (in out) and bias (out)."""
    weight = conv.weight.detach().flatten(1).T.contiguous()
    bias = conv.bias
    return weight, torch.zeros(weight.shape[1]) if bias is None else bias.detach()
