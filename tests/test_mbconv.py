"""The memory-saving training path of an MBConv block against the plain block in float64."""

import copy
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from undercast.models import create, mbconv, mbconv_parts
from undercast.models.system import Batch
from undercast.models.uncrtaints import MBConv


@pytest.fixture(autouse=True)
def _small_is_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mbconv, "LARGE", 0)
        yield


def plain(block: MBConv, x: Tensor) -> Tensor:
    """The block in float64, which never takes the other path."""
    assert x.dtype == torch.float64
    return block(x)


def made(norm: str, channels: int = 16) -> MBConv:
    torch.manual_seed(0)
    block = MBConv(channels, norm)  # type: ignore[arg-type]
    for weight in block.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    return block


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs).norm() / theirs.norm().clamp_min(1e-6))


@given(
    norm=st.sampled_from(("group", "batch")),
    images=st.integers(1, 3),
    height=st.integers(4, 21),
    width=st.integers(4, 13),
    strip=st.integers(12, 300),
)
def test_output_gradients_and_averages_are_those_of_the_plain_block(
    norm: str, images: int, height: int, width: int, strip: int
) -> None:
    ours, x = made(norm), 0.4 + 1.3 * torch.randn(images, 16, height, width)
    reference, gradient = copy.deepcopy(ours).double(), torch.randn(x.shape)
    x64 = x.double().requires_grad_()
    x.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mbconv_parts, "STRIP_PIXELS", strip)
        y = ours(x)
        y.backward(gradient)
    expected = plain(reference, x64)
    expected.backward(gradient.double())
    assert type(y.grad_fn).__name__ == "_TrainedBackward"
    assert distance(y.detach(), expected.detach()) < 1e-6
    assert x.grad is not None
    assert x64.grad is not None
    assert distance(x.grad, x64.grad) < 1e-5
    largest = max(float(w.grad.norm()) for w in reference.parameters() if w.grad is not None)
    for (name, weight), (_, truth) in zip(
        ours.named_parameters(), reference.named_parameters(), strict=True
    ):
        assert weight.grad is not None
        assert truth.grad is not None
        assert weight.grad.shape == truth.grad.shape
        error = float((weight.grad.double() - truth.grad).norm())
        assert error < 1e-5 * float(truth.grad.norm()) + 1e-6 * largest, name
    for (name, ours_), (_, theirs) in zip(
        ours.named_buffers(), reference.named_buffers(), strict=True
    ):
        assert distance(ours_, theirs.double()) < 1e-5, name


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_gradients_of_shifted_features_are_as_good_as_those_of_the_plain_block(norm: str) -> None:
    """A mean of a hundred deviations: where sums of squares lose digits."""
    ours, gradient = made(norm), torch.randn(2, 16, 16, 16)
    other, reference = copy.deepcopy(ours), copy.deepcopy(ours).double()
    x = 100 + torch.randn(2, 16, 16, 16)
    found = []
    for block, image in ((ours, x.clone()), (other, x.clone()), (reference, x.double())):
        image.requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            if block is other:
                patch.setattr(mbconv, "is_suited", lambda *_: False)
            block(image).backward(gradient.to(image.dtype))
        assert image.grad is not None
        found.append(image.grad)
    assert distance(found[0], found[2]) < max(3 * distance(found[1], found[2]), 1e-4)


def test_other_modes_take_the_plain_path() -> None:
    block, x = made("batch"), torch.randn(1, 16, 8, 8)
    assert mbconv.is_suited(block, x)
    with torch.no_grad():
        assert not mbconv.is_suited(block, x)
    assert not mbconv.is_suited(block, x.double())
    assert not mbconv.is_suited(block, torch.randn(1, 16, 3, 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert not mbconv.is_suited(block, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mbconv, "LARGE", x.numel() + 1)
        assert not mbconv.is_suited(block, x)
    other = made("batch")
    other.pre_norm = torch.nn.SyncBatchNorm(16)
    assert not mbconv.is_suited(other, x)
    frozen = made("batch")
    frozen.pre_norm.eval()
    assert not mbconv.is_suited(frozen, x)
    assert type(block.eval()(x).grad_fn).__name__ == "AddBackward0"


def test_dates_that_are_not_valid_change_no_gradient() -> None:
    """Padding is left out of the encoder, so gradients with and without it are equal."""
    torch.manual_seed(1)
    network = create("uncrtaints", d_m=16, heads=4, dropout=0.0, n_d=1).network.train()
    s2, s1 = torch.rand(2, 2, 13, 16, 16), torch.randn(2, 2, 2, 16, 16)
    days, valid = torch.tensor([[0.0, 10.0]] * 2), torch.ones(2, 2, dtype=torch.bool)
    nan = float("nan")
    padded = Batch(
        torch.cat((s2, torch.full_like(s2, nan)), 1),
        torch.cat((s1, torch.full_like(s1, nan)), 1),
        torch.cat((days, torch.zeros(2, 2)), 1),
        torch.cat((valid, ~valid), 1),
    )
    gradients = []
    for batch in (Batch(s2, s1, days, valid), padded):
        copied = copy.deepcopy(network)
        output = copied(batch)
        (output.mean.square().sum() + output.variance.sum()).backward()
        gradients.append([w.grad for w in copied.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
