"""Real files made of arrays: scenes as GeoTIFF, SAFE, STAC and Zarr, and radar images.

All take a `Stack` whose reflectances are whole digital numbers (`dn_stack`), so that every format
can hold them exactly, and return the paths to give to `open_scene`.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine

from undercast import bands
from undercast.types import Grid, Stack

GRID = Grid("EPSG:32631", (10.0, 0.0, 600000.0, 0.0, -10.0, 5700000.0), 132, 120)
TILE = "31UFS"


def dn_stack(
    dates: tuple[str, ...] = ("2018-06-01", "2018-06-11", "2018-06-21"),
    grid: Grid = GRID,
    *,
    seed: int = 0,
    s1: bool = False,
    native: bool = False,
) -> Stack:
    """A stack of smooth noise in whole DN; `native` makes bands of 20 and 60 m blocks of pixels."""
    rng = np.random.default_rng(seed)
    dn = rng.integers(300, 4000, (len(dates), bands.N_S2, grid.height, grid.width))
    if native:
        for i, band in enumerate(bands.S2):
            step = bands.RESOLUTION_M[band] // 10
            dn[:, i] = (
                dn[:, i, ::step, ::step]
                .repeat(step, -2)
                .repeat(step, -1)[:, : grid.height, : grid.width]
            )
    radar = None
    if s1:
        shape = (len(dates), bands.N_S1, grid.height, grid.width)
        radar = rng.uniform(-24, -4, shape).astype(np.float32)
    return Stack(dn.astype(np.float32) / np.float32(10000), list(dates), radar)


def digital_numbers(stack: Stack, offset: float = 0.0) -> np.ndarray:
    """(T, 13, H, W) uint16 as products hold them, 0 = no data."""
    dn = np.rint(stack.s2.astype(np.float64) * 10000 - offset)
    return np.where(np.isfinite(dn), dn, 0).astype(np.uint16)


def write_raster(path: Path, values: np.ndarray, grid: Grid, **options: Any) -> Path:
    """(n, H, W) as a tiled GeoTIFF, or as a lossless JPEG 2000 for `.jp2`."""
    descriptions = options.pop("descriptions", None)
    tags = options.pop("tags", {})
    scale = options.pop("scale", None)
    kind = {"driver": "GTiff", "tiled": True, "blockxsize": 64, "blockysize": 64}
    if path.suffix == ".jp2":
        kind = {"driver": "JP2OpenJPEG", "QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(
        path, "w", dtype=values.dtype, count=len(values), height=grid.height, width=grid.width,
        crs=grid.crs, transform=Affine(*grid.transform), **kind | options,
    ) as file:  # fmt: skip
        file.write(values)
        if descriptions is not None:
            file.descriptions = descriptions
        if scale is not None:
            file.scales, file.offsets = [scale[0]] * len(values), [scale[1]] * len(values)
        file.update_tags(**tags)
    return path


def write_geotiff_scene(
    folder: Path, stack: Stack, grid: Grid = GRID, *, dtype: str = "uint16", **options: Any
) -> list[Path]:
    """One GeoTIFF per date, `S2_20180601.tif`: DN (uint16) or reflectance (float32)."""
    values = digital_numbers(stack) if dtype == "uint16" else stack.s2.astype(dtype)
    return [
        write_raster(folder / f"S2_{str(date).replace('-', '')}_{i}.tif", image, grid, **options)
        for i, (date, image) in enumerate(zip(stack.dates, values, strict=True))
    ]


def write_s1(
    folder: Path, stack: Stack, grid: Grid = GRID, *, linear: bool = False, dtype: str = "float32"
) -> list[Path]:
    """One GeoTIFF of VV and VH per date, in dB or linear power."""
    values = stack.s1.astype(np.float64)
    values = (10 ** (values / 10) if linear else values).astype(dtype)
    return [
        write_raster(
            folder / f"S1A_{str(date).replace('-', '')}T055000_{i}.tif",
            image,
            grid,
            descriptions=("VV", "VH"),
        )
        for i, (date, image) in enumerate(zip(stack.dates, values, strict=True))
    ]


def write_safe(
    folder: Path,
    stack: Stack,
    grid: Grid = GRID,
    *,
    level: str = "L1C",
    baseline: str = "05.09",
    scl: np.ndarray | None = None,
    zipped: bool = False,
) -> list[Path]:
    """One product per date with the structure, metadata and JPEG 2000 files of the real ones."""
    offset = -1000 if float(baseline) >= 4 else 0
    products = []
    for i, date in enumerate(stack.dates):
        when = str(date).replace("-", "") + f"T1050{i:02d}"
        name = f"S2A_MSI{level}_{when}_N{baseline.replace('.', '')}_R051_T{TILE}_{when}.SAFE"
        root = folder / name
        images = _write_bands(root, digital_numbers(stack, offset)[i], grid, level, when)
        if level == "L2A":
            values = np.full((grid.height, grid.width), 4) if scl is None else scl[i]
            coarse = values[::2, ::2].astype(np.uint8)[None]
            image = images[0].rsplit("/R10m/", 1)[0] + f"/R20m/T{TILE}_{when}_SCL_20m"
            write_raster(root / f"{image}.jp2", coarse, _coarser(grid, 2))
            images.append(image)
        _write_metadata(root, level, baseline, f"{date}T10:50:{i:02d}.024Z", offset, images)
        if zipped:
            shutil.make_archive(str(root), "zip", folder, name)
            shutil.rmtree(root)
            root = root.with_name(name + ".zip")
        products.append(root)
    return products


def _coarser(grid: Grid, step: int) -> Grid:
    a, b, c, d, e, f = grid.transform
    height, width = -(-grid.height // step), -(-grid.width // step)
    return Grid(grid.crs, (a * step, b, c, d, e * step, f), height, width)


def _write_bands(root: Path, dn: np.ndarray, grid: Grid, level: str, when: str) -> list[str]:
    """The paths of the images as the metadata list them: relative, without suffix."""
    images = []
    for band, values in zip(bands.S2, dn, strict=True):
        if (level, band) == ("L2A", "B10"):
            continue
        metres = bands.RESOLUTION_M[band]
        step = metres // 10
        name = "B8A" if band == "B8A" else f"B{int(band[1:]):02d}"
        part = f"R{metres}m/" if level == "L2A" else ""
        suffix = f"_{metres}m" if level == "L2A" else ""
        image = (
            f"GRANULE/{level}_T{TILE}_A000001_{when}/IMG_DATA/{part}T{TILE}_{when}_{name}{suffix}"
        )
        write_raster(root / f"{image}.jp2", values[None, ::step, ::step], _coarser(grid, step))
        images.append(image)
    return images


def _write_metadata(
    root: Path, level: str, baseline: str, when: str, offset: int, images: list[str]
) -> None:
    boa = level == "L2A"
    tag, list_tag = (
        ("BOA_ADD_OFFSET", "BOA_ADD_OFFSET_VALUES_LIST")
        if boa
        else ("RADIO_ADD_OFFSET", "Radiometric_Offset_List")
    )
    offsets = "".join(
        f'<{tag} band_id="{i}">{offset}</{tag}>' for i in range(bands.N_S2 if offset else 0)
    )
    offsets = f"<{list_tag}>{offsets}</{list_tag}>" if offset else ""
    quantification = (
        '<QUANTIFICATION_VALUES_LIST><BOA_QUANTIFICATION_VALUE unit="none">10000'
        "</BOA_QUANTIFICATION_VALUE></QUANTIFICATION_VALUES_LIST>"
        if boa
        else '<QUANTIFICATION_VALUE unit="none">10000</QUANTIFICATION_VALUE>'
    )
    files = "".join(f"<IMAGE_FILE>{image}</IMAGE_FILE>" for image in images)
    kind = f"Level-{level[1:]}"
    xml = (
        '<?xml version="1.0" encoding="UTF-8" standalone="no"?>'
        f'<n1:{kind}_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/PSD/">'
        f"<n1:General_Info><Product_Info><PRODUCT_START_TIME>{when}</PRODUCT_START_TIME>"
        f"<PROCESSING_LEVEL>{kind}</PROCESSING_LEVEL>"
        f"<PROCESSING_BASELINE>{baseline}</PROCESSING_BASELINE><Product_Organisation><Granule_List>"
        f'<Granule imageFormat="JPEG2000">{files}</Granule></Granule_List></Product_Organisation>'
        f"</Product_Info><Product_Image_Characteristics>{quantification}{offsets}"
        f"</Product_Image_Characteristics></n1:General_Info></n1:{kind}_User_Product>"
    )
    (root / f"MTD_MSI{level}.xml").write_text(xml)
    (root / "manifest.safe").write_text(f"<manifest>{root.name}</manifest>")


def write_stac(
    folder: Path,
    stack: Stack,
    grid: Grid = GRID,
    *,
    offset: float = 0.0,
    properties: dict[str, Any] | None = None,
    single_assets: bool = False,
    told: bool = True,
) -> Path:
    """An ItemCollection `items.json` beside the GeoTIFFs it points to with relative addresses.

    One asset of all bands, or with `single_assets` one per band under the names of Earth Search.
    `told` writes scale and offset into `raster:bands`.
    """
    from rasterio.warp import transform_bounds

    names = [
        "coastal", "blue", "green", "red", "rededge1", "rededge2", "rededge3", "nir", "nir08",
        "nir09", "cirrus", "swir16", "swir22",
    ]  # fmt: skip
    left, top = grid.transform[2], grid.transform[5]
    box = (left, top - 10 * grid.height, left + 10 * grid.width, top)
    west, south, east, north = transform_bounds(grid.crs, "EPSG:4326", *box)
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    radiometry = {"scale": 0.0001, "offset": offset / 10000} if told else {}
    features = []
    for i, (date, dn) in enumerate(zip(stack.dates, digital_numbers(stack, offset), strict=True)):
        parts = {"data": dn}
        if single_assets:
            parts = {name: dn[b : b + 1] for b, name in enumerate(names)}
        assets = {}
        for key, values in parts.items():
            href = f"data/{date}_{i}_{key}.tif"
            write_raster(folder / href, values, grid, nodata=0)
            known = bands.S2 if key == "data" else (key,)
            assets[key] = {
                "href": f"./{href}",
                "type": "image/tiff; application=geotiff",
                "roles": ["data"],
                "eo:bands": [{"name": name} for name in known],
                "raster:bands": [{"nodata": 0, "data_type": "uint16", **radiometry} for _ in known],
            }
        features.append(
            {
                "type": "Feature",
                "stac_version": "1.0.0",
                "stac_extensions": [
                    "https://stac-extensions.github.io/eo/v1.1.0/schema.json",
                    "https://stac-extensions.github.io/raster/v1.1.0/schema.json",
                    "https://stac-extensions.github.io/projection/v1.0.0/schema.json",
                ],
                "id": f"S2A_{TILE}_{date}_{i}",
                "collection": "sentinel-2-l1c",
                "geometry": {"type": "Polygon", "coordinates": [ring]},
                "bbox": [west, south, east, north],
                "properties": {
                    "datetime": f"{date}T10:50:{i:02d}Z",
                    "proj:epsg": 32631,
                    "proj:shape": [grid.height, grid.width],
                    "proj:transform": list(grid.transform),
                    **(properties or {}),
                },
                "links": [],
                "assets": assets,
            }
        )
    path = folder / "items.json"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def make_dataset(stack: Stack, grid: Grid = GRID, *, integers: bool = True) -> Any:
    """The xarray Dataset of a stack: `s2`, and `s1` and `mask` where it has them."""
    import xarray

    a, _, c, _, e, f = grid.transform
    values = digital_numbers(stack) if integers else stack.s2
    variables: dict[str, Any] = {"s2": (("time", "band", "y", "x"), values)}
    if stack.s1 is not None:
        variables["s1"] = (("time", "polarisation", "y", "x"), stack.s1)
    if stack.mask is not None:
        variables["mask"] = (("time", "y", "x"), stack.mask)
    coords = {
        "time": stack.dates.astype("datetime64[ns]"),
        "band": list(bands.S2),
        "polarisation": list(bands.S1),
        "x": c + a * (np.arange(grid.width) + 0.5),
        "y": f + e * (np.arange(grid.height) + 0.5),
    }
    if stack.s1_dates is not None:
        coords["s1_time"] = ("time", stack.s1_dates.astype("datetime64[ns]"))
    return xarray.Dataset(variables, coords, {"crs": grid.crs})


def write_zarr(
    path: Path, stack: Stack, grid: Grid = GRID, *, integers: bool = True, scaled: bool = False
) -> Path:
    """A Zarr store in chunks of one date and 64 pixels; `scaled` stores CF scale factors."""
    dataset = make_dataset(stack, grid, integers=integers)
    encoding: dict[str, Any] = {"s2": {"chunks": (1, bands.N_S2, 64, 64)}}
    if scaled:
        dataset["s2"] = dataset["s2"].astype("float64") / 10000 if integers else dataset["s2"]
        encoding["s2"] |= {
            "dtype": "uint16", "scale_factor": 0.0001, "add_offset": -0.1, "_FillValue": 0,
        }  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have a Zarr V3 specification")
        dataset.to_zarr(path, encoding=encoding, mode="w", consolidated=False)
    return path
