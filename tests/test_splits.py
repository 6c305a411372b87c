"""Splits: the published lists, exact matching, and what the released substring rule leaks."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercast.datasets import splits
from undercast.datasets.auditing import published_overlaps
from undercast.errors import DataError, InputError

CASES = [(name, region) for name in splits.DATASETS for region in splits.regions(name)]


@pytest.mark.parametrize(("dataset", "region"), CASES)
def test_no_two_splits_of_a_region_share_a_roi(dataset: str, region: str) -> None:
    for one, other in combinations(splits.SPLITS, 2):
        assert not set(splits.listed(dataset, one, region)) & set(
            splits.listed(dataset, other, region)
        )
    assert splits.overlaps(dataset, splits.listed(dataset, "all"), region) == []


def test_the_lists_have_the_published_lengths() -> None:
    lengths = {
        name: [len(splits.listed(name, split)) for split in splits.SPLITS]
        for name in splits.DATASETS
    }
    assert lengths == {"sen12mscr": [155, 10, 10], "sen12mscrts": [35, 5, 13]}


def test_the_regions_of_the_time_series_partition_it() -> None:
    for split in splits.SPLITS:
        parts = [
            roi
            for region in splits.regions("sen12mscrts")
            if region != "all"
            for roi in splits.listed("sen12mscrts", split, region)
        ]
        assert sorted(parts) == sorted(splits.listed("sen12mscrts", split))


def test_the_legacy_rule_leaks_six_test_and_three_val_rois_and_ours_none() -> None:
    legacy = published_overlaps("sen12mscr", rule="legacy")
    assert (legacy["train and test"]["shared"], legacy["train and test"]["of"]) == (6, 10)
    assert (legacy["train and val"]["shared"], legacy["train and val"]["of"]) == (3, 10)
    assert legacy["val and test"]["shared"] == 0
    for dataset in splits.DATASETS:
        exact = published_overlaps(dataset)
        assert [pair["shared"] for pair in exact.values()] == [0, 0, 0]
    series = published_overlaps("sen12mscrts", rule="legacy")
    assert [pair["shared"] for pair in series.values()] == [0, 0, 0]


def test_each_leak_comes_through_the_entry_that_the_released_code_has() -> None:
    everything = splits.listed("sen12mscr", "all")
    found = {o.roi: o.via for o in splits.overlaps("sen12mscr", everything, rule="legacy")}
    assert found == {
        "1158/106": "1158/1", "1158/123": "1158/1", "1158/140": "1158/1", "1868/119": "1868/11",
        "1868/73": "1868/7", "1970/139": "1970/1", "1970/65": "1970/6", "1158/17": "1158/1",
        "2017/84": "2017/8",
    }  # fmt: skip


@given(
    roi=st.sampled_from(splits.listed("sen12mscr", "all")),
    split=st.sampled_from(splits.SPLITS),
)
def test_the_legacy_rule_is_the_substring_test_on_paths(roi: str, split: str) -> None:
    seasons = {"1158": "spring", "1868": "summer", "1970": "fall", "2017": "winter"}

    def folder(name: str) -> str:
        seed, number = name.split("/")
        return f"ROIs{seed}_{seasons[seed]}_s1/s1_{number}"

    path = f"/data/{folder(roi)}/ROIs_p1.tif"
    released = any(folder(entry) in path for entry in splits.listed("sen12mscr", split))
    ours = splits.entry_of("sen12mscr", roi, split, rule="legacy")
    assert (ours is not None) == released


def test_combining_the_datasets_would_train_on_a_test_roi() -> None:
    found = splits.cross_overlaps(
        "sen12mscr",
        splits.listed("sen12mscr", "all"),
        "sen12mscrts",
        splits.listed("sen12mscrts", "all"),
        "exact",
    )
    assert [(o.roi, o.splits) for o in found] == [
        ("1868/100", ("sen12mscr:train", "sen12mscrts:test")),
        ("2017/130", ("sen12mscr:val", "sen12mscrts:train")),
    ]


def test_the_hash_of_the_lists_is_the_published_one() -> None:
    assert splits.manifest("sen12mscr")["sha256"].startswith("e4f12d735c2e")
    assert splits.manifest("sen12mscrts")["sha256"].startswith("c70fd21fb9af")


def test_an_edited_manifest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = json.loads

    def edited(text: str) -> Any:
        content = original(text)
        content["regions"]["all"]["train"].append(content["regions"]["all"]["test"].pop())
        return content

    splits.manifest.cache_clear()
    monkeypatch.setattr(splits.json, "loads", edited)
    with pytest.raises(DataError, match="was edited"):
        splits.manifest("sen12mscr")
    splits.manifest.cache_clear()


def test_unknown_names_are_errors() -> None:
    with pytest.raises(InputError, match="expected one of sen12mscr sen12mscrts"):
        splits.listed("sen12ms", "test")
    with pytest.raises(InputError, match="train val test all"):
        splits.listed("sen12mscr", "validation")
    with pytest.raises(InputError, match="expected one of all for sen12mscr"):
        splits.listed("sen12mscr", "test", "africa")
    with pytest.raises(InputError, match="exact legacy"):
        splits.entry_of("sen12mscr", "1158/1", "train", rule="loose")
