"""SAR2OPT (Bermudez et al., ISPRS Annals 2018): pix2pix from radar alone to the optical image."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from undercast import bands
from undercast.models.pix2pix import ConditionalGAN, UNet, check_unet, signed_s1
from undercast.models.system import Batch


@dataclass(frozen=True)
class Sar2OptConfig:
    """pix2pix's U-Net for 256² pixels."""

    width: int = 64
    levels: int = 8

    def __post_init__(self) -> None:
        check_unet(self.width, self.levels)


class Sar2Opt(ConditionalGAN):
    """VV and VH to 13 bands; it never sees the cloudy image. 54.4 M parameters.

    Of a time series it takes the radar image of the least cloudy date.
    """

    title = "SAR2OPT (Bermudez 2018)"
    Config = Sar2OptConfig

    def __init__(self, config: Sar2OptConfig) -> None:
        super().__init__(config)
        self.in_channels = bands.N_S1
        self.generator = UNet(self.in_channels, bands.N_S2, config.width, config.levels)

    def condition(self, batch: Batch) -> Tensor:
        return signed_s1(batch.s1[:, 0])
