"""The STAC Item of a product: where, when, which files, and how they came to be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import undercast
from undercast import bands
from undercast.products.cog import Raster
from undercast.types import DateArray, Grid

EXTENSIONS = (
    "https://stac-extensions.github.io/projection/v2.0.0/schema.json",
    "https://stac-extensions.github.io/raster/v2.0.0/schema.json",
    "https://stac-extensions.github.io/eo/v2.0.0/schema.json",
    "https://stac-extensions.github.io/file/v2.1.0/schema.json",
    "https://stac-extensions.github.io/processing/v1.2.0/schema.json",
)
COG = "image/tiff; application=geotiff; profile=cloud-optimized"
TITLES = {
    "mean": "Cloud-free reflectance",
    "sigma": "Standard deviation of the reflectance",
    "quality": "Clear observations, nearest clear date and flags",
}


def build_item(
    folder: Path,
    grid: Grid,
    dates: DateArray,
    statistics: Mapping[str, list[dict[str, float]]],
    rasters: Sequence[Raster],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The item of the files in `folder`. `provenance` becomes properties `undercast:*`."""
    first, last = dates.min(), dates.max()
    assets = {raster.name: _asset(folder, raster, statistics[raster.name]) for raster in rasters}
    assets["quicklook"] = {
        "href": "./quicklook.png",
        "type": "image/png",
        "title": "Mean and sigma at a glance",
        "roles": ["thumbnail"],
    }
    geometry, bbox = footprint(grid)
    item_id = f"undercast_{_compact(first)}_{_compact(last)}_{_digest(grid, provenance)}"
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": list(EXTENSIONS),
        "id": item_id,
        "geometry": geometry,
        "bbox": bbox,
        "properties": {
            "datetime": None,
            "start_datetime": f"{first}T00:00:00Z",
            "end_datetime": f"{last}T23:59:59Z",
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **_projection(grid),
            "processing:software": {"undercast": undercast.__version__},
            **{f"undercast:{key}": value for key, value in provenance.items()},
        },
        "links": [{"rel": "derived_from", "href": entry["href"]} for entry in provenance["inputs"]],
        "assets": assets,
    }


def footprint(grid: Grid) -> tuple[dict[str, Any], list[float]]:
    """The outline of a grid as GeoJSON in degrees, and its bounding box."""
    from rasterio.warp import transform

    a, b, c, d, e, f = grid.transform
    steps = np.linspace(0, 1, 9)
    right, down = grid.width * steps, grid.height * steps
    zeros = np.zeros(9)
    cols = np.concatenate((zeros, right, zeros + grid.width, right[::-1]))
    rows = np.concatenate((down, zeros + grid.height, down[::-1], zeros))
    lon, lat = transform(
        grid.crs,
        "EPSG:4326",
        (a * cols + b * rows + c).tolist(),
        (d * cols + e * rows + f).tolist(),
    )
    ring = [[round(x, 7), round(y, 7)] for x, y in zip(lon, lat, strict=True)]
    box = [min(x for x, _ in ring), min(y for _, y in ring)]
    box += [max(x for x, _ in ring), max(y for _, y in ring)]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}, box


def _projection(grid: Grid) -> dict[str, Any]:
    from rasterio.crs import CRS

    crs = CRS.from_string(grid.crs)
    authority = crs.to_authority()
    code = {"proj:code": ":".join(authority) if authority else None}
    return {
        **code,
        **({} if authority else {"proj:wkt2": crs.to_wkt(version="WKT2_2019")}),
        "proj:shape": [grid.height, grid.width],
        "proj:transform": [float(value) for value in grid.transform],
    }


def _asset(
    folder: Path, raster: Raster, statistics: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    path = folder / f"{raster.name}.tif"
    nodata = "nan" if np.isnan(raster.nodata) else raster.nodata
    listed = []
    for band, found in zip(raster.bands, statistics, strict=True):
        entry: dict[str, Any] = {"name": band.name, "unit": band.unit, "raster:scale": band.scale}
        if found:
            entry["statistics"] = dict(found)
        if band.name in bands.WAVELENGTH_NM:
            entry["eo:center_wavelength"] = bands.WAVELENGTH_NM[band.name] / 1000
        listed.append(entry)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "href": f"./{path.name}",
        "type": COG,
        "title": TITLES[raster.name],
        "roles": ["metadata"] if raster.name == "quality" else ["data"],
        "data_type": raster.dtype,
        "nodata": nodata,
        "bands": listed,
        "file:size": path.stat().st_size,
        "file:checksum": "1220" + digest,  # a multihash: SHA-256, 32 bytes
    }


def _compact(date: np.datetime64) -> str:
    return str(date).replace("-", "")


def _digest(grid: Grid, provenance: Mapping[str, Any]) -> str:
    """Eight signs that differ between places and inputs."""
    seen = repr((grid, [(e["href"], e["sha256"]) for e in provenance["inputs"]]))
    return hashlib.sha256(seen.encode()).hexdigest()[:8]
