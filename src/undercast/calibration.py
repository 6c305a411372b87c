"""Post-hoc calibration of the variance, fitted on held-out data and stored in the checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from undercast import bands
from undercast.errors import CheckpointError


@dataclass(frozen=True)
class Calibration:
    """Factors for the variance of each band."""

    scale: tuple[float, ...] = (1.0,) * bands.N_S2

    def apply(self, variance: Any) -> Any:
        """The calibrated variance of (..., 13, h, w), numpy or torch."""
        if hasattr(variance, "new_tensor"):
            scale = variance.new_tensor(self.scale)
        else:
            scale = variance.dtype.type(1) * self.scale
        return variance * scale[:, None, None]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        """The calibration that `to_dict` described."""
        try:
            return cls(tuple(values["scale"]))
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"got a calibration without scale: {values}") from error
