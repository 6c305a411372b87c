"""One Sentinel-2 acquisition of raster layers: what GeoTIFF, SAFE and STAC have in common."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from undercast import bands
from undercast.masks import SCL_UNUSABLE
from undercast.readers import raster
from undercast.readers.filling import fill_bands, fillable
from undercast.readers.raster import Layer
from undercast.types import BoolArray, FloatArray, Grid


@dataclass(frozen=True)
class Source:
    """Where an acquisition comes from, for its provenance.

    offset: DN that are added; trusted if the product's own metadata tell it.
    acquisition: an identity of tile and sensing time where the format tells one. digest_of: the
    local file whose SHA-256 identifies the input.
    """

    href: str
    date: np.datetime64
    level: str = "unknown"
    baseline: str | None = None
    offset: float = 0.0
    trusted_offset: bool = False
    acquisition: str | None = None
    digest_of: str | None = None
    messages: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The provenance as JSON has it; hashes the file."""
        return {
            "href": self.href,
            "sha256": sha256(self.digest_of) if self.digest_of else None,
            "date": str(self.date),
            "level": self.level,
            "baseline": self.baseline,
            "offset": self.offset,
        }


def sha256(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with raster.readable(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Radar(Protocol):
    """What a reader makes of one Sentinel-1 acquisition."""

    @property
    def source(self) -> Source: ...
    @property
    def grid(self) -> Grid: ...
    def read(self, grid: Grid) -> FloatArray:
        """(2, H, W) VV and VH in dB on any grid, NaN = missing."""


class Image(Protocol):
    """What a reader makes of one acquisition."""

    @property
    def source(self) -> Source: ...
    @property
    def grid(self) -> Grid: ...
    @property
    def missing(self) -> tuple[str, ...]: ...
    @property
    def has_mask(self) -> bool: ...
    @property
    def mask_knows_no_data(self) -> bool: ...
    @property
    def radar(self) -> Radar | None:
        """The radar image of the same date where one store holds both."""

    def with_mask(self, href: str) -> Image: ...
    def read(self, grid: Grid) -> FloatArray:
        """(13, H, W) reflectance on any grid, missing bands filled, NaN = no data."""

    def read_mask(self, grid: Grid) -> BoolArray:
        """(H, W) True = unusable."""


@dataclass(frozen=True)
class LayerImage:
    """An image of raster layers: reflectance = (value + offset) / quantification for each band."""

    source: Source
    grid: Grid
    layers: dict[str, Layer]
    offsets: dict[str, float] = field(default_factory=dict)
    quantification: float = bands.DN_PER_REFLECTANCE
    mask_layer: Layer | None = None
    mask_is_scl: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        return fillable(tuple(self.layers))

    @property
    def has_mask(self) -> bool:
        return self.mask_layer is not None

    @property
    def mask_knows_no_data(self) -> bool:
        """A scene classification has a class for pixels that were not observed."""
        return self.mask_layer is not None and self.mask_is_scl

    @property
    def radar(self) -> None:
        return None

    def with_mask(self, href: str) -> LayerImage:
        """The same image with a mask file: other than 0 = unusable."""
        return replace(self, mask_layer=Layer(href), mask_is_scl=False)

    def read(self, grid: Grid) -> FloatArray:
        """(13, H, W) reflectance on any grid, missing bands filled, NaN = no data."""
        names = list(self.layers)
        values = raster.read_layers([self.layers[name] for name in names], grid)
        offsets = np.array([self.offsets.get(name, 0.0) for name in names], np.float32)
        if all(layer.nodata is None for layer in self.layers.values()):
            blank_zeros(values, offsets)
        if offsets.any():
            values += offsets[:, None, None]
        values /= np.float32(self.quantification)
        if names == list(bands.S2):
            return values
        s2 = np.full((bands.N_S2, grid.height, grid.width), np.nan, np.float32)
        s2[bands.index(names)] = values
        return fill_bands(s2, self.missing)

    def read_mask(self, grid: Grid) -> BoolArray:
        """(H, W) True = unusable; outside the mask file everything is."""
        if self.mask_layer is None:
            raise ValueError("this image has no mask")
        return read_mask_file(self.mask_layer, grid, scl=self.mask_is_scl)


def read_mask_file(layer: Layer, grid: Grid, *, scl: bool = False) -> BoolArray:
    """(H, W) True = unusable: the classes of a scene classification, or everything but 0."""
    values = raster.read_layers([layer], grid, classes=True)[0]
    bad = np.isin(values, tuple(SCL_UNUSABLE)) if scl else values != 0
    return np.asarray(bad | np.isnan(values))


def blank_zeros(values: FloatArray, offsets: FloatArray) -> None:
    """NaN, in place, where 0 in values (n, H, W) means no data.

    A dark band may really be 0, so 0 counts only in all bands at once, except where an offset
    makes 0 impossible: then it counts in each band.
    """
    nowhere = values[0] == 0
    for band in values[1:]:
        if not nowhere.any():
            break
        nowhere &= band == 0
    else:
        values[:, nowhere] = np.nan
    for i in np.flatnonzero(offsets < 0):
        values[i][values[i] == 0] = np.nan
