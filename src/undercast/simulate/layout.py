"""Simulated regions written as SEN12MS-CR-TS or SEN12MS-CR: folders, names, GeoTIFF encoding."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from undercast import bands
from undercast.errors import DataError, InputError
from undercast.simulate import clouds
from undercast.simulate.fields import generator
from undercast.simulate.rois import Roi, roi_names
from undercast.simulate.series import Region, SimulatedSeries, draw_region, simulate_patch
from undercast.types import FloatArray, Grid, Tile

MARKER = "simulation.json"  # says that a folder is ours, and how it was made
_PART = ".simulating-"
_CLIMATE, _GRID, _SEASON, _COVERS = range(900, 904)
_SEASON_MONTHS = {"spring": 3, "summer": 6, "fall": 9, "winter": 12}  # first of three
_FIRST_PATCH = {"sen12mscrts": 0, "sen12mscr": 30}  # as the real numbering begins


@dataclass(frozen=True)
class Plan:
    """Everything that decides the files of a simulated dataset."""

    layout: str
    rois: int
    patches: int
    dates: int
    size: int
    seed: int
    cover: float
    nodata: float
    baseline_offset: bool


def write_dataset(
    root: str | Path,
    layout: str = "sen12mscrts",
    rois: int = 4,
    patches: int = 4,
    dates: int = 12,
    size: int = 256,
    seed: int = 0,
    *,
    workers: int = 1,
    cover: float = 0.5,
    nodata: float = 0.0,
    baseline_offset: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Simulate a dataset in the layout of the real one; returns what was written.

    rois: regions with real names; 3 or more serve train, val and test. dates: of the series; the
    pairs of SEN12MS-CR have one clear and one cloudy date whatever it says. baseline_offset: add
    the 1000 DN of processing baseline 04.00. The files depend on the arguments, never on `workers`.
    A folder that holds anything but an earlier simulation is refused; an earlier one is replaced.
    """
    plan = Plan(layout, rois, patches, dates, size, seed, cover, nodata, baseline_offset)
    names = roi_names(layout, rois)
    _check(plan, workers)
    root = Path(root)
    previous = _ours(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=root))
    except OSError as error:
        raise DataError(f"cannot write {root}: {error.strerror}") from error
    try:
        tasks = [(plan, part, r, p) for r in range(rois) for p in range(patches)]
        covers = list(_run(tasks, workers, progress))
        _publish(root, part, previous, plan)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = 2 * dates * len(covers) if layout == "sen12mscrts" else 3 * len(covers)
    cloudy = [c if layout == "sen12mscrts" else c[1:] for c in covers]
    return {
        "root": str(root),
        **asdict(plan),
        "regions": [f"{season}/{number}" for season, number in names],
        "files": files,
        "mean_cover": float(np.mean(cloudy)),
        "series_with_a_clear_date": float(np.mean([min(c) < 1e-3 for c in covers])),
    }


def _check(plan: Plan, workers: int) -> None:
    for name, value, low in (("patches", plan.patches, 1), ("size", plan.size, 16),
                             ("workers", workers, 1), ("seed", plan.seed, 0)):  # fmt: skip
        if value < low:
            raise InputError(f"got {name} = {value}, expected at least {low}")
    if not 1 <= plan.dates <= 73:
        raise InputError(f"got {plan.dates} dates, expected 1 to 73 (the real series have 30)")
    for name, share in (("cover", plan.cover), ("nodata", plan.nodata)):
        if not 0 <= share <= 1:
            raise InputError(f"got {name} = {share}, expected a share between 0 and 1")


def _ours(root: Path) -> list[str]:
    """Folders of an earlier simulation in `root`; an error where something else lies there."""
    if not root.exists():
        return []
    if not root.is_dir():
        raise DataError(f"got {root}, which is a file; expected a folder to write to")
    content = [p for p in root.iterdir() if not p.name.startswith(_PART)]
    if not content:
        return []
    marker = root / MARKER
    if not marker.is_file():
        raise DataError(
            f"got {root}, which holds other files; expected a new or empty folder, "
            "or one written by undercast simulate: choose another name"
        )
    try:
        return [str(name) for name in json.loads(marker.read_text())["folders"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"cannot read {marker} ({error}): delete {root} or choose another"
        ) from error


def _publish(root: Path, part: Path, previous: list[str], plan: Plan) -> None:
    """Move the finished folders to their final names; the marker comes last."""
    folders = sorted(p.name for p in part.iterdir())
    for name in previous:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in folders:
        (part / name).rename(root / name)
    marker = part / MARKER
    marker.write_text(json.dumps({**asdict(plan), "folders": folders}, indent=2) + "\n")
    marker.rename(root / MARKER)
    for left in root.glob(f"{_PART}*"):  # of runs that were killed
        shutil.rmtree(left, ignore_errors=True)


def _run(tasks: list[Any], workers: int, progress: bool) -> Iterator[list[float]]:
    from tqdm import tqdm

    bar = tqdm(total=len(tasks), unit="patch", disable=not progress, desc="simulate")
    with bar:
        if workers == 1 or len(tasks) == 1:
            for task in tasks:
                yield write_patch(task)
                bar.update()
            return
        # spawn: the same on every system, and safe beside threads
        with multiprocessing.get_context("spawn").Pool(min(workers, len(tasks))) as pool:
            for covers in pool.imap(write_patch, tasks):
                yield covers
                bar.update()


def write_patch(task: tuple[Plan, Path, int, int]) -> list[float]:
    """Simulate and write one patch of one region; returns the cover of its dates."""
    plan, folder, roi_number, patch = task
    roi = roi_names(plan.layout, roi_number + 1)[roi_number]
    write = _write_series if plan.layout == "sen12mscrts" else _write_pair
    return write(plan, folder, roi, roi_number, patch)


def _write_series(plan: Plan, folder: Path, roi: Roi, roi_number: int, patch: int) -> list[float]:
    climate = generator(plan.seed, roi_number, _CLIMATE)
    cover = (
        float(climate.beta(8 * plan.cover, 8 * (1 - plan.cover)))
        if 0 < plan.cover < 1
        else plan.cover
    )
    region = draw_region(plan.seed, (roi_number,), plan.dates, cover=cover)
    series = simulate_patch(region, patch, plan.size, nodata=plan.nodata)
    season, number = roi
    grid = _patch_grid(plan, region, roi_number, patch)
    for kind, dates in (("s1", region.s1_dates), ("s2", region.dates)):
        for i, date in enumerate(dates):
            path = folder / season / str(number) / kind.upper() / str(i)
            name = f"{kind}_{season}_{number}_ImgNo_{i}_{date}_patch_{patch}.tif"
            _write(path / name, _pixels(series, kind, i, plan), grid)
    return [float(c) for c in series.cover]


def _write_pair(plan: Plan, folder: Path, roi: Roi, roi_number: int, patch: int) -> list[float]:
    season, number = roi
    rng = generator(plan.seed, roi_number, _SEASON)
    month = _SEASON_MONTHS[season.split("_")[1]]
    start = np.datetime64(f"{2017 if month == 12 else 2018}-{month:02d}-01", "D")
    clear = start + int(rng.integers(0, 85))
    cloudy = clear + int(rng.choice((-10, -5, 5, 10)))
    region = draw_region(plan.seed, (roi_number,), [clear, cloudy], cover=0.0)
    covers = clouds.draw_cover(generator(plan.seed, roi_number, _COVERS), plan.patches, plan.cover)
    sky = clouds.draw_sky(
        generator(plan.seed, roi_number, patch, _COVERS),
        float(covers[patch]),
        region.weather[1].vapour,
    )
    region = replace(region, skies=(region.skies[0], sky))
    series = simulate_patch(region, patch, plan.size, nodata=plan.nodata)
    grid = _patch_grid(plan, region, roi_number, patch)
    for kind, source, i in (("s1", "s1", 0), ("s2", "s2", 0), ("s2_cloudy", "s2", 1)):
        name = f"{season}_{kind}_{number}_p{_FIRST_PATCH[plan.layout] + patch}.tif"
        path = folder / f"{season}_{kind}" / f"{kind}_{number}" / name
        _write(path, _pixels(series, source, i, plan), grid)
    return [float(c) for c in series.cover]


def _pixels(series: SimulatedSeries, kind: str, date: int, plan: Plan) -> Any:
    """Digital numbers (uint16, 0 = no data) or dB (float32) as the files hold them."""
    if kind == "s1":
        if series.stack.s1 is None:
            raise InputError("got a series without radar, expected both sensors")
        return series.stack.s1[date]
    return digital_numbers(series.stack.s2[date], plan.baseline_offset)


def digital_numbers(reflectance: FloatArray, baseline_offset: bool = False) -> Any:
    """uint16 DN of reflectance; no data is 0. baseline_offset: as baseline 04.00 stores it.

    >>> digital_numbers(np.float32([0.1234, np.nan, -0.01])).tolist()
    [1234, 0, 0]
    >>> digital_numbers(np.float32([0.1234, np.nan]), baseline_offset=True).tolist()
    [2234, 0]
    """
    dn = np.rint(reflectance * bands.DN_PER_REFLECTANCE)
    if baseline_offset:
        dn = dn - bands.BASELINE_OFFSET_DN
    return np.nan_to_num(np.clip(dn, 0, 65535), nan=0.0).astype(np.uint16)


def _patch_grid(plan: Plan, region: Region, roi_number: int, patch: int) -> Grid:
    """UTM grid of one of the adjacent windows of a region."""
    rng = generator(plan.seed, roi_number, _GRID)
    latitude = region.place.latitude
    zone = int(rng.integers(1, 61))
    south = latitude < 0
    northing = 110_574.0 * latitude + (10_000_000.0 if south else 0.0)
    top = 10.0 * round(northing / 10.0)
    left = 10.0 * int(rng.integers(30_000, 60_000))
    columns = int(np.ceil(np.sqrt(plan.patches)))
    whole = Grid(
        f"EPSG:{(32700 if south else 32600) + zone}",
        (10.0, 0.0, left, 0.0, -10.0, top),
        plan.size * columns,
        plan.size * columns,
    )
    row, col = divmod(patch, columns)
    return whole.window(Tile(row * plan.size, col * plan.size, plan.size, plan.size))


def _write(path: Path, pixels: Any, grid: Grid) -> None:
    import rasterio
    from rasterio.transform import Affine

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rasterio.open(
            path, "w", driver="GTiff", width=grid.width, height=grid.height, count=len(pixels),
            dtype=str(pixels.dtype), crs=grid.crs, transform=Affine(*grid.transform),
        ) as file:  # fmt: skip
            file.write(pixels)
    except (OSError, rasterio.errors.RasterioError) as error:
        raise DataError(f"cannot write {path.name}: {error}") from error
