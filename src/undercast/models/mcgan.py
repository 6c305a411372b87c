"""McGAN (Enomoto et al., CVPRW 2017): a multispectral conditional GAN on one optical image."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from undercast import bands
from undercast.models.mono import least_cloudy_date
from undercast.models.pix2pix import (
    ConditionalGAN,
    PairDiscriminator,
    UNet,
    check_unet,
    signed_image,
    signed_s2,
)
from undercast.models.system import Batch


@dataclass(frozen=True)
class McGANConfig:
    """The published U-Net: one convolution at full resolution and seven halvings."""

    width: int = 64
    levels: int = 8

    def __post_init__(self) -> None:
        check_unet(self.width, self.levels)


class McGAN(ConditionalGAN):
    """13 cloudy bands to 13 clear ones, without radar; 54.4 M parameters."""

    title = "McGAN (Enomoto 2017)"
    uses_s1 = False
    Config = McGANConfig

    def __init__(self, config: McGANConfig) -> None:
        super().__init__(config)
        self.in_channels = bands.N_S2
        self.generator = UNet(bands.N_S2, bands.N_S2, config.width, config.levels, first="keep")

    def condition(self, batch: Batch) -> Tensor:
        return signed_s2(batch.s2[:, 0])

    def adversary(self) -> nn.Module:
        return PairDiscriminator(bands.N_S2, bands.N_S2, self.config.width)

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        condition = self.condition(least_cloudy_date(batch))
        logits: Tensor = adversary(condition, signed_image(image))
        return logits
