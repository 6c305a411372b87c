"""SEN12MS-CR: one cloudy image of a place as input, its clear image as target, no dates."""

from __future__ import annotations

import numpy as np

from undercast.datasets.index import Patch
from undercast.datasets.patches import PatchDataset, Selection


class SEN12MSCR(PatchDataset):
    """Pairs of a cloudy and a clear image of one season, with radar."""

    def select(self, patch: Patch, rng: np.random.Generator) -> Selection:
        """The cloudy image as the one input date; every protocol is the same."""
        assert patch.clear is not None  # the index pairs no patch of this layout without one
        return Selection(patch.observations, patch.clear, None)
