"""Ensembles: the mixture of several models, with the law of total variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from undercast.errors import CheckpointError
from undercast.gaussian import mixture_moments
from undercast.models.system import Batch, Model, Output, System


@dataclass(frozen=True)
class EnsembleConfig:
    """The systems of the members, for the record."""

    members: tuple[str, ...]


class Ensemble(System):
    """The equal mixture of its members, each calibrated by itself.

    mean = average of the means; aleatoric = average of the variances; epistemic = variance of the
    means; variance = their sum (paper, Sec. 4.5), in two passes and so never below the aleatoric.
    Members without a variance give a mean and an epistemic part only.
    """

    title = "ensemble"
    Config = EnsembleConfig

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__(EnsembleConfig(tuple(member.name for member in members)))
        if not members:
            raise CheckpointError("got an empty list of checkpoints, expected at least one member")
        if len({member.network.gives_variance for member in members}) > 1:
            raise CheckpointError(
                "got members with and without variance, expected all of one kind: "
                f"{', '.join(self.config.members)}"
            )
        self.members = nn.ModuleList(members)

    @property
    def uses_s1(self) -> bool:  # type: ignore[override]
        return any(member.network.uses_s1 for member in self.models)

    @property
    def needs_mask(self) -> bool:  # type: ignore[override]
        return any(member.network.needs_mask for member in self.models)

    @property
    def gives_variance(self) -> bool:
        return all(member.network.gives_variance for member in self.models)

    @property
    def models(self) -> list[Model]:
        """The members, typed."""
        return list(self.members)  # type: ignore[arg-type]

    def forward(self, batch: Batch) -> Output:
        outputs = [member(batch) for member in self.models]
        means = torch.stack([output.mean for output in outputs])
        if not self.gives_variance:
            moments = mixture_moments(means, torch.zeros_like(means))
            return Output(moments.mean, epistemic=moments.between)
        moments = mixture_moments(means, torch.stack([output.variance for output in outputs]))
        return Output(moments.mean, moments.variance, moments.within, moments.between)


def ensemble_of(members: Sequence[Model]) -> Model:
    """One model out of several; radar is required where any member requires it."""
    required = any(member.sar_required for member in members)
    return Model(
        "ensemble",
        Ensemble(members),
        provenance={
            "sar_dropout": not required,
            "members": [member.provenance for member in members],
        },
    )
