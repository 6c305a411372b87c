"""SAR-Opt-cGAN (Grohnfeldt, Schmitt & Zhu, IGARSS 2018): pix2pix on radar and cloudy image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undercast import bands
from undercast.models.pix2pix import ConditionalGAN, UNet, check_unet, signed_s1, signed_s2
from undercast.models.system import Batch


@dataclass(frozen=True)
class SarOptCGANConfig:
    """pix2pix's U-Net for 256² pixels."""

    width: int = 64
    levels: int = 8

    def __post_init__(self) -> None:
        check_unet(self.width, self.levels)


class SarOptCGAN(ConditionalGAN):
    """S1 and 13 cloudy bands to 13 clear ones; 54.4 M parameters."""

    title = "SAR-Opt-cGAN (Grohnfeldt 2018)"
    Config = SarOptCGANConfig

    def __init__(self, config: SarOptCGANConfig) -> None:
        super().__init__(config)
        self.in_channels = bands.N_S1 + bands.N_S2
        self.generator = UNet(self.in_channels, bands.N_S2, config.width, config.levels)

    def condition(self, batch: Batch) -> Tensor:
        return torch.cat((signed_s1(batch.s1[:, 0]), signed_s2(batch.s2[:, 0])), dim=1)
