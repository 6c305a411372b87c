"""What a dataset folder holds, split by split, what splits share, and what is broken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from undercast.datasets import splits
from undercast.datasets.index import Index, Patch, open_index
from undercast.datasets.journal import Masks
from undercast.datasets.preparing import broken, prepared_masks
from undercast.datasets.sampling import CLEAR_COVER


def audit(
    *roots: str | Path, layout: str = "auto", split_rule: str = "exact", region: str = "all"
) -> dict[str, Any]:
    """Counts, overlaps, cloud cover and problems of one dataset or several, as plain values.

    Of several, also every ROI that lies in different splits of two of them.
    """
    indexes = [open_index(root, layout) for root in roots]
    cross = [
        {"roi": found.roi, "splits": list(found.splits), "via": found.via}
        for i, one in enumerate(indexes)
        for other in indexes[i + 1 :]
        for found in splits.cross_overlaps(
            one.layout, one.rois, other.layout, other.rois, split_rule
        )
    ]
    return {
        "split_rule": split_rule,
        "region": region,
        "datasets": [_audit_one(index, split_rule, region) for index in indexes],
        "cross_overlaps": cross,
    }


def _audit_one(index: Index, rule: str, region: str) -> dict[str, Any]:
    masks = prepared_masks(index)
    problems = [*index.problems, *(() if masks is None else broken(masks))]
    parts = {}
    for split in splits.SPLITS:
        rois = splits.members(index.layout, index.rois, split, region, rule)
        patches = [patch for patch in index.patches if patch.roi in set(rois)]
        parts[split] = {
            "rois": len(rois),
            "patches": len(patches),
            "images": sum(patch.images for patch in patches),
            "roi_list": rois,
            "cover": _cover(patches, masks),
        }
    per_roi = Counter(patch.roi for patch in index.patches)
    return {
        "root": str(index.root),
        "layout": index.layout,
        "index_sha256": index.hash,
        "manifest_sha256": splits.manifest(index.layout)["sha256"],
        "patch_size": list(index.size),
        "splits": parts,
        "overlaps": [
            {
                "roi": found.roi,
                "splits": list(found.splits),
                "via": found.via,
                "patches": per_roi[found.roi],
            }
            for found in splits.overlaps(index.layout, index.rois, region, rule)
        ],
        "published_overlaps": published_overlaps(index.layout, region, rule),
        "masks": None if masks is None else masks.method,
        "problem_counts": dict(sorted(Counter(problem.kind for problem in problems).items())),
        "problems": [problem._asdict() for problem in problems],
    }


def published_overlaps(dataset: str, region: str = "all", rule: str = "exact") -> dict[str, Any]:
    """How many of the published ROIs of each split also lie in another split under a rule.

    >>> published_overlaps("sen12mscr", rule="legacy")["train and test"]["rois"]
    ['1158/106', '1158/123', '1158/140', '1868/73', '1868/119', '1970/139']
    """
    everything = splits.listed(dataset, "all", region)
    shared: dict[str, list[str]] = {
        f"{one} and {other}": []
        for one, other in (("train", "val"), ("train", "test"), ("val", "test"))
    }
    for found in splits.overlaps(dataset, everything, region, rule):
        shared[" and ".join(found.splits)].append(found.roi)
    return {
        pair: {
            "rois": rois,
            "shared": len(rois),
            "of": len(splits.listed(dataset, pair.split(" and ")[1], region)),
        }
        for pair, rois in shared.items()
    }


def _cover(patches: list[Patch], masks: Masks | None) -> dict[str, float | int] | None:
    """Cloud cover of the images of the series; the clear images of SEN12MS-CR do not count."""
    if masks is None:
        return None
    paths = [o.s2.path for patch in patches for o in patch.observations]
    known = [masks.records[path] for path in paths if path in masks.records]
    covers = np.array([record.cover for record in known if record.error is None])
    if not len(covers):
        return None
    return {
        "images": len(covers),
        "not_prepared": len(paths) - len(known),
        "mean": float(covers.mean()),
        "median": float(np.median(covers)),
        "clear_share": float((covers < CLEAR_COVER).mean()),
        "overcast_share": float((covers > 1 - CLEAR_COVER).mean()),
    }
