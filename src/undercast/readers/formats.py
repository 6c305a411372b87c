"""Which reader an input needs, told by its name and content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undercast import bands
from undercast.errors import DataError, InputError
from undercast.readers.geotiff import SUFFIXES, open_geotiff
from undercast.readers.image import Image
from undercast.types import parse_dates


def open_images(
    inputs: Sequence[Any],
    dates: Sequence[Any] | None,
    *,
    baseline: str | None = None,
    offset: float | None = None,
) -> list[Image]:
    """The acquisitions in all inputs, in the order given; folders of GeoTIFFs in order of name."""
    files = [file for item in inputs for file in _expand(item)]
    if not files:
        raise InputError(
            "got no images, expected GeoTIFFs, SAFE folders or zips, STAC JSON or Zarr stores"
        )
    add = _offset(baseline, offset)
    known = [None] * len(files) if dates is None else list(parse_dates(dates, len(files), "dates"))
    return [open_geotiff(file, date, add) for file, date in zip(files, known, strict=True)]


def _expand(item: Any) -> list[str]:
    path = Path(item)
    if path.is_dir():
        found = sorted(str(p) for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"got folder {path} without images, expected GeoTIFFs in it")
        return found
    if not path.exists():
        raise DataError(f"got {path}, which does not exist; expected a file or folder")
    return [str(path)]


def _offset(baseline: str | None, offset: float | None) -> float | None:
    if baseline is None or offset is not None:
        return offset
    try:
        number = float(baseline.lstrip("Nn"))
    except ValueError as error:
        raise InputError(f"got baseline {baseline!r}, expected one such as 05.09") from error
    return bands.BASELINE_OFFSET_DN if number >= 4 else 0.0
