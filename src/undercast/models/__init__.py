"""Every system under one interface: `create(name, **config)`, `names()`."""

from undercast.models.registry import create, names

__all__ = ["create", "names"]
