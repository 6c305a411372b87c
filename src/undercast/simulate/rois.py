"""Names of the real regions, and an order in which the first few serve all three splits."""

from __future__ import annotations

from undercast.errors import InputError

Roi = tuple[str, int]  # ("ROIs1868", 73), or ("ROIs1868_summer", 73) in SEN12MS-CR

_TS_TEST = {
    "ROIs1158": (106,), "ROIs1868": (119, 73, 100, 142), "ROIs1970": (139, 132, 20),
    "ROIs2017": (108, 63, 32, 103, 140),
}  # fmt: skip
_TS_VAL = {"ROIs1868": (127, 17), "ROIs1970": (65,), "ROIs2017": (22, 117)}
_TS_TRAIN = {
    "ROIs1868": (36, 56, 85, 114, 121, 126, 139, 143),
    "ROIs1970": (21, 35, 40, 57, 71, 82, 83, 91, 112, 116, 119, 128, 133, 135, 142, 144, 149),
    "ROIs2017": (8, 25, 49, 61, 69, 75, 115, 116, 130, 146),
}
_CR_TEST = {
    "ROIs1158_spring": (106, 123, 140, 31, 44), "ROIs1868_summer": (119, 73),
    "ROIs1970_fall": (139,), "ROIs2017_winter": (108, 63),
}  # fmt: skip
_CR_VAL = {
    "ROIs1158_spring": (17,), "ROIs1868_summer": (19, 80, 127, 17), "ROIs1970_fall": (65,),
    "ROIs2017_winter": (22, 107, 130, 84),
}  # fmt: skip
_CR_TRAIN = {
    "ROIs1158_spring": (
        9, 1, 124, 40, 101, 21, 134, 145, 141, 66, 8, 26, 77, 113, 100, 117, 119, 6, 58, 120, 110,
        126, 115, 121, 39, 109, 63, 75, 132, 128, 142, 15, 45, 97, 147),
    "ROIs1868_summer": (
        90, 87, 25, 124, 114, 135, 40, 101, 42, 31, 36, 139, 56, 133, 55, 43, 113, 76, 123, 143,
        93, 125, 89, 120, 126, 72, 115, 121, 146, 140, 95, 102, 7, 11, 132, 15, 137, 4, 27, 147,
        86, 47, 100),
    "ROIs1970_fall": (
        3, 22, 148, 107, 1, 114, 135, 40, 42, 31, 149, 64, 28, 144, 57, 35, 133, 30, 134, 141, 112,
        116, 37, 26, 77, 100, 83, 71, 93, 119, 104, 136, 6, 41, 125, 91, 131, 120, 110, 19, 14, 81,
        39, 109, 33, 88, 11, 128, 142, 122, 4, 27, 147, 85, 82, 105),
    "ROIs2017_winter": (
        68, 25, 62, 135, 42, 64, 21, 55, 112, 116, 8, 59, 49, 104, 81, 146, 75, 94, 102, 61, 47),
}  # fmt: skip
_SPLITS = {
    "sen12mscrts": (_TS_TRAIN, _TS_TEST, _TS_VAL),
    "sen12mscr": (_CR_TRAIN, _CR_TEST, _CR_VAL),
}


def roi_names(layout: str, count: int) -> list[Roi]:
    """The first `count` regions of a dataset: one of each split, then in the real proportions.

    >>> roi_names("sen12mscrts", 3)
    [('ROIs1868', 36), ('ROIs1158', 106), ('ROIs1868', 127)]
    """
    if layout not in _SPLITS:
        raise InputError(f"got layout {layout!r}, expected one of {', '.join(_SPLITS)}")
    queues = [_by_turns(split) for split in _SPLITS[layout]]
    sizes = [len(queue) for queue in queues]
    if not 1 <= count <= sum(sizes):
        raise InputError(f"got {count} regions, expected 1 to {sum(sizes)} as in {layout}")
    taken = [0, 0, 0]
    names: list[Roi] = []
    for _ in range(count):
        # the split that is furthest behind its share; before all, one of each
        behind = [
            (taken[i] > 0, taken[i] / sizes[i]) if taken[i] < sizes[i] else (True, 2.0)
            for i in range(3)
        ]
        split = min(range(3), key=lambda i: behind[i])
        names.append(queues[split][taken[split]])
        taken[split] += 1
    return names


def _by_turns(split: dict[str, tuple[int, ...]]) -> list[Roi]:
    """One region of each season after the other."""
    longest = max(len(numbers) for numbers in split.values())
    return [
        (season, numbers[i])
        for i in range(longest)
        for season, numbers in split.items()
        if i < len(numbers)
    ]
