"""What a radar echo tells of land that no optical date shows.

Woods scatter more across polarisations (VH) than fields and are darker in red and in the shortwave
infrared; bare and built-up ground scatters more within one (VV) and is brighter. A linear relation
fitted to a few training images holds on others, if loosely; a network trained on the radar of so
few did not find it.

    S1 of all dates ─ mean power over cells ─ dB above usual ─ slopes ─ reflectance above usual
"""

from __future__ import annotations

import torch
from torch import Tensor

from undercast.models.cells import to_cells, to_pixels
from undercast.models.system import Batch

# VV and VH in dB of usual land, and reflectance per dB above that, at the top of the atmosphere, of
# pixels within the training images of land that have both (recipes/default/slopes.py).
USUAL_ECHO = (-10.49, -17.32)
SLOPES = (
    (0.00155, 0.00220, 0.00243, 0.00411, 0.00312, -0.00158, -0.00387, -0.00402, -0.00447, -0.00089,
     0.00001, 0.00502, 0.00652),
    (-0.00267, -0.00394, -0.00459, -0.00797, -0.00624, 0.00099, 0.00291, 0.00299, 0.00331, 0.00054,
     -0.00002, -0.01131, -0.01266),
)  # fmt: skip
FARTHEST = 5.0  # dB: echoes farther from usual ones tell no more than this
TINY = 1e-9


def colour_of_echo(batch: Batch) -> Tensor:
    """(b 13 h w) by how much land of such an echo is brighter than usual land; 0 without echoes."""
    height, width = batch.s1.shape[-2:]
    levels = echo_levels(batch.s1)
    usual, slopes = (levels.new_tensor(x) for x in (USUAL_ECHO, SLOPES))
    above = (levels - usual[:, None, None]).clamp(-FARTHEST, FARTHEST).nan_to_num()
    return to_pixels(torch.einsum("pc,bphw->bchw", slopes, above), height, width)


def echo_levels(s1: Tensor) -> Tensor:
    """(b t 2 h w) dB → (b 2 h' w') dB of the mean power in each cell, over dates that have both
    polarisations there; NaN where none has."""
    both = s1.isfinite().all(dim=2, keepdim=True)
    power = torch.where(both, 10 ** (s1 / 10), 0.0).sum(dim=1)
    sums = to_cells(torch.cat((power, both.sum(dim=1).to(power.dtype)), dim=1))
    count = sums[:, 2:]
    mean = (sums[:, :2] / count.clamp_min(TINY)).clamp_min(TINY)
    return torch.where(count > 0, 10 * torch.log10(mean), torch.nan)
