"""What a system costs: parameters, and multiply-adds of one forward."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from undercast import bands
from undercast.models.ensemble import Ensemble
from undercast.models.system import Batch, System


def parameters(system: System) -> int:
    """Trainable numbers.

    >>> from undercast.models import create
    >>> parameters(create("uncrtaints", mono=True).network)
    520218
    """
    return sum(p.numel() for p in system.parameters())


def gmac(system: System, size: int = 256, dates: int | None = None) -> float:
    """10⁹ multiply-adds of convolutions and matrix products for one stack of size² pixels.

    The paper's "GFLOPS" are multiply-adds too; its counter adds normalisations (about 6 %).
    Computed on shapes alone: nothing is allocated and nothing runs.
    """
    if not system.learns:
        return 0.0
    if isinstance(system, Ensemble):
        return sum(gmac(member.network, size, dates) for member in system.models)
    n_dates = dates or (1 if system.temporal == "mono" else 3)
    device = torch.device("meta")
    batch = Batch(
        s2=torch.empty(1, n_dates, bands.N_S2, size, size, device=device),
        s1=torch.empty(1, n_dates, bands.N_S1, size, size, device=device),
        days=torch.empty(1, n_dates, device=device),
        valid=torch.ones(1, n_dates, dtype=torch.bool, device=device),
        mask=torch.zeros(1, n_dates, size, size, dtype=torch.bool, device=device),
    )
    with device:
        twin = type(system)(system.config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(batch)
    return float(counter.get_total_flops()) / 2e9
