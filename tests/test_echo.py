"""What a radar echo tells of the colour of land: closed forms, and what may not matter."""

from __future__ import annotations

import pytest
import torch

from undercast.models.cells import CELL
from undercast.models.echo import FARTHEST, SLOPES, USUAL_ECHO, colour_of_echo, echo_levels
from undercast.models.system import Batch


def batch_of_radar(s1: torch.Tensor) -> Batch:
    """Radar (b t 2 h w) over ground that no optical date shows."""
    b, t, _, h, w = s1.shape
    s2 = torch.full((b, t, 13, h, w), torch.nan)
    return Batch(s2, s1, torch.zeros(b, t), torch.ones(b, t, dtype=torch.bool))


def even(vv: float, vh: float, t: int = 1, h: int = 40, w: int = 48) -> torch.Tensor:
    """(1 t 2 h w), the same everywhere."""
    return torch.tensor((vv, vh), dtype=torch.float32)[:, None, None].repeat(1, t, 1, h, w)


@pytest.mark.parametrize(("vv", "vh"), [(0.0, 0.0), (1.5, -2.0), (-3.0, 4.0), (40.0, -60.0)])
def test_the_colour_is_linear_in_the_decibels_above_usual_ones_and_ends(
    vv: float, vh: float
) -> None:
    found = colour_of_echo(batch_of_radar(even(USUAL_ECHO[0] + vv, USUAL_ECHO[1] + vh)))
    ends = [max(-FARTHEST, min(FARTHEST, x)) for x in (vv, vh)]
    expected = [a * ends[0] + b * ends[1] for a, b in zip(*SLOPES, strict=True)]
    wanted = torch.tensor(expected)[None, :, None, None].expand_as(found)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_dates_and_pixels_are_averaged_in_power() -> None:
    s1 = even(-10, -16, t=2)
    s1[:, 1] -= 10 * torch.log10(torch.tensor(3.0))  # a third of the power
    two_thirds = 10 * torch.log10(torch.tensor(2 / 3))
    found = echo_levels(s1)
    assert found.shape == (1, 2, 40 // CELL, 48 // CELL)
    torch.testing.assert_close(found, even(-10, -16, h=5, w=6)[:, 0] + two_thirds)
    speckled = even(-10, -16)
    speckled[..., ::2] = torch.nan
    torch.testing.assert_close(echo_levels(speckled), even(-10, -16, h=5, w=6)[:, 0])


def test_without_both_polarisations_nothing_is_told() -> None:
    for missing in ([0], [1], [0, 1]):
        s1 = even(-3, -10)
        s1[:, :, missing] = torch.nan
        assert torch.equal(colour_of_echo(batch_of_radar(s1)), torch.zeros(1, 13, 40, 48))
    s1[..., :16] = torch.tensor((-3.0, -10.0))[:, None, None]
    found = colour_of_echo(batch_of_radar(s1))
    assert found.isfinite().all()
    assert (found[:, :10, :, :8].abs() > 0).all()
    assert torch.equal(found[..., 24:], torch.zeros_like(found[..., 24:]))


def test_the_order_of_dates_and_dates_without_radar_change_nothing() -> None:
    draw = torch.Generator().manual_seed(0)
    s1 = -8 - 12 * torch.rand(2, 3, 2, 37, 45, generator=draw)
    found = colour_of_echo(batch_of_radar(s1))
    assert found.shape == (2, 13, 37, 45)
    torch.testing.assert_close(colour_of_echo(batch_of_radar(s1.flip(1))), found)
    padded = torch.cat((s1, torch.full_like(s1[:, :1], torch.nan)), dim=1)
    torch.testing.assert_close(colour_of_echo(batch_of_radar(padded)), found)
    torch.testing.assert_close(colour_of_echo(batch_of_radar(s1[1:])), found[1:])


def test_woods_are_darker_than_fields_in_red_and_in_the_shortwave_infrared() -> None:
    fields, woods = (colour_of_echo(batch_of_radar(even(-10, vh))) for vh in (-18.0, -13.0))
    assert ((woods - fields)[:, [3, 11, 12]] < -0.03).all()
