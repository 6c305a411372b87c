"""A scene: the acquisitions of one place on one grid, read window by window.

`open_scene` looks at the files, not at their pixels; `Scene.read` decodes one window. A scene is
picklable: every process and thread opens the files it needs for itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from undercast import bands
from undercast.errors import InputError, UndercastWarning
from undercast.masks import cloud_mask
from undercast.radiometry import suspect_offset
from undercast.readers import raster
from undercast.readers.dates import choose_dates, nearest_dates
from undercast.readers.formats import open_images
from undercast.readers.image import Image, Radar, Source
from undercast.readers.radar import open_radars
from undercast.readers.raster import parse_crs
from undercast.types import DateArray, FloatArray, Grid, Stack, Tile

__all__ = ["Scene", "SceneInfo", "choose_dates", "open_scene"]

S1_TOLERANCE_DAYS = 7.0  # half of the 12 days after which one satellite comes back, and one more
_SAMPLE = 64  # pixels: side of the windows that stand for the whole scene
_SAMPLES_PER_SIDE = 4


@dataclass(frozen=True)
class SceneInfo:
    """Where a scene comes from and what was done to it.

    level: L1C, L2A, unknown, or mixed. missing_bands: filled by rule on at least one date. has_s1:
    for each date. messages: one line each for what the user should know.
    """

    sources: tuple[Source, ...]
    level: str
    missing_bands: tuple[str, ...]
    has_s1: tuple[bool, ...]
    messages: tuple[str, ...]

    @cached_property
    def inputs(self) -> list[dict[str, Any]]:
        """One entry per file: href, sha256 (None if remote), date, level, baseline, offset in DN.

        The files are hashed when this is first asked for.
        """
        return [source.as_dict() for source in self.sources]


class Scene(Protocol):
    """What the rest of the flow sees of any input."""

    @property
    def grid(self) -> Grid: ...
    @property
    def dates(self) -> DateArray: ...
    @property
    def s1_dates(self) -> DateArray | None: ...
    @property
    def info(self) -> SceneInfo: ...
    @property
    def has_masks(self) -> bool: ...
    def read(self, tile: Tile) -> Stack:
        """All dates in a window: reflectance, NaN no data, dB, a mask if the scene has one."""


@dataclass(frozen=True, eq=False)
class ImageScene:
    """A scene of images and the radar image of each, all read onto one grid."""

    grid: Grid
    images: tuple[Image, ...]
    radars: tuple[Radar | None, ...]
    info: SceneInfo

    @property
    def dates(self) -> DateArray:
        """(T,) calendar dates in order of time."""
        return np.array([image.source.date for image in self.images], "datetime64[D]")

    @property
    def has_masks(self) -> bool:
        """Whether every date has one; else none is used."""
        return all(image.has_mask for image in self.images)

    @property
    def s1_dates(self) -> DateArray | None:
        """(T,) dates of the radar images (the optical date where there is none), or None."""
        if not any(self.info.has_s1):
            return None
        pairs = zip(self.images, self.radars, strict=True)
        return np.array([(r or i).source.date for i, r in pairs], "datetime64[D]")

    def read(self, tile: Tile) -> Stack:
        """All dates in a window: reflectance, NaN no data, dB, a mask if every date has one."""
        window = self.grid.window(tile)
        s2 = np.stack([image.read(window) for image in self.images])
        mask = None
        if self.has_masks:
            mask = np.stack([image.read_mask(window) for image in self.images])
            mask |= ~np.isfinite(s2).any(axis=1)
        s1 = self._read_s1(window) if any(self.info.has_s1) else None
        return Stack(s2, self.dates, s1, self.s1_dates, mask)

    def _read_s1(self, window: Grid) -> FloatArray:
        s1 = np.full(
            (len(self.radars), bands.N_S1, window.height, window.width), np.nan, np.float32
        )
        for values, radar in zip(s1, self.radars, strict=True):
            if radar is not None:
                values[:] = radar.read(window)
        return s1


def open_scene(
    inputs: Sequence[Any],
    *,
    dates: Sequence[Any] | None = None,
    s1: Sequence[str | Path] = (),
    s1_unit: str = "auto",
    s1_tolerance_days: float = S1_TOLERANCE_DAYS,
    like: str | Path | Grid | None = None,
    masks: Sequence[str | Path] | None = None,
    baseline: str | None = None,
    offset: float | None = None,
    around: Any | None = None,
    count: int | None = None,
) -> Scene:
    """The scene in GeoTIFFs, SAFE products, STAC items, Zarr stores, or xarray datasets.

    dates: one per image where names and tags do not tell. s1: radar files, matched to the nearest
    date within the tolerance. like: the grid to use instead of the first image's. masks: one file
    per image, other than 0 = unusable. baseline or offset (DN to add): for files without scale
    tags. around and count: only the `count` most useful dates near `around`.
    """
    if (around is None) != (count is None):
        raise InputError("got only one of around and count, expected both: around=DATE, count=T")
    images = open_images(inputs, dates, baseline=baseline, offset=offset)
    images = _with_masks(images, masks)
    grid = _target_grid(images, like)
    for image in images:
        _require_overlap(image, grid)
    images = sorted(images, key=lambda image: image.source.date)
    _refuse_duplicates(images, grid)
    if around is not None and count is not None:
        covers = [_cover(image, grid) for image in images]
        chosen = choose_dates([i.source.date for i in images], covers, around, count)
        images = [images[i] for i in chosen]
    if offset is None and baseline is None:
        for image in images:
            if not image.source.trusted_offset:
                _check_offset(image, grid)
    radars = _match_radars(images, [str(path) for path in s1], s1_unit, s1_tolerance_days, grid)
    scene = ImageScene(grid, tuple(images), radars, _describe(images, radars, grid))
    _refuse_empty(scene)
    return scene


def _with_masks(images: list[Image], masks: Sequence[str | Path] | None) -> list[Image]:
    if masks is None:
        return images
    if len(masks) != len(images):
        raise InputError(
            f"got {len(masks)} masks for {len(images)} images, expected one for each image"
        )
    for path in masks:
        raster.grid_of(str(path))
    return [image.with_mask(str(path)) for image, path in zip(images, masks, strict=True)]


def _target_grid(images: list[Image], like: str | Path | Grid | None) -> Grid:
    if like is None:
        return images[0].grid
    return like if isinstance(like, Grid) else raster.grid_of(str(like))


def _require_overlap(image: Image | Radar, grid: Grid) -> None:
    if raster.overlap(image.grid, grid) == 0:
        raise InputError(
            f"got {image.source.href} in {image.grid.crs}, which does not overlap the scene's grid "
            f"in {grid.crs}: give images of one place"
        )


def _refuse_duplicates(images: list[Image], grid: Grid) -> None:
    """An acquisition that is given twice would count twice: same file, identity or pixels."""
    seen: dict[str, str] = {}
    for image in images:
        source = image.source
        for key in {source.href, source.acquisition or source.href}:
            if key in seen:
                raise _duplicate(seen[key], source.href)
            seen[key] = source.href
    for earlier, later in combinations(images, 2):
        if earlier.source.date == later.source.date and _same_pixels(earlier, later, grid):
            raise _duplicate(earlier.source.href, later.source.href)


def _duplicate(one: str, other: str) -> InputError:
    return InputError(
        f"got the same acquisition twice: {one} and {other}, expected different ones: remove one"
    )


def _same_pixels(one: Image, other: Image, grid: Grid) -> bool:
    """Equal in every sample, and at least one sample has data."""
    seen = False
    for tile in sample_tiles(grid):
        left, right = one.read(grid.window(tile)), other.read(grid.window(tile))
        if not np.array_equal(left, right, equal_nan=True):
            return False
        seen = seen or bool(np.isfinite(left).any())
    return seen


def sample_tiles(grid: Grid) -> list[Tile]:
    """Up to 16 windows of 64 pixels spread over a grid, all of it where it is small.

    >>> sample_tiles(Grid("EPSG:32631", (10, 0, 0, 0, -10, 0), 64, 50))
    [Tile(row=0, col=0, height=64, width=50)]
    """

    def starts(size: int) -> list[int]:
        number = min(_SAMPLES_PER_SIDE, -(-size // _SAMPLE))
        return [round(i) for i in np.linspace(0, max(0, size - _SAMPLE), number)]

    height, width = min(_SAMPLE, grid.height), min(_SAMPLE, grid.width)
    return [Tile(r, c, height, width) for r in starts(grid.height) for c in starts(grid.width)]


def _cover(image: Image, grid: Grid) -> float:
    """The unusable share of the sample windows: clouds, shadows and no data."""
    return float(np.mean([_unusable(image, grid.window(tile)) for tile in sample_tiles(grid)]))


def _unusable(image: Image, window: Grid) -> float:
    if image.mask_knows_no_data:
        return float(image.read_mask(window).mean())
    s2 = image.read(window)
    observed = np.isfinite(s2).any(axis=0)
    if not observed.any():
        return 1.0
    # s2cloudless needs B1, B9 and B10 as they were measured.
    method = "rules" if image.missing else "auto"
    bad = image.read_mask(window) if image.has_mask else cloud_mask(s2[None], method)[0]
    return float((bad | ~observed).mean())


def _check_offset(image: Image, grid: Grid) -> None:
    """Warns where the pixels contradict the offset that was, or was not, removed."""
    read = [image.read(grid.window(tile)) for tile in sample_tiles(grid)]
    s2 = np.concatenate([part.reshape(bands.N_S2, 1, -1) for part in read], axis=2)
    visible = s2[bands.index(bands.RGB)]
    visible = visible[np.isfinite(visible)]
    dn = np.nan_to_num(s2 * np.float32(bands.DN_PER_REFLECTANCE), nan=0.0)
    if image.source.offset == 0 and not image.missing and suspect_offset(dn):
        problem = "look as if they carried the +1000 of processing baseline 04.00 or later"
    elif image.source.offset < 0 and visible.size and np.median(visible) < 0:
        problem = f"are below 0 after adding {image.source.offset:.0f}: it was removed before"
    else:
        return
    warnings.warn(
        f"{image.source.href}: its digital numbers {problem}; pass offset=-1000 or offset=0",
        UndercastWarning,
        stacklevel=3,
    )


def _match_radars(
    images: list[Image], paths: list[str], unit: str, tolerance_days: float, grid: Grid
) -> tuple[Radar | None, ...]:
    """The radar image of each date: the nearest file in time, or what its own store holds."""
    if not paths:
        return tuple(image.radar for image in images)
    radars = open_radars(paths, unit)
    for radar in radars:
        _require_overlap(radar, grid)
    # Of several frames of one day the one that covers most comes first.
    radars.sort(key=lambda radar: -raster.overlap(radar.grid, grid))
    wanted = np.array([image.source.date for image in images], "datetime64[D]")
    offered = np.array([radar.source.date for radar in radars], "datetime64[D]")
    matches = nearest_dates(wanted, offered, tolerance_days)
    return tuple(None if i is None else radars[i] for i in matches)


def _describe(images: list[Image], radars: tuple[Radar | None, ...], grid: Grid) -> SceneInfo:
    levels = {image.source.level for image in images}
    if {"L1C", "L2A"} <= levels:
        warnings.warn(
            "got level 1C and level 2A images together, expected one level: top-of-atmosphere and "
            "surface reflectance differ, the result mixes them",
            UndercastWarning,
            stacklevel=3,
        )
    missing = {band for image in images for band in image.missing}
    used = dict.fromkeys(radar.source for radar in radars if radar is not None)
    return SceneInfo(
        sources=(*(image.source for image in images), *used),
        level=levels.pop() if len(levels) == 1 else "mixed",
        missing_bands=tuple(band for band in bands.S2 if band in missing),
        has_s1=tuple(radar is not None for radar in radars),
        messages=tuple(_messages(images, radars, grid)),
    )


def _messages(images: list[Image], radars: tuple[Radar | None, ...], grid: Grid) -> Iterator[str]:
    used = {radar.source: radar for radar in radars if radar is not None}
    for item in (*images, *used.values()):
        yield from item.source.messages
        if not raster.aligned(item.grid, grid):
            yield f"{item.source.href}: warped from {item.grid.crs} onto the scene's grid, bilinear"
    for image in images:
        if image.missing:
            yield f"{image.source.href}: {' '.join(image.missing)} missing, filled by rule"
    if len({image.has_mask for image in images}) > 1:
        yield "some dates have a mask and others not: no mask is used"
    if any(radars) and not all(radars):
        alone = [str(i.source.date) for i, r in zip(images, radars, strict=True) if r is None]
        yield f"no radar image near enough to {', '.join(alone)}"
    size = abs(np.linalg.det(np.reshape(grid.transform, (2, 3))[:, :2])) ** 0.5
    if parse_crs(grid.crs).is_geographic or not 9 <= size <= 11:
        yield f"pixels of {size:.3g} in {grid.crs}; the models know pixels of 10 m"


def _refuse_empty(scene: ImageScene) -> None:
    """All no data is an error; the whole scene is looked at only if the samples are empty."""
    rows = range(0, scene.grid.height, _SAMPLE)
    stripes = (Tile(r, 0, min(_SAMPLE, scene.grid.height - r), scene.grid.width) for r in rows)
    for tile in chain(sample_tiles(scene.grid), stripes):
        window = scene.grid.window(tile)
        if any(np.isfinite(image.read(window)).any() for image in scene.images):
            return
    raise InputError(
        f"got no data in all {len(scene.images)} images on the scene's grid, expected at least one "
        "observed pixel: check the no-data value and where the images lie"
    )
