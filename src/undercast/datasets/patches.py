"""From a patch of the index to a `Sample`: choose dates, crop, read the window, augment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import rasterio
import torch
from torch.utils.data import Dataset

from undercast import bands
from undercast.datasets.index import Image, Index, Observation, Patch
from undercast.datasets.journal import Masks
from undercast.datasets.reading import GDAL_OPTIONS, backscatter, nodata, read_raw, reflectance
from undercast.datasets.samples import Provenance, Sample
from undercast.datasets.sampling import PROTOCOLS, sample_rng
from undercast.errors import InputError
from undercast.types import BoolArray, FloatArray, Stack, Tile

Array = TypeVar("Array", bound=np.ndarray[Any, Any])


@dataclass(frozen=True)
class Options:
    """How samples are made from patches; see `open_dataset`."""

    t: int = 3
    protocol: str = "clean"
    seed: int = 0
    crop: int | None = None
    augment: bool = False
    sar: bool = True
    sar_dropout: float = 0.0
    random_t: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.t < 1:
            raise InputError(f"got t = {self.t}, expected at least one input date")
        if self.protocol not in PROTOCOLS:
            raise InputError(
                f"got protocol {self.protocol!r}, expected one of {' '.join(PROTOCOLS)}"
            )
        if self.crop is not None and self.crop < 1:
            raise InputError(f"got crop = {self.crop}, expected a size in pixels, or None")
        if not 0 <= self.sar_dropout <= 1:
            raise InputError(f"got sar_dropout = {self.sar_dropout}, expected a probability 0..1")
        if self.random_t is not None and not 1 <= self.random_t[0] <= self.random_t[1]:
            raise InputError(f"got random_t = {self.random_t}, expected (lowest, highest), from 1")


class Selection(NamedTuple):
    """The images of one sample."""

    inputs: tuple[Observation, ...]
    target: Image
    target_number: int | None


class PatchDataset(Dataset[Sample]):
    """Samples of one split, one for each patch; a layout says which images make a sample.

    No file stays open between samples, so that workers may be forked or spawned.
    """

    def __init__(
        self, index: Index, patches: list[Patch], split: str, options: Options, masks: Masks | None
    ) -> None:
        self.root: Path = index.root
        self.layout = index.layout
        self.size = index.size
        self.patches = patches
        self.split = split
        self.options = options
        self.masks = None if masks is None else _only(masks, patches)
        # Shared memory: workers that outlive an epoch see the new number too.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        if options.crop is not None and options.crop > min(self.size):
            raise InputError(
                f"got crop = {options.crop}, expected at most {min(self.size)}, the patches' size"
            )

    def __len__(self) -> int:
        return len(self.patches)

    def set_epoch(self, epoch: int) -> None:
        """Change the random numbers of training samples, in running workers too."""
        self._epoch[0] = epoch

    def select(self, patch: Patch, rng: np.random.Generator) -> Selection:
        """The images of one sample of a patch."""
        raise NotImplementedError(f"{type(self).__name__} must implement select")

    def __getitem__(self, item: int) -> Sample:
        patch = self.patches[item]
        sample_id = f"{self.layout}/{patch.roi}/{patch.number}"
        rng = sample_rng(self.options.seed, int(self._epoch[0]), sample_id)
        selection = self.select(patch, rng)
        tile = self._tile(rng)
        dropped = rng.random(len(selection.inputs)) < self.options.sar_dropout
        square = tile.height == tile.width
        turn = Turn.draw(rng, square) if self.options.augment else Turn(0, False)
        with rasterio.Env(**GDAL_OPTIONS):
            stack = self._stack(selection.inputs, tile, turn, dropped)
            target = self._optical(selection.target, tile, turn)
        highest = bands.DN_MAX / bands.DN_PER_REFLECTANCE
        return Sample(
            stack,
            np.clip(target, 0.0, highest, out=target),
            self._mask(selection.target, tile, turn, target),
            np.datetime64(selection.target.date, "D"),
            self._provenance(patch, selection, tile),
        )

    def draw_length(self, rng: np.random.Generator) -> int:
        if self.options.random_t is None:
            return self.options.t
        low, high = self.options.random_t
        return int(rng.integers(low, high + 1))

    def _tile(self, rng: np.random.Generator) -> Tile:
        (height, width), crop = self.size, self.options.crop
        if crop is None:
            return Tile(0, 0, height, width)
        if self.options.protocol != "train":
            return Tile((height - crop) // 2, (width - crop) // 2, crop, crop)
        row, col = rng.integers(0, (height - crop + 1, width - crop + 1)).tolist()
        return Tile(row, col, crop, crop)

    def _stack(
        self, inputs: tuple[Observation, ...], tile: Tile, turn: Turn, dropped: BoolArray
    ) -> Stack:
        s2 = np.stack([self._optical(o.s2, tile, turn) for o in inputs])
        masks = [self._mask(o.s2, tile, turn, image) for o, image in zip(inputs, s2, strict=True)]
        known = [mask for mask in masks if mask is not None]
        return Stack(
            s2,
            [o.s2.date for o in inputs],
            self._radar(inputs, tile, turn, dropped) if self.options.sar else None,
            [(o.s1 or o.s2).date for o in inputs] if self.options.sar else None,
            np.stack(known) if known else None,
        )

    def _optical(self, image: Image, tile: Tile, turn: Turn) -> FloatArray:
        return reflectance(turn(read_raw(self.root / image.path, tile)))

    def _radar(
        self, inputs: tuple[Observation, ...], tile: Tile, turn: Turn, dropped: BoolArray
    ) -> FloatArray:
        s1 = np.full((len(inputs), bands.N_S1, tile.height, tile.width), np.nan, np.float32)
        for image, observation, drop in zip(s1, inputs, dropped, strict=True):
            if observation.s1 is not None and not drop:
                image[:] = backscatter(turn(read_raw(self.root / observation.s1.path, tile)))
        return s1

    def _mask(self, image: Image, tile: Tile, turn: Turn, s2: FloatArray) -> BoolArray | None:
        """The stored mask, and what has no data in `s2`, the image as cropped and turned."""
        if self.masks is None:
            return None
        return turn(self.masks.read(image.path, tile)) | nodata(s2)

    def _provenance(self, patch: Patch, selection: Selection, tile: Tile) -> Provenance:
        covers = [self._cover(observation.s2) for observation in selection.inputs]
        return Provenance(
            dataset=self.layout,
            roi=patch.roi,
            patch=patch.number,
            split=self.split,
            inputs=tuple(o.number for o in selection.inputs),
            target=selection.target_number,
            cover=float(np.mean(covers)),
            target_cover=self._cover(selection.target),
            input_paths=tuple(o.s2.path for o in selection.inputs),
            s1_paths=tuple(None if o.s1 is None else o.s1.path for o in selection.inputs),
            target_path=selection.target.path,
            tile=tile,
        )

    def _cover(self, image: Image) -> float:
        return float("nan") if self.masks is None else self.masks.cover(image.path)


class Turn(NamedTuple):
    """One of the eight flips and quarter turns of a square, four of a rectangle."""

    quarters: int
    flip: bool

    @classmethod
    def draw(cls, rng: np.random.Generator, square: bool) -> Turn:
        quarters = int(rng.integers(4)) if square else 2 * int(rng.integers(2))
        return cls(quarters, bool(rng.integers(2)))

    def __call__(self, array: Array) -> Array:
        """A view of the array (..., H, W), turned."""
        turned = np.rot90(array, self.quarters, axes=(-2, -1)) if self.quarters else array
        return turned[..., ::-1] if self.flip else turned  # type: ignore[return-value]


def _only(masks: Masks, patches: list[Patch]) -> Masks:
    """The masks of these patches alone, so that workers carry no more than they need."""
    wanted = {image.path for patch in patches for image in patch.optical}
    records = {path: record for path, record in masks.records.items() if path in wanted}
    return Masks(masks.method, records)
