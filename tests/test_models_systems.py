"""Every learnt system: published sizes, what the interface promises, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undercast.checkpoint import load_model, save_model
from undercast.errors import ConfigError, InputError
from undercast.losses import criterion
from undercast.models import create, names
from undercast.models.cost import gmac
from undercast.models.pix2pix import PairDiscriminator, PatchGAN, ResNetGenerator, UNet
from undercast.models.registry import system_class
from undercast.models.spagan import SPANet
from undercast.models.system import Batch, Model, System

SMALL: dict[str, dict[str, Any]] = {
    "uncrtaints": {"d_m": 16, "n_d": 1, "heads": 4, "covariance": "none"},
    "utae": {
        "encoder_widths": (16, 16, 16, 32),
        "decoder_widths": (16, 16, 16, 32),
        "heads": 4,
        "d_model": 32,
    },
    "cr-ts-net": {"features": 16, "blocks": 1, "temporal_blocks": 1},
    "stgan": {"width": 8, "blocks": 1},
    "dsen2-cr": {"features": 24, "blocks": 2},
    "glf-cr": {"features": 16, "growth": 8, "blocks": 2, "layers": 2, "heads": 2, "kernel": 3},
    "mcgan": {"width": 16, "levels": 5},
    "sar-opt-cgan": {"width": 16, "levels": 5},
    "sar2opt": {"width": 16, "levels": 5},
    "spa-gan": {"width": 16, "judge_width": 16},
    "simulation-fusion-gan": {"width": 16, "blocks": 1},
}


def scene(b: int = 2, t: int = 3, h: int = 32, w: int = 32, seed: int = 0) -> tuple[Batch, Tensor]:
    """A smooth clear image (b 13 h w), and its series under one bright disc a date.

    The discs grow from date to date; radar sees a smooth field of its own; days are distinct.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = torch.linspace(0, 1, h)[:, None]
    cols = torch.linspace(0, 1, w)[None]

    def waves(*shape: int) -> Tensor:
        rate = 4 * torch.rand(2, *shape, 1, 1, generator=draw)
        phase = 6.3 * torch.rand(*shape, 1, 1, generator=draw)
        return torch.sin(rate[0] * rows + rate[1] * cols + phase)

    clear = 0.2 + 0.1 * waves(b, 13)
    centre = torch.rand(2, b, t, 1, 1, generator=draw)
    radius = 0.4 + 0.1 * torch.arange(t)[:, None, None]
    mask = (rows - centre[0]) ** 2 + (cols - centre[1]) ** 2 < radius**2
    s2 = torch.where(mask[:, :, None], 0.9, clear[:, None])
    days = 1500 + 5.0 * torch.arange(t).repeat(b, 1)
    s1 = -14 + 5 * waves(b, t, 2)
    return Batch(s2, s1, days, torch.ones(b, t, dtype=torch.bool), mask), clear


def rows_of(batch: Batch, index: list[int]) -> Batch:
    """Some samples of a batch."""
    return Batch(*(None if x is None else x[index] for x in batch))  # type: ignore[arg-type]


def dates_of(batch: Batch, index: list[int]) -> Batch:
    """Some dates of a batch, in a given order."""
    return Batch(*(None if x is None else x[:, index] for x in batch))  # type: ignore[arg-type]


BASELINES = [name for name in SMALL if name != "uncrtaints"]
MONO = [name for name in BASELINES if system_class(name).temporal == "mono"]
GANS = [name for name in BASELINES if system_class(name).recipe.adversarial_weight > 0]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Maps this small run fastest on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def small(name: str) -> System:
    torch.manual_seed(0)
    return create(name, **SMALL[name]).network


def trained_a_little(name: str) -> System:
    """In evaluation mode, with batch-norm statistics that are not those of initialisation."""
    network = small(name)
    batch, _ = scene(b=2)
    with torch.no_grad():
        for _ in range(3):
            network.train()(batch)
    return network.eval()


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def count_of(name: str, **config: object) -> int:
    with torch.device("meta"):
        return count(create(name, **config))


def test_small_versions_cover_every_learnt_system() -> None:
    learnt = {name for name in names() if system_class(name).learns}
    assert {name for name in learnt if not name.startswith("fake")} == set(SMALL)


def test_dsen2cr_has_exactly_the_published_number_of_parameters() -> None:
    assert count_of("dsen2-cr") == 18_947_341


@pytest.mark.parametrize(
    ("name", "config", "published"),
    [
        ("stgan", {}, 57.5e6),
        ("cr-ts-net", {}, 38.5e6),
        ("utae", {}, 1.26e6),
        ("utae", {"decoder_widths": (32, 32, 64, 128)}, 1.03e6),
        ("glf-cr", {}, 14.83e6),
        ("mcgan", {}, 54.4e6),
        ("sar-opt-cgan", {}, 54.4e6),
        ("sar2opt", {}, 54.4e6),
        ("simulation-fusion-gan", {}, 2 * 11.4e6),
    ],
)
def test_parameters_are_within_two_percent_of_the_published_number(
    name: str, config: dict[str, object], published: float
) -> None:
    assert count_of(name, **config) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("network", "published"),
    [
        (lambda: SPANet(3, 3), 0.219e6),
        (lambda: UNet(4, 4, first="keep"), 54.4e6),
        (lambda: UNet(3, 3), 54.4e6),
        (lambda: ResNetGenerator(3, 3), 11.4e6),
        (lambda: ResNetGenerator(9, 3), 11.4e6),
        (lambda: PairDiscriminator(3, 3), 2.76e6),
        (lambda: PatchGAN(15), 2.8e6),
    ],
)
def test_networks_with_the_published_channels_have_the_published_parameters(
    network: object, published: float
) -> None:
    with torch.device("meta"):
        built = network()  # type: ignore[operator]
    assert count(built) == pytest.approx(published, rel=0.02)


def test_glfcr_needs_the_published_250_billion_multiply_adds() -> None:
    with torch.device("meta"):
        network = create("glf-cr").network
    assert gmac(network) == pytest.approx(250, rel=0.02)


@pytest.mark.parametrize("name", BASELINES)
def test_output_is_reflectance_without_variance(name: str) -> None:
    batch, clear = scene(b=1)
    network = trained_a_little(name)
    with torch.no_grad():
        output = network(batch._replace(s2=3 * batch.s2))
    assert output.mean.shape == clear.shape
    assert output.mean.dtype == torch.float32
    assert output.mean.min() >= 0
    assert output.mean.max() <= 1
    assert output.variance is None
    assert not network.gives_variance


@pytest.mark.parametrize("name", BASELINES)
def test_batch_of_two_equals_two_batches_of_one(name: str) -> None:
    batch, _ = scene(b=2)
    network = trained_a_little(name)
    with torch.no_grad():
        both = network(batch).mean
        alone = torch.cat([network(rows_of(batch, [i])).mean for i in range(2)])
    torch.testing.assert_close(both, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", BASELINES)
def test_padding_dates_change_nothing(name: str) -> None:
    batch, _ = scene(b=2, t=4)
    valid = torch.tensor([True, True, False, False]).repeat(2, 1)
    padded = Batch(
        torch.where(valid[:, :, None, None, None], batch.s2, torch.nan),
        torch.where(valid[:, :, None, None, None], batch.s1, torch.nan),
        torch.where(valid, batch.days, 0.0),
        valid,
        batch.mask,
    )
    network = trained_a_little(name)
    with torch.no_grad():
        expected = network(dates_of(batch, [0, 1])).mean
        torch.testing.assert_close(network(padded).mean, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("t", [1, 3, 5])
def test_order_of_the_dates_changes_nothing(name: str, t: int) -> None:
    batch, _ = scene(b=1, t=t)
    network = trained_a_little(name)
    with torch.no_grad():
        expected = network(batch).mean
        turned = network(dates_of(batch, list(reversed(range(t))))).mean
    torch.testing.assert_close(turned, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize(("h", "w"), [(40, 24), (8, 16), (37, 50)])
def test_images_of_any_shape_keep_their_size(name: str, h: int, w: int) -> None:
    batch, clear = scene(b=1, h=h, w=w)
    with torch.no_grad():
        mean = trained_a_little(name)(batch).mean
    assert mean.shape == clear.shape
    assert mean.isfinite().all()


@pytest.mark.parametrize("name", BASELINES)
def test_missing_radar_and_holes_give_finite_reflectance(name: str) -> None:
    batch, _ = scene(b=1)
    s2 = batch.s2.clone()
    s2[:, :, :, :4] = torch.nan
    with torch.no_grad():
        mean = trained_a_little(name)(
            batch._replace(s2=s2, s1=torch.full_like(batch.s1, torch.nan))
        ).mean
    assert mean.isfinite().all()


@pytest.mark.parametrize("name", BASELINES)
def test_system_sees_radar_exactly_if_it_says_so(name: str) -> None:
    batch, _ = scene(b=1)
    network = trained_a_little(name)
    with torch.no_grad():
        change = network(batch._replace(s1=batch.s1.flip(-1))).mean - network(batch).mean
    assert (change.abs().max() > 1e-6) == network.uses_s1


@pytest.mark.parametrize("name", MONO)
def test_mono_temporal_system_restores_the_least_cloudy_date(name: str) -> None:
    batch, _ = scene(b=2)  # the first date has the smallest cloud
    network = trained_a_little(name)
    with torch.no_grad():
        assert torch.equal(network(batch).mean, network(dates_of(batch, [0])).mean)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.slow
def test_system_overfits_one_batch(name: str) -> None:
    """The L1 of the reconstruction falls to a tenth within 300 steps of its training loss."""
    batch, clear = scene(b=1)
    network, l1 = small(name).train(), criterion("l1")
    rate = 1e-3 if name == "glf-cr" else 3e-3  # its chained dynamic filters diverge earlier
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    errors: list[float] = []
    for _ in range(300):
        parts = network.training_loss(batch, clear, l1)
        optimiser.zero_grad()
        parts.loss.backward()
        optimiser.step()
        errors.append(l1(parts.output, clear, batch).item())
        if errors[-1] < errors[0] / 10:
            return
    pytest.fail(f"after {len(errors)} steps the error is {errors[-1] / errors[0]:.2f} of the first")


@pytest.mark.parametrize("name", GANS)
def test_alternating_steps_teach_generator_and_adversary(name: str) -> None:
    """The adversary learns a generator at rest; then its verdict reaches the generator."""
    batch, clear = scene(b=1)
    network, l1 = small(name).train(), criterion("l1")
    adversary = network.adversary()
    assert adversary is not None
    fake = network(batch).mean.detach()
    optimiser = torch.optim.Adam(adversary.parameters(), lr=2e-3, betas=(0.5, 0.999))
    verdicts = []
    for _ in range(10):
        real_logits = network.judge(adversary, batch, clear)
        fake_logits = network.judge(adversary, batch, fake)
        verdict = F.softplus(-real_logits).mean() + F.softplus(fake_logits).mean()
        optimiser.zero_grad()
        verdict.backward()
        optimiser.step()
        verdicts.append(verdict.item())
    assert verdicts[-1] < 0.8 * verdicts[0]

    parts = network.training_loss(batch, clear, l1)
    blame = F.softplus(-network.judge(adversary, batch, parts.output.mean)).mean()
    (parts.loss + network.recipe.adversarial_weight * blame).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    (gradient,) = torch.autograd.grad(
        F.softplus(-network.judge(adversary, batch, fake.requires_grad_())).mean(), fake
    )
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", BASELINES)
def test_published_loss_is_known_and_works_on_the_system(name: str) -> None:
    batch, clear = scene(b=1)
    network = small(name).train()
    recipe = network.recipe
    loss = network.training_loss(batch, clear, criterion(recipe.loss)).loss
    assert loss.isfinite()
    assert loss.requires_grad
    assert (network.adversary() is not None) == (recipe.adversarial_weight > 0)


def test_simulation_fusion_loss_without_masks_is_refused() -> None:
    batch, clear = scene(b=1)
    with pytest.raises(InputError, match="cloud masks"):
        small("simulation-fusion-gan").training_loss(
            batch._replace(mask=None), clear, criterion("l1")
        )


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("stgan", {"width": 0}),
        ("cr-ts-net", {"dates": 0}),
        ("dsen2-cr", {"features": 0}),
        ("glf-cr", {"growth": 50}),
        ("glf-cr", {"kernel": 4}),
        ("mcgan", {"levels": 1}),
        ("sar2opt", {"width": 3}),
        ("spa-gan", {"width": 5}),
        ("simulation-fusion-gan", {"jitter": -1.0}),
    ],
)
def test_impossible_settings_are_refused(name: str, config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"got .* expected"):
        create(name, **config)


@pytest.mark.parametrize("name", BASELINES)
def test_saved_system_loads_and_gives_the_same_image(name: str, tmp_path: Path) -> None:
    batch, _ = scene(b=1)
    network = trained_a_little(name)
    save_model(Model(name, network), tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors", engine="eager").eval()
    with torch.no_grad():
        assert torch.equal(loaded(batch).mean, network(batch).mean)
    assert loaded.config == asdict(network.config)
