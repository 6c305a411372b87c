"""Which reader an input needs, told by its name and content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undercast.errors import DataError, InputError
from undercast.radiometry import baseline_offset
from undercast.readers.cube import is_cube, open_cube
from undercast.readers.geotiff import SUFFIXES, open_geotiff
from undercast.readers.image import Image
from undercast.readers.safe import is_safe, open_safe
from undercast.readers.stac import is_stac, open_stac
from undercast.types import parse_dates


def open_images(
    inputs: Sequence[Any],
    dates: Sequence[Any] | None,
    *,
    baseline: str | None = None,
    offset: float | None = None,
) -> list[Image]:
    """The acquisitions in all inputs, in the order given; folders of GeoTIFFs in order of name."""
    items = [item for given in inputs for item in _expand(given)]
    if not items:
        raise InputError(
            "got no images, expected GeoTIFFs, SAFE folders or zips, STAC JSON or Zarr stores"
        )
    add = baseline_offset(baseline) if offset is None and baseline is not None else offset
    files = [item for item in items if not _tells_its_date(item)]
    known = None if dates is None else iter(parse_dates(dates, len(files), "dates"))
    images: list[Image] = []
    for item in items:
        if is_cube(item):
            images += open_cube(item, add)
        elif is_stac(str(item)):
            images += open_stac(str(item), add)
        elif is_safe(Path(item)):
            images.append(open_safe(str(item)))
        else:
            images.append(open_geotiff(str(item), None if known is None else next(known), add))
    return images


def _tells_its_date(item: Any) -> bool:
    return is_cube(item) or is_stac(str(item)) or is_safe(Path(item))


def _expand(item: Any) -> list[Any]:
    """An input, or the images in it where it is a plain folder."""
    if is_cube(item) or "://" in str(item) or str(item).startswith("/vsi"):
        return [item]
    path = Path(item)
    if is_safe(path) and path.exists():
        return [path]
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES or is_safe(p))
        if not found:
            raise DataError(f"got folder {path} without images, expected GeoTIFFs or SAFE in it")
        return found
    if not path.exists():
        raise DataError(f"got {path}, which does not exist; expected a file or folder")
    return [path]
