"""The parts of the compared systems against other ways to compute the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from undercast.models import create
from undercast.models.crtsnet import Conv3d
from undercast.models.dsen2cr import filled_by_mean, scale_s1
from undercast.models.glfcr import dynamic_filter
from undercast.models.mono import choose_dates, cloudiness, least_cloudy_date
from undercast.models.pix2pix import BatchNorm, PatchGAN, UNet
from undercast.models.simulation_fusion import recoloured
from undercast.models.sizes import crop_like, pad_to_multiple
from undercast.models.spagan import FourDirections
from undercast.models.system import Batch
from undercast.models.windows import DropPath, FusedWindowAttention, to_windows


def batch_with(covers: list[int], days: list[float], valid: list[bool]) -> Batch:
    """One stack of 4×4 pixels whose date i has covers[i] masked pixels, reflectance i/100."""
    t = len(covers)
    value = torch.arange(t).float()[None, :, None, None, None] / 100
    mask = torch.stack([torch.arange(16).reshape(4, 4) < c for c in covers])[None]
    return Batch(
        value.expand(1, t, 13, 4, 4).clone(),
        -10 * torch.ones(1, t, 2, 4, 4),
        torch.tensor([days]),
        torch.tensor([valid]),
        mask,
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), min_size=1, max_size=5
    ).filter(lambda dates: any(valid for _, _, valid in dates)),
    st.integers(1, 4),
)
def test_chosen_dates_are_those_of_a_plain_sort(
    dates: list[tuple[int, int, bool]], count: int
) -> None:
    batch = batch_with(
        [c for c, _, _ in dates], [float(d) for _, d, _ in dates], [v for _, _, v in dates]
    )
    ranked = sorted((c, d, i) for i, (c, d, valid) in enumerate(dates) if valid)
    taken = [ranked[n % len(ranked)] for n in range(count)]
    expected = sorted((d, n, i) for n, (_, d, i) in enumerate(taken))
    chosen = choose_dates(batch, count)
    assert (chosen.s2[0, :, 0, 0, 0] * 100).round().int().tolist() == [i for _, _, i in expected]
    assert chosen.days[0].tolist() == [d for d, _, _ in expected]
    assert chosen.valid.all()


def test_each_stack_gets_its_own_least_cloudy_date() -> None:
    first, second = (batch_with(c, [1.0, 2.0], [True, True]) for c in ([3, 0], [0, 3]))
    both = Batch(*(torch.cat(pair) for pair in zip(first, second, strict=True)))  # type: ignore[arg-type]
    assert least_cloudy_date(both).days.tolist() == [[2.0], [1.0]]


def test_pixel_without_data_counts_as_cloudy() -> None:
    batch = batch_with([0, 4], [1.0, 2.0], [True, True])
    s2 = batch.s2.clone()
    s2[:, 0, :, :2] = torch.nan
    assert cloudiness(batch._replace(s2=s2)).tolist() == [[0.5, 0.25]]


def test_without_a_mask_the_date_that_is_darkest_in_blue_is_chosen() -> None:
    batch = batch_with([0, 0, 0], [1.0, 2.0, 3.0], [True, True, True])._replace(mask=None)
    s2 = torch.full_like(batch.s2, 0.9)  # bright everywhere else
    s2[:, :, 1] = torch.tensor([0.3, 0.1, torch.nan])[None, :, None, None]
    assert least_cloudy_date(batch._replace(s2=s2)).days.tolist() == [[2.0]]


@pytest.mark.parametrize("name", ["stgan", "cr-ts-net"])
def test_two_dates_enter_as_three_with_the_least_cloudy_one_twice(name: str) -> None:
    size = {"width": 4, "blocks": 1} if name == "stgan" else {"features": 4, "blocks": 1}
    torch.manual_seed(0)
    network = create(name, **size).network.eval()
    batch = batch_with([9, 3], [5.0, 7.0], [True, True])
    index = [0, 1, 1]
    three = Batch(*(None if x is None else x[:, index] for x in batch))  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(network(batch).mean, network(three).mean)
        assert not torch.equal(network(batch).mean, network(least_cloudy_date(batch)).mean)


def test_padded_image_repeats_its_edge_and_crops_back() -> None:
    x = torch.rand(2, 3, 5, 9)
    padded = pad_to_multiple(x, 4, smallest=12)
    assert padded.shape == (2, 3, 12, 12)
    assert torch.equal(padded[..., 5:, :9], x[..., -1:, :].expand(2, 3, 7, 9))
    assert torch.equal(crop_like(padded, x), x)
    even = x[..., :4, :8]
    assert pad_to_multiple(even, 4) is even


def test_dynamic_filter_is_the_sum_over_unfolded_neighbours() -> None:
    x, kernels = torch.randn(2, 3, 7, 6), torch.randn(2, 3 * 25, 7, 6)
    patches = F.unfold(F.pad(x, (2, 2, 2, 2), mode="replicate"), 5).reshape(2, 3, 25, 7, 6)
    expected = (patches * kernels.reshape(2, 3, 25, 7, 6)).sum(dim=2)
    torch.testing.assert_close(dynamic_filter(x, kernels), expected)


def attention_of_radar(module: FusedWindowAttention, x: Tensor) -> Tensor:
    """The unshifted radar attention by torch's own attention and an explicit table of offsets."""
    part, w = module.radar, module.window
    tokens = to_windows(x, w)
    q, k, v = part.qkv(part.norm(tokens)).chunk(3, dim=-1)
    q, k, v = (y.unflatten(-1, (part.heads, -1)).transpose(1, 2) for y in (q, k, v))
    bias = torch.empty(part.heads, w * w, w * w)
    for i in range(w * w):
        for j in range(w * w):
            rows, cols = i // w - j // w + w - 1, i % w - j % w + w - 1
            bias[:, i, j] = part.position[rows * (2 * w - 1) + cols]
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    return part.project(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_window_attention_is_attention_in_each_window() -> None:
    torch.manual_seed(0)
    module = FusedWindowAttention(8, 2, 4, shifted=False)
    optical, radar = torch.randn(2, 8, 12, 8), torch.randn(2, 8, 12, 8)
    with torch.no_grad():
        result = to_windows(module(optical, radar)[1], 4)
        torch.testing.assert_close(result, attention_of_radar(module, radar))


def test_optical_scores_that_ignore_the_radar_give_plain_attention() -> None:
    torch.manual_seed(0)
    module = FusedWindowAttention(8, 2, 4, shifted=False)
    module.radar.load_state_dict(module.optical.state_dict())
    with torch.no_grad():
        module.mix.weight.copy_(torch.eye(2, 4)[:, :, None, None])
        module.mix.bias.zero_()  # type: ignore[union-attr]
        x = torch.randn(1, 8, 8, 8)
        optical, radar = module(x, x)
        torch.testing.assert_close(optical, radar)
        torch.testing.assert_close(optical, module(x, torch.randn(1, 8, 8, 8))[0])


@pytest.mark.parametrize(("shifted", "reach"), [(False, (0, 4)), (True, (0, 2))])
def test_corner_pixel_reaches_its_own_window_only(shifted: bool, reach: tuple[int, int]) -> None:
    """A shifted window wraps around: without its mask the corner would reach all four borders."""
    torch.manual_seed(0)
    module = FusedWindowAttention(8, 2, 4, shifted=shifted)
    optical, radar = torch.randn(1, 12, 8, 8), torch.randn(1, 12, 8, 8)
    changed = optical.clone()
    changed[:, 0, 0] = torch.randn(8)
    with torch.no_grad():
        change = (module(changed, radar)[0] - module(optical, radar)[0]).abs().amax(dim=(0, 3))
    touched = torch.zeros(12, 8, dtype=torch.bool)
    touched[slice(*reach), slice(*reach)] = True
    assert torch.equal(change > 1e-6, touched)


def test_drop_path_keeps_the_mean_and_drops_whole_samples() -> None:
    torch.manual_seed(0)
    kept = DropPath(0.25).train()(torch.ones(4000, 2, 3))
    assert set(kept.flatten(1).std(dim=1).tolist()) == {0.0}
    assert kept.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(DropPath(0.25).eval()(kept), kept)


def test_four_directions_look_at_the_neighbour_of_each() -> None:
    module = FourDirections(1)
    for weight in module.weights:
        torch.nn.init.ones_(weight.weight)  # type: ignore[arg-type]
        torch.nn.init.zeros_(weight.bias)  # type: ignore[arg-type]
    x = torch.zeros(1, 1, 5, 5)
    x[..., 2, 2] = 1
    with torch.no_grad():
        seen = module(x)[0, :, 0] - x[0]
    assert [view.nonzero().tolist() for view in seen] == [[[3, 2]], [[1, 2]], [[2, 3]], [[2, 1]]]


def test_dsen2cr_without_a_correction_returns_its_clipped_input() -> None:
    network = create("dsen2-cr", features=8, blocks=1).network.eval()
    for parameter in network.tail.parameters():  # type: ignore[union-attr]
        torch.nn.init.zeros_(parameter)  # type: ignore[arg-type]
    batch = batch_with([0], [1.0], [True])
    s2 = torch.rand(1, 1, 13, 4, 4) * 1.5
    with torch.no_grad():
        mean = network(batch._replace(s2=s2)).mean
    torch.testing.assert_close(mean, s2[:, 0].clip(0, 1))


def test_dsen2cr_radar_scale_has_a_range_for_each_band() -> None:
    db = torch.tensor([[-25.0, -12.5, 5.0], [-32.5, -16.25, -40.0]])[:, None]
    assert scale_s1(db)[:, 0].tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 0.0]]


def test_holes_take_the_mean_of_their_image() -> None:
    image = torch.tensor([[1.0, 3.0, torch.nan], [2.0, 2.0, 5.0]])[:, None, None]
    assert filled_by_mean(image)[:, 0, 0].tolist() == [[1.0, 3.0, 2.0], [2.0, 2.0, 5.0]]


def test_convolution_over_dates_sums_each_neighbour_once() -> None:
    """On values that depend on the date alone, all-ones kernels give 9 × (before + now + after)."""
    module = Conv3d(1, 1)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    x = torch.tensor([1.0, 2.0, 4.0])[None, None, :, None, None].expand(1, 1, 3, 5, 4)
    with torch.no_grad():
        y = module(x)
    expected = 9 * torch.tensor([1.0 + 1 + 2, 1 + 2 + 4, 2 + 4 + 4])
    torch.testing.assert_close(y[0, 0], expected[:, None, None].expand(3, 5, 4))


@pytest.mark.parametrize("first", ["halve", "keep"])
@pytest.mark.parametrize("size", [(32, 32), (13, 70)])
def test_deep_unet_trains_on_one_image_smaller_than_its_depth(
    first: str, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    network = UNet(2, 3, width=4, levels=8, first=first).train()  # type: ignore[arg-type]
    y = network(torch.randn(1, 2, *size))
    assert y.shape == (1, 3, *size)
    y.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_unet_sees_no_padding_where_its_size_halves_evenly() -> None:
    """Its layers called one by one, without any padding, give the same."""
    torch.manual_seed(0)
    network = UNet(2, 3, width=4, levels=2).eval()
    x = torch.randn(1, 2, 8, 12)
    with torch.no_grad():
        outer = network.first(x)
        inner = network.down[0].conv(F.leaky_relu(outer, 0.2))  # type: ignore[operator,union-attr]
        up = network.up[0].norm(network.up[0].conv(F.relu(inner)))  # type: ignore[operator,union-attr]
        expected = network.last(F.relu(torch.cat((outer, up), dim=1))).tanh()
        torch.testing.assert_close(network(x), expected)


def test_batch_norm_of_a_single_value_takes_running_statistics() -> None:
    norm = BatchNorm(2).train()
    x = torch.tensor([3.0, -1.0]).reshape(1, 2, 1, 1)
    torch.testing.assert_close(norm(x), x / (1 + 1e-5) ** 0.5)
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [0.0, 0.0]
    twice = torch.cat((x, x + 2))
    torch.testing.assert_close(norm(twice), F.batch_norm(twice, None, None, training=True))


def test_patch_gan_judges_patches_of_seventy_pixels() -> None:
    torch.manual_seed(0)
    network = PatchGAN(1, width=2).eval()
    x = torch.randn(1, 1, 256, 256, requires_grad=True)
    logits = network(x)
    assert logits.shape == (1, 1, 30, 30)
    (gradient,) = torch.autograd.grad(logits[0, 0, 15, 15], x)
    rows = gradient[0, 0].abs().sum(dim=1).nonzero().flatten()
    assert int(rows.max() - rows.min()) + 1 == 70


def test_recolouring_keeps_each_bands_structure_and_shuffles_bands() -> None:
    torch.manual_seed(0)
    image = 0.3 * torch.randn(2, 13, 16, 16).clip(-1, 1)
    changed = recoloured(image, 0.2)
    for before, after in zip(image, changed, strict=True):
        both = torch.cat((before.flatten(1), after.flatten(1)))
        likeness = torch.corrcoef(both)[:13, 13:]  # rows: bands before; columns: after
        assert (likeness.amax(dim=0) > 0.98).all()
        assert sorted(likeness.argmax(dim=0).tolist()) == list(range(13))
        assert likeness.argmax(dim=0).tolist() != list(range(13))
    torch.testing.assert_close(recoloured(image, 0.0).sum(dim=1), image.sum(dim=1))


def test_simulation_learns_from_its_own_error_only() -> None:
    """Every term but the first stage's is zero when the criterion is: no gradient reaches G1."""
    torch.manual_seed(0)
    network = create("simulation-fusion-gan", width=4, blocks=0).network.train()
    batch = batch_with([8], [1.0], [True])
    target = torch.rand(1, 13, 4, 4)
    calls: list[Tensor] = []

    def second_stage_only(output: object, target: Tensor, batch: Batch) -> Tensor:
        calls.append(output.mean)  # type: ignore[attr-defined]
        return (calls[-1] - target).abs().mean() * (0.0 if len(calls) == 1 else 1.0)

    loss = network.training_loss(batch, target, second_stage_only).loss
    loss.backward()
    simulate, fuse = (
        sum(float(p.grad.abs().sum()) for p in part.parameters() if p.grad is not None)
        for part in (network.simulate, network.fuse)  # type: ignore[union-attr]
    )
    assert simulate == 0
    assert fuse > 0
    error = (calls[1] - target).abs()
    local = (error * batch.mask[:, :1]).mean()  # type: ignore[index]
    torch.testing.assert_close(loss, 10 * error.mean() + 10 * local)
