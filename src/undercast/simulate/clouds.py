"""Clouds, their shadows and haze: optical thickness on a torus, then what the sensor sees.

The thickness of a layer is a soft, multi-scale function of noise; the level above which there is
cloud is the quantile of the wanted cover. Light is the two-stream solution of a non-absorbing
layer over a reflecting ground, and a shadow is the same layer moved by height · tan(zenith).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from undercast import bands
from undercast.simulate import spectra
from undercast.simulate.fields import Generator, fast_length, power_noise
from undercast.simulate.season import Sun
from undercast.types import BoolArray, FloatArray

BACKSCATTER = 0.15  # 1 − asymmetry of cloud droplets
CLOUD_AT = 0.035  # reflectance of a layer above which a pixel counts as cloud
SHADOW_AT = 0.12  # loss of direct sunlight above which a pixel counts as shadow
CLEAR_SHARE, OVERCAST_SHARE = 0.52, 0.5  # of the dates without and with full cloud, see draw_cover


@dataclass(frozen=True)
class Layer:
    """One layer of cloud of one kind."""

    cover: float
    height_km: float
    thickness: float  # optical thickness at which it saturates
    scale_px: float  # size of the largest features
    slope: float  # of the power spectrum
    softness: float  # of the edges, in standard deviations of the field
    growth: float  # exponent with which thickness grows from the edge inwards
    billows: float  # strength of rounded heads
    stretch: float  # how much longer than wide the features are
    angle: float
    ice: bool
    brightness: float  # of thick cloud in B8A
    tint: float  # 1 = the usual colour, 0 = the same in all bands up to B8A


@dataclass(frozen=True)
class Sky:
    """The atmosphere of one date over a whole region."""

    layers: tuple[Layer, ...]
    haze: float  # reflectance at 550 nm of uneven haze
    vapour: float  # cm


@dataclass(frozen=True)
class Veil:
    """Clouds over a patch: (H, W) optical thickness of each layer, and of what shades it."""

    layers: tuple[Layer, ...]
    thickness: FloatArray  # (layers, H, W)
    overhead: FloatArray  # (layers, H, W) thickness between the sun and the ground
    relief: FloatArray  # (layers, H, W) brightness of cloud tops around 1
    haze: FloatArray  # (H, W)
    cloud: BoolArray  # (H, W)
    shadow: BoolArray  # (H, W) shadow outside of the cloud


def draw_cover(rng: Generator, n: int, mean: float) -> FloatArray:
    """(n,) cloud cover of dates: many clear, many overcast, few between, with the given mean.

    The dates take turns through the quantiles of that distribution, so that the mean of a series
    is close to `mean`, and some date is clear as soon as there are a handful.
    """
    clear, overcast = CLEAR_SHARE * (1 - mean), OVERCAST_SHARE * mean
    between = 1 - clear - overcast
    rank = (rng.permutation(n) + rng.random(n)) / n
    # what lies between has the mean that is missing, from a Beta(a, b) with a + b = 1.2
    share = (mean - overcast) / between if between > 0 else 0.5
    inner = rng.beta(1.2 * share + 1e-6, 1.2 * (1 - share) + 1e-6, 4096)
    inner.sort()
    position = np.clip((rank - clear) / max(between, 1e-9), 0, 1 - 1e-9)
    cover = inner[(position * len(inner)).astype(int)]
    cover = np.where(rank < clear, 0.0, np.where(rank >= 1 - overcast, 1.0, cover))
    return cover.astype(np.float32)


def draw_sky(rng: Generator, cover: float, vapour: float) -> Sky:
    """The kinds of cloud of one date with that cover."""
    haze = 0.0 if cover < 1e-6 else float(min(rng.gamma(1.0, 0.006), 0.05))
    if cover < 1e-6:
        return Sky((), haze, vapour)
    kinds = ("cumulus", "broken", "sheet", "cirrus")
    weights = np.array(
        (1.3 * (1 - cover) + 0.02, 0.9, 0.15 + 1.2 * cover**2, 0.55 * (1 - 0.5 * cover))
    )
    kind = str(rng.choice(kinds, p=weights / weights.sum()))
    layers = [_layer(rng, kind, cover)]
    if kind != "cirrus" and rng.random() < 0.3:
        # a second layer takes part of the cover: 1 − c = (1 − c1)(1 − c2)
        high = cover * rng.uniform(0.1, 0.6)
        low = 1 - (1 - cover) / (1 - high) if high < 1 else cover
        layers = [_layer(rng, kind, low), _layer(rng, "cirrus", high)]
    return Sky(tuple(layers), haze, vapour)


# low and high of: height km, log thickness, scale px, slope, softness, growth, billows, stretch
_KINDS: dict[str, tuple[tuple[float, float], ...]] = {
    "cumulus": ((0.7, 2.2), (2.6, 4.1), (26, 120), (3.9, 4.6), (0.45, 1.0), (1.7, 2.3), (0.45, 0.9),
                (1.0, 1.2)),
    "broken": ((1.0, 4.5), (2.3, 4.0), (60, 260), (3.7, 4.4), (0.6, 1.5), (1.6, 2.2), (0.2, 0.7),
               (1.0, 1.8)),
    "sheet": ((0.6, 5.0), (2.5, 4.6), (200, 600), (3.6, 4.5), (1.0, 2.5), (1.6, 2.4), (0.0, 0.2),
              (1.0, 1.8)),
    "cirrus": ((6.5, 11.0), (-0.4, 1.9), (120, 500), (3.4, 4.2), (1.2, 2.5), (1.5, 2.0),
               (0.0, 0.0), (2.0, 6.0)),
}  # fmt: skip
_ICE_SHARE = {"cumulus": 0.0, "broken": 0.2, "sheet": 0.3, "cirrus": 1.0}


def _layer(rng: Generator, kind: str, cover: float) -> Layer:
    """A layer of one kind with its own height, thickness, sizes and edges."""
    height, thickness, scale, slope, softness, growth, billows, stretch = (
        float(rng.uniform(low, high)) for low, high in _KINDS[kind]
    )
    return Layer(
        cover=cover,
        height_km=height,
        thickness=float(np.exp(thickness)),
        scale_px=scale,
        slope=slope,
        softness=softness,
        growth=growth,
        billows=billows,
        stretch=stretch,
        angle=float(rng.uniform(0, np.pi)),
        ice=bool(rng.random() < _ICE_SHARE[kind]),
        brightness=float(rng.uniform(1.0, 1.35)),
        tint=float(rng.uniform(0.3, 1.1)),
    )


def cloud_reflectance(thickness: FloatArray) -> FloatArray:
    """Two-stream reflectance of a non-absorbing layer: (1 − g)τ / (2 + (1 − g)τ)."""
    scaled = BACKSCATTER * thickness
    return np.asarray(scaled / (2 + scaled), dtype=np.float32)


_THICKNESS_AT_EDGE = 2 * CLOUD_AT / (BACKSCATTER * (1 - CLOUD_AT))


def direct_sunlight(thickness: FloatArray) -> FloatArray:
    """Share of the sunlight that still comes straight (or nearly) through a layer."""
    return np.asarray(1 / (1 + 0.35 * thickness), dtype=np.float32)


def layer_thickness(rng: Generator, layer: Layer, shape: tuple[int, int]) -> FloatArray:
    """Optical thickness on a torus; exactly the share `cover` of it counts as cloud."""
    stretch = (layer.stretch, layer.angle)
    field = power_noise(rng, shape, layer.slope, scale=layer.scale_px, stretch=stretch)
    if layer.billows > 0:
        # |noise| has round heads with creases between them; two sizes of heads
        size = min(layer.scale_px, 60.0)
        heads = np.abs(power_noise(rng, shape, 4.4, scale=size / 2))
        heads += 0.45 * np.abs(power_noise(rng, shape, 4.0, scale=size / 5))
        field = np.asarray(field + layer.billows * (heads - 1.15), dtype=np.float32)
    if layer.cover >= 1 - 1e-6:
        edge = float(field.min()) - 0.3 * layer.softness
    else:
        edge = float(np.quantile(field, 1 - layer.cover))
    # x = 1 at the edge of the cloud, 0 where its skirt ends
    skirt = 0.3 * layer.softness
    x = np.maximum((field - np.float32(edge)) / np.float32(skirt) + 1, 0)
    # scaled so that saturation leaves the thickness of the edge as it is
    edge_thickness = _THICKNESS_AT_EDGE / (1 - _THICKNESS_AT_EDGE / layer.thickness)
    raw = edge_thickness * x**layer.growth
    return np.asarray(raw / (1 + raw / layer.thickness), dtype=np.float32)


def draw_veil(rng: Generator, sky: Sky, shape: tuple[int, int], sun: Sun) -> Veil:
    """The clouds of a sky over one patch, with the shadows of clouds outside of it too."""
    height, width = shape
    torus = (fast_length(height + 160), fast_length(width + 160))
    thickness, overhead, relief = [], [], []
    for layer in sky.layers:
        whole = layer_thickness(rng, layer, torus)
        rows, cols = (round(v) for v in sun.shadow_offset(layer.height_km))
        overhead.append(np.roll(whole, (rows, cols), axis=(0, 1))[:height, :width])
        thickness.append(whole[:height, :width])
        relief.append(_tops(rng, whole, layer, sun)[:height, :width])
    empty = np.zeros((0, height, width), dtype=np.float32)
    tau = np.stack(thickness) if thickness else empty
    above = np.stack(overhead) if overhead else empty
    haze = np.zeros(shape, dtype=np.float32)
    if sky.haze > 0:
        field = power_noise(rng, torus, 3.6)[:height, :width]
        haze = np.clip(sky.haze * (1 + 0.7 * field), 0, None).astype(np.float32)
    cloud, shadow = masks_of(tau, above)
    tops = np.stack(relief) if relief else empty
    return Veil(sky.layers, tau, above, tops, haze, cloud, shadow)


def masks_of(thickness: FloatArray, overhead: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Where layers (layers, ..., H, W) are cloud, and where they cast shadows beside it."""
    cloud = np.asarray((cloud_reflectance(thickness) >= CLOUD_AT * 0.999).any(axis=0))
    lost = 1 - direct_sunlight(overhead).prod(axis=0)
    return cloud, np.asarray(lost > SHADOW_AT) & ~cloud


def _tops(rng: Generator, whole: FloatArray, layer: Layer, sun: Sun) -> FloatArray:
    """Brightness of cloud tops: sides that face the sun are brighter, with fine texture."""
    shape = np.log1p(whole)
    south, east = np.gradient(shape)
    facing = south * math.cos(sun.azimuth) - east * math.sin(sun.azimuth)
    strength = 0.0 if layer.height_km > 6 else 0.9 * layer.billows + 0.15
    texture = power_noise(rng, whole.shape, 3.2, scale=40.0)
    bright = 1 + strength * np.tanh(2.0 * facing) * 0.45 * math.tan(min(sun.zenith, 1.1))
    return np.asarray(np.clip(bright * (1 + 0.025 * texture), 0.5, 1.35), dtype=np.float32)


def seen_through(clear: FloatArray, veil: Veil, sky: Sky) -> FloatArray:
    """(13, H, W) reflectance with shadows, haze and clouds, from the clear (13, H, W) image.

    The veil may be that of `parallax.by_bands`, in which every band sees its own clouds.
    Per layer, from the ground up: ρ' = R c + (1 − R)² ρ / (1 − R ρ), R of the two-stream layer.
    """
    path = _path_of(clear)
    image = clear
    if len(veil.overhead):
        light = direct_sunlight(veil.overhead).prod(axis=0)
        factor = 1 - (1 - spectra.DIFFUSE[:, None, None]) * (1 - light)
        image = path + (clear - path) * factor
    if veil.haze.any():
        haze = veil.haze * spectra.AEROSOL[:, None, None]
        haze[spectra.B9] *= 0.3
        haze[spectra.B10] *= 0.003
        image = image * (1 - haze) + haze
    for layer, tau, tops in zip(veil.layers, veil.thickness, veil.relief, strict=True):
        colour = _colour(layer, sky.vapour)
        r = cloud_reflectance(tau)
        through = (1 - r) ** 2 / (1 - r * np.clip(image, 0, 0.9))
        image = colour[:, None, None] * (r * tops) + through * image
    return np.asarray(image, dtype=np.float32)


def _colour(layer: Layer, vapour: float) -> FloatArray:
    """(13,) reflectance of very thick cloud of a layer at the top of the atmosphere."""
    colour = (spectra.ICE_CLOUD if layer.ice else spectra.WATER_CLOUD).copy()
    colour[: spectra.B9] **= layer.tint
    colour *= layer.brightness * spectra.gas_transmission(vapour, layer.height_km)
    return np.asarray(colour, dtype=np.float32)


def _path_of(clear: FloatArray) -> FloatArray:
    """(13, 1, 1) what the air alone adds: the molecular path, but never above the darkest pixel."""
    flat = clear.reshape(bands.N_S2, -1)
    darkest = np.where(np.isnan(flat), np.float32(np.inf), flat).min(axis=1)
    path = np.minimum(spectra.PATH, 0.95 * np.maximum(darkest, 0)).astype(np.float32)
    return np.asarray(path[:, None, None])
