"""Which region of interest belongs to which split: exact lists, and the released substring rule.

A region of interest (ROI) is written `seed/number` for both datasets, as in `1868/73`: the seed of
SEN12MS-CR's `ROIs1868_summer` and of SEN12MS-CR-TS's `ROIs1868` is the same drawing of places.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

from undercast.errors import DataError, InputError

DATASETS = ("sen12mscr", "sen12mscrts")
SPLITS = ("train", "val", "test")
RULES = ("exact", "legacy")


@dataclass(frozen=True)
class Overlap:
    """A region of interest that two splits share; `via` names the list entry that let it in."""

    roi: str
    splits: tuple[str, str]
    via: str


@cache
def manifest(dataset: str) -> dict[str, Any]:
    """The committed split lists of a dataset, checked against the hash that they carry."""
    if dataset not in DATASETS:
        raise InputError(f"got dataset {dataset!r}, expected one of {' '.join(DATASETS)}")
    file = resources.files("undercast.datasets") / "manifests" / f"{dataset}.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if (found := digest(content["regions"])) != content["sha256"]:
        raise DataError(
            f"the split lists of {dataset} hash to {found[:12]}, expected "
            f"{content['sha256'][:12]}: the manifest was edited, reinstall undercast"
        )
    return content


def digest(regions: Any) -> str:
    """The SHA-256 of split lists, whatever the layout of the file that holds them."""
    text = json.dumps(regions, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def regions(dataset: str) -> tuple[str, ...]:
    """The region lists that a dataset has.

    >>> regions("sen12mscrts")
    ('all', 'africa', 'america', 'asiaEast', 'asiaWest', 'europa')
    """
    return tuple(manifest(dataset)["regions"])


def listed(dataset: str, split: str, region: str = "all") -> tuple[str, ...]:
    """The ROIs of a split in the released lists; the split `all` is the union of the three.

    >>> listed("sen12mscrts", "val")
    ('1868/17', '1868/127', '1970/65', '2017/22', '2017/117')
    """
    if region not in regions(dataset):
        raise InputError(
            f"got region {region!r}, expected one of {' '.join(regions(dataset))} for {dataset}"
        )
    lists = manifest(dataset)["regions"][region]
    if split == "all":
        return tuple(roi for name in SPLITS for roi in lists[name])
    if split not in SPLITS:
        raise InputError(f"got split {split!r}, expected one of {' '.join(SPLITS)} all")
    return tuple(lists[split])


def entry_of(
    dataset: str, roi: str, split: str, region: str = "all", rule: str = "exact"
) -> str | None:
    """The list entry through which an ROI belongs to a split, or None where it does not.

    The rule `legacy` is the released test for SEN12MS-CR, "the entry is part of the path": the
    entry `s1_1` then also takes `s1_106`. SEN12MS-CR-TS was always matched exactly.

    >>> entry_of("sen12mscr", "1158/106", "train", rule="legacy")
    '1158/1'
    >>> entry_of("sen12mscr", "1158/106", "train") is None
    True
    """
    if rule not in RULES:
        raise InputError(f"got split rule {rule!r}, expected one of {' '.join(RULES)}")
    entries = listed(dataset, split, region)
    if roi in entries:
        return roi
    if rule == "legacy" and dataset == "sen12mscr":
        return next((entry for entry in entries if roi.startswith(entry)), None)
    return None


def members(
    dataset: str, rois: Iterable[str], split: str, region: str = "all", rule: str = "exact"
) -> list[str]:
    """The ROIs among `rois` that belong to a split, in their order."""
    return [roi for roi in rois if entry_of(dataset, roi, split, region, rule) is not None]


def overlaps(
    dataset: str, rois: Iterable[str], region: str = "all", rule: str = "exact"
) -> list[Overlap]:
    """Every ROI among `rois` that lies in two splits.

    >>> [found.roi for found in overlaps("sen12mscr", listed("sen12mscr", "val"), rule="legacy")]
    ['1158/17', '1970/65', '2017/84']
    """
    found = []
    for roi in rois:
        entries = {split: entry_of(dataset, roi, split, region, rule) for split in SPLITS}
        for first, second in combinations(SPLITS, 2):
            one, other = entries[first], entries[second]
            if one is not None and other is not None:
                found.append(Overlap(roi, (first, second), one if one != roi else other))
    return found


def cross_overlaps(
    first: str, first_rois: Iterable[str], second: str, second_rois: Iterable[str], rule: str
) -> list[Overlap]:
    """Every ROI that lies in one split of one dataset and in another split of the other.

    Relevant when one is used to pre-train or to extend the other. `splits` reads
    `dataset:split`.

    >>> every = {name: listed(name, "all") for name in DATASETS}
    >>> [(o.roi, o.splits) for o in cross_overlaps(*every.popitem(), *every.popitem(), "exact")]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('1868/100', ('sen12mscrts:test', 'sen12mscr:train')),
     ('2017/130', ('sen12mscrts:train', 'sen12mscr:val'))]
    """
    found = []
    common = set(second_rois)
    for roi in sorted(set(first_rois) & common, key=roi_key):
        for one in SPLITS:
            for other in SPLITS:
                if one == other:
                    continue
                via = entry_of(first, roi, one, rule=rule)
                via_other = entry_of(second, roi, other, rule=rule)
                if via is not None and via_other is not None:
                    names = (f"{first}:{one}", f"{second}:{other}")
                    found.append(Overlap(roi, names, via if via != roi else via_other))
    return found


def roi_key(roi: str) -> tuple[int, int]:
    """The order of ROIs: by seed, then by number.

    >>> sorted(["1868/119", "1158/106", "1868/73"], key=roi_key)
    ['1158/106', '1868/73', '1868/119']
    """
    seed, number = roi.split("/")
    return int(seed), int(number)
