"""Pictures: read back by another library, no data grey, colours in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio

from undercast import quicklook
from undercast.errors import InputError


def test_png_reads_back_pixel_for_pixel(tmp_path: Path, rng: np.random.Generator) -> None:
    picture = rng.integers(0, 256, (7, 11, 3), dtype=np.uint8)
    quicklook.write_png(tmp_path / "a" / "x.png", picture)
    with rasterio.open(tmp_path / "a" / "x.png") as source:
        assert source.driver == "PNG"
        np.testing.assert_array_equal(np.moveaxis(source.read(), 0, -1), picture)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x.png"]


@pytest.mark.parametrize(
    "picture",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)],
)
def test_png_of_no_picture_is_one_clear_error(tmp_path: Path, picture: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"expected \(H, W, 3\) uint8"):
        quicklook.write_png(tmp_path / "x.png", picture)
    assert not list(tmp_path.iterdir())


def test_true_colour_takes_red_green_blue_bands_in_this_order() -> None:
    image = np.zeros((13, 1, 1))
    image[3], image[2], image[1] = 1.0, 0.5, 0.0
    red, green, blue = quicklook.rgb(image, gain=1.0)[0, 0]
    assert red == 255
    assert red > green > blue == 0


def test_pixels_without_data_are_grey_and_an_empty_image_does_not_fail() -> None:
    image = np.full((13, 2, 2), 0.1)
    image[3, 0, 0] = np.nan
    picture = quicklook.rgb(image)
    assert picture[0, 0].tolist() == list(quicklook.NO_DATA)
    assert picture[1, 1].tolist() != list(quicklook.NO_DATA)
    assert (quicklook.rgb(np.full((13, 2, 2), np.nan)) == 128).all()


def test_colour_map_becomes_lighter_with_the_value() -> None:
    picture = quicklook.colour_map(np.linspace(0, 1, 200)[None], 0, 1)[0].astype(float)
    luminance = picture @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) >= -0.8).all()  # rounding to 8 bits
    assert luminance[-1] - luminance[0] > 200


def test_panel_keeps_every_picture_and_draws_its_title() -> None:
    red = np.zeros((20, 30, 3), np.uint8)
    red[..., 0] = 255
    sheet = quicklook.panel([[("A", red), ("B", red)], [("C", red)]])
    factor = -(-160 // 30)
    assert (sheet == (255, 0, 0)).all(axis=-1).sum() == 3 * 20 * 30 * factor**2
    untitled = quicklook.panel([[("", red), ("", red)], [("", red)]])
    assert (sheet == 40).all(axis=-1).sum() > 0
    assert (untitled == 40).all(axis=-1).sum() == 0
