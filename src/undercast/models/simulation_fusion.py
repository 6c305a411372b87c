"""Simulation-Fusion GAN (Gao et al., Remote Sensing 2020): simulate an image from radar, then fuse.

S1 ─ G1 ─ simulated image;  S1, cloudy image, simulated image ─ G2 ─ clear image
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from undercast import bands
from undercast.errors import ConfigError, InputError
from undercast.models.mono import MonoSystem, least_cloudy_date
from undercast.models.pix2pix import (
    RECIPE,
    PatchGAN,
    ResNetGenerator,
    reflectance,
    signed_image,
    signed_s1,
    signed_s2,
)
from undercast.models.system import Batch, Criterion, LossParts, Output

GLOBAL_WEIGHT = LOCAL_WEIGHT = 10.0  # of the L1 on all pixels and on the unusable ones


@dataclass(frozen=True)
class SimulationFusionConfig:
    """Two ResNet generators of the published size; `jitter` is our choice, none is published."""

    width: int = 64
    blocks: int = 9
    jitter: float = 0.2  # relative spread of the re-coloured simulation's mean and contrast

    def __post_init__(self) -> None:
        if self.width < 1 or self.blocks < 0 or self.jitter < 0:
            raise ConfigError(
                f"got width {self.width}, blocks {self.blocks}, jitter {self.jitter}, "
                "expected width ≥ 1, blocks ≥ 0, jitter ≥ 0"
            )


class SimulationFusionGAN(MonoSystem):
    """S1 and 13 cloudy bands to 13 clear ones; two generators of 11.4 M parameters."""

    title = "Simulation-Fusion GAN (Gao 2020)"
    # Published: 1e-4·GAN + 10·L1 + … on values in −1..1; the L1 of reflectance is half as large.
    recipe = replace(RECIPE, adversarial_weight=5e-5)
    Config = SimulationFusionConfig

    def __init__(self, config: SimulationFusionConfig) -> None:
        super().__init__(config)
        n_in = bands.N_S1 + 2 * bands.N_S2
        self.simulate = ResNetGenerator(bands.N_S1, bands.N_S2, config.width, config.blocks)
        self.fuse = ResNetGenerator(n_in, bands.N_S2, config.width, config.blocks)

    def restore(self, batch: Batch) -> Output:
        return Output(self._fused(batch, self.simulate(signed_s1(batch.s1[:, 0]))))

    def training_loss(self, batch: Batch, target: Tensor, criterion: Criterion) -> LossParts:
        """Both stages at once; no gradient of the fusion reaches the simulation.

        The simulation enters the fusion re-coloured, so that the fusion takes its structure from it
        and its colours from the cloudy image.
        """
        batch = least_cloudy_date(batch)
        if batch.mask is None:
            raise InputError(
                "got a batch without cloud masks, which the simulation-fusion GAN's loss needs: "
                "compute them with `undercast data prepare`"
            )
        simulated = self.simulate(signed_s1(batch.s1[:, 0]))
        mean = self._fused(batch, recoloured(simulated.detach(), self.config.jitter))
        unusable = batch.mask[:, :1] | batch.s2[:, 0].isnan()
        local = ((mean - target).nan_to_num(0.0).abs() * unusable).mean()
        loss = criterion(Output(reflectance(simulated)), target, batch)
        loss = loss + GLOBAL_WEIGHT * criterion(Output(mean), target, batch)
        return LossParts(loss + LOCAL_WEIGHT * local, Output(mean))

    def adversary(self) -> nn.Module:
        return PatchGAN(bands.N_S1 + bands.N_S2, self.config.width)

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        radar = signed_s1(least_cloudy_date(batch).s1[:, 0])
        logits: Tensor = adversary(torch.cat((radar, signed_image(image)), dim=1))
        return logits

    def _fused(self, batch: Batch, simulated: Tensor) -> Tensor:
        inputs = (signed_s1(batch.s1[:, 0]), signed_s2(batch.s2[:, 0]), simulated)
        return reflectance(self.fuse(torch.cat(inputs, dim=1)))


def recoloured(image: Tensor, jitter: float) -> Tensor:
    """Images (b c h w) in −1..1 with each band's mean and contrast changed, bands shuffled."""
    b, c = image.shape[:2]
    mean = image.mean(dim=(2, 3), keepdim=True)
    contrast = 1 + jitter * torch.randn(b, c, 1, 1, device=image.device)
    offset = jitter * torch.randn(b, c, 1, 1, device=image.device)
    changed = ((image - mean) * contrast + mean + offset).clip(-1.0, 1.0)
    order = torch.rand(b, c, device=image.device).argsort(dim=1)
    row = torch.arange(b, device=image.device)[:, None]
    return changed[row, order]
