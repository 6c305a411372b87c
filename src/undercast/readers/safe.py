"""Sentinel-2 SAFE products, folders or zips, level 1C and 2A, with what their metadata tell."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from undercast import bands
from undercast.errors import DataError
from undercast.readers import raster
from undercast.readers.image import LayerImage, Source
from undercast.readers.raster import Layer

_METADATA = re.compile(r"(?:^|/)MTD_MSIL(1C|2A)\.xml$")
_IMAGE = re.compile(r"T(\d\d[A-Z]{3})_(\d{8}T\d{6})_(B\d[\dA]|SCL)(?:_(\d\d)m)?$")


@dataclass(frozen=True)
class _Metadata:
    level: str
    baseline: str
    date: np.datetime64
    quantification: float
    offsets: dict[str, float]
    images: tuple[str, ...]


def is_safe(path: Path) -> bool:
    """Whether a path looks like a product: a folder with its metadata, or a zip."""
    if path.is_dir():
        return path.suffix.upper() == ".SAFE" or any(path.glob("MTD_MSIL*.xml"))
    return path.suffix.lower() == ".zip"


def open_safe(path: str) -> LayerImage:
    """The image of a product; bands of 20 and 60 m stay files of their own until they are read."""
    root, text, digest_of = _read_metadata(Path(path))
    found = _parse(path, text)
    layers, mask, acquisition = _layers(path, root, found)
    return LayerImage(
        Source(
            href=path,
            date=found.date,
            level=found.level,
            baseline=found.baseline,
            offset=found.offsets["B2"],
            trusted_offset=True,
            acquisition=acquisition,
            digest_of=digest_of,
        ),
        raster.grid_of(layers["B2"].href),
        layers,
        {band: found.offsets[band] for band in layers},
        found.quantification,
        mask,
        mask_is_scl=True,
    )


def _read_metadata(path: Path) -> tuple[str, bytes, str]:
    """The root as GDAL names it, the text of the metadata, and the file that identifies it all."""
    try:
        if path.is_dir():
            file = next(iter(sorted(path.glob("MTD_MSIL*.xml"))), None)
            if file is None:
                raise _unreadable(path, "no MTD_MSIL1C.xml or MTD_MSIL2A.xml in it")
            manifest = path / "manifest.safe"
            return str(path), file.read_bytes(), str(manifest if manifest.is_file() else file)
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if _METADATA.search(name))
            if len(names) != 1:
                raise _unreadable(path, f"{len(names)} files MTD_MSIL1C.xml or MTD_MSIL2A.xml")
            inside = names[0].rpartition("/")[0]
            root = f"/vsizip/{path.resolve()}" + (f"/{inside}" if inside else "")
            return root, archive.read(names[0]), str(path)
    except (OSError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise _unreadable(path, str(error)) from error


def _unreadable(path: str | Path, reason: str) -> DataError:
    return DataError(
        f"cannot read {path} as a Sentinel-2 product: {reason}; expected one complete .SAFE folder "
        "or its zip, level 1C or 2A, single-tile format (since December 2016)"
    )


def _parse(path: str, text: bytes) -> _Metadata:
    """What the product's XML tells; a document type, which could expand without end, is refused."""
    if b"<!DOCTYPE" in text:
        raise _unreadable(path, "its metadata declare a document type")
    try:
        tree = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise _unreadable(path, f"its metadata are no XML ({error})") from error
    level = "L2A" if "Level-2A" in _text(path, tree, "PROCESSING_LEVEL") else "L1C"
    prefix = ("BOA_", "BOA_") if level == "L2A" else ("", "RADIO_")
    offsets = dict.fromkeys(bands.S2, 0.0)  # products before baseline 04.00 list none
    try:
        for element in tree.iter(f"{prefix[1]}ADD_OFFSET"):
            offsets[bands.S2[int(element.get("band_id", ""))]] = float(element.text or "")
        sensed = _text(path, tree, "PRODUCT_START_TIME")[:10]
        return _Metadata(
            level,
            _text(path, tree, "PROCESSING_BASELINE"),
            np.datetime64(sensed, "D"),
            float(_text(path, tree, f"{prefix[0]}QUANTIFICATION_VALUE")),
            offsets,
            tuple((element.text or "").strip() for element in tree.iter("IMAGE_FILE")),
        )
    except (ValueError, IndexError) as error:
        raise _unreadable(path, f"its metadata hold an impossible value ({error})") from error


def _text(path: str, tree: ElementTree.Element, tag: str) -> str:
    found = next(tree.iter(tag), None)
    if found is None or not (found.text or "").strip():
        raise _unreadable(path, f"its metadata lack {tag}")
    return (found.text or "").strip()


def _layers(path: str, root: str, found: _Metadata) -> tuple[dict[str, Layer], Layer | None, str]:
    """The finest file of each band, the scene classification if there is one, and the identity."""
    finest: dict[str, tuple[int, str]] = {}
    identities = set()
    for image in found.images:
        match = _IMAGE.search(image)
        if match is None:
            continue  # true colour, aerosol, water vapour
        identities.add(f"{match[1]}_{match[2]}")
        size = int(match[4] or 0)
        if match[3] not in finest or size < finest[match[3]][0]:
            finest[match[3]] = (size, f"{root}/{image}.jp2")
    if len(identities) != 1:
        raise _unreadable(path, f"its metadata list {len(identities)} tiles")
    files = {name: Layer(href) for name, (_, href) in finest.items()}
    mask = files.pop("SCL", None)
    layers = {bands.canonical(name): layer for name, layer in sorted(files.items())}
    expected = [b for b in bands.S2 if b not in layers and (found.level, b) != ("L2A", "B10")]
    if expected:
        raise _unreadable(path, f"its metadata list no image of {' '.join(expected)}")
    for layer in layers.values():
        raster.dataset(layer.href)
    return layers, mask, identities.pop()
