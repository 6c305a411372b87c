"""The anchors of the first norm: one linear map for all images, instead of one for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from undercast import Stack
from undercast.models import create
from undercast.models.uncrtaints import UnCRtainTS


def _stacks(rng: np.random.Generator) -> list[Stack]:
    dates = np.array(["2020-05-01", "2020-05-11"], dtype="datetime64[D]")
    levels = rng.uniform(0.05, 0.9, (12, 2, 13, 1, 1))
    texture = rng.uniform(0.7, 1.3, (12, 2, 13, 16, 16))
    return [Stack((a * b).astype(np.float32), dates) for a, b in zip(levels, texture, strict=True)]


def _network() -> UnCRtainTS:
    torch.manual_seed(0)
    network = create("uncrtaints", d_m=32, n_d=1, heads=4, attention_grid=2).network
    assert isinstance(network, UnCRtainTS)
    return network


def _features(network: UnCRtainTS, x: Tensor) -> Tensor:
    return network.embed_norm(network.embed(x))


@torch.no_grad()
def test_an_anchored_norm_is_what_the_norm_was_on_average_for_every_image(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    network, stacks, tool = _network(), _stacks(rng), recipe["anchor"]
    seen = tool._embedded(network, stacks)
    means, spreads = tool._statistics(seen, network.embed_norm)
    mean, spread = means.mean(0), 1 / (1 / spreads).mean(0)
    each = 32 // 4
    by_hand = [
        (x - mean.repeat_interleave(each)[:, None, None])
        / spread.repeat_interleave(each)[:, None, None]
        for x in seen
    ]
    tool.anchor(network, stacks)
    others = network.embed_norm.weight != 0
    assert others.unflatten(0, (4, each)).sum(dim=1).tolist() == [each - 2] * 4
    for expected, x in zip(by_hand, tool._embedded(network, stacks), strict=True):
        found = network.embed_norm(x)[:, others]
        torch.testing.assert_close(found, expected[:, others], rtol=0.02, atol=0.02)


@torch.no_grad()
def test_with_anchors_twice_the_light_is_seen_as_such_and_without_it_is_lost(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    x = torch.from_numpy(rng.uniform(1, 3, (1, 15, 16, 16)).astype(np.float32))

    def growth(network: UnCRtainTS) -> tuple[float, float]:
        """Of the features of twice the image, and of half of it, relative to the image's own."""
        none, half, one, two = (_features(network, k * x) for k in (0, 0.5, 1, 2))
        one = one - none
        return tuple(float(((f - none) * one).sum() / (one * one).sum()) for f in (two, half))

    network = _network()
    assert growth(network)[0] < 1.2
    recipe["anchor"].anchor(network, _stacks(rng))
    two, half = growth(network)
    assert abs(two - 2) < 0.05
    assert abs(half - 0.5) < 0.01


@torch.no_grad()
def test_with_anchors_part_of_an_image_is_seen_as_in_the_whole(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    network = _network()
    recipe["anchor"].anchor(network, _stacks(rng))
    x = torch.from_numpy(rng.uniform(0.5, 3, (1, 15, 16, 16)).astype(np.float32))
    x[..., 8:] *= 3  # a bright half
    whole, part = _features(network, x)[..., :8], _features(network, x[..., :8])
    assert float((whole - part).abs().max()) < 0.05 * float(whole.std())
