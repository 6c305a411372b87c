"""The product of a scene: COGs of mean, sigma and quality, a STAC Item and a quicklook.

Everything is made in a hidden folder inside the output folder and gets its final name at the end,
`item.json` last. A run that was stopped goes on from its last finished row of tiles.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undercast import bands, quicklook
from undercast.blend import Strip
from undercast.errors import DataError, InputError
from undercast.models.composites import VARIANCE_FLOOR
from undercast.products.cog import Band, Raster, RowFile, write_cog
from undercast.products.quality import LAYERS, NODATA, Flag
from undercast.quicklook import Rgb
from undercast.types import FloatArray, Grid

WORK = ".undercast-unfinished"
SIGMA_SCALE = 1e-5  # reflectance per stored number: 316 steps for the smallest sigma of 0.0032
UINT16_NODATA = 65535
Array = NDArray[Any]
ItemBuilder = Callable[[Mapping[str, list[dict[str, float]]]], dict[str, Any]]


@dataclass(frozen=True)
class Format:
    """How a product stores its numbers, and what it leaves out.

    dtype: uint16 (scaled) or float32. mask_above: no data in the mean where the root mean square of
    sigma over the bands is larger. zarr: a Zarr store beside the GeoTIFFs.
    """

    dtype: str = "uint16"
    has_variance: bool = True
    mask_above: float | None = None
    zarr: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("uint16", "float32"):
            raise InputError(f"got dtype {self.dtype!r}, expected uint16 or float32")
        if self.mask_above is not None and not self.has_variance:
            raise InputError(
                "got mask_above for a system that predicts no variance, expected one that does"
            )
        if self.mask_above is not None and not self.mask_above > 0:
            raise InputError(f"got mask_above {self.mask_above}, expected a sigma above 0")

    @property
    def rasters(self) -> tuple[Raster, ...]:
        """The GeoTIFFs of the product."""
        mean = self._reflectance("mean", 1 / bands.DN_PER_REFLECTANCE, "cloud-free reflectance")
        sigma = self._reflectance("sigma", SIGMA_SCALE, "standard deviation of the reflectance")
        return (mean, sigma, QUALITY) if self.has_variance else (mean, QUALITY)

    def _reflectance(self, name: str, scale: float, meaning: str) -> Raster:
        stored = self.dtype == "uint16"
        layers = tuple(
            Band(band, "reflectance", scale if stored else 1.0, {"wavelength_nm": str(nm)})
            for band, nm in bands.WAVELENGTH_NM.items()
        )
        nodata = UINT16_NODATA if stored else np.nan
        return Raster(name, self.dtype, nodata, layers, tags={"description": meaning})

    def encode(self, strip: Strip) -> dict[str, Array]:
        """The stored numbers of each raster; the strip's layers are quality and kept pixels."""
        quality, *kept = strip.layers
        mean, variance = strip.mean, strip.variance
        if kept:
            mean, variance = keep_observed(mean, variance, kept[0])
        out: dict[str, Array] = {}
        if variance is not None:
            out["sigma"] = self._store(np.sqrt(variance), SIGMA_SCALE, lowest=1)
            if self.mask_above is not None:
                mean, quality = self._mask_uncertain(mean, variance, quality)
        return {"mean": self._store(mean, 1 / bands.DN_PER_REFLECTANCE), **out, "quality": quality}

    def _mask_uncertain(
        self, mean: FloatArray, variance: FloatArray, quality: Array
    ) -> tuple[FloatArray, Array]:
        assert self.mask_above is not None
        uncertain = variance.mean(axis=0) > self.mask_above**2
        quality = quality.copy()
        quality[LAYERS.index("flags")][uncertain] |= Flag.UNCERTAIN
        return np.where(uncertain, np.float32(np.nan), mean), quality

    def _store(self, values: FloatArray, scale: float, lowest: int = 0) -> Array:
        """Rounded to the scale and clipped; no data for NaN."""
        if self.dtype == "float32":
            return values.astype(np.float32)
        count, height, width = values.shape
        stored = np.empty((height, count, width), np.uint16).transpose(1, 0, 2)  # as in the file
        rounded = np.empty((height, width), np.float32)
        for numbers, band in zip(stored, values, strict=True):
            np.multiply(band, np.float32(1 / scale), out=rounded)
            np.rint(rounded, out=rounded)
            np.clip(rounded, lowest, UINT16_NODATA - 1, out=rounded)
            nodata = np.isnan(band)
            if nodata.any():
                rounded[nodata] = UINT16_NODATA
            numbers[:] = rounded
        return stored


QUALITY = Raster(
    "quality",
    "int16",
    NODATA,
    tuple(Band(name, unit) for name, unit in zip(LAYERS, ("count", "days", "bits"), strict=True)),
    resampling="NEAREST",
    tags={"flags": " ".join(f"{flag.value}={flag.name}" for flag in Flag)},
)


def keep_observed(
    mean: FloatArray, variance: FloatArray | None, observed: FloatArray
) -> tuple[FloatArray, FloatArray | None]:
    """Observed pixels (NaN elsewhere) instead of the estimate, with the variance of a sensor."""
    keep = np.isfinite(observed)
    if variance is not None:
        variance = np.where(keep, np.float32(VARIANCE_FLOOR), variance)
    return np.where(keep, observed, mean), variance


class ProductWriter:
    """Takes finished strips from top to bottom; `finish` gives the files their names.

    fingerprint: everything that the pixels depend on; only a run with the same one is resumed.
    Used as a context manager, it forgets its work if it fails before the first strip.
    """

    def __init__(self, out: Path, grid: Grid, form: Format, fingerprint: dict[str, Any]) -> None:
        self.out, self.work = out, out / WORK
        self.grid, self.format, self.fingerprint = grid, form, fingerprint
        self.files = [RowFile(self.work / f"{r.name}.rows", r, grid) for r in form.rasters]
        self.rows_done = 0
        self._began = False  # whether the work folder is this run's own, to be removed by it
        self._writer = ThreadPoolExecutor(1, "undercast-writer")
        self._pending: Future[None] | None = None

    def start(self, *, resume: bool, overwrite: bool) -> dict[str, Array] | None:
        """Prepare the folder; the state of the blend to go on from, or None at the beginning."""
        going_on = resume and (self.work / "state.npz").exists()
        if not going_on:
            _refuse_existing(self.out, overwrite)
        with _disk(self.out):
            if going_on:
                return self._resume()
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir(parents=True)
            self._began = True
            for file in self.files:
                file.path.touch()
        self._require_space()
        return None

    def _resume(self) -> dict[str, Array]:
        with np.load(self.work / "state.npz") as stored:
            state = {name: stored[name] for name in stored.files}
        before = json.loads(str(state.pop("fingerprint")))
        now = json.loads(json.dumps(self.fingerprint))
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            raise InputError(
                f"got other {', '.join(changed)} than the unfinished run in "
                f"{self.out} had, expected the same: repeat its command, or pass overwrite"
            )
        self.rows_done = int(state.pop("rows_done"))
        for file in self.files:
            file.keep(self.rows_done)
        return state

    def _require_space(self) -> None:
        needed = sum(f.raster.row_bytes(self.grid.width) for f in self.files) * self.grid.height
        free = shutil.disk_usage(self.work).free
        if free < needed:
            raise DataError(
                f"cannot write {self.out}: got {free / 1e6:.0f} MB of free disk, expected at least "
                f"{needed / 1e6:.0f} MB for {self.grid.height} × {self.grid.width} pixels"
            )

    def write(self, strip: Strip, state: dict[str, Array]) -> None:
        """Append a strip while the next one is computed; `state` is the blend's after it."""
        self._wait()
        self._pending = self._writer.submit(self._append, strip, state)

    def _append(self, strip: Strip, state: dict[str, Array]) -> None:
        encoded = self.format.encode(strip)
        with _disk(self.out):
            for file in self.files:
                file.append(encoded[file.raster.name])
            done = strip.row + strip.mean.shape[1]
            temporary = self.work / "state.part.npz"
            np.savez(
                temporary,
                fingerprint=np.array(json.dumps(self.fingerprint)),
                rows_done=np.array(done),
                **state,  # type: ignore[arg-type]
            )
            os.replace(temporary, self.work / "state.npz")
        self.rows_done = done

    def _wait(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def finish(self, build_item: ItemBuilder) -> dict[str, Any]:
        """COGs, quicklook and item under their final names; the item."""
        self._wait()
        with _disk(self.out):
            statistics = self._write_cogs()
            if self.format.zarr:
                from undercast.products.zarr import write_zarr

                write_zarr(self.files, self.work / "product.zarr")
            item = build_item(statistics)
            (self.work / "item.json").write_text(json.dumps(item, indent=2, allow_nan=False) + "\n")
            self._publish()
        return item

    def _write_cogs(self) -> dict[str, list[dict[str, float]]]:
        """The COGs and the quicklook; all at once, as parts of each are the work of one thread."""

        def write(file: RowFile) -> tuple[list[dict[str, float]], list[tuple[str, Rgb]]]:
            path = self.work / f"{file.raster.name}.tif"
            return write_cog(file, path), _picture(path)

        with ThreadPoolExecutor(len(self.files), "undercast-cog") as pool:
            statistics, pictures = zip(*pool.map(write, self.files), strict=True)
        quicklook.write_png(
            self.work / "quicklook.png",
            quicklook.panel([[one for some in pictures for one in some]]),
        )
        names = [file.raster.name for file in self.files]
        return dict(zip(names, statistics, strict=True))

    def _publish(self) -> None:
        """The final names. Without item.json, a product is not complete."""
        made = [f"{r.name}.tif" for r in self.format.rasters] + ["quicklook.png"]
        made += ["product.zarr"] if self.format.zarr else []
        for name in reversed(NAMES):
            _remove(self.out / name)
        for name in (*made, "item.json"):
            os.replace(self.work / name, self.out / name)
        shutil.rmtree(self.work, ignore_errors=True)

    def _forget(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        if self.out.is_dir() and not any(self.out.iterdir()):
            self.out.rmdir()

    def __enter__(self) -> ProductWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown(wait=True)
        if kind is not None and self._began and not self.rows_done:
            self._forget()


NAMES = ("mean.tif", "sigma.tif", "quality.tif", "quicklook.png", "product.zarr", "item.json")


def _refuse_existing(out: Path, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise DataError(f"got {out}, which is a file; expected a folder to write into")
    if overwrite:
        return
    present = [name for name in NAMES if (out / name).exists()]
    if present:
        raise DataError(
            f"got {out}, which already holds {', '.join(present)}: "
            "choose another folder, or pass overwrite"
        )
    if (out / WORK / "state.npz").exists():
        raise DataError(
            f"got {out}, which holds an unfinished run: pass resume to go on, or overwrite to "
            "begin again"
        )


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """Trouble with the disk in one line."""
    try:
        yield
    except (DataError, InputError):
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else (error.strerror or str(error))
        raise DataError(
            f"cannot write {out}: {reason}; free some space or choose another folder"
            if full
            else f"cannot write {out}: {reason}"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _picture(path: Path, longest: int = 1024) -> list[tuple[str, Rgb]]:
    """A raster's part of the quicklook: the mean in true colour, sigma averaged over the bands."""
    if path.stem == "mean":
        return [("mean", quicklook.rgb(read_small(path, longest)))]
    if path.stem != "sigma":
        return []
    sigma = read_small(path, longest).mean(axis=0)
    finite = sigma[np.isfinite(sigma)]
    top = max(float(np.percentile(finite, 98)) if finite.size else 0.0, 1e-4)
    return [(f"sigma 0 - {top:.3f}", quicklook.colour_map(sigma, 0.0, top))]


def read_small(path: Path, longest: int) -> FloatArray:
    """(bands, h, w) of a GeoTIFF in its physical unit, at most `longest` pixels a side."""
    import rasterio

    with rasterio.open(path) as file:
        step = max(1, -(-max(file.height, file.width) // longest))
        shape = (file.count, max(1, file.height // step), max(1, file.width // step))
        values = file.read(out_shape=shape, out_dtype="float32")
        values[values == np.float32(file.nodata)] = np.nan
        values *= np.float32(file.scales[0])
        return np.asarray(values)


def read_product(folder: Path, names: Sequence[str] = ("mean", "sigma")) -> dict[str, FloatArray]:
    """Rasters of a product at full size, in reflectance, NaN = no data."""
    return {
        name: read_small(folder / f"{name}.tif", 1 << 30)
        for name in names
        if (folder / f"{name}.tif").exists()
    }
