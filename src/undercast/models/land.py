"""Networks that end in a reflectance start from that of land."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from undercast import bands

GAIN = 0.1  # of the head's first weights


def start_at_land(head: nn.Conv2d, activation: Literal["sigmoid", "linear"], scale: float) -> None:
    """Has a head whose first channels are the bands give an estimate near the spectrum of land.

    A sigmoid of 0 is a reflectance of 0.5. The likelihood first explains that error by a variance
    that is far too large, and then spends hundreds of steps on coming back.

    >>> head = nn.Conv2d(8, bands.N_S2, 1)
    >>> start_at_land(head, "sigmoid", 10.0)
    >>> [round(x, 2) for x in head.bias.sigmoid()[:3].tolist()]
    [0.14, 0.12, 0.11]
    """
    land = torch.tensor(bands.LAND)
    assert head.bias is not None
    with torch.no_grad():
        head.weight.mul_(GAIN)
        head.bias.zero_()
        head.bias[: bands.N_S2] = scale * land if activation == "linear" else land.logit()
