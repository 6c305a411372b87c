"""Golden tensors of the released implementation, as networks of ours with those weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undercast.models import create
from undercast.models.system import Model
from undercast.official import IMPORTERS, RELEASED_DEFAULTS, released_names
from undercast.weightfit import load_strictly


def golden_case(path: Path) -> tuple[Model, Tensor, Tensor, Tensor]:
    """Model, x (b t c h w), days (b t) and the expected y (b c h w) of a stored case."""
    stored = np.load(path)
    conf = released_conf(json.loads(str(stored["config"])))
    importer = IMPORTERS[conf["model"]]
    model = create(importer.system, **importer.settings(conf))
    weights = {key[2:]: as_float32(stored[key]) for key in stored.files if key.startswith("w/")}
    renamed = {importer.rename(key): value for key, value in released_names(weights).items()}
    load_strictly(model.network, renamed, str(path))
    x = as_float32(stored["x"])
    days = as_float32(stored["dates"]) if "dates" in stored.files else torch.zeros(x.shape[:2])
    return model.eval(), x, days, as_float32(stored["y"])[:, 0]


def released_conf(constructor: dict[str, Any]) -> dict[str, Any]:
    """The settings file that would have led to these constructor arguments."""
    return {
        **RELEASED_DEFAULTS,
        **constructor,
        "pretrain": constructor.get("is_mono", False),
        "use_sar": constructor["input_dim"] == 15,
        "mean_nonLinearity": constructor["out_nonlin_mean"],
    }


def as_float32(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float32) if array.dtype.kind == "f" else array)
