"""The parts of image-to-image GANs (Isola et al. 2017): U-Net, ResNet generator, discriminators.

All of them see and give values in −1..1. Weights start as N(0, 0.02).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.mono import MonoSystem, least_cloudy_date
from undercast.models.sizes import crop_like, pad_to_multiple
from undercast.models.system import Batch, Output, Recipe

# Published: GAN + 100·L1 on values in −1..1. The L1 here is one of reflectance, half as large.
RECIPE = Recipe(
    loss="l1",
    learning_rate=2e-4,
    betas=(0.5, 0.999),
    decay_per_epoch=1.0,
    epochs=200,
    batch_size=1,
    adversarial_weight=1 / 200,
)


def signed_s2(reflectance: Tensor) -> Tensor:
    """Reflectance 0..1 as −1..1; NaN is −1.

    >>> signed_s2(torch.tensor([0.0, 0.75, 2.0, torch.nan])).tolist()
    [-1.0, 0.5, 1.0, -1.0]
    """
    scaled: Tensor = 2 * bands.scale_s2(reflectance) - 1
    return scaled


def signed_s1(db: Tensor) -> Tensor:
    """Backscatter of −25..0 dB as −1..1; NaN is −1."""
    scaled: Tensor = 2 * bands.scale_s1(db) - 1
    return scaled


def reflectance(signed: Tensor) -> Tensor:
    """−1..1 as reflectance 0..1."""
    return (signed.float() + 1) / 2


class ConditionalGAN(MonoSystem):
    """A generator from `condition` to the image, judged by a PatchGAN that sees both."""

    recipe = RECIPE
    in_channels: int
    generator: nn.Module

    def condition(self, batch: Batch) -> Tensor:
        """What the generator sees of a batch with one date: (b c h w) in −1..1."""
        raise NotImplementedError(f"{type(self).__name__} must implement condition")

    def restore(self, batch: Batch) -> Output:
        return Output(reflectance(self.generator(self.condition(batch))))

    def adversary(self) -> nn.Module:
        return PatchGAN(self.in_channels + bands.N_S2, self.config.width)

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        condition = self.condition(least_cloudy_date(batch))
        logits: Tensor = adversary(torch.cat((condition, signed_image(image)), dim=1))
        return logits


def signed_image(image: Tensor) -> Tensor:
    """A target or reconstruction for the adversary: unclipped, so that gradients pass."""
    return 2 * image.nan_to_num(0.0) - 1


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that takes its running statistics where a channel has a single value.

    That is a 1×1 map of one sample, for which batch statistics do not exist.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(x)


class UNet(nn.Module):
    """The U-Net generator: (b c h w) to (b out h w) in −1..1.

    `levels` convolutions of 64, 128, 256, 512, 512, … channels (for width 64) and their mirror with
    skips. `first` says whether the outermost pair is 4×4 with stride 2 ("halve", pix2pix) or 3×3
    at full resolution ("keep"). A map of odd size, or of one pixel, is padded by its edge before it
    is halved, so any size works; sizes that halve evenly (multiples of 2^levels) see no padding.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int = 64,
        levels: int = 8,
        first: Literal["halve", "keep"] = "halve",
    ) -> None:
        super().__init__()
        widths = [width * min(2**level, 8) for level in range(levels)]
        self.halves_first = first == "halve"
        if self.halves_first:
            self.first: nn.Module = nn.Conv2d(in_channels, widths[0], 4, 2, 1)
            self.last: nn.Module = nn.ConvTranspose2d(2 * widths[0], out_channels, 4, 2, 1)
        else:
            self.first = nn.Conv2d(in_channels, widths[0], 3, padding=1)
            self.last = nn.Conv2d(2 * widths[0], out_channels, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level in range(1, levels):
            innermost = level == levels - 1
            self.down.append(_Down(widths[level - 1], widths[level], norm=not innermost))
            entering = widths[level] * (1 if innermost else 2)
            dropout = 0.5 if level >= levels - 3 else 0.0
            self.up.insert(0, _Up(entering, widths[level - 1], dropout))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(pad_to_multiple(x, 2) if self.halves_first else x)
        skips = []
        for down in self.down:
            skips.append(y)
            y = down(y)
        for up, skip in zip(self.up, reversed(skips), strict=True):
            y = torch.cat((skip, crop_like(up(y), skip)), dim=1)
        return crop_like(self.last(F.relu(y)), x).tanh()


class _Down(nn.Module):
    def __init__(self, w_in: int, w_out: int, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(w_in, w_out, 4, 2, 1, bias=not norm)
        # A map of 1×1 would become zero by its own statistics: the innermost level has no norm.
        self.norm = BatchNorm(w_out) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(pad_to_multiple(F.leaky_relu(x, 0.2), 2)))
        return y


class _Up(nn.Module):
    def __init__(self, w_in: int, w_out: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(w_in, w_out, 4, 2, 1, bias=False)
        self.norm = BatchNorm(w_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.norm(self.conv(F.relu(x))))
        return y


class ResNetGenerator(nn.Module):
    """7×7 convolution, two halvings, residual blocks, two doublings, 7×7, tanh; any size."""

    def __init__(
        self, in_channels: int, out_channels: int, width: int = 64, blocks: int = 9
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv_norm(in_channels, width, 7),
            halve(width, 2 * width),
            halve(2 * width, 4 * width),
            *(ResBlock(4 * width) for _ in range(blocks)),
            grow(4 * width, 2 * width),
            grow(2 * width, width),
            nn.Conv2d(width, out_channels, 7, padding=3, padding_mode="reflect"),
            nn.Tanh(),
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return crop_like(self.layers(pad_to_multiple(x, 4, smallest=8)), x)


class ResBlock(nn.Module):
    """x plus two 3×3 convolutions with reflected borders and batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = conv_norm(width, width, 3)
        self.second = conv_norm(width, width, 3, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


def conv_norm(w_in: int, w_out: int, kernel: int, relu: bool = True) -> nn.Sequential:
    """Convolution with reflected borders, batch norm and ReLU."""
    conv = nn.Conv2d(w_in, w_out, kernel, padding=kernel // 2, padding_mode="reflect", bias=False)
    return nn.Sequential(conv, BatchNorm(w_out), *([nn.ReLU()] if relu else []))


def halve(w_in: int, w_out: int) -> nn.Sequential:
    """3×3 convolution with stride 2, batch norm, ReLU."""
    conv = nn.Conv2d(w_in, w_out, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, BatchNorm(w_out), nn.ReLU())


def grow(w_in: int, w_out: int) -> nn.Sequential:
    """Transposed 3×3 convolution that doubles the size, batch norm, ReLU."""
    conv = nn.ConvTranspose2d(w_in, w_out, 3, stride=2, padding=1, output_padding=1, bias=False)
    return nn.Sequential(conv, BatchNorm(w_out), nn.ReLU())


class PatchGAN(nn.Module):
    """A map of logits, each for a patch of 70×70 pixels: (b c h w) to (b 1 h/8 w/8), about."""

    def __init__(self, in_channels: int, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            *_judge_layer(width, 2 * width, stride=2),
            *_judge_layer(2 * width, 4 * width, stride=2),
            *_judge_layer(4 * width, 8 * width, stride=1),
            nn.Conv2d(8 * width, 1, 4, 1, 1),
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class PairDiscriminator(nn.Module):
    """Input and image enter by convolutions of their own: logits (b 1 h/16 w/16)."""

    def __init__(self, condition_channels: int, image_channels: int, width: int = 64) -> None:
        super().__init__()
        self.condition = nn.Conv2d(condition_channels, width // 2, 4, 2, 1)
        self.image = nn.Conv2d(image_channels, width // 2, 4, 2, 1)
        self.layers = nn.Sequential(
            *_judge_layer(width, 2 * width, stride=2),
            *_judge_layer(2 * width, 4 * width, stride=2),
            *_judge_layer(4 * width, 8 * width, stride=2),
            nn.Conv2d(8 * width, 1, 3, padding=1),
        )
        initialise(self)

    def forward(self, condition: Tensor, image: Tensor) -> Tensor:
        y = torch.cat((self.condition(condition), self.image(image)), dim=1)
        logits: Tensor = self.layers(F.leaky_relu(y, 0.2))
        return logits


def _judge_layer(w_in: int, w_out: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(w_in, w_out, 4, stride, 1, bias=False)
    return [conv, BatchNorm(w_out), nn.LeakyReLU(0.2)]


def check_unet(width: int, levels: int) -> None:
    """Refuses a U-Net without a level to halve, or a width that its judge cannot split."""
    if width < 2 or width % 2 or levels < 2:
        raise ConfigError(
            f"got width {width} and {levels} levels, expected an even width and 2 levels or more"
        )


def initialise(network: nn.Module) -> None:
    """Convolutions N(0, 0.02), batch-norm scales N(1, 0.02), biases 0."""
    kinds: Any = (nn.Conv2d, nn.ConvTranspose2d)
    for module in network.modules():
        if isinstance(module, kinds):
            nn.init.normal_(module.weight, 0.0, 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
