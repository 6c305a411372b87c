"""STAC items, item collections and searches: assets resolved by odc-stac, read as raster layers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from undercast import bands
from undercast.errors import DataError, InputError, MissingDependencyError
from undercast.radiometry import baseline_offset
from undercast.readers import raster
from undercast.readers.geotiff import scaling, whole
from undercast.readers.image import LayerImage, Source
from undercast.readers.raster import Layer
from undercast.types import Grid

# Asset names of Earth Search; its common names (three are called `rededge`) would be ambiguous.
_NAMES = {
    "coastal": "B1", "blue": "B2", "green": "B3", "red": "B4", "rededge1": "B5", "rededge2": "B6",
    "rededge3": "B7", "nir": "B8", "nir08": "B8A", "nir09": "B9", "cirrus": "B10", "swir16": "B11",
    "swir22": "B12",
}  # fmt: skip
_KEY = re.compile(r"(B\d[\dA]?|SCL)(?:_(\d\d)m)?", re.IGNORECASE)
_PICTURES = {"visual", "overview", "thumbnail", "preview"}


def is_stac(item: str) -> bool:
    """Whether an input is a JSON document or an address on the web that is no image."""
    remote = item.startswith(("http://", "https://"))
    return item.lower().endswith((".json", ".geojson")) or (
        remote and not re.search(r"\.(tiff?|jp2|zip|zarr)/?$", item, re.IGNORECASE)
    )


def open_stac(href: str, offset: float | None = None) -> list[LayerImage]:
    """The images of an item, an item collection, a catalog or a search `…/search?bbox=…`."""
    try:
        from odc.stac import parse_items
    except ImportError as error:
        raise MissingDependencyError("reading STAC items", "stac") from error
    items = _items(href)
    if not items:
        raise InputError(f"got no items from {href}, expected at least one: widen the search")
    parsed = parse_items(items)
    return [_image(item, found, href, offset) for item, found in zip(items, parsed, strict=True)]


def _items(href: str) -> list[Any]:
    import pystac

    try:
        if "/search?" in href:
            return _search(href)
        text = pystac.StacIO.default().read_text(href)
        document = json.loads(text)
        if document.get("type") == "FeatureCollection":
            items = [pystac.Item.from_dict(feature) for feature in document["features"]]
        elif document.get("type") == "Feature":
            items = [pystac.Item.from_dict(document)]
        else:
            items = list(pystac.Catalog.from_file(href).get_items(recursive=True))
    except (
        pystac.STACError,
        pystac.STACTypeError,
        OSError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        raise DataError(
            f"cannot read {href} as STAC: {error or type(error).__name__}; expected an Item, an "
            "ItemCollection, a Catalog, or the address of a search"
        ) from error
    for item in items:
        if item.get_self_href() is None:  # relative assets lie beside the document
            item.set_self_href(href if "://" in href else str(Path(href).resolve()))
    return items


def _search(href: str) -> list[Any]:
    """All items of a search: the part after `?` are the parameters of the STAC API."""
    from pystac_client import Client
    from pystac_client.exceptions import APIError

    address, _, query = href.partition("/search?")
    asked: dict[str, Any] = dict(parse_qsl(query))
    for key in ("collections", "ids", "bbox"):
        if key in asked:
            asked[key] = asked[key].split(",")
    if "limit" in asked:
        asked["max_items"] = asked["limit"] = int(asked["limit"])
    try:
        return list(Client.open(address).search(**asked).items())
    except (APIError, NotImplementedError, TypeError) as error:
        raise DataError(f"cannot search {address}: {error}; expected a STAC API") from error


def _image(item: Any, parsed: Any, href: str, offset: float | None) -> LayerImage:
    chosen, scl = _assets(item, parsed)
    if "B2" not in chosen:
        raise InputError(
            f"got item {item.id} with assets {', '.join(item.assets)}, expected the bands "
            "of Sentinel-2 by name (B02 or blue)"
        )
    quantification, offsets, notes = _scaling(item, chosen, offset)
    layers = {
        name: Layer(found.uri, found.band, _nodata(found)) for name, (_, found) in chosen.items()
    }
    moment = item.datetime or item.common_metadata.start_datetime
    if moment is None:
        raise InputError(f"got item {item.id} of {href} without datetime, expected one")
    date = np.datetime64(moment.date().isoformat(), "D")
    tile = str(item.properties.get("grid:code") or item.properties.get("s2:mgrs_tile") or "")
    tile = tile.removeprefix("MGRS-")
    source = Source(
        href=f"{href}#{item.id}",
        date=date,
        level=_level(item, tuple(layers)),
        baseline=_baseline(item),
        offset=offsets["B2"],
        acquisition=f"{tile}_{moment:%Y%m%dT%H%M%S}" if tile else item.id,
        digest_of=layers["B2"].href if Path(layers["B2"].href).is_file() else None,
        messages=notes,
    )
    mask = None if scl is None else Layer(scl.uri, scl.band)
    return LayerImage(source, _grid(chosen["B2"][1]), layers, offsets, quantification, mask, True)


def _assets(item: Any, parsed: Any) -> tuple[dict[str, tuple[dict[str, Any], Any]], Any | None]:
    """(metadata, odc source) of each band, the finest by the asset's own name first; and SCL."""
    ranked: dict[str, tuple[tuple[int, int], dict[str, Any], Any]] = {}
    for (key, index), found in parsed.bands.items():
        asset = item.assets.get(key)
        if asset is None or _PICTURES & {key, *(asset.roles or ())}:
            continue
        about = _about(asset.extra_fields, index)
        for rank, name in enumerate((key, str(about.get("name", "")))):
            match = _KEY.fullmatch(name)
            known = match[1].upper() if match else _NAMES.get(name, name.upper())
            if known == "SCL" or known in _NAMES.values() or match:
                band = known if known == "SCL" else bands.canonical(known)
                order = (rank, int((match and match[2]) or 0))
                if band not in ranked or order < ranked[band][0]:
                    ranked[band] = (order, about, found)
                break
    chosen = {band: (about, found) for band, (_, about, found) in ranked.items()}
    scl = chosen.pop("SCL", None)
    return {band: chosen[band] for band in bands.S2 if band in chosen}, scl and scl[1]


def _about(fields: dict[str, Any], index: int) -> dict[str, Any]:
    """What the item tells of a band: `bands` of STAC 1.1, before it `eo:bands`, `raster:bands`."""
    merged: dict[str, Any] = {k: v for k, v in fields.items() if k.startswith("raster:")}
    for key in ("eo:bands", "raster:bands", "bands"):
        listed = fields.get(key) or []
        if index <= len(listed):
            merged.update(listed[index - 1])
    for key in ("scale", "offset"):
        merged.setdefault(key, merged.get(f"raster:{key}"))
    return merged


def _scaling(
    item: Any, chosen: dict[str, tuple[dict[str, Any], Any]], offset: float | None
) -> tuple[float, dict[str, float], tuple[str, ...]]:
    """Quantification and offset in DN of each band.

    First what the user says, then `boa_offset_applied` (Earth Search has removed the offset from
    the pixels, whatever `raster:bands` says), then `raster:bands`, then the processing baseline.
    """
    about, found = chosen["B2"]
    scale = about.get("scale")
    if scale is None:
        quantification, tagged, notes = scaling(found.uri, raster.dataset(found.uri), None)
    else:
        quantification, tagged, notes = whole(1 / float(scale)), [0.0], ()
    applied = any(
        bool(item.properties.get(f"{prefix}:boa_offset_applied"))
        for prefix in ("earthsearch", "sentinel")
    )
    if offset is not None or applied:
        return quantification, dict.fromkeys(chosen, offset or 0.0), notes
    told = {band: about.get("offset") for band, (about, _) in chosen.items()}
    if any(value is not None for value in told.values()):
        offsets = {band: whole(float(o or 0) * quantification) for band, o in told.items()}
        return quantification, offsets, notes
    baseline = _baseline(item)
    by_baseline = 0.0 if baseline is None or quantification == 1 else baseline_offset(baseline)
    return quantification, dict.fromkeys(chosen, tagged[0] or by_baseline), notes


def _baseline(item: Any) -> str | None:
    for key in ("s2:processing_baseline", "processing:version", "sentinel:processing_baseline"):
        if item.properties.get(key):
            return str(item.properties[key])
    return None


def _level(item: Any, present: Iterable[str]) -> str:
    told = [item.properties.get(k) for k in ("processing:level", "s2:product_type")]
    text = " ".join(str(part) for part in (*told, item.collection_id, item.id) if part).upper()
    for level in ("L1C", "L2A"):
        if level in text or f"MSI{level[1:]}" in text:
            return level
    return "unknown"


def _nodata(found: Any) -> float | None:
    value = None if found.meta is None else found.meta.nodata
    return None if value in (None, 0) else float(value)


def _grid(found: Any) -> Grid:
    """The grid as the item tells it (the projection extension), else as the file does."""
    box = found.geobox
    if box is None or box.crs is None:
        return raster.grid_of(found.uri)
    return raster.make_grid(raster.parse_crs(str(box.crs)), box.transform, *box.shape)
