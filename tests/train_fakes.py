"""Tiny in-memory data for tests of training; as a script, one training run in its own process.

python train_fakes.py '{"out": "run", "epochs": 2}' ['{"kill_at": [1, 3]}']
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undercast import bands
from undercast.datasets import Provenance, Sample
from undercast.models import registry
from undercast.models.system import Batch, Output, Recipe, System
from undercast.types import Stack, Tile

TINY = {"d_m": 16, "heads": 4, "n_d": 1, "attention_grid": 8}


class FakeDataset(torch.utils.data.Dataset[Sample]):
    """A noisy flat image on each date; the target is the image without the noise.

    nan_at: the sample whose target has a gap. kill_at: (epoch, n-th read) at which the process
    gets SIGKILL; stop_at: the same with a KeyboardInterrupt.
    """

    def __init__(
        self,
        n: int,
        seed: int = 0,
        t: int = 3,
        size: int = 16,
        nan_at: int | None = None,
        kill_at: tuple[int, int] | None = None,
        stop_at: tuple[int, int] | None = None,
    ) -> None:
        self.n, self.seed, self.t, self.size = n, seed, t, size
        self.nan_at, self.kill_at, self.stop_at = nan_at, kill_at, stop_at
        self.epoch, self.reads = 0, 0

    def __len__(self) -> int:
        return self.n

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.reads = epoch, 0

    def __getitem__(self, i: int) -> Sample:
        here = (self.epoch, self.reads)
        self.reads += 1
        if self.kill_at is not None and here == tuple(self.kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        if here == self.stop_at:
            raise KeyboardInterrupt
        rng = np.random.default_rng((self.seed, self.epoch, i))
        shape = (self.size, self.size)
        target = 0.05 + 0.3 * rng.random((bands.N_S2, 1, 1)) + 0.02 * rng.random((13, *shape))
        s2 = target + 0.05 * rng.standard_normal((self.t, bands.N_S2, *shape))
        if i == self.nan_at:
            target[:, 0, 0] = np.nan
        mask = np.zeros((self.t, *shape), dtype=bool)
        mask[0] = True
        stack = Stack(
            s2,
            [f"2018-06-{day + 1:02d}" for day in range(self.t)],
            s1=-10 + rng.random((self.t, bands.N_S1, *shape)),
            mask=mask,
        )
        return Sample(stack, target.astype(np.float32), None, np.datetime64("2018-06-10"), at(i))


def at(i: int) -> Provenance:
    return Provenance("fake", "1", i, "train", (0,), None, 0.5, 0.0, (), (), "", Tile(0, 0, 16, 16))


def splits(**options: Any) -> tuple[FakeDataset, FakeDataset]:
    return FakeDataset(12, **options), FakeDataset(4, seed=1)


@dataclass(frozen=True)
class GanConfig:
    width: int = 8


class FakeGan(System):
    """The smallest system with an adversary; batch norm in both."""

    title = "fake"
    recipe = Recipe(loss="l1", adversarial_weight=0.1, gan="lsgan", batch_size=2, epochs=2)
    Config = GanConfig

    def __init__(self, config: GanConfig) -> None:
        super().__init__(config)
        self.net = nn.Sequential(nn.Conv2d(13, config.width, 1), nn.BatchNorm2d(config.width))
        self.head = nn.Conv2d(config.width, 13, 1)

    def forward(self, batch: Batch) -> Output:
        return Output(self.head(self.net(batch.s2.nan_to_num().mean(dim=1))))

    def adversary(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(26, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        found: Tensor = adversary(torch.cat((batch.s2[:, 0].nan_to_num(), image), dim=1))
        return found


def register_gan() -> None:
    module = ModuleType("undercast.models.fake_gan")
    module.FakeGan = FakeGan  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    registry._SYSTEMS["fake-gan"] = "fake_gan:FakeGan"


def main() -> None:
    from undercast.train import TrainConfig, train

    torch.set_num_threads(1)
    register_gan()
    settings = json.loads(sys.argv[1])
    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    if settings.get("system") is None:
        settings["model"] = {**TINY, **settings.get("model", {})}
    train(TrainConfig(progress=False, device="cpu", **settings), splits(**options))


if __name__ == "__main__":
    main()
