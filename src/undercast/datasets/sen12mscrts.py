"""SEN12MS-CR-TS: thirty dates of a place; a protocol says which is target, which are inputs."""

from __future__ import annotations

import numpy as np

from undercast.datasets.index import Patch
from undercast.datasets.patches import PatchDataset, Selection
from undercast.datasets.sampling import choose
from undercast.errors import DataError


class SEN12MSCRTS(PatchDataset):
    """Time series with a clear date as target."""

    def select(self, patch: Patch, rng: np.random.Generator) -> Selection:
        """Target and inputs by cloud cover and date, under the dataset's protocol."""
        if self.masks is None:
            raise DataError(f"{self.root} is not prepared: run undercast data prepare {self.root}")
        length = self.draw_length(rng)
        cover = [self.masks.cover(observation.s2.path) for observation in patch.observations]
        dates = [observation.s2.date for observation in patch.observations]
        choice = choose(self.options.protocol, cover, dates, length, rng)
        target = patch.observations[choice.target]
        inputs = tuple(patch.observations[i] for i in choice.inputs)
        return Selection(inputs, target.s2, target.number)
