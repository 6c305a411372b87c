"""STGAN (Sarukkai et al., WACV 2020), ResNet generator: three dates, looked at in pairs.

stem, date by date ─ each of the 3 pairs through one branch ─ the 3 results joined ─ image
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from undercast import bands
from undercast.errors import ConfigError
from undercast.models.mono import choose_dates
from undercast.models.pix2pix import (
    RECIPE,
    PatchGAN,
    ResBlock,
    conv_norm,
    grow,
    halve,
    initialise,
    reflectance,
    signed_image,
    signed_s1,
    signed_s2,
)
from undercast.models.sizes import crop_like, pad_to_multiple
from undercast.models.system import Batch, Output, System

DATES = 3
PAIRS = tuple(combinations(range(DATES), 2))


@dataclass(frozen=True)
class STGANConfig:
    """The published generator, with the inputs of the SEN12MS-CR-TS benchmark."""

    width: int = 64
    blocks: int = 9
    sar: bool = True

    def __post_init__(self) -> None:
        if self.width < 1 or self.blocks < 0:
            raise ConfigError(
                f"got width {self.width}, blocks {self.blocks}, expected width ≥ 1 and blocks ≥ 0"
            )

    @property
    def in_channels(self) -> int:
        return bands.N_S2 + (bands.N_S1 if self.sar else 0)


class STGAN(System):
    """Exactly three dates; 57.5 M parameters.

    Of more dates the three least cloudy are taken, fewer are repeated; they enter by their day.
    """

    title = "STGAN (Sarukkai 2020)"
    recipe = RECIPE
    Config = STGANConfig

    def __init__(self, config: STGANConfig) -> None:
        super().__init__(config)
        width = config.width
        self.stem = conv_norm(config.in_channels, width, 7)
        self.branch = nn.Sequential(
            halve(2 * width, 4 * width),
            halve(4 * width, 8 * width),
            *(ResBlock(8 * width) for _ in range(config.blocks)),
        )
        joined = len(PAIRS) * 8 * width
        self.decoder = nn.Sequential(
            grow(joined, joined // 2),
            grow(joined // 2, joined // 4),
            nn.Conv2d(joined // 4, bands.N_S2, 7, padding=3, padding_mode="reflect"),
            nn.Tanh(),
        )
        initialise(self)

    @property
    def uses_s1(self) -> bool:  # type: ignore[override]
        return self.config.sar

    def forward(self, batch: Batch) -> Output:
        x = pad_to_multiple(self._condition(batch), 4, smallest=8)  # (b 3 c h w)
        features = self.stem(x.flatten(0, 1)).unflatten(0, (-1, DATES))
        pairs = torch.stack(
            [torch.cat((features[:, i], features[:, j]), dim=1) for i, j in PAIRS], dim=1
        )  # (b 3 2·width h w)
        y = self.branch(pairs.flatten(0, 1)).unflatten(0, (-1, len(PAIRS)))
        y = self.decoder(y.flatten(1, 2))
        return Output(crop_like(reflectance(y), batch.s2))

    def adversary(self) -> nn.Module:
        return PatchGAN(DATES * self.config.in_channels + bands.N_S2, self.config.width)

    def judge(self, adversary: nn.Module, batch: Batch, image: Tensor) -> Tensor:
        condition = self._condition(batch).flatten(1, 2)
        logits: Tensor = adversary(torch.cat((condition, signed_image(image)), dim=1))
        return logits

    def _condition(self, batch: Batch) -> Tensor:
        three = choose_dates(batch, DATES)
        s2 = signed_s2(three.s2)
        return torch.cat((signed_s1(three.s1), s2), dim=2) if self.config.sar else s2
