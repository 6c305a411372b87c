"""Files that appear under their final name only when they are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from undercast.errors import DataError


@contextmanager
def final_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block succeeds."""
    if path.is_dir():
        raise DataError(f"got {path}, which is a folder; expected a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}.", suffix=f".part{path.suffix}"
        )
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # a temporary file is private, a result is not
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
