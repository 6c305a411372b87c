"""GeoTIFFs and COGs with all bands of one date in one file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from rasterio.windows import Window

from undercast import bands
from undercast.errors import InputError
from undercast.readers import raster
from undercast.readers.dates import date_in_tags, date_in_text
from undercast.readers.image import LayerImage, Source
from undercast.readers.raster import Layer

SUFFIXES = (".tif", ".tiff", ".jp2", ".vrt")
WITHOUT_B10 = tuple(band for band in bands.S2 if band != "B10")
TEN_BANDS = tuple(band for band in bands.S2 if bands.RESOLUTION_M[band] < 60)
_ORDER = {len(order): order for order in (bands.S2, WITHOUT_B10, TEN_BANDS)}
_NAME = re.compile(r"(?<![A-Z0-9])B(?:0?[1-9]|8A|1[0-2])(?![A-Z0-9])", re.IGNORECASE)


def open_geotiff(
    path: str, date: np.datetime64 | None = None, offset: float | None = None
) -> LayerImage:
    """The image in one file; `offset` in DN is added where the file has no scale of its own."""
    source = raster.dataset(path)
    grid = raster.grid_of(path)
    _refuse_truncated(path, source)
    names = _band_names(path, source)
    quantification, offsets, messages = scaling(path, source, offset)
    nodata = None if source.nodata in (None, 0) else source.nodata
    found = date if date is not None else _date(path, source)
    return LayerImage(
        Source(
            href=path,
            date=found,
            level=_level(path, source, names),
            offset=offsets[0],
            acquisition=_acquisition(path),
            digest_of=path if Path(path).is_file() else None,
            messages=messages,
        ),
        grid,
        {name: Layer(path, i + 1, nodata) for i, name in enumerate(names)},
        dict(zip(names, offsets, strict=True)),
        quantification,
    )


def _date(path: str, source: Any) -> np.datetime64:
    found = date_in_text(Path(path).name) or date_in_tags(source.tags())
    found = found or date_in_text(Path(path).parent.name)
    if found is None:
        raise InputError(
            f"got {path} without a date, expected one in its name (2018-06-21 or 20180621T105031) "
            "or in the tag ACQUISITION_DATE: rename it, or give the dates of all images"
        )
    return found


def _band_names(path: str, source: Any) -> tuple[str, ...]:
    """Canonical names in the file's order: by description if there are any, else by count."""
    described = [_NAME.search(text or "") for text in source.descriptions]
    names = tuple(bands.canonical(match.group()) for match in described if match)
    if len(names) == source.count and len(set(names)) == source.count:
        return names
    if source.count not in _ORDER:
        raise InputError(
            f"got {path} with {source.count} bands, expected 13 ({' '.join(bands.S2)}), "
            "12 (the same without B10) or 10 (without B1, B9 and B10), or a band name as the "
            "description of each band"
        )
    return _ORDER[source.count]


def scaling(
    path: str, source: Any, offset: float | None
) -> tuple[float, list[float], tuple[str, ...]]:
    """Quantification, offset in DN of each band, and what the user should know.

    Scale and offset tags win; then integers are DN, and floats are reflectance unless they are too
    large for it.
    """
    kinds = set(source.dtypes)
    if kinds & {"uint8", "int8"}:
        raise InputError(
            f"got {path} of 8 bits, expected uint16 or int16 digital numbers or float reflectance: "
            "a picture for the screen has lost its reflectance"
        )
    scales = set(source.scales)
    if scales != {1.0} or set(source.offsets) != {0.0}:
        if len(scales) != 1:
            raise InputError(f"got {path} with different scale tags per band, expected one scale")
        scale = scales.pop()
        quantification = whole(1 / scale)
        return quantification, [whole(o / scale) for o in source.offsets], ()
    told = [offset or 0.0] * source.count
    if not all(kind.startswith("float") for kind in kinds):
        return bands.DN_PER_REFLECTANCE, told, ()
    if _looks_like_dn(source):
        note = f"{path}: floats above 2 in the median, taken as digital numbers"
        return bands.DN_PER_REFLECTANCE, told, (note,)
    return 1.0, [0.0] * source.count, ()


def whole(value: float) -> float:
    """1 / 0.0001 is 10000 and not 9999.999…; other values stay as they are."""
    return float(round(value)) if abs(value - round(value)) < 1e-6 * max(1, abs(value)) else value


def _looks_like_dn(source: Any) -> bool:
    row, col = max(0, source.height // 2 - 64), max(0, source.width // 2 - 64)
    window = Window(col, row, min(128, source.width), min(128, source.height))
    with raster.readable(source.name):
        values = source.read(window=window)
    positive = values[np.isfinite(values) & (values > 0)]
    return bool(positive.size and np.median(positive) > 2)


def _refuse_truncated(path: str, source: Any) -> None:
    """Reads the corners: a file that was cut fails here, not in the middle of a run."""
    with raster.readable(path):
        for col in (0, source.width - 1):
            for row in (0, source.height - 1):
                source.read(window=Window(col, row, 1, 1))


def _level(path: str, source: Any, names: tuple[str, ...]) -> str:
    tags = source.tags()
    text = " ".join(
        [Path(path).name, tags.get("PROCESSING_LEVEL", ""), tags.get("PRODUCT_TYPE", "")]
    )
    for level, pattern in (("L1C", r"1C(?![A-Z0-9])"), ("L2A", r"2A(?![A-Z0-9])")):
        if re.search(r"(?:L|LEVEL-?|MSI)" + pattern, text.upper()):
            return level
    return "L2A" if names == WITHOUT_B10 else "unknown"


def _acquisition(path: str) -> str | None:
    """Tile and sensing time where the name keeps the product's naming convention."""
    found = re.search(r"_(20\d{6}T\d{6})_.*_T?(\d\d[A-Z]{3})(?![A-Z0-9])", Path(path).stem)
    return f"{found[2]}_{found[1]}" if found else None
