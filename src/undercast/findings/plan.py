"""What is trained for the findings, on what, and how long: the same for every variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undercast.errors import ConfigError
from undercast.experiments import Setup, row_config, scaled, simulated, simulated_data
from undercast.papertables import SMALL_DATA, TABLES
from undercast.training.config import TrainConfig


@dataclass(frozen=True)
class Variant:
    """A row of the paper with what is different."""

    config: str  # a file of configs/paper
    changes: Mapping[str, Any]
    meaning: str


VARIANTS = {
    "isotropic": Variant("table5-isotropic", {}, "one variance for all bands"),
    "diagonal": Variant("table5-diagonal", {}, "a variance for each band, with radar"),
    "legacy": Variant(
        "table5-diagonal", {"loss": "nll_legacy"}, "diagonal, trained by the released likelihood"
    ),
    "no-sar": Variant("table5-ensemble-no-sar", {"members": 1}, "diagonal, without radar"),
}
# The rest as in the small scale of the tables. A quarter of the width takes four times the rate.
BUDGET: dict[str, Any] = {"epochs": 10, "steps_per_epoch": 50, "lr": 4e-3, "decay": 0.68}
WIDTH = {"d_m": 32, "attention_grid": 8}  # a cell of the grid is 8 pixels of a crop of 64
LENGTHS = (2, 3, 4, 5)
# Other regions than those of training, and enough of them: the unit of the noise is the region.
TEST_DATA: dict[str, Any] = {
    **SMALL_DATA, "rois": 40, "patches": 2, "size": 64, "seed": 1, "layout": "sen12mscrts"
}  # fmt: skip
TEST_NAME = "data-findings-test"


@dataclass(frozen=True)
class Plan:
    """Where everything lies, which seeds, which test images."""

    setup: Setup
    test: Path
    split: str
    seeds: tuple[int, ...] = (0, 1, 2)

    def config(self, variant: str, seed: int, members: int = 1) -> TrainConfig:
        """The settings of a run, or of an ensemble of the seeds `seed`, `seed` + 1, …"""
        chosen = VARIANTS[variant]
        published = replace(row_config(chosen.config), **chosen.changes)
        small = scaled(published, replace(self.setup, seed=seed))
        model = {**small.model, **WIDTH}
        return replace(small, **BUDGET, model=model, members=members).resolved()


def make_plan(setup: Setup, data_given: bool, seeds: Sequence[int]) -> Plan:
    """The plan for simulated data, whose test images are of their own, or for a given dataset."""
    if data_given:
        return Plan(setup, setup.data, "test", tuple(seeds))
    return Plan(setup, simulated(setup.out, TEST_NAME, TEST_DATA), "all", tuple(seeds))


def check(scale: str, seeds: Sequence[int], whole: bool) -> None:
    """Refuses what cannot be run, before any work. whole: all sections, which compare seeds."""
    if scale != "small":
        raise ConfigError(
            "got the scale paper, expected small: for the paper's own runs take table5, table6 "
            "and discard"
        )
    fewest = 2 if whole else 1
    if len(seeds) < fewest or min(seeds) < 0:
        raise ConfigError(
            f"got the seeds {list(seeds)}, expected at least {fewest}, numbers from 0: "
            "intervals between seeds need several"
        )


def training_data(out: Path) -> Path:
    """The simulated dataset of the tables, to train and validate on."""
    return simulated_data(TABLES["table5"], out)


def check_variants(names: Sequence[str] | None) -> list[str]:
    """The chosen variants in their order; None = all."""
    unknown = [name for name in names or () if name not in VARIANTS]
    if unknown:
        raise ConfigError(f"got rows {', '.join(unknown)}, expected some of {', '.join(VARIANTS)}")
    return [name for name in VARIANTS if not names or name in names]
