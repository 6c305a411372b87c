"""The network is the released function, has the paper's size, and needs no padding or order."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from reference.released import golden_case
from undercast import Stack, bands
from undercast.errors import ConfigError
from undercast.models import create
from undercast.models.cost import gmac, parameters
from undercast.models.ltae import TemporalAttention, group_norm_over_dates, positional_encoding
from undercast.models.system import Batch, Output, batch_of
from undercast.models.uncrtaints import MBConv, UnCRtainTS, resize_attention

GOLDEN = sorted((Path(__file__).parent / "reference" / "golden").glob("uncrtaints_*.npz"))


def small(**config: object) -> UnCRtainTS:
    torch.manual_seed(0)
    settings = {"d_m": 16, "heads": 4, "n_d": 2, **config}
    network = create("uncrtaints", **settings).network
    for module in network.modules():  # statistics as after a training
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2.0)
    assert isinstance(network, UnCRtainTS)
    return network.eval()


def random_batch(b: int = 1, t: int = 3, h: int = 40, w: int = 48, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        s2=torch.rand(b, t, 13, h, w, generator=draw),
        s1=-25 * torch.rand(b, t, 2, h, w, generator=draw),
        days=1500 + 100 * torch.rand(b, t, generator=draw),
        valid=torch.ones(b, t, dtype=torch.bool),
    )


@torch.no_grad()
def run(network: UnCRtainTS, batch: Batch) -> Output:
    output: Output = network(batch)
    return output


def assert_same(a: Output, b: Output, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=tolerance)
    assert (a.variance is None) == (b.variance is None)
    if a.variance is not None:
        torch.testing.assert_close(a.variance, b.variance, rtol=1e-4, atol=0)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_outputs_of_the_released_code_are_reproduced(path: Path) -> None:
    model, x, days, expected = golden_case(path)
    with torch.no_grad():
        output = model.network.reconstruct(x, days, torch.ones(x.shape[:2], dtype=torch.bool))
    assert (output.mean - expected[:, :13]).abs().max() < 1e-4
    if expected.shape[1] > 13:
        reference = expected[:, 13:].expand_as(output.variance)
        assert ((output.variance - reference) / reference).abs().max() < 1e-3
    else:
        assert output.variance is None


def test_no_golden_case_of_the_network_is_missing() -> None:
    assert len(GOLDEN) == 6  # and the official checkpoint, in test_checkpoint.py


def test_forward_scales_physical_units_as_the_released_code_does() -> None:
    network = small()
    batch = random_batch()
    batch.s2[0, 0, :, :4] = 1.7  # a bright cloud
    batch.s1[0, 1, :, :4] = -31.0
    x = torch.cat(((batch.s1.clamp(-25, 0) + 25) / 25, batch.s2.clamp(0, 1)), dim=2) * 10
    with torch.no_grad():
        scaled = network.reconstruct(x, batch.days, batch.valid)
    output = run(network, batch)
    torch.testing.assert_close(output.mean, scaled.mean / 10)
    torch.testing.assert_close(output.variance, scaled.variance / 100)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"covariance": "none"}, 568_333),
        ({}, 570_010),
        ({"mono": True}, 520_218),
        ({"mono": True, "covariance": "none"}, 518_541),
    ],
)
def test_parameter_counts_are_exact(config: dict, count: int) -> None:
    assert parameters(create("uncrtaints", **config).network) == count


BLOCKS = [  # n_e, n_d, parameters in thousands, the paper's GFLOPS (multiply-adds)
    (1, 3, 396.8, 29.3),
    (1, 4, 482.6, 34.0),
    (1, 5, 568.3, 38.7),
    (1, 6, 654.1, 43.4),
    (1, 7, 739.9, 48.1),
    (0, 5, 482.6, 24.6),
    (2, 5, 654.1, 52.9),
]


@pytest.mark.parametrize(("n_e", "n_d", "thousands", "paper_gmac"), BLOCKS)
def test_the_papers_table_of_blocks(
    n_e: int, n_d: int, thousands: float, paper_gmac: float
) -> None:
    network = create("uncrtaints", covariance="none", n_e=n_e, n_d=n_d).network
    assert round(parameters(network) / 1000, 1) == thousands
    assert gmac(network) == pytest.approx(paper_gmac, rel=0.08)


@pytest.mark.parametrize(
    ("heads", "thousands"),
    [(1, 552.9), (4, 555.9), (8, 560.1), (16, 568.3), (32, 584.8), (64, 617.9)],
)
def test_the_papers_table_of_heads(heads: int, thousands: float) -> None:
    network = create("uncrtaints", covariance="none", heads=heads).network
    assert round(parameters(network) / 1000, 1) == thousands


def test_multiply_adds_equal_a_count_by_hand() -> None:
    d, pixels, dates = 128, 256 * 256, 3
    block = d * 2 * d + 2 * d * 9 + 2 * d * d
    excite = 2 * (2 * d * d // 4)  # once an image
    attention = 32 * 32 * (d * 2 * d + 2 * d * 64)
    per_date = pixels * (15 * d + block) + excite + attention
    expected = dates * per_date + 5 * (pixels * block + excite) + pixels * d * 13
    assert gmac(create("uncrtaints", covariance="none").network) == pytest.approx(expected / 1e9)


@pytest.mark.parametrize("config", [{}, {"covariance": "isotropic"}, {"n_e": 0}, {"sar": False}])
def test_padding_in_time_changes_nothing(config: dict) -> None:
    network = small(**config)
    batch = random_batch(t=2)
    junk = random_batch(t=4, seed=9)
    padded = Batch(
        s2=torch.cat((batch.s2, junk.s2[:, 2:]), dim=1),
        s1=torch.cat((batch.s1, junk.s1[:, 2:]), dim=1),
        days=torch.cat((batch.days, junk.days[:, 2:]), dim=1),
        valid=torch.tensor([[True, True, False, False]]),
    )
    assert_same(run(network, batch), run(network, padded))


def test_the_order_of_dates_changes_nothing() -> None:
    network = small()
    batch = random_batch(t=4)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = Batch(batch.s2[:, order], batch.s1[:, order], batch.days[:, order], batch.valid)
    assert_same(run(network, batch), run(network, shuffled))


def test_the_position_of_a_date_matters() -> None:
    network = small()
    batch = random_batch()
    later = batch._replace(days=batch.days + torch.tensor([[0.0, 7.0, 0.0]]))
    assert (run(network, batch).mean - run(network, later).mean).abs().max() > 1e-6


def test_two_equal_dates_are_fine() -> None:
    batch = random_batch(t=2)
    twice = batch._replace(days=batch.days[:, :1].expand(1, 2))
    assert run(small(), twice).mean.isfinite().all()


def test_a_batch_of_three_equals_three_batches_of_one() -> None:
    network = small()
    batch = random_batch(b=3)
    together = run(network, batch)
    for i in range(3):
        alone = run(network, Batch(*(None if x is None else x[i : i + 1] for x in batch)))
        assert_same(
            Output(together.mean[i : i + 1], together.variance[i : i + 1]), alone, tolerance=2e-6
        )


@pytest.mark.parametrize("size", [(64, 96), (97, 130), (24, 24), (20, 50), (9, 8)])
def test_any_size_is_one_forward_at_native_size(size: tuple[int, int]) -> None:
    output = run(small(), random_batch(h=size[0], w=size[1]))
    assert output.mean.shape[-2:] == size
    assert output.mean.isfinite().all()
    assert (output.variance > 0).all()


@pytest.mark.parametrize("dates", [1, 2, 5, 7])
def test_any_number_of_dates(dates: int) -> None:
    assert run(small(), random_batch(t=dates)).mean.isfinite().all()


def test_variance_is_at_least_the_floor_and_the_mean_is_a_reflectance() -> None:
    network = small()
    nn.init.constant_(network.head.bias, -60.0)
    output = run(network, random_batch())
    assert output.variance.min() == pytest.approx(1e-3 / 100)
    assert output.mean.min() >= 0
    assert output.mean.max() <= 1


def test_isotropic_variance_is_one_number_a_pixel_and_none_is_none() -> None:
    variance = run(small(covariance="isotropic"), random_batch()).variance
    assert (variance == variance[:, :1]).all()
    assert variance.shape[1] == 13
    assert run(small(covariance="none"), random_batch()).variance is None


def test_a_mono_network_takes_the_least_cloudy_date() -> None:
    network = small(mono=True)
    batch = random_batch(t=3)
    mask = torch.ones(1, 3, 40, 48, dtype=torch.bool)
    mask[:, 1, :20] = False
    one = Batch(batch.s2[:, 1:2], batch.s1[:, 1:2], batch.days[:, 1:2], batch.valid[:, 1:2])
    assert_same(run(network, batch._replace(mask=mask)), run(network, one))


def test_without_radar_its_values_play_no_part() -> None:
    network = small(sar=False)
    batch = random_batch()
    assert_same(run(network, batch), run(network, batch._replace(s1=batch.s1 * torch.nan)))


def test_dropout_of_attention_acts_in_training_only() -> None:
    network = small(dropout=0.5)
    batch = random_batch()
    assert_same(run(network, batch), run(network, batch), tolerance=0)
    network.train()
    features = torch.rand(1, 3, 16, 40, 40)
    a = network._aggregate(features, batch.days, batch.valid)
    b = network._aggregate(features, batch.days, batch.valid)
    assert (a - b).abs().max() > 1e-3


def test_group_norm_over_dates_is_group_norm_when_all_are_valid() -> None:
    norm = nn.GroupNorm(4, 16)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(5, 16, 3)
    ours = group_norm_over_dates(x, torch.ones(5, 3, dtype=torch.bool), norm)
    torch.testing.assert_close(ours, norm(x))
    some = torch.tensor([True, False, True]).expand(5, 3)
    torch.testing.assert_close(
        group_norm_over_dates(x, some, norm)[..., [0, 2]], norm(x[..., [0, 2]])
    )


def test_attention_sums_to_one_over_valid_dates() -> None:
    torch.manual_seed(0)
    attention = TemporalAttention(16, 4, 4, 32)
    valid = torch.tensor([[True, True, False]])
    weights = attention(torch.randn(1, 3, 16, 5, 6), torch.rand(1, 3) * 100, valid)
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(1, 4, 5, 6))
    assert (weights[:, :, 2] == 0).all()


def test_positional_encoding_is_sine_and_cosine_at_falling_rates() -> None:
    encoding = positional_encoding(torch.tensor([[37.0]]), 16)[0, 0]
    for i in range(16):
        angle = 37.0 / 1000 ** (2 * (i // 2) / 16)
        expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
        assert encoding[i].item() == pytest.approx(expected, abs=1e-5)


def test_attention_below_the_grid_size_is_averaged() -> None:
    weights = torch.rand(1, 2, 32, 32)
    torch.testing.assert_close(
        resize_attention(weights, 16, 16), nn.functional.avg_pool2d(weights, 2)
    )
    assert resize_attention(weights, 32, 32) is weights


@pytest.mark.parametrize("system", ["uncrtaints", "utae"])
@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
def test_an_untrained_network_gives_about_the_spectrum_of_land(
    system: str, activation: str
) -> None:
    torch.manual_seed(0)
    network = create(system, mean_activation=activation).network.eval()
    with torch.no_grad():
        mean = network(random_batch(b=2, h=32, w=32)).mean
    land = torch.tensor(bands.LAND)[:, None, None]
    assert (mean - land).abs().mean() < 0.05


def test_the_default_initialisation_has_unit_norms_and_no_bias_but_that_of_land() -> None:
    network = create("uncrtaints", d_m=16, heads=4).network
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in norms)
    assert (network.head.bias[13:] == 0).all()
    torch.testing.assert_close(network.head.bias[:13].sigmoid(), torch.tensor(bands.LAND))


def test_the_released_initialisation_draws_norms_and_biases() -> None:
    torch.manual_seed(0)
    network = create("uncrtaints", init="released").network
    scales = torch.cat([m.weight for m in network.modules() if isinstance(m, nn.BatchNorm2d)])
    assert scales.mean().item() == pytest.approx(0, abs=0.1)
    assert scales.std().item() == pytest.approx(1, abs=0.1)
    assert network.head.bias.std().item() == pytest.approx(1, abs=0.5)
    block = network.decoder[0]
    assert isinstance(block, MBConv)
    xavier = math.sqrt(2 / (128 + 256))
    assert block.expand.weight.std().item() == pytest.approx(xavier, rel=0.05)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"heads": 5}, "divisor"),
        ({"covariance": "full"}, "diagonal"),
        ({"n_e": -1}, "n_e"),
        ({"width": 3}, "width"),
    ],
)
def test_impossible_settings_are_refused(config: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        create("uncrtaints", **config)


def test_stacks_of_different_length_share_a_batch() -> None:
    network = small()
    rng = np.random.default_rng(0)
    stacks = [
        Stack(rng.random((t, 13, 40, 40)), [f"2018-06-{d + 1:02d}" for d in range(t)])
        for t in (1, 3)
    ]
    together = run(network, batch_of(stacks))
    for i, stack in enumerate(stacks):
        alone = run(network, batch_of([stack]))
        torch.testing.assert_close(together.mean[i], alone.mean[0], rtol=0, atol=2e-6)
