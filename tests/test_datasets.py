"""Samples: what they hold, that the target stays out, options for training, loader workers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fake_dataset import CR_ROIS, SIZE, TS_ROIS, cr_path, ts_path, write_cr, write_tif, write_ts
from undercast.datasets import Sample, collate, open_dataset, prepare
from undercast.errors import DataError, InputError


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_ts(tmp_path_factory.mktemp("data") / "ts", rois=TS_ROIS, patches=3, dates=6)
    prepare(root, method="rules")
    return root


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_cr(tmp_path_factory.mktemp("data") / "cr", rois=CR_ROIS, patches=2)
    prepare(root, method="rules")
    return root


def dn(root: Path, path: str) -> np.ndarray:
    with rasterio.open(root / path) as file:
        return file.read()


def same(one: Sample, other: Sample) -> None:
    assert one.provenance == other.provenance
    assert one.target_date == other.target_date
    for name in ("s2", "s1", "dates", "s1_dates", "mask"):
        np.testing.assert_array_equal(getattr(one.stack, name), getattr(other.stack, name))
    np.testing.assert_array_equal(one.target, other.target)
    np.testing.assert_array_equal(one.target_mask, other.target_mask)


def test_a_sample_holds_the_pixels_dates_and_masks_of_the_files_it_names(series: Path) -> None:
    sample = open_dataset(series, "test", t=3)[1]
    source = sample.provenance
    assert (source.roi, source.patch, source.split) == ("1868/73", 101, "test")
    assert source.id == "sen12mscrts/1868/73/101"
    for i, (s2, s1) in enumerate(zip(source.input_paths, source.s1_paths, strict=True)):
        np.testing.assert_allclose(sample.stack.s2[i], dn(series, s2) / 10000, rtol=1e-6)
        np.testing.assert_array_equal(sample.stack.s1[i], dn(series, s1))
        assert str(sample.stack.dates[i]) in s2
        assert str(sample.stack.s1_dates[i]) in s1
    np.testing.assert_allclose(sample.target, dn(series, source.target_path) / 10000, rtol=1e-6)
    assert str(sample.target_date) in source.target_path
    assert source.cover == pytest.approx(sample.stack.mask.mean(), abs=1e-6)
    assert source.target_cover == sample.target_mask.mean() == 0


def test_the_clean_target_is_the_earliest_clear_date_and_inputs_are_its_neighbours(
    series: Path,
) -> None:
    for sample in open_dataset(series, "all", t=2):
        patch, source = sample.provenance.patch, sample.provenance
        clear = (-patch) % 3
        assert source.target == clear
        assert source.inputs == ((1, 2) if clear == 0 else (clear - 1, clear + 1))


@settings(max_examples=15)
@given(
    protocol=st.sampled_from(["clean", "train"]),
    t=st.integers(1, 7),
    epoch=st.integers(0, 50),
    item=st.integers(0, 14),
)
def test_the_target_is_never_an_input(
    series: Path, protocol: str, t: int, epoch: int, item: int
) -> None:
    dataset = open_dataset(series, "all", t=t, protocol=protocol)
    dataset.set_epoch(epoch)
    sample = dataset[item]
    source = sample.provenance
    assert source.target not in source.inputs
    assert source.target_path not in source.input_paths
    assert not any(np.array_equal(image, sample.target) for image in sample.stack.s2)
    assert len(source.inputs) == min(t, 5)


def test_the_legacy_protocol_takes_the_first_dates_and_may_take_the_target(series: Path) -> None:
    found = [s.provenance for s in open_dataset(series, "test", protocol="legacy")]
    assert {source.inputs for source in found} == {(0, 1, 2)}
    assert any(source.target in source.inputs for source in found)


def test_splits_share_no_patch(series: Path, pairs: Path) -> None:
    for root in (series, pairs):
        parts = [
            {(p.roi, p.number) for p in open_dataset(root, split).patches}
            for split in ("train", "val", "test")
        ]
        together = set.union(*parts)
        assert len(together) == sum(map(len, parts)) == len(open_dataset(root, "all"))


def test_the_legacy_rule_puts_test_rois_into_training(pairs: Path) -> None:
    rois = {p.roi for p in open_dataset(pairs, "train", split_rule="legacy").patches}
    assert {"1158/106", "1158/17"} <= rois
    assert {p.roi for p in open_dataset(pairs, "train").patches} == {"1158/1", "1868/100"}
    kept = open_dataset(pairs, "train", exclude=["1868/100"]).patches
    assert {p.roi for p in kept} == {"1158/1"}


def test_a_region_takes_only_its_rois(series: Path) -> None:
    assert {p.roi for p in open_dataset(series, "test", region="asiaEast").patches} == {"1868/73"}
    with pytest.raises(DataError, match="no patch of the split val"):
        open_dataset(series, "val", region="africa")


def test_a_pair_is_one_cloudy_date_and_its_clear_target(pairs: Path) -> None:
    sample = open_dataset(pairs, "test")[0]
    roi, patch = "1158/106", 30
    assert sample.stack.shape == (1, SIZE, SIZE)
    cloudy, clear, radar = (
        dn(pairs, str(cr_path(pairs, roi, kind, patch))) for kind in ("s2_cloudy", "s2", "s1")
    )
    np.testing.assert_allclose(sample.stack.s2[0], cloudy / 10000, rtol=1e-6)
    np.testing.assert_allclose(sample.target, clear / 10000, rtol=1e-6)
    np.testing.assert_array_equal(sample.stack.s1[0], radar)
    assert str(sample.target_date) == str(sample.stack.dates[0]) == "2018-04-15"
    assert sample.provenance.target is None
    assert 0.3 < sample.provenance.cover < 0.6
    assert sample.provenance.target_cover == 0


def coded(root: Path) -> Path:
    """Series whose pixels say where they are: row and column in two bands of every image."""
    rows, cols = np.mgrid[:SIZE, :SIZE]
    for number in range(5):
        date = str(np.datetime64("2018-01-04") + 12 * number)
        s2 = np.full((13, SIZE, SIZE), 500, np.uint16)
        s2[0], s2[1] = rows + 1, cols + 1
        s1 = np.stack([rows + 1, cols + 1]).astype(np.float32) / -100
        write_tif(ts_path(root, "1868/36", "s2", number, date, 5), s2)
        write_tif(ts_path(root, "1868/36", "s1", number, date, 5), s1)
    return root


def test_crops_and_turns_keep_all_images_of_a_sample_aligned(tmp_path: Path) -> None:
    root = coded(tmp_path)
    prepare(root, method="rules")
    dataset = open_dataset(root, "train", protocol="train", crop=12, augment=True)
    corners = set()
    for epoch in range(40):
        dataset.set_epoch(epoch)
        sample = dataset[0]
        place = np.rint(sample.target[:2] * 10000)
        assert sample.target.shape == (13, 12, 12)
        for s2, s1 in zip(sample.stack.s2, sample.stack.s1, strict=True):
            np.testing.assert_array_equal(np.rint(s2[:2] * 10000), place)
            np.testing.assert_array_equal(np.rint(s1 * -100), place)
        tile = sample.provenance.tile
        assert place[0].min() == tile.row + 1
        assert place[1].max() == tile.col + 12
        top_left = place[:, 0, 0] - place.min(axis=(1, 2))
        down_is_row = place[0, 0, 0] != place[0, 1, 0]
        corners.add((*top_left.tolist(), bool(down_is_row)))
    assert len(corners) == 8, "all flips and quarter turns occur"


def test_masks_turn_with_their_images(series: Path) -> None:
    plain = open_dataset(series, "train", protocol="train", crop=16)
    turned = open_dataset(series, "train", protocol="train", crop=16, augment=True)
    for epoch in range(6):
        plain.set_epoch(epoch)
        turned.set_epoch(epoch)
        one, other = plain[0], turned[0]
        assert one.provenance == other.provenance
        visible = other.stack.s2[:, 1]
        bright = visible > 0.3
        assert (other.stack.mask | ~bright).all(), "every bright pixel is masked"
        assert one.stack.mask.sum() == other.stack.mask.sum()


def test_the_crop_is_in_the_centre_unless_training(series: Path) -> None:
    tile = open_dataset(series, "val", crop=10)[0].provenance.tile
    assert (tile.row, tile.col, tile.height, tile.width) == (11, 11, 10, 10)


def test_zero_pixels_are_no_data_in_inputs_and_target(tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=("1868/36",), patches=1, dates=3)
    for path in root.rglob("s2_*.tif"):
        image = dn(root, str(path))
        image[:, :4] = 0
        image[10, 8] = 0
        write_tif(path, image)
    prepare(root, method="rules")
    sample = open_dataset(root, "train", t=2)[0]
    for s2, mask in (
        (sample.stack.s2[0], sample.stack.mask[0]),
        (sample.target, sample.target_mask),
    ):
        assert np.isnan(s2[:, :4]).all()
        assert np.isfinite(s2[:, 4:]).all()
        assert mask[:4].all()
    assert sample.provenance.target_cover == pytest.approx(4 / SIZE)


def test_targets_are_clipped_to_one_and_inputs_are_not(tmp_path: Path) -> None:
    root = write_cr(tmp_path, rois=("1158/1",), patches=1)
    for kind in ("s2", "s2_cloudy"):
        path = cr_path(root, "1158/1", kind, 30)
        image = dn(root, str(path))
        image[:, 0] = 12000
        write_tif(path, image)
    sample = open_dataset(root, "train")[0]
    assert sample.target.max() == 1
    assert sample.stack.s2.max() == np.float32(1.2)


def test_radar_can_be_left_out_dropped_or_missing(series: Path, tmp_path: Path) -> None:
    assert open_dataset(series, "train", sar=False)[0].stack.s1 is None
    dataset = open_dataset(series, "train", protocol="train", sar_dropout=0.5)
    dropped = []
    for epoch in range(40):
        dataset.set_epoch(epoch)
        dropped += np.isnan(dataset[0].stack.s1).all(axis=(1, 2, 3)).tolist()
    assert 0.3 < np.mean(dropped) < 0.7
    assert np.isnan(open_dataset(series, "train", sar_dropout=1.0)[0].stack.s1).all()

    root = write_ts(tmp_path, rois=("1868/36",), patches=1, dates=3)
    next(root.glob("ROIs1868/36/S1/1/*.tif")).unlink()
    prepare(root, method="rules")
    stack = open_dataset(root, "train", protocol="legacy")[0].stack
    assert np.isnan(stack.s1).all(axis=(1, 2, 3)).tolist() == [False, True, False]
    assert stack.days()[1] == (stack.dates[1] - np.datetime64("2014-04-03")).astype(int)


def test_random_t_draws_every_length_and_batches_pad_it(series: Path) -> None:
    dataset = open_dataset(series, "train", protocol="train", random_t=(1, 4))
    seen = set()
    for epoch in range(6):
        dataset.set_epoch(epoch)
        samples = [dataset[i] for i in range(len(dataset))]
        batch = collate(samples)
        lengths = [len(sample.stack.dates) for sample in samples]
        seen |= set(lengths)
        assert batch.batch.valid.sum(dim=1).tolist() == lengths
    assert seen == {1, 2, 3, 4}


def loaded(series: Path, workers: int, context: str | None = None) -> Iterator[Sample]:
    dataset = open_dataset(
        series, "train", protocol="train", crop=16, augment=True, sar_dropout=0.3, seed=7
    )
    dataset.set_epoch(5)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=context
    )
    yield from loader


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (2, "fork"), (2, "spawn")])
def test_samples_are_the_same_for_any_number_of_workers(
    series: Path, workers: int, context: str
) -> None:
    reference = list(loaded(series, 0))
    found = list(loaded(series, workers, context))
    assert len(found) == len(reference) == 6
    for one, other in zip(reference, found, strict=True):
        same(one, other)


@pytest.mark.slow
def test_workers_that_outlive_an_epoch_see_the_next_one(series: Path) -> None:
    dataset = open_dataset(series, "train", protocol="train", crop=16)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    for epoch in (0, 1, 2):
        dataset.set_epoch(epoch)
        for one, other in zip([dataset[i] for i in range(len(dataset))], loader, strict=True):
            same(one, other)


def test_epochs_and_seeds_change_training_samples_and_nothing_else(series: Path) -> None:
    def tiles(protocol: str, seed: int, epoch: int) -> list[object]:
        dataset = open_dataset(series, "train", protocol=protocol, crop=8, seed=seed)
        dataset.set_epoch(epoch)
        return [sample.provenance for sample in dataset]

    assert tiles("train", 0, 0) == tiles("train", 0, 0)
    assert tiles("train", 0, 0) != tiles("train", 0, 1)
    assert tiles("train", 0, 0) != tiles("train", 1, 0)
    assert tiles("clean", 0, 0) == tiles("clean", 1, 3)


def test_a_partial_copy_gives_the_same_samples(series: Path, tmp_path: Path) -> None:
    part = write_ts(tmp_path, rois=TS_ROIS[1:2], patches=3, dates=6)
    prepare(part, method="rules")
    whole = {s.provenance.id: s for s in open_dataset(series, "train", protocol="train", crop=8)}
    for sample in open_dataset(part, "train", protocol="train", crop=8):
        same(sample, whole[sample.provenance.id])


def test_a_batch_stacks_targets_and_masks(series: Path) -> None:
    samples = [open_dataset(series, "train")[i] for i in range(2)]
    batch = collate(samples)
    assert batch.batch.s2.shape == (2, 3, 13, SIZE, SIZE)
    for i, sample in enumerate(samples):
        np.testing.assert_array_equal(batch.target[i].numpy(), sample.target)
        np.testing.assert_array_equal(batch.target_mask[i].numpy(), sample.target_mask)
        np.testing.assert_array_equal(batch.batch.mask[i].numpy(), sample.stack.mask)
        assert batch.samples[i] == sample.provenance
    moved = batch.to("cpu")
    assert torch.equal(moved.target, batch.target)
    with pytest.raises(InputError, match="at least one"):
        collate([])


def test_a_dataset_survives_pickling(series: Path) -> None:
    dataset = open_dataset(series, "train", protocol="train", crop=8)
    dataset.set_epoch(3)
    same(pickle.loads(pickle.dumps(dataset))[2], dataset[2])


def test_unprepared_series_say_what_to_run_and_unprepared_pairs_work(tmp_path: Path) -> None:
    root = write_ts(tmp_path / "ts", rois=TS_ROIS[:2], patches=1, dates=3)
    with pytest.raises(DataError, match=f"run undercast data prepare {root}"):
        open_dataset(root, "train")
    prepare(root, method="rules")
    path = next(root.glob("ROIs1868/36/S2/1/*.tif"))
    write_tif(path, dn(root, str(path)))
    with pytest.raises(DataError, match="1 of 6 images"):
        open_dataset(root, "train")
    pairs = write_cr(tmp_path / "cr", rois=CR_ROIS[:1], patches=1)
    sample = open_dataset(pairs, "train")[0]
    assert sample.stack.mask is None
    assert sample.target_mask is None
    assert np.isnan(sample.provenance.cover)
    assert collate([sample]).target_mask is None


def test_a_file_that_breaks_after_indexing_is_named(series: Path, tmp_path: Path) -> None:
    root = write_ts(tmp_path, rois=("1868/36",), patches=1, dates=3)
    prepare(root, method="rules")
    dataset = open_dataset(root, "train", t=2)
    path = root / dataset[0].provenance.target_path
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=path.name):
        dataset[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t": 0}, "t = 0"),
        ({"protocol": "fixed"}, "clean legacy train"),
        ({"crop": 0}, "crop = 0"),
        ({"crop": 64}, "at most 32"),
        ({"sar_dropout": 1.5}, "probability"),
        ({"random_t": (3, 2)}, "lowest, highest"),
        ({"split_rule": "loose"}, "exact legacy"),
        ({"region": "mars"}, "africa"),
        ({"layout": "sen12"}, "layout"),
    ],
)
def test_impossible_options_are_errors(series: Path, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_dataset(series, "train", **options)
    with pytest.raises(InputError, match="got split 'validation'"):
        open_dataset(series, "validation")
