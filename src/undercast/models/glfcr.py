"""GLF-CR (Xu et al., ISPRS 2022): optical and radar streams, fused globally and locally.

S2, S1 at half size ─ 6 × (dense block with window attention, then dynamic filters and gated
exchange between the streams) ─ features of all blocks joined ─ correction of the cloudy image
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.dsen2cr import S1_SCALE, scale_s1
from undercast.models.mono import MonoSystem
from undercast.models.sizes import crop_like, pad_to_multiple
from undercast.models.system import Batch, Output, Recipe
from undercast.models.windows import DropPath, FusedWindowAttention


@dataclass(frozen=True)
class GLFCRConfig:
    """The published sizes."""

    features: int = 96
    growth: int = 48
    blocks: int = 6
    layers: int = 5  # of each dense block
    heads: int = 8
    window: int = 8  # at half resolution
    kernel: int = 5  # of the dynamic filters
    drop_path: float = 0.2  # of the last layer; it grows from 0

    def __post_init__(self) -> None:
        sizes = (self.features, self.growth, self.blocks, self.layers, self.heads)
        if min(sizes) < 1 or self.growth % self.heads or self.window < 2 or self.window % 2:
            raise ConfigError(
                f"got {self}, expected positive sizes, a growth that the heads divide, "
                "and an even window"
            )
        if self.kernel % 2 != 1 or not 0 <= self.drop_path < 1:
            raise ConfigError(
                f"got kernel {self.kernel}, drop_path {self.drop_path}, "
                "expected an odd kernel and 0 ≤ drop_path < 1"
            )


class GLFCR(MonoSystem):
    """S1 and 13 cloudy bands to 13 clear ones; 14.8 M parameters."""

    title = "GLF-CR (Xu 2022)"
    # Published: half the learning rate every 5 epochs; here the same fall, a little every epoch.
    recipe = Recipe(
        loss="l1",
        learning_rate=1e-4,
        decay_per_epoch=0.5 ** (1 / 5),
        epochs=30,
        batch_size=12,
    )
    Config = GLFCRConfig

    def __init__(self, config: GLFCRConfig) -> None:
        super().__init__(config)
        f = config.features
        self.optical = _shallow(4 * bands.N_S2, f)
        self.radar = _shallow(4 * bands.N_S1, f)
        n_layers = config.blocks * config.layers
        drops = [config.drop_path * i / max(n_layers - 1, 1) for i in range(n_layers)]
        self.dense = nn.ModuleList(
            DenseBlock(config, drops[i * config.layers : (i + 1) * config.layers])
            for i in range(config.blocks)
        )
        self.exchange = nn.ModuleList(Exchange(f, config.kernel) for _ in range(config.blocks))
        self.join = nn.Sequential(nn.Conv2d(config.blocks * f, f, 1), nn.Conv2d(f, f, 3, padding=1))
        self.rebuild = nn.Sequential(
            nn.Conv2d(f, 256, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(64, bands.N_S2, 3, padding=1),
        )

    def restore(self, batch: Batch) -> Output:
        """Clipped to 0..1 outside training; while training the clip would stop gradients."""
        cloudy = bands.scale_s2(batch.s2[:, 0])
        multiple = 2 * self.config.window
        optical = F.pixel_unshuffle(pad_to_multiple(cloudy, multiple), 2)
        backscatter = scale_s1(batch.s1[:, 0]) / S1_SCALE  # 0..1
        radar = F.pixel_unshuffle(pad_to_multiple(backscatter, multiple), 2)
        mean = (cloudy + crop_like(self.correction(optical, radar), cloudy)).float()
        return Output(mean if self.training else mean.clip(0.0, 1.0))

    def correction(self, optical: Tensor, radar: Tensor) -> Tensor:
        """Both at half size, (b 52 h w) and (b 8 h w), to what the cloudy image lacks."""
        skip = self.optical[0](optical)
        o, r = self.optical[1](skip), self.radar(radar)
        levels = []
        for dense, exchange in zip(self.dense, self.exchange, strict=True):
            o, r = exchange(*dense(o, r))
            levels.append(o)
        y: Tensor = self.rebuild(self.join(torch.cat(levels, dim=1)) + skip)
        return y


def _shallow(w_in: int, features: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(w_in, features, 5, padding=2), nn.Conv2d(features, features, 3, padding=1)
    )


class DenseBlock(nn.Module):
    """Dense layers whose outputs are joined and added to the input, for both streams."""

    def __init__(self, config: GLFCRConfig, drops: list[float]) -> None:
        super().__init__()
        widths = [config.features + i * config.growth for i in range(config.layers)]
        self.layers = nn.ModuleList(
            DenseLayer(config, width, shifted=i % 2 == 1, drop=drop)
            for i, (width, drop) in enumerate(zip(widths, drops, strict=True))
        )
        joined = widths[-1] + config.growth
        self.optical = nn.Conv2d(joined, config.features, 3, padding=1)
        self.radar = nn.Conv2d(joined, config.features, 3, padding=1)

    def forward(self, optical: Tensor, radar: Tensor) -> tuple[Tensor, Tensor]:
        o, r = optical, radar
        for layer in self.layers:
            new_o, new_r = layer(o, r)
            o, r = torch.cat((o, new_o), dim=1), torch.cat((r, new_r), dim=1)
        return optical + self.optical(o), radar + self.radar(r)


class DenseLayer(nn.Module):
    """A convolution of each stream to `growth` channels, window attention, a perceptron."""

    def __init__(self, config: GLFCRConfig, width: int, *, shifted: bool, drop: float) -> None:
        super().__init__()
        growth = config.growth
        self.optical = nn.Conv2d(width, growth, 3, padding=1)
        self.radar = nn.Conv2d(width, growth, 3, padding=1)
        self.attention = FusedWindowAttention(growth, config.heads, config.window, shifted)
        self.optical_perceptron = _perceptron(growth)
        self.radar_perceptron = _perceptron(growth)
        self.drop = DropPath(drop)

    def forward(self, optical: Tensor, radar: Tensor) -> tuple[Tensor, Tensor]:
        o = F.relu(self.optical(optical)).permute(0, 2, 3, 1)  # (b h w c)
        r = F.relu(self.radar(radar)).permute(0, 2, 3, 1)
        attended_o, attended_r = self.attention(o, r)
        o, r = o + self.drop(attended_o), r + self.drop(attended_r)
        o = o + self.drop(self.optical_perceptron(o))
        r = r + self.drop(self.radar_perceptron(r))
        return o.permute(0, 3, 1, 2), r.permute(0, 3, 1, 2)


def _perceptron(width: int, ratio: int = 2) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, ratio * width),
        nn.GELU(),
        nn.Linear(ratio * width, width),
    )


class Exchange(nn.Module):
    """The radar is filtered by kernels that both streams predict, then each takes from the other.

    optical + σ(conv(radar − optical)) · (radar − optical), and likewise for the radar.
    """

    def __init__(self, features: int, kernel: int) -> None:
        super().__init__()
        self.kernels = nn.Sequential(
            nn.Conv2d(2 * features, features, 3, padding=1),
            nn.LeakyReLU(0.1),
            _Residual(features),
            _Residual(features),
            nn.Conv2d(features, features * kernel**2, 1),
        )
        self.to_optical = nn.Conv2d(features, features, 1)
        self.to_radar = nn.Conv2d(features, features, 1)

    def forward(self, optical: Tensor, radar: Tensor) -> tuple[Tensor, Tensor]:
        radar = dynamic_filter(radar, self.kernels(torch.cat((optical, radar), dim=1)))
        difference = radar - optical
        new_optical = optical + torch.sigmoid(self.to_optical(difference)) * difference
        new_radar = radar - torch.sigmoid(self.to_radar(-difference)) * difference
        return new_optical, new_radar


class _Residual(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, 3, padding=1)
        self.second = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.leaky_relu(self.first(x), 0.1))


def dynamic_filter(x: Tensor, kernels: Tensor) -> Tensor:
    """Each value of x (b c h w) filtered by a k×k kernel of its own, kernels (b c·k² h w).

    Tap by tap: k² products of views instead of an unfolded copy k² times as large as x.

    >>> x, kernels = torch.rand(1, 2, 8, 8), torch.zeros(1, 18, 8, 8)
    >>> kernels[:, 4::9] = 1  # the middle of each 3×3 kernel
    >>> torch.equal(dynamic_filter(x, kernels), x)
    True
    """
    b, c, h, w = x.shape
    taps = kernels.reshape(b, c, -1, h, w)
    k = round(taps.shape[2] ** 0.5)
    padded = F.pad(x, (k // 2,) * 4, mode="replicate")
    total = torch.zeros_like(x)
    for row in range(k):
        for col in range(k):
            view = padded[:, :, row : row + h, col : col + w]
            total = total + taps[:, :, row * k + col] * view
    return total
