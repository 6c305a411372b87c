"""UnCRtainTS (Ebel et al., EarthVision 2023): full-resolution MBConv blocks around an L-TAE.

(b t 15 h w) ─ encoder, date by date ─ attention over dates ─ decoder ─ mean, variance (b 13 h w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast import bands
from undercast.errors import ConfigError
from undercast.models import mbconv
from undercast.models.aggregation import weighted_sum
from undercast.models.cells import CELL
from undercast.models.land import start_at_land
from undercast.models.ltae import TemporalAttention
from undercast.models.mono import least_cloudy_date
from undercast.models.surroundings import from_surroundings
from undercast.models.system import Batch, Output, Recipe, System

GROUPS = 4  # of the encoder's group norm


@dataclass(frozen=True)
class UnCRtainTSConfig:
    """The paper's defaults; `scale` is the factor between reflectance and the network's numbers."""

    n_e: int = 1  # MBConv blocks before the aggregation, 0 allowed
    n_d: int = 5  # MBConv blocks after it
    d_m: int = 128
    heads: int = 16
    d_k: int = 4
    attention_grid: int = 32
    dropout: float = 0.1
    covariance: Literal["diagonal", "isotropic", "none"] = "diagonal"
    mono: bool = False  # one date, no temporal attention
    sar: bool = True
    scale: float = 10.0
    variance_floor: float = 1e-3  # in scaled space
    mean_activation: Literal["sigmoid", "linear"] = "sigmoid"
    init: Literal["default", "released"] = "default"
    surroundings: int = 0  # pixels over which seen ground tells of hidden ground; 0: not at all

    def __post_init__(self) -> None:
        if self.covariance not in ("diagonal", "isotropic", "none"):
            raise ConfigError(
                f"got covariance {self.covariance!r}, expected diagonal, isotropic or none"
            )
        if self.n_e < 0 or self.n_d < 0 or self.d_m < GROUPS or self.d_m % GROUPS:
            raise ConfigError(
                f"got n_e {self.n_e}, n_d {self.n_d}, d_m {self.d_m}: expected n_e ≥ 0, n_d ≥ 0 "
                f"and d_m a multiple of {GROUPS}"
            )
        if self.surroundings and self.surroundings < CELL:
            raise ConfigError(
                f"got surroundings of {self.surroundings} pixels, expected at least {CELL}, or 0"
            )
        if self.surroundings and self.covariance == "none":
            raise ConfigError(
                "got surroundings for a network without a variance, expected covariance diagonal "
                "or isotropic: it says how much hidden ground is to be trusted"
            )
        if not self.mono and self.d_m % self.heads:
            raise ConfigError(f"got {self.heads} heads, expected a divisor of d_m = {self.d_m}")

    @property
    def in_channels(self) -> int:
        return bands.N_S2 + (bands.N_S1 if self.sar else 0)

    @property
    def variance_channels(self) -> int:
        return {"diagonal": bands.N_S2, "isotropic": 1, "none": 0}[self.covariance]


class UnCRtainTS(System):
    """The paper's network; 570,010 parameters with the diagonal covariance."""

    title = "UnCRtainTS (Ebel 2023)"
    recipe = Recipe(loss="gaussian_nll")
    Config = UnCRtainTSConfig
    config: UnCRtainTSConfig

    def __init__(self, config: UnCRtainTSConfig) -> None:
        super().__init__(config)
        d_m = config.d_m
        self.embed = nn.Conv2d(config.in_channels, d_m, 1)
        self.embed_norm = nn.GroupNorm(GROUPS, d_m)
        self.encoder = nn.Sequential(*(MBConv(d_m, "group") for _ in range(config.n_e)))
        self.attention = (
            None if config.mono else TemporalAttention(d_m, config.heads, config.d_k, 2 * d_m)
        )
        self.decoder = nn.Sequential(*(MBConv(d_m, "batch") for _ in range(config.n_d)))
        self.head = nn.Conv2d(d_m, bands.N_S2 + config.variance_channels, 1)
        {"default": _init_default, "released": _init_released}[config.init](self)

    @property
    def temporal(self) -> str:  # type: ignore[override]
        return "mono" if self.config.mono else "multi"

    @property
    def uses_s1(self) -> bool:  # type: ignore[override]
        return self.config.sar

    @property
    def gives_variance(self) -> bool:
        return self.config.covariance != "none"

    def forward(self, batch: Batch) -> Output:
        """Physical units in and out; a mono-temporal network takes the least cloudy date."""
        if self.config.mono:
            batch = least_cloudy_date(batch)
        x = bands.scale_s2(batch.s2)
        if self.config.sar:
            x = torch.cat((bands.scale_s1(batch.s1), x), dim=2)
        output = self.reconstruct(x * self.config.scale, batch.days, batch.valid)
        variance = output.variance
        return Output(
            output.mean / self.config.scale,
            None if variance is None else variance / self.config.scale**2,
        )

    def finish(self, output: Output, batch: Batch) -> Output:
        """Hidden ground learns from its surroundings, where the settings say so."""
        reach = self.config.surroundings
        return from_surroundings(output, batch, reach) if reach else output

    def reconstruct(self, x: Tensor, days: Tensor, valid: Tensor) -> Output:
        """The network in its own units: x (b t c h w), S1 first, times `scale`."""
        f = self._encode(x, valid)
        f = self._one_date(f) if self.attention is None else self._aggregate(f, days, valid)
        y = self.head(self.decoder(f)).float()
        mean, variance = y.split((bands.N_S2, self.config.variance_channels), dim=1)
        if self.config.mean_activation == "sigmoid":
            mean = self.config.scale * torch.sigmoid(mean)
        if not self.gives_variance:
            return Output(mean)
        variance = F.softplus(variance) + self.config.variance_floor
        return Output(mean, variance.expand_as(mean))

    def _encode(self, x: Tensor, valid: Tensor) -> Tensor:
        """The features (b t d h w) of each date; dates that are not valid cost next to nothing."""
        images, known = x.flatten(0, 1), valid.flatten()
        if _is_symbolic(known) or bool(known.all()):
            return self._encode_images(images).unflatten(0, x.shape[:2])
        found = self._encode_images(images[known])
        features = found.new_zeros(len(images), *found.shape[1:])
        features = features.index_put((known.nonzero()[:, 0],), found)
        return features.unflatten(0, x.shape[:2])

    def _encode_images(self, images: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(F.relu(self.embed_norm(self.embed(images))))
        return encoded

    def _one_date(self, features: Tensor) -> Tensor:
        if features.shape[1] != 1:
            raise ConfigError(
                f"got {features.shape[1]} dates for a mono-temporal network, expected 1"
            )
        return features[:, 0]

    def _aggregate(self, features: Tensor, days: Tensor, valid: Tensor) -> Tensor:
        """Sum over dates of attention times features, one head for each group of channels."""
        assert self.attention is not None
        b, t, _, h, w = features.shape
        grid = self.config.attention_grid
        coarse = F.adaptive_max_pool2d(features.flatten(0, 1), grid).unflatten(0, (b, t))
        weights = self.attention(coarse, days, valid)  # (b n t grid grid)
        weights = resize_attention(weights.flatten(0, 1), h, w)
        weights = F.dropout(weights, self.config.dropout, self.training)
        weights = weights.unflatten(0, (b, self.config.heads))  # (b n t h w)
        if self.training and mbconv.is_large(features):
            return weighted_sum(features, weights)
        groups = features.unflatten(2, (self.config.heads, -1))  # (b t n c h w)
        total = groups[:, 0] * weights[:, :, 0, None]
        for date in range(1, t):
            total = total + groups[:, date] * weights[:, :, date, None]
        return total.flatten(1, 2)


def _is_symbolic(x: Tensor) -> bool:
    """Whether a graph is being written down, so that values must not steer the flow."""
    return x.is_meta or torch.compiler.is_compiling()


def resize_attention(weights: Tensor, height: int, width: int) -> Tensor:
    """Attention masks (n t g g) at full resolution: bilinear upwards, averages downwards."""
    g = weights.shape[-1]
    if height > g or width > g:
        size = (max(height, g), max(width, g))
        weights = F.interpolate(weights, size, mode="bilinear", align_corners=False)
    if height < g or width < g:
        weights = F.adaptive_avg_pool2d(weights, (height, width))
    return weights


class MBConv(nn.Module):
    """Pre-norm inverted bottleneck d → 2d → d with squeeze-excitation and a residual connection."""

    def __init__(self, d: int, norm: Literal["group", "batch"]) -> None:
        super().__init__()
        self.pre_norm = _norm(norm, d)
        self.expand = nn.Conv2d(d, 2 * d, 1, bias=False)
        self.expand_norm = _norm(norm, 2 * d)
        self.depthwise = nn.Conv2d(
            2 * d, 2 * d, 3, padding=1, padding_mode="reflect", groups=2 * d, bias=False
        )
        self.depthwise_norm = _norm(norm, 2 * d)
        self.excite = SqueezeExcitation(2 * d, d // 4)
        self.project = nn.Conv2d(2 * d, d, 1, bias=False)
        self.project_norm = _norm(norm, d)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and mbconv.is_suited(self, x):
            return mbconv.trained(self, x)
        y = F.gelu(self.expand_norm(self.expand(self.pre_norm(x))))
        y = F.gelu(self.depthwise_norm(self.depthwise(y)))
        return x + self.project_norm(self.project(self.excite(y)))


class SqueezeExcitation(nn.Module):
    """Each channel times a gate that depends on the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, squeezed, bias=False)
        self.excite = nn.Linear(squeezed, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.excite(F.gelu(self.squeeze(x.mean(dim=(2, 3))))))
        return x * gate[:, :, None, None]


def _norm(kind: Literal["group", "batch"], channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels) if kind == "group" else nn.BatchNorm2d(channels)


def _init_default(network: UnCRtainTS) -> None:
    """Biases 0 but those of land, norms 1; He-scaled convolutions (a depthwise fan-in is 9)."""
    for module in network.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    start_at_land(network.head, network.config.mean_activation, network.config.scale)


def _init_released(network: UnCRtainTS) -> None:
    """As the released training script: Xavier weights, N(0,1) biases and batch-norm scales."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(module.weight)
        if isinstance(module, nn.Conv1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight)
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias)
