"""From a stack to its estimate, from files to a product: the six calls of the flow.

scene ─▶ tiles ─▶ model ─▶ mean + variance ─▶ blend ─▶ product
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undercast.blend import Blend, Part, join
from undercast.checkpoint import load_model
from undercast.engines import streams
from undercast.errors import ConfigError, InputError, UndercastWarning
from undercast.fingerprint import model_summary
from undercast.inference import infer, infer_some
from undercast.masks import S2Cloudless, by_rules
from undercast.models.system import Model
from undercast.product import Format, ProductWriter
from undercast.products.item import build_item
from undercast.products.quality import middle_date, nearest_date
from undercast.scene import Scene, open_scene
from undercast.tiles import OVERLAP, SIZE, TilePlan
from undercast.tilework import Tiles, TileWork, gdal_cache, run_here
from undercast.types import Estimate, Stack, Tile


@dataclass(frozen=True)
class SceneOptions:
    """Everything that `predict_scene` can be told besides inputs, folder and model.

    The first group goes to `undercast.scene.open_scene`, where it is explained.
    """

    dates: Sequence[Any] | None = None
    s1: Sequence[str | Path] = ()
    s1_unit: str = "auto"
    s1_tolerance_days: float = 7.0
    like: Any = None
    masks: Sequence[str | Path] | None = None
    baseline: str | None = None
    offset: float | None = None
    around: Any = None
    count: int | None = None

    clouds: str = "auto"  # detector for scenes without masks: auto, s2cloudless, rules
    keep_clear: bool = False  # clear pixels of the reference date stay as they are
    engine: str = "auto"
    device: str = "cpu"
    batch: int = 1  # tiles in one forward
    overlap: int = OVERLAP  # pixels that tiles share
    shift: int = 0  # of the grid of tiles, to look for seams

    dtype: str = "uint16"  # or float32
    mask_above: float | None = None  # sigma above which the mean is no data
    zarr: bool = False
    resume: bool = False
    overwrite: bool = False

    workers: int = 0  # processes of a local cluster; 0 = this process
    scheduler: str | None = None  # address of a running Dask scheduler
    threads: int | None = None  # of torch in each process
    progress: bool = True

    def __post_init__(self) -> None:
        if self.batch < 1 or self.workers < 0 or (self.threads is not None and self.threads < 1):
            raise ConfigError(
                f"got batch {self.batch}, workers {self.workers}, threads {self.threads}: "
                "expected batch ≥ 1, workers ≥ 0, threads ≥ 1"
            )

    def of_scene(self) -> dict[str, Any]:
        """What `open_scene` takes."""
        names = [f.name for f in fields(self)]
        return {name: getattr(self, name) for name in names[: names.index("clouds")]}

    def of_pixels(self) -> dict[str, Any]:
        """What decides about the pixels besides inputs and model, ready for JSON."""
        names = ("clouds", "keep_clear", "engine", "device", "batch", "overlap", "shift", "dtype")
        return {**{name: getattr(self, name) for name in names}, "mask_above": self.mask_above}


@dataclass(frozen=True)
class Product:
    """A finished product: its folder and its STAC Item."""

    folder: Path
    item: dict[str, Any]


def predict_scene(
    inputs: Sequence[Any] | str | Path,
    out: str | Path,
    model: str | Path | Sequence[str | Path] | Model = "default",
    **options: Any,
) -> Product:
    """Files in, georeferenced product out: `out` gets mean, sigma, quality, item and quicklook.

    inputs: GeoTIFFs, SAFE products, STAC items or Zarr stores, at least one date. model: what
    `load_model` takes, or a loaded model. options: the fields of `SceneOptions`, by name.
    """
    told = _options(options)
    scene = open_scene(_listed(inputs), **told.of_scene())
    with gdal_cache(scene), _torch_threads(told):
        plan = TilePlan(scene.grid.height, scene.grid.width, overlap=told.overlap, shift=told.shift)
        system = _loaded(model, told)
        work = _work(scene, system, told)
        writer = _writer(Path(out), work, model_summary(system, model), told)
        with writer:
            blend = _blend(plan, writer.start(resume=told.resume, overwrite=told.overwrite))
            for tile, part in _estimates(work, blend, told):
                blend.feed(tile, part)
                for strip in blend.rows():
                    writer.write(strip, blend.state())
            return Product(Path(out), writer.finish(_item(writer, work)))


def _options(options: dict[str, Any]) -> SceneOptions:
    known = [f.name for f in fields(SceneOptions)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"got unknown option {', '.join(unknown)}, expected some of {', '.join(known)}"
        )
    return SceneOptions(**options)


def _listed(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, list | tuple) else [inputs]


def _loaded(model: Any, told: SceneOptions) -> Model:
    if isinstance(model, Model):
        return model.to(told.device).eval()
    return load_model(model, engine=told.engine, device=told.device)


def _work(scene: Scene, model: Model, told: SceneOptions) -> TileWork:
    """The work on tiles, after a look at what scene and model say of each other."""
    level, info = scene.info.level, scene.info
    if told.progress:
        for message in info.messages:
            print(f"undercast: {message}", file=sys.stderr)
    trained_on = model.provenance.get("level", "L1C")
    if model.network.learns and level in ("L1C", "L2A", "mixed") and level != trained_on:
        warnings.warn(
            f"{model.name} was trained on {trained_on} and the scene is {level}: expect a worse "
            f"image and too small a variance; use {trained_on} products where you can",
            UndercastWarning,
            stacklevel=3,
        )
    clouds = told.clouds
    if clouds == "auto" and not _worth_s2cloudless(scene, model, told):
        clouds = "rules"
    if told.around is None:
        reference = middle_date(scene.dates)
    else:
        reference = nearest_date(scene.dates, told.around)
    masks_are_told = model.network.needs_mask or scene.has_masks or not by_rules(clouds)
    return TileWork(scene, model, reference, clouds, told.keep_clear, masks_are_told)


def _worth_s2cloudless(scene: Scene, model: Model, told: SceneOptions) -> bool:
    """It takes longer than a network: only where masks decide about pixels, and its bands exist."""
    decides = model.network.needs_mask or told.keep_clear
    filled = set(scene.info.missing_bands) & set(S2Cloudless.BANDS)
    return decides and scene.info.level != "L2A" and not filled


def _writer(out: Path, work: TileWork, model: dict[str, Any], told: SceneOptions) -> ProductWriter:
    grid, info = work.scene.grid, work.scene.info
    form = Format(told.dtype, work.model.network.gives_variance, told.mask_above, told.zarr)
    fingerprint = {
        "inputs": info.inputs,
        "model": model,
        "parameters": told.of_pixels(),
        "reference_date": str(work.reference),
        "dates": [str(date) for date in work.scene.dates],
        "grid": [grid.crs, list(grid.transform), grid.height, grid.width],
    }
    return ProductWriter(out, grid, form, fingerprint)


def _item(writer: ProductWriter, work: TileWork) -> Any:
    info = work.scene.info
    known = writer.fingerprint
    provenance = {
        **{name: known[name] for name in ("inputs", "model", "parameters")},
        "reference_date": known["reference_date"],
        "dates": known["dates"],
        "level": info.level,
        "missing_bands": list(info.missing_bands),
        "has_s1": [bool(has) for has in info.has_s1],
        "messages": list(info.messages),
    }
    return partial(
        build_item,
        writer.work,
        work.scene.grid,
        work.scene.dates,
        rasters=writer.format.rasters,
        provenance=provenance,
    )


def _blend(plan: TilePlan, state: dict[str, Any] | None) -> Blend:
    blend = Blend(plan)
    if state is not None:
        blend.restore(state)
    return blend


def _estimates(work: TileWork, blend: Blend, told: SceneOptions) -> Iterator[tuple[Tile, Part]]:
    """Each tile that is left with its part, in order, here or on a cluster, with a progress bar."""
    from tqdm import tqdm

    batches = _batches(blend, told.batch)
    if batches and (told.workers or told.scheduler):
        from undercast.cluster import run_on_cluster

        parts = run_on_cluster(
            work, batches, workers=told.workers, scheduler=told.scheduler, threads=told.threads,
            streams=partial(streams, work.model),
        )  # fmt: skip
    else:
        parts = run_here(work, batches, streams(work.model, torch.get_num_threads()))
    left = sum(len(batch) for batch in batches)
    with tqdm(
        total=len(blend.plan), initial=len(blend.plan) - left, unit="tile", file=sys.stderr,
        disable=not told.progress,
    ) as bar:  # fmt: skip
        for batch, found in zip(batches, parts, strict=True):
            yield from zip(batch, found, strict=True)
            bar.update(len(batch))


def _batches(blend: Blend, size: int) -> list[Tiles]:
    """Neighbours in one row of tiles go together, so that batches do not depend on a restart."""
    rows = [blend.plan.row(number) for number in range(blend.rows_fed, len(blend.plan.row_starts))]
    return [row[i : i + size] for row in rows for i in range(0, len(row), size)]


@contextmanager
def _torch_threads(told: SceneOptions) -> Iterator[None]:
    before = torch.get_num_threads()
    if told.threads is not None:
        torch.set_num_threads(told.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def predict(model: Model, stack: Stack, *, plan: TilePlan | None = None) -> Estimate:
    """The cloud-free image under the clouds of a stack, with its variance where there is one.

    mean and variance are (13, H, W) in reflectance and reflectance². Any number of dates; a date
    that is NaN everywhere is left out; a pixel that is NaN on every date is NaN in the estimate.
    Up to 256 × 256 pixels are one forward at that size; more are tiles, blended. `plan` sets other
    tiles.
    """
    if not stack.valid_dates.any():
        raise InputError(
            "got a stack that is NaN on every date, expected at least one observation: "
            "check the nodata value and the area that was read"
        )
    _, height, width = stack.shape
    if plan is None and max(height, width) <= SIZE:
        return infer(model, [stack])[0]
    return _predict_tiles(model, stack, plan or TilePlan(height, width))


@dataclass(frozen=True)
class _Crops:
    """The work on the tiles of a stack in memory."""

    model: Model
    stack: Stack

    def read(self, tiles: Tiles) -> list[Stack]:
        return [self.stack.crop(tile) for tile in tiles]

    def estimate(self, tiles: Tiles, stacks: Sequence[Stack]) -> list[Estimate]:
        return infer_some(self.model, stacks)


def _predict_tiles(model: Model, stack: Stack, plan: TilePlan) -> Estimate:
    """Tile by tile, blended. In an ensemble, what tiles disagree about counts as epistemic."""
    total, aleatoric = Blend(plan), Blend(plan)
    each, side_by_side = [(tile,) for tile in plan], streams(model, torch.get_num_threads())
    found = run_here(_Crops(model, stack), each, side_by_side)
    for (tile,), (estimate,) in zip(each, found, strict=True):
        spread = estimate.epistemic if estimate.variance is None else estimate.variance
        total.feed(tile, Part(estimate.mean, spread))
        if estimate.aleatoric is not None:
            aleatoric.feed(tile, Part(estimate.aleatoric))
    whole, within = join(list(total.rows())), list(aleatoric.rows())
    if not model.network.gives_variance:
        return Estimate(whole.mean, epistemic=whole.variance)
    if not within or whole.variance is None:
        return Estimate(whole.mean, whole.variance)
    part = join(within).mean
    return Estimate(whole.mean, whole.variance, part, np.maximum(whole.variance - part, 0))
