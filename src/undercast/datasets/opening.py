"""`open_dataset`: a folder and a split in, a torch dataset of samples out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from undercast.datasets import splits
from undercast.datasets.index import Index, Patch, open_index
from undercast.datasets.journal import Masks
from undercast.datasets.patches import Options, PatchDataset
from undercast.datasets.preparing import prepared_masks
from undercast.datasets.sen12mscr import SEN12MSCR
from undercast.datasets.sen12mscrts import SEN12MSCRTS
from undercast.errors import DataError


def open_dataset(
    root: str | Path,
    split: str,
    *,
    layout: str = "auto",
    t: int = 3,
    protocol: str = "clean",
    split_rule: str = "exact",
    region: str = "all",
    exclude: Collection[str] = (),
    seed: int = 0,
    crop: int | None = None,
    augment: bool = False,
    sar: bool = True,
    sar_dropout: float = 0.0,
    random_t: tuple[int, int] | None = None,
    masks: str = "auto",
) -> PatchDataset:
    """The samples of a split (train, val, test or all), one for each patch that is there.

    layout: sen12mscr, sen12mscrts or auto. split_rule: exact, or legacy for the released substring
    rule of SEN12MS-CR. region: a region list of SEN12MS-CR-TS. exclude: ROIs to leave out, such as
    `1868/100` when SEN12MS-CR pre-trains for SEN12MS-CR-TS. masks: s2cloudless, rules, or the first
    of them that was prepared.

    t: input dates; SEN12MS-CR has one and ignores it. protocol: clean, legacy or train. crop: size
    in pixels, at a random place under the protocol train, in the centre otherwise. augment: flips
    and quarter turns. sar_dropout: probability that a date loses its radar. random_t: (lowest,
    highest) number of input dates, drawn for each sample.
    """
    options = Options(t, protocol, seed, crop, augment, sar, sar_dropout, random_t)
    index = open_index(root, layout)
    rois = set(splits.members(index.layout, index.rois, split, region, split_rule)) - set(exclude)
    found = prepared_masks(index, masks)
    patches = [patch for patch in index.patches if patch.roi in rois]
    patches = _readable(patches, found)
    if not patches:
        raise DataError(
            f"no patch of the split {split} (region {region}) in {root}, which holds the ROIs "
            f"{' '.join(index.rois) or 'none'}; `undercast data audit` shows what is there"
        )
    _check_prepared(index, patches, found)
    kind = SEN12MSCR if index.layout == "sen12mscr" else SEN12MSCRTS
    return kind(index, patches, split, options, found)


def _readable(patches: list[Patch], masks: Masks | None) -> list[Patch]:
    """Patches without the files that proved to be broken when they were prepared."""
    if masks is None or not any(record.error for record in masks.records.values()):
        return patches
    broken = {path for path, record in masks.records.items() if record.error is not None}
    kept = []
    for patch in patches:
        good = tuple(o for o in patch.observations if o.s2.path not in broken)
        fewest = 2 if patch.clear is None else 1
        if len(good) >= fewest and (patch.clear is None or patch.clear.path not in broken):
            kept.append(Patch(patch.roi, patch.number, good, patch.clear))
    return kept


def _check_prepared(index: Index, patches: list[Patch], masks: Masks | None) -> None:
    if masks is None:
        if index.layout == "sen12mscr":  # its target is named, so that clouds need not be known
            return
        raise DataError(
            f"{index.root} has no cloud cover yet, which decides about targets: "
            f"run undercast data prepare {index.root}"
        )
    paths = [image.path for patch in patches for image in patch.optical]
    if missing := sum(path not in masks.records for path in paths):
        raise DataError(
            f"{missing} of {len(paths)} images of {index.root} have no cloud cover yet: "
            f"run undercast data prepare {index.root} --masks {masks.method}"
        )
