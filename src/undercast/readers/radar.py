"""Sentinel-1 backscatter (GRD or RTC GeoTIFFs) in dB or linear power, on the grid of the scene."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rasterio.windows import Window

from undercast import bands
from undercast.errors import InputError
from undercast.readers import raster
from undercast.readers.dates import date_in_tags, date_in_text
from undercast.readers.image import Source
from undercast.readers.raster import Layer
from undercast.types import FloatArray, Grid

UNITS = ("auto", "db", "linear")
_POLARISATION = re.compile(r"(?<![A-Za-z])(VV|VH)(?![A-Za-z])", re.IGNORECASE)


@dataclass(frozen=True)
class LayerRadar:
    """One acquisition of raster layers; a polarisation that is not there is NaN."""

    source: Source
    grid: Grid
    layers: dict[str, Layer]
    linear: bool

    def read(self, grid: Grid) -> FloatArray:
        """(2, H, W) VV and VH in dB on any grid, NaN = missing.

        Linear power is warped as power and then brought to dB; dB is warped as dB.
        """
        db = np.full((bands.N_S1, grid.height, grid.width), np.nan, np.float32)
        names = list(self.layers)
        values = raster.read_layers([self.layers[name] for name in names], grid)
        values[:, (values == 0).all(axis=0)] = np.nan  # the fill value of both units
        db[[bands.S1.index(name) for name in names]] = to_db(values) if self.linear else values
        return db


def to_db(power: FloatArray) -> FloatArray:
    """10·log10 of linear power; what is not positive is missing.

    >>> to_db(np.array([1.0, 0.1, 0.0], np.float32)).tolist()
    [0.0, -10.0, nan]
    """
    positive = np.where(power > 0, power, np.float32(np.nan))
    return np.asarray(np.float32(10) * np.log10(positive), np.float32)


def detect_unit(values: FloatArray) -> str | None:
    """`db`, `linear` or None where it cannot be told: median below 0; all positive, median below 1.

    >>> detect_unit(np.array([-9.0, -16.0, 1.0])), detect_unit(np.array([0.12, 0.02, 3.0]))
    ('db', 'linear')
    """
    seen = values[np.isfinite(values) & (values != 0)]
    if seen.size == 0:
        return None
    if np.median(seen) < 0:
        return "db"
    return "linear" if (seen > 0).all() and np.median(seen) < 1 else None


def open_radars(paths: Sequence[str], unit: str = "auto") -> list[LayerRadar]:
    """The acquisitions in some files; single-band VV and VH files of one acquisition are joined."""
    if unit not in UNITS:
        raise InputError(f"got s1_unit {unit!r}, expected one of {', '.join(UNITS)}")
    joined: dict[str, LayerRadar] = {}
    for path in paths:
        opened = _open_radar(path, unit)
        key = _POLARISATION.sub("", re.sub(r"[-_](?=v[vh])|(?<=v[vh])[-_]", " ", path.lower()))
        before = joined.get(key)
        if before is None:
            joined[key] = opened
        elif set(before.layers) & set(opened.layers):
            raise InputError(f"got {path} and {before.source.href}: the same radar image twice")
        else:
            joined[key] = replace(before, layers={**before.layers, **opened.layers})
    return list(joined.values())


def _open_radar(path: str, unit: str) -> LayerRadar:
    file = raster.dataset(path)
    grid = raster.grid_of(path)
    date = date_in_text(Path(path).name) or date_in_tags(file.tags())
    date = date or date_in_text(Path(path).parent.name)
    if date is None:
        raise InputError(
            f"got {path} without a date, expected one in its name (20180621 or 2018-06-21) or in "
            "the tag ACQUISITION_DATE"
        )
    if not all(kind.startswith("float") for kind in file.dtypes):
        raise InputError(
            f"got radar {path} of type {file.dtypes[0]}, expected calibrated float backscatter: "
            "calibrate the raw GRD to sigma0 or gamma0 first"
        )
    names = _polarisations(path, file)
    if unit == "auto":
        unit = _unit_of(path, file)
    nodata = None if file.nodata in (None, 0) else file.nodata
    source = Source(
        href=path, date=date, level="S1", digest_of=path if Path(path).is_file() else None
    )
    layers = {name: Layer(path, i, nodata) for i, name in names.items()}
    return LayerRadar(
        source, grid, {n: layers[n] for n in sorted(layers, reverse=True)}, unit == "linear"
    )


def _polarisations(path: str, file: Any) -> dict[int, str]:
    """Band number to VV or VH: by description, else by file name, else two bands are VV, VH."""
    described = {
        i: match.group().upper()
        for i, text in enumerate(file.descriptions, 1)
        if (match := _POLARISATION.search(text or ""))
    }
    if described and len(set(described.values())) == len(described):
        return described
    named = _POLARISATION.findall(Path(path).stem.replace("_", " "))
    if file.count == 1 and len(named) == 1:
        return {1: named[0].upper()}
    if file.count == bands.N_S1:
        return dict(enumerate(bands.S1, 1))
    raise InputError(
        f"got radar {path} with {file.count} bands, expected VV and VH, or one of them with its "
        "name in the file name or band description"
    )


def _unit_of(path: str, file: Any) -> str:
    """The unit by the values of nine windows spread over the image."""
    seen = []
    with raster.readable(path):
        for row in (1, 3, 5):
            for col in (1, 3, 5):
                at = (file.width * col // 6, file.height * row // 6)
                size = (min(64, file.width - at[0]), min(64, file.height - at[1]))
                seen.append(
                    file.read(window=Window(*at, *size), masked=True).filled(np.nan).ravel()
                )
    unit = detect_unit(np.concatenate(seen))
    if unit is None:
        raise InputError(
            f"got radar {path} whose values are neither dB (median below 0) nor linear power "
            "(positive, median below 1), expected one of them: pass s1_unit db or linear"
        )
    return unit
