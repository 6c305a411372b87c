"""Cloud masks and covers of a dataset, computed once: an append-only journal and its masks.

`METHOD.jsonl` has one line for each finished image, `METHOD.masks` the compressed bits of the
masks, each written before its line. A process may be killed at any moment: what has a complete line
is kept, what has not is computed again.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from undercast.datasets.index import Stamp
from undercast.errors import DataError
from undercast.types import BoolArray, Tile


class Record(NamedTuple):
    """What is known of one image; `error` is set where it could not be read to its end."""

    size: int
    mtime_ns: int
    cover: float
    height: int = 0
    width: int = 0
    offset: int = 0
    length: int = 0
    crc: int = 0
    error: str | None = None
    file: str = ""  # that holds the mask


@dataclass(frozen=True)
class Masks:
    """The finished masks of a dataset, read at random, safe in any number of processes."""

    method: str
    records: dict[str, Record]

    def cover(self, path: str) -> float:
        """The unusable share of an image, 0..1."""
        return self.records[path].cover

    def read(self, path: str, tile: Tile | None = None) -> BoolArray:
        """(H, W) True = unusable, of the whole image or under a tile."""
        record = self.records[path]
        try:
            with open(record.file, "rb") as file:
                file.seek(record.offset)
                packed = file.read(record.length)
        except OSError as error:
            raise DataError(f"cannot read {record.file}: {error.strerror}") from error
        if zlib.crc32(packed) != record.crc:
            raise DataError(
                f"the stored mask of {path} is damaged: remove {Path(record.file).parent} and run "
                "`undercast data prepare` again"
            )
        pixels = record.height * record.width
        bits = np.unpackbits(np.frombuffer(zlib.decompress(packed), np.uint8), count=pixels)
        mask = bits.reshape(record.height, record.width).astype(bool)
        return mask if tile is None else mask[tile.slices]


def read_masks(folders: list[Path], method: str, stamps: dict[str, Stamp]) -> Masks | None:
    """The masks of unchanged files in any of the folders, or None where no folder has a journal."""
    records: dict[str, Record] = {}
    found = False
    for folder in folders:
        lines = folder / f"{method}.jsonl"
        if lines.is_file():
            found = True
            file = str(folder / f"{method}.masks")
            for path, record in dict(_lines(lines.read_bytes())).items():
                if stamps.get(path) == record[:2]:
                    records.setdefault(path, record._replace(file=file))
    return Masks(method, records) if found else None


class Writer:
    """Appends finished images; only one writer at a time."""

    def __init__(self, folder: Path, method: str) -> None:
        self.lines = open(folder / f"{method}.jsonl", "ab")  # noqa: SIM115
        self.masks = open(folder / f"{method}.masks", "ab")  # noqa: SIM115

    def add(self, path: str, stamp: Stamp, mask: BoolArray | None, error: str | None) -> None:
        """Record the mask of an image, or why there is none."""
        record: dict[str, Any] = {"path": path, "size": stamp.size, "mtime_ns": stamp.mtime_ns}
        if mask is None:
            record |= {"cover": 1.0, "error": error}
        else:
            packed = zlib.compress(np.packbits(mask).tobytes(), 1)
            offset = self.masks.tell()
            self.masks.write(packed)
            self.masks.flush()
            record |= {"cover": float(mask.mean()), "height": mask.shape[0]}
            record |= {"width": mask.shape[1], "offset": offset, "length": len(packed)}
            record |= {"crc": zlib.crc32(packed)}
        self.lines.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self.lines.flush()


@contextmanager
def writing(folder: Path, method: str) -> Iterator[Writer]:
    """A writer with the folder to itself, after the traces of a killed one are cut off."""
    lines = folder / f"{method}.jsonl"
    with open(folder / f"{method}.lock", "w") as lock:
        _lock(lock, folder)
        if lines.exists():
            complete = lines.read_bytes().rfind(b"\n") + 1
            os.truncate(lines, complete)
        writer = Writer(folder, method)
        try:
            yield writer
        finally:
            for file in (writer.masks, writer.lines):
                os.fsync(file.fileno())
                file.close()


def _lock(lock: IO[str], folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has none: there, two writers at a time are up to the user
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DataError(
            f"another `undercast data prepare` is writing to {folder}: wait for it"
        ) from error


def _lines(content: bytes) -> Iterator[tuple[str, Record]]:
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        fields = json.loads(line)
        yield fields.pop("path"), Record(**fields)
