"""The systems by name: `create("uncrtaints", n_d=3)` builds one, `names()` lists them."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

from undercast.errors import ConfigError
from undercast.models.system import Model, System

_SYSTEMS = {
    "least-cloudy": "composites:LeastCloudy",
    "mosaic": "composites:Mosaic",
    "median": "composites:Median",
    "uncrtaints": "uncrtaints:UnCRtainTS",
    "utae": "utae:UTAE",
    "cr-ts-net": "crtsnet:CRTSNet",
    "stgan": "stgan:STGAN",
    "dsen2-cr": "dsen2cr:DSen2CR",
    "glf-cr": "glfcr:GLFCR",
    "mcgan": "mcgan:McGAN",
    "sar-opt-cgan": "sar_opt_cgan:SarOptCGAN",
    "sar2opt": "sar2opt:Sar2Opt",
    "spa-gan": "spagan:SpAGAN",
    "simulation-fusion-gan": "simulation_fusion:SimulationFusionGAN",
}


def names() -> list[str]:
    """Every system that `create` builds.

    >>> "uncrtaints" in names()
    True
    """
    return list(_SYSTEMS)


def system_class(name: str) -> type[System]:
    """The class of a system."""
    if name not in _SYSTEMS:
        raise ConfigError(f"got system {name!r}, expected one of {', '.join(names())}")
    module, cls = _SYSTEMS[name].split(":")
    found: type[System] = getattr(importlib.import_module(f"undercast.models.{module}"), cls)
    return found


def create(name: str, **config: Any) -> Model:
    """A system with fresh weights; `config` holds what differs from its published settings.

    >>> sum(p.numel() for p in create("uncrtaints", covariance="none").parameters())
    568333
    """
    cls = system_class(name)
    known = {field.name for field in fields(cls.Config)}
    unknown = sorted(set(config) - known)
    if unknown:
        raise ConfigError(
            f"got unknown setting {', '.join(unknown)} for {name}, "
            f"expected some of {', '.join(sorted(known)) or '(none: it has no settings)'}"
        )
    return Model(name, cls(cls.Config(**config)))
