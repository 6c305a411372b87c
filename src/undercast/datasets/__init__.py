"""SEN12MS-CR and SEN12MS-CR-TS, whole or in part: index, splits, sampling, samples.

>>> from undercast.datasets import open_dataset, collate, prepare                # doctest: +SKIP
>>> prepare("data/")                                                             # doctest: +SKIP
>>> dataset = open_dataset("data/", "train", t=3, protocol="train", crop=128)    # doctest: +SKIP
>>> collate([dataset[0], dataset[1]]).target.shape                               # doctest: +SKIP
torch.Size([2, 13, 128, 128])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undercast.datasets.auditing import audit
    from undercast.datasets.index import open_index
    from undercast.datasets.opening import open_dataset
    from undercast.datasets.preparing import prepare
    from undercast.datasets.samples import Provenance, Sample, SampleBatch, collate

__all__ = [
    "Provenance", "Sample", "SampleBatch", "audit", "collate", "open_dataset", "open_index",
    "prepare",
]  # fmt: skip

_LAZY = {
    "audit": "auditing",
    "open_index": "index",
    "open_dataset": "opening",
    "prepare": "preparing",
    "Provenance": "samples",
    "Sample": "samples",
    "SampleBatch": "samples",
    "collate": "samples",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first asked for: auditing needs no torch."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"undercast.datasets.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'undercast.datasets' has no attribute {name!r}")
