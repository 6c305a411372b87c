"""Errors and warnings: one line each that says what was got, what was expected, what to do.

Each error also inherits the built-in that a caller would catch, so that nobody needs this import.
"""

from __future__ import annotations


class UndercastError(Exception):
    """Everything that undercast raises on purpose; the command line shows it as one line."""


class InputError(UndercastError, ValueError):
    """An array, file or option that cannot be used."""


class DataError(UndercastError, OSError):
    """A file or folder that cannot be read or written."""


class CheckpointError(UndercastError, ValueError):
    """Weights that do not fit, or that are not weights."""


class ConfigError(UndercastError, ValueError):
    """An unknown or impossible setting."""


class TrainingError(UndercastError, RuntimeError):
    """A training run that cannot go on: it diverged, or its folder is not free."""


class MissingDependencyError(UndercastError, ImportError):
    """An optional package that is not installed; the message is the command that installs it."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra package: pip install 'undercast[{extra}]'")


class UndercastWarning(UserWarning):
    """Something that works but that the user should know."""
