"""Stacks from xarray and estimates to xarray, for people who live in notebooks."""

from __future__ import annotations

from typing import Any

import numpy as np

from undercast import bands
from undercast.errors import InputError, MissingDependencyError
from undercast.readers.cube import as_cube
from undercast.readers.raster import parse_crs
from undercast.types import Estimate, Grid, Stack, parse_dates


def stack_from_xarray(dataset: Any) -> Stack:
    """All dates of a Dataset or DataArray, laid out as `undercast.readers.cube` documents."""
    cube = as_cube(dataset)
    if cube.data is None:
        raise InputError(
            f"got {type(dataset).__name__}, expected an xarray Dataset or DataArray: "
            "open stores with xarray.open_zarr or undercast.scene.open_scene"
        )
    every = range(len(cube.dates))
    return Stack(
        np.stack([cube.s2(i) for i in every]),
        cube.dates,
        None if cube.s1_dates is None else np.stack([cube.s1(i) for i in every]),
        cube.s1_dates,
        np.stack([cube.mask(i) for i in every]) if cube.has_mask else None,
    )


def estimate_to_xarray(estimate: Estimate, grid: Grid | None = None, date: Any = None) -> Any:
    """A Dataset `mean (band, y, x)` in reflectance and, where known, variances in reflectance².

    With a grid it carries x, y and the CRS as rioxarray reads them; with a date, the coordinate
    `time`.
    """
    try:
        import xarray
    except ImportError as error:
        raise MissingDependencyError("Estimate.to_xarray", "zarr") from error
    coords: dict[str, Any] = {"band": list(bands.S2)}
    if grid is not None:
        coords |= _grid_coordinates(grid, estimate.mean.shape[1:])
    if date is not None:
        coords["time"] = parse_dates([date], 1, "date")[0].astype("datetime64[ns]")
    variables = {}
    for name in ("mean", "variance", "aleatoric", "epistemic"):
        values = getattr(estimate, name)
        if values is not None:
            unit = "reflectance" if name == "mean" else "reflectance2"
            variables[name] = (("band", "y", "x"), values, {"units": unit})
    dataset = xarray.Dataset(variables, coords)
    if grid is not None:
        for name in variables:
            dataset[name].encoding["grid_mapping"] = "spatial_ref"
    return dataset


def _grid_coordinates(grid: Grid, shape: tuple[int, ...]) -> dict[str, Any]:
    a, b, c, d, e, f = grid.transform
    if (grid.height, grid.width) != shape:
        raise InputError(
            f"got a grid of {grid.height} × {grid.width} for an estimate of {shape[0]} × {shape[1]}"
        )
    if b != 0 or d != 0:
        raise InputError("got a rotated grid, expected one whose rows run along x: warp it first")
    return {
        "x": c + a * (np.arange(grid.width) + 0.5),
        "y": f + e * (np.arange(grid.height) + 0.5),
        "spatial_ref": (
            (),
            0,
            {"crs_wkt": parse_crs(grid.crs).to_wkt(), "GeoTransform": f"{c} {a} {b} {f} {d} {e}"},
        ),
    }
