"""undercast: the cloud-free image under the clouds, with a calibrated variance for every pixel.

>>> import undercast as uc                                                   # doctest: +SKIP
>>> stack = uc.Stack(s2, dates, s1=s1)                                       # doctest: +SKIP
>>> estimate = uc.predict(uc.load_model("default"), stack)                   # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from undercast.types import Estimate, Grid, Stack, Tile

if TYPE_CHECKING:
    from undercast.checkpoint import load_model
    from undercast.pipeline import predict, predict_scene

__version__ = "0.1.0"
__all__ = ["Estimate", "Grid", "Stack", "Tile", "load_model", "predict", "predict_scene"]

_LAZY = {"load_model": "checkpoint", "predict": "pipeline", "predict_scene": "pipeline"}
_MODULES = ("models", "metrics", "losses", "simulate", "datasets", "masks", "calibration")


def __getattr__(name: str) -> Any:
    """Names that need torch or rasterio are imported when they are first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"undercast.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"undercast.{name}")
    raise AttributeError(f"module 'undercast' has no attribute {name!r}")
