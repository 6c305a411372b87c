"""Batches for training whose order is a pure function of (seed, epoch, step): resuming is exact.

Every epoch draws its own permutation; step s of a group of ranks takes the s-th slice of it, and
rank r the r-th part of that slice. So a resumed run sees what an undisturbed one would have seen,
and n ranks see together what one process with an n times larger batch sees.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from undercast.datasets import collate, open_dataset
from undercast.errors import ConfigError, DataError
from undercast.models.mono import least_cloudy_date
from undercast.models.system import Batch, System
from undercast.training.config import TrainConfig
from undercast.training.group import Group

Dataset = TorchDataset[Any]


def open_splits(config: TrainConfig, network: System) -> tuple[Dataset, Dataset]:
    """The training and validation splits that a config describes."""
    if config.data is None:
        raise ConfigError("got no dataset, expected its folder: pass --data DIR")
    shared: dict[str, Any] = {
        "layout": config.layout,
        "t": config.t,
        "split_rule": config.split_rule,
        "region": config.region,
        "crop": config.crop,
        "sar": network.uses_s1,
    }
    training = open_dataset(
        config.data,
        "train",
        protocol=config.protocol,
        seed=config.seed,
        augment=config.augment,
        sar_dropout=config.sar_dropout,
        random_t=config.random_t,
        **shared,
    )
    # The members of an ensemble validate on the same samples.
    return training, open_dataset(config.data, "val", protocol=config.val_protocol, **shared)


def data_hash(dataset: Dataset) -> str | None:
    """A hash of the images a dataset is made of, by their names; None for data not from files."""
    patches = getattr(dataset, "patches", None)
    if patches is None:
        return None
    paths = sorted(image.path for patch in patches for image in patch.optical)
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()


@dataclass(frozen=True)
class Item:
    """One step's batch on its device."""

    batch: Batch
    target: Tensor  # (b 13 h w) reflectance, NaN = no truth
    names: str  # of its samples, for messages

    @property
    def size(self) -> int:
        """Samples."""
        return len(self.target)


class Batches:
    """The steps of each epoch for one rank."""

    def __init__(self, config: TrainConfig, dataset: Dataset, network: System, group: Group):
        assert config.batch_size is not None
        self._config, self._dataset, self._group = config, dataset, group
        self._mono = network.temporal == "mono"
        self._chosen = evenly(len(dataset), config.max_samples)  # type: ignore[arg-type]
        self.together = config.batch_size * group.world  # samples of a step, all ranks
        if len(self._chosen) < self.together:
            raise ConfigError(
                f"got {len(self._chosen)} training samples for steps of {self.together} "
                f"({config.batch_size} × {group.world} processes): lower batch_size or add data"
            )
        # An incomplete last batch is left out: another permutation leaves out others.
        self.steps = config.steps_per_epoch or len(self._chosen) // self.together

    def of_epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[int, Item]]:
        """The steps of an epoch from `start` on, numbered."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        order = self._chosen[
            epoch_order(len(self._chosen), self.steps * self.together, self._config.seed, epoch)
        ]
        slices = order.reshape(self.steps, self._group.world, -1)[start:, self._group.rank]
        found = loader(self._dataset, slices.tolist(), self._config.workers)
        for step, raw in enumerate(found, start):
            yield step, self._item(raw)

    def _item(self, raw: Any) -> Item:
        longest = self._config.random_t[1] if self._config.random_t else 0
        # One shape for every step: torch.compile translates the network once.
        batch = padded(raw.batch, longest) if self._config.compile else raw.batch
        return item(raw._replace(batch=batch), self._config.nodata, self._mono, self._group.device)


def validation_items(
    config: TrainConfig, dataset: Dataset, network: System, group: Group
) -> Iterator[Item]:
    """This rank's share of the validation samples, in a fixed order."""
    assert config.batch_size is not None
    mine = evenly(len(dataset), config.max_val_samples)[group.rank :: group.world]  # type: ignore[arg-type]
    slices = [mine[i : i + config.batch_size] for i in range(0, len(mine), config.batch_size)]
    for raw in loader(dataset, [s.tolist() for s in slices], config.workers):
        yield item(raw, config.nodata, network.temporal == "mono", group.device)


def item(raw: Any, nodata: str, mono: bool, device: torch.device) -> Item:
    """A collated batch, checked and on its device; mono-temporal systems get one date."""
    names = ", ".join(f"{s.roi} patch {s.patch}" for s in raw.samples[:4])
    check_target(raw.target, nodata, names)
    batch = raw.batch.to(device)
    return Item(least_cloudy_date(batch) if mono else batch, raw.target.to(device), names)


def check_target(target: Tensor, nodata: str, names: str) -> None:
    """Stops at truth that is no number, unless pixels without truth have been declared."""
    if bool(target.isfinite().all()):
        return
    gaps = target.isnan()
    if bool(target.isinf().any()):
        what = "infinite values in the target"
    elif not bool((gaps.any(dim=1) == gaps.all(dim=1)).all()):
        what = "NaN in some bands of a target pixel but not in all"
    elif bool(gaps.flatten(1).all(dim=1).any()):
        what = "a target that is NaN everywhere"
    elif nodata == "error":
        what = "NaN in the target"
    else:
        return
    remedy = "" if nodata == "skip" else ", or set `nodata: skip` if these pixels have no data"
    raise DataError(f"got {what} of {names}, expected reflectance: repair the file{remedy}")


def loader(dataset: Dataset, slices: list[list[int]], workers: int) -> DataLoader[Any]:
    """Batches of the samples in each slice; draws nothing from the global random state."""
    return DataLoader(
        dataset,
        batch_sampler=slices,
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(0),
    )


def epoch_order(n: int, count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """`count` of n indices in random order; all of them occur before any returns.

    >>> sorted(epoch_order(3, 6, seed=0, epoch=1).tolist())
    [0, 0, 1, 1, 2, 2]
    """
    rng = np.random.default_rng((seed, epoch))
    passes = -(-count // n)
    return np.concatenate([rng.permutation(n) for _ in range(passes)])[:count]


def evenly(n: int, limit: int | None) -> NDArray[np.int64]:
    """At most `limit` of n indices, evenly spread.

    >>> evenly(10, 4).tolist(), evenly(3, None).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if limit is None or limit >= n:
        return np.arange(n)
    return np.linspace(0, n - 1, limit).round().astype(np.int64)


def padded(batch: Batch, length: int) -> Batch:
    """The batch with invalid dates added up to `length`."""
    missing = length - batch.s2.shape[1]
    if missing <= 0:
        return batch

    def grown(x: Tensor | None, fill: Any) -> Any:
        if x is None:
            return None
        return torch.cat((x, x.new_full((len(x), missing, *x.shape[2:]), fill)), dim=1)

    nan = float("nan")
    return Batch(
        grown(batch.s2, nan),
        grown(batch.s1, nan),
        grown(batch.days, 0),
        grown(batch.valid, False),
        grown(batch.mask, True),
    )


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Sets all random states from the position: nothing random has to be stored to resume."""
    words = np.random.SeedSequence((seed, epoch, step, rank)).generate_state(3)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))  # noqa: NPY002 (the state that third-party code may draw from)
    random.seed(int(words[2]))
