"""What identifies a model: its settings and a hash of its weights."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from undercast.models.system import Model


def model_digest(model: Model) -> str:
    """The SHA-256 of settings, calibration and weights, the same on every machine."""
    calibration = None if model.calibration is None else model.calibration.to_dict()
    digest = hashlib.sha256(json.dumps([model.name, model.config, calibration]).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        values = tensor.detach().cpu().contiguous().flatten()
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def model_summary(model: Model, source: Any) -> dict[str, Any]:
    """What a product says about the model that made it, ready for JSON."""
    provenance = json.loads(json.dumps(model.provenance, default=str))
    return {
        "name": model.name,
        "source": "in memory" if isinstance(source, Model) else _plain(source),
        "sha256": model_digest(model),
        "calibrated": model.calibration is not None,
        "config": model.config,
        "provenance": provenance,
    }


def _plain(source: Any) -> Any:
    return [str(s) for s in source] if isinstance(source, list | tuple) else str(source)
