"""Pictures with the core dependencies only: true colour, a colour map, a panel with labels, PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undercast import bands
from undercast.errors import InputError
from undercast.files import final_file

Rgb = NDArray[np.uint8]  # (H, W, 3)

NO_DATA = (128, 128, 128)
_PAPER, _INK = 255, 40
_MARGIN = 6
_SMALLEST_CELL = 160  # px; smaller pictures are enlarged by a whole factor
_GAMMA = 1 / 1.5  # lifts dark vegetation and water, as a display of linear reflectance needs
_BRIGHT = 0.85  # where the 98th percentile of an image goes before the gamma

# Nine colours of even steps in OKLab lightness (0.16 to 0.94), hue from violet over red to yellow:
# equal steps in the value look equally large, also in grey.
_RAMP = np.array(
    [
        (12, 5, 41), (50, 10, 76), (99, 13, 95), (150, 22, 95), (196, 51, 79), (226, 96, 56),
        (240, 147, 60), (240, 196, 113), (242, 239, 184),
    ],
    dtype=np.float64,
)  # fmt: skip

# A letter is five rows of three bits, each row one octal digit from top to bottom.
_LETTERS = " 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.,-+%/:=()_<>?"
_GLYPHS = (
    "00000 75557 26227 71747 71717 55711 74717 74757 71222 75757 75717 25755 65656 34443 65556 "
    "74647 74644 34553 55755 72227 11152 55655 44447 57755 65555 25552 65644 25563 65655 34216 "
    "72222 55557 55552 55775 55255 55222 71247 00002 00024 00700 02720 51245 11244 02020 07070 "
    "12221 42224 00007 12421 42124 71202"
)
_FONT = dict(zip(_LETTERS, _GLYPHS.split(), strict=True))
_GLYPH_HEIGHT, _TEXT_SCALE = 5, 2


def natural_gain(reflectance: Any) -> float:
    """The factor that shows an image in natural brightness; 1 for an image without any data.

    Give it to `rgb` for several pictures that are to be compared.
    """
    visible = np.asarray(reflectance)[bands.index(bands.RGB)]
    finite = visible[np.isfinite(visible)]
    brightest = float(np.percentile(finite, 98)) if finite.size else 0.0
    return _BRIGHT / brightest if brightest > 1e-3 else 1.0


def rgb(reflectance: Any, gain: float | None = None) -> Rgb:
    """True colour (H, W, 3) uint8 of an image (13, H, W) in reflectance; no data is grey.

    gain: factor on the reflectance, None = `natural_gain` of this image.

    >>> rgb(np.full((13, 1, 2), 0.2))[0, 0].tolist()
    [229, 229, 229]
    """
    image = np.asarray(reflectance)
    if image.ndim != 3 or image.shape[0] != bands.N_S2:
        raise InputError(f"got an image of shape {image.shape}, expected ({bands.N_S2}, H, W)")
    factor = natural_gain(image) if gain is None else gain
    visible = np.moveaxis(image[bands.index(bands.RGB)], 0, -1).astype(np.float64)
    missing = ~np.isfinite(visible).all(axis=-1)
    shown = np.clip(np.nan_to_num(visible, nan=0.0) * factor, 0, 1) ** _GAMMA
    picture = np.round(255 * shown).astype(np.uint8)
    picture[missing] = NO_DATA
    return picture


def colour_map(values: Any, vmin: float, vmax: float) -> Rgb:
    """Values (H, W) as colours from dark violet (vmin) to light yellow (vmax); NaN is grey.

    >>> colour_map(np.array([[0.0, 2.0, np.nan]]), 0.0, 1.0).tolist()
    [[[12, 5, 41], [242, 239, 184], [128, 128, 128]]]
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2:
        raise InputError(f"got values of shape {array.shape}, expected (H, W)")
    if not vmax > vmin:
        raise InputError(f"got vmin {vmin} and vmax {vmax}, expected vmin below vmax")
    position = np.clip((np.nan_to_num(array, nan=vmin) - vmin) / (vmax - vmin), 0, 1)
    knots = np.linspace(0, 1, len(_RAMP))
    picture = np.stack([np.interp(position, knots, _RAMP[:, c]) for c in range(3)], axis=-1)
    out = np.round(picture).astype(np.uint8)
    out[np.isnan(array)] = NO_DATA
    return out


def panel(rows: Sequence[Sequence[tuple[str, Rgb]]]) -> Rgb:
    """Rows of titled pictures as one picture; small pictures are enlarged by a whole factor."""
    pictures = [picture for row in rows for _, picture in row]
    if not pictures:
        raise InputError("got no picture, expected at least one row with one")
    tallest = max(p.shape[0] for p in pictures)
    widest = max(p.shape[1] for p in pictures)
    factor = max(1, -(-_SMALLEST_CELL // max(tallest, widest)))
    size = (tallest * factor, widest * factor)
    cells = [[_cell(title, picture, factor, size) for title, picture in row] for row in rows]
    columns = max(len(row) for row in cells)
    blank = np.full_like(cells[0][0] if cells[0] else _cell("", pictures[0], factor, size), _PAPER)
    grid = [np.concatenate([*row, *[blank] * (columns - len(row))], axis=1) for row in cells]
    return np.pad(
        np.concatenate(grid), ((0, _MARGIN), (0, _MARGIN), (0, 0)), constant_values=_PAPER
    )


def _cell(title: str, picture: Rgb, factor: int, size: tuple[int, int]) -> Rgb:
    head = _GLYPH_HEIGHT * _TEXT_SCALE + 2 * _MARGIN
    cell = np.full((head + size[0], _MARGIN + size[1], 3), _PAPER, dtype=np.uint8)
    enlarged = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    cell[head : head + enlarged.shape[0], _MARGIN : _MARGIN + enlarged.shape[1]] = enlarged
    ink = _text(title)[:, : size[1]]
    cell[_MARGIN : _MARGIN + ink.shape[0], _MARGIN : _MARGIN + ink.shape[1]][ink] = _INK
    return cell


def _text(text: str) -> NDArray[np.bool_]:
    """(10, n) True where there is ink; a sign that the font lacks is drawn as a question mark."""
    glyphs = [np.zeros((_GLYPH_HEIGHT, 0), dtype=np.bool_)]
    for letter in text.upper():
        rows = [int(digit) for digit in _FONT.get(letter, _FONT["?"])]
        glyphs.append(np.array([[(row >> bit) & 1 for bit in (2, 1, 0, 8)] for row in rows]) > 0)
    ink = np.concatenate(glyphs, axis=1)
    return ink.repeat(_TEXT_SCALE, axis=0).repeat(_TEXT_SCALE, axis=1)


def png_bytes(picture: Rgb) -> bytes:
    """An (H, W, 3) uint8 picture as the bytes of a PNG file."""
    array = np.ascontiguousarray(picture)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or 0 in array.shape:
        raise InputError(
            f"got a picture of shape {array.shape} and type {array.dtype}, "
            "expected (H, W, 3) uint8 with at least one pixel"
        )
    height, width, _ = array.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    lines = np.concatenate(  # a filter byte (0 = none) before each line
        [np.zeros((height, 1), dtype=np.uint8), array.reshape(height, -1)], axis=1
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(path: str | Path, picture: Rgb) -> None:
    """Write a picture as PNG, under its final name only when complete."""
    data = png_bytes(picture)
    with final_file(Path(path)) as temporary:
        temporary.write_bytes(data)
