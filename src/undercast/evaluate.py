"""A model on a dataset, beside composites and flat images: every metric in one pass.

Memory does not grow with the number of images, but for a few numbers each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from undercast import bands
from undercast.datasets import open_dataset
from undercast.datasets.samples import SampleBatch, collate
from undercast.errors import DataError, InputError
from undercast.examples import Example, Examples
from undercast.metrics import CalibrationAccumulator, ImageAccumulator
from undercast.metrics.image import Scores, error_maps, scores
from undercast.models import create
from undercast.models.system import Batch, Model, Output

COVERED = "covered_on_every_date"  # a pixel that no input date shows
CLEAR = "clear_at_least_once"
STRATA: dict[str, tuple[float, float]] = {  # mean cloud cover of a sample's input dates
    "cover_0_10": (0.0, 0.1),
    "cover_10_50": (0.1, 0.5),
    "cover_50_90": (0.5, 0.9),
    "cover_90_100": (0.9, math.inf),
}
UNKNOWN_COVER = "cover_unknown"
COMPOSITES = ("least-cloudy", "mosaic", "median")
FLAT_TRAIN, FLAT_SCENE = "flat-train-mean", "flat-scene-median"

Predictor = Callable[[Batch], Output]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results: `systems[name]` holds tables of plain numbers, NaN where nothing was counted."""

    info: dict[str, Any]
    systems: dict[str, dict[str, Any]]
    examples: tuple[Example, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold: None instead of NaN and infinity; without the pictures."""
        found = plain({"info": self.info, "systems": self.systems})
        assert isinstance(found, dict)
        return found


def evaluate(
    model: Model,
    dataset: Any,
    *,
    batch_size: int = 4,
    workers: int = 0,
    device: str = "cpu",
    baselines: bool = True,
    train_spectrum: ArrayLike | None = None,
    clear_targets_only: bool = False,
    info: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Every metric of a model and of the baselines over a dataset of `Sample`s.

    train_spectrum: (13,) mean reflectance of the training data, for the first flat image (see
    `mean_spectrum`). clear_targets_only: leave out pixels that are masked in the target; the paper
    counts them. info: what to write down beside the results (dataset, split, protocol).
    """
    model = model.to(device).eval()
    run = _Run(model.name, _systems(model, baselines, train_spectrum))
    if baselines and train_spectrum is None:
        run.notes.add(f"{FLAT_TRAIN} is left out: no training data")
    loader = sample_loader(dataset, batch_size, workers)
    for loaded in tqdm(loader, desc="evaluate", unit="batch", disable=not progress):
        part = observed(loaded.to(device), clear_targets_only)
        if part is None:
            run.notes.add("samples without an observation on any input date were left out")
        else:
            run.feed(part)
    return run.result(dict(info or {}))


def open_part(root: str | Path, split: str, limit: int | None = None, **options: Any) -> Any:
    """A split, or `limit` of its samples evenly spread over it; options as in `open_dataset`."""
    dataset = open_dataset(root, split, **options)
    if limit is None or limit >= len(dataset):
        return dataset
    return Subset(dataset, evenly(len(dataset), limit))


def train_spectrum_of(root: str | Path, limit: int = 100) -> NDArray[np.float64] | None:
    """(13,) mean spectrum of the training targets; None where the folder has no training split."""
    try:
        dataset = open_dataset(root, "train")
    except DataError:  # a copy of the test split alone is a fair thing to evaluate on
        return None
    return mean_spectrum(dataset, limit)


def mean_spectrum(dataset: Any, limit: int | None = None) -> NDArray[np.float64]:
    """(13,) mean reflectance of the targets of a dataset, one sample at a time.

    limit: how many samples to take, evenly over the dataset; None = all.
    """
    total, count = np.zeros(bands.N_S2), np.zeros(bands.N_S2)
    for i in evenly(len(dataset), limit):
        target = np.asarray(dataset[i].target, dtype=np.float64)
        total += np.nansum(target, axis=(1, 2))
        count += np.isfinite(target).sum(axis=(1, 2))
    if (count == 0).any():
        raise InputError("got targets without data in some band, expected values in each band")
    return np.asarray(total / count)


def evenly(n: int, limit: int | None) -> list[int]:
    """At most `limit` of the numbers 0..n−1, evenly spread.

    >>> evenly(10, 4), evenly(3, None)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if limit is not None and limit < 1:
        raise InputError(f"got a limit of {limit}, expected at least 1")
    if limit is None or limit >= n:
        return list(range(n))
    return [round(i) for i in np.linspace(0, n - 1, limit).tolist()]


class _Run:
    """One pass: every system on every batch."""

    def __init__(self, shown: str, systems: dict[str, Predictor]) -> None:
        self.shown = shown  # the system whose pictures are kept
        self.systems = systems
        self.tables = {name: _Tables() for name in systems}
        self.examples = Examples()
        self.notes: set[str] = set()
        self.images = 0

    def feed(self, part: SampleBatch) -> None:
        strata = [stratum(sample.cover) for sample in part.samples]
        self.images += len(part.samples)
        for name, predictor in self.systems.items():
            if part.batch.mask is None and name in (*COMPOSITES, FLAT_SCENE):
                self.notes.add("composites need masks: run `undercast data prepare`")
                continue
            with torch.inference_mode():
                output = predictor(part.batch)
            self.tables[name].feed(part, output, strata)
            if name == self.shown:
                self.examples.feed(part, output)

    def result(self, info: dict[str, Any]) -> Evaluation:
        if not self.images:
            raise InputError("got a dataset without any usable sample, expected at least one")
        results = {name: table.result() for name, table in self.tables.items() if table.strata}
        per_cover = results[self.shown]["per_cover"]
        facts = {
            "model": self.shown,
            "images": self.images,
            "images_per_cover": {name: int(row["images"]) for name, row in per_cover.items()},
            "notes": sorted(self.notes),
        }
        return Evaluation(info | facts, results, self.examples.result())


class _Tables:
    """The accumulators of one system. Strata share no image, so that their merger is everything."""

    def __init__(self) -> None:
        self.strata: dict[str, _Pair] = {}
        self.regions = {COVERED: _Pair(per_band=False), CLEAR: _Pair(per_band=False)}

    def feed(self, part: SampleBatch, output: Output, strata: list[str]) -> None:
        maps = error_maps(part.target, output.mean)
        every = scores(maps)
        for name in sorted(set(strata)):
            rows = torch.tensor([i for i, s in enumerate(strata) if s == name])
            pair = self.strata.setdefault(name, _Pair(per_band=True))
            pair.image.feed_scores(_rows(every, rows.to(part.target.device)))
            pair.feed_variance(part.target, output, rows=rows)
        if part.batch.mask is None:
            return
        covered = part.batch.mask.all(1)
        for name, where in ((COVERED, covered), (CLEAR, ~covered)):
            self.regions[name].image.feed_maps(maps, where)
            self.regions[name].feed_variance_where(part.target, output, where)

    def result(self) -> dict[str, Any]:
        total = _Pair(per_band=True)
        for pair in self.strata.values():
            total.merge(pair)
        pairs = {"all": total} | self.regions
        order = [name for name in (*STRATA, UNKNOWN_COVER) if name in self.strata]
        found: dict[str, Any] = {
            "image": {name: pair.image_row() for name, pair in pairs.items()},
            "per_band": total.image.per_band(),
            "per_cover": {name: self.strata[name].image_row() for name in order},
            "calibration": None,
        }
        if total.calibration is not None:
            curve, diagram = total.calibration.discard_curve(), total.calibration.reliability()
            found["calibration"] = {
                **{name: pair.calibration_row() for name, pair in pairs.items()},
                "per_band": total.calibration.per_band(),
                "per_cover": {name: self.strata[name].calibration_row() for name in order},
                "reliability": {k: v.tolist() for k, v in diagram._asdict().items()},
                "discard_curve": {k: v.tolist() for k, v in curve._asdict().items()},
            }
        return found


class _Pair:
    """Image metrics, and calibration metrics from the first variance on."""

    def __init__(self, per_band: bool) -> None:
        self.image = ImageAccumulator(bands.N_S2)
        self.calibration: CalibrationAccumulator | None = None
        self.per_band = per_band

    def feed_variance(self, target: Tensor, output: Output, rows: Any) -> None:
        if output.variance is None:
            return
        if self.calibration is None:
            self.calibration = CalibrationAccumulator(bands.N_S2, self.per_band)
        self.calibration.feed(target[rows], output.mean[rows], output.variance[rows])

    def feed_variance_where(self, target: Tensor, output: Output, where: Tensor) -> None:
        """The chosen pixels of each image as an image of one line: nothing else is computed."""
        if output.variance is None:
            return
        for i, chosen in enumerate(where):
            if bool(chosen.any()):
                target_line, mean, variance = (
                    x[i, :, chosen][None, :, None] for x in (target, output.mean, output.variance)
                )
                self.feed_variance(target_line, Output(mean, variance), rows=slice(None))

    def merge(self, other: _Pair) -> None:
        self.image.merge(other.image)
        if other.calibration is not None:
            if self.calibration is None:
                self.calibration = CalibrationAccumulator(bands.N_S2, self.per_band)
            self.calibration.merge(other.calibration)

    def image_row(self) -> dict[str, float]:
        return {"images": self.image.images} | self.image.result()

    def calibration_row(self) -> dict[str, float] | None:
        return None if self.calibration is None else self.calibration.result()


def _systems(
    model: Model, baselines: bool, train_spectrum: ArrayLike | None
) -> dict[str, Predictor]:
    systems: dict[str, Predictor] = {model.name: model}
    if not baselines:
        return systems
    composites: dict[str, Predictor] = {name: create(name).eval() for name in COMPOSITES}
    mosaic = composites["mosaic"]

    def flat_scene(batch: Batch) -> Output:
        image = mosaic(batch).mean
        spectrum = image.flatten(2).nanmedian(dim=2).values
        return Output(spectrum[:, :, None, None].expand_as(image))

    flats: dict[str, Predictor] = {FLAT_SCENE: flat_scene}
    if train_spectrum is not None:
        values = np.asarray(train_spectrum, dtype=np.float32)
        if values.shape != (bands.N_S2,) or not np.isfinite(values).all():
            raise InputError(
                f"got a spectrum of shape {values.shape}, expected ({bands.N_S2},) finite numbers"
            )

        def flat_train(batch: Batch) -> Output:
            b, _, c, h, w = batch.s2.shape
            return Output(batch.s2.new_tensor(values)[None, :, None, None].expand(b, c, h, w))

        flats = {FLAT_TRAIN: flat_train} | flats
    return systems | {n: p for n, p in composites.items() if n not in systems} | flats


def sample_loader(dataset: Any, batch_size: int, workers: int) -> Iterable[SampleBatch]:
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=False, num_workers=workers, collate_fn=collate
    )


def observed(part: SampleBatch, clear_targets_only: bool) -> SampleBatch | None:
    """Samples with an observation, targets NaN where no date has one; None if there is none.

    Pixels that were never observed count for no system, since composites cannot fill them.
    """
    some = part.batch.valid.any(1)
    if not bool(some.any()):
        return None
    batch = Batch(*(None if x is None else x[some] for x in part.batch))  # type: ignore[arg-type]
    counted = batch.s2.isfinite().all(2).any(1)
    mask = None if part.target_mask is None else part.target_mask[some]
    if clear_targets_only:
        if mask is None:
            raise InputError("got targets without masks, expected them: run undercast data prepare")
        counted = counted & ~mask
    target = part.target[some].where(counted[:, None], torch.nan)
    names = tuple(s for s, keep in zip(part.samples, some.tolist(), strict=True) if keep)
    return SampleBatch(batch, target, mask, names)


def stratum(cover: float) -> str:
    """The stratum of a mean cloud cover.

    >>> stratum(0.05), stratum(0.1), stratum(1.0), stratum(math.nan)
    ('cover_0_10', 'cover_10_50', 'cover_90_100', 'cover_unknown')
    """
    for name, (low, high) in STRATA.items():
        if low <= cover < high:
            return name
    return UNKNOWN_COVER


def _rows(found: Scores, rows: Tensor) -> Scores:
    return Scores(
        {name: values[rows] for name, values in found.image.items()},
        {name: values[rows] for name, values in found.band.items()},
    )


def plain(value: Any) -> Any:
    """Nested results with None for every number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
