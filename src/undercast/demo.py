"""The whole flow on a few simulated scenes: cloudy dates in, cloud-free images beside the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch.utils.data import Dataset

from undercast.checkpoint import load_model
from undercast.datasets.samples import Provenance, Sample
from undercast.errors import InputError
from undercast.evaluate import Evaluation, evaluate
from undercast.models.system import Model
from undercast.pipeline import predict
from undercast.quicklook import Rgb, colour_map, natural_gain, panel, rgb
from undercast.simulate import simulate_series
from undercast.types import Estimate, Tile

DATES = ("2018-05-28", "2018-06-12", "2018-06-22", "2018-07-07")
TARGET = 2  # this date is the truth, the others are the inputs
BIOMES = ("cropland", "pasture", "forest", "city", "coast", "dryland")
SIGMA_SHOWN, ERROR_SHOWN = 0.1, 0.1  # reflectance at the bright end of the colour map


@dataclass(frozen=True, eq=False)
class Demo:
    """Figures of every system over the scenes, and a picture of the first one."""

    evaluation: Evaluation
    picture: Rgb


class DemoScenes(Dataset[Sample]):
    """Simulated scenes, each of another kind of land; made when they are asked for."""

    def __init__(self, scenes: int, seed: int = 1, size: int = 256) -> None:
        if scenes < 1:
            raise InputError(f"got {scenes} scenes, expected at least 1")
        self._scenes, self._seed, self._size = scenes, seed, size

    def __len__(self) -> int:
        return self._scenes

    def __getitem__(self, number: int) -> Sample:
        if not 0 <= number < self._scenes:
            raise IndexError(number)
        biome = BIOMES[number % len(BIOMES)]
        series = simulate_series(self._seed + number, self._size, DATES, biome=biome)
        inputs = [date for date in range(len(DATES)) if date != TARGET]
        return Sample(
            stack=series.stack.select(inputs),
            target=np.clip(series.clear[TARGET], 0, 1),
            target_mask=None,
            target_date=series.stack.dates[TARGET],
            provenance=Provenance(
                "demo", biome, number, "test", tuple(inputs), TARGET,
                float(series.cover[inputs].mean()), 0.0, (), (), "",
                Tile(0, 0, self._size, self._size),
            ),
        )  # fmt: skip


def run_demo(model: str, *, scenes: int, seed: int = 1, size: int = 256) -> Demo:
    """The model beside composites and flat images on simulated scenes; writes nothing."""
    loaded = load_model(model)
    dataset = DemoScenes(scenes, seed, size)
    found = evaluate(
        loaded,
        dataset,
        batch_size=1,
        train_spectrum=loaded.provenance.get("mean_spectrum"),
        info={"dataset": "simulated scenes", "scenes": scenes, "seed": seed, "size": size},
    )
    first = dataset[0]
    return Demo(_called(found, loaded, model), picture(first, model, predict(loaded, first.stack)))


def _called(found: Evaluation, loaded: Model, name: str) -> Evaluation:
    """The evaluation with the model under the name that it was asked for."""
    systems = {name if key == loaded.name else key: row for key, row in found.systems.items()}
    return replace(found, info=found.info | {"model": name}, systems=systems)


def picture(sample: Sample, name: str, estimate: Estimate) -> Rgb:
    """Inputs above; result, truth, sigma and error below."""
    gain = natural_gain(sample.target)
    inputs = [
        (f"input {date}", rgb(image, gain))
        for date, image in zip(sample.stack.dates, sample.stack.s2, strict=True)
    ]
    error = np.abs(estimate.mean - sample.target).mean(axis=0)
    results = [(name, rgb(estimate.mean, gain)), ("truth", rgb(sample.target, gain))]
    if estimate.sigma is not None:
        shown = colour_map(estimate.sigma.mean(axis=0), 0, SIGMA_SHOWN)
        results.append((f"sigma 0-{SIGMA_SHOWN}", shown))
    results.append((f"error 0-{ERROR_SHOWN}", colour_map(error, 0, ERROR_SHOWN)))
    return panel([inputs, results])
