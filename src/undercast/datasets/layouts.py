"""The file names of the two datasets, and what they say: place, patch, date number and date.

Nothing is ever paired by position: every file says in its name which patch and date it shows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LAYOUTS = ("sen12mscr", "sen12mscrts")
SEASONS: dict[str, str] = {"1158": "spring", "1868": "summer", "1970": "fall", "2017": "winter"}

# SEN12MS-CR names carry no dates. Each season spans three months between December 2017 and
# November 2018; its middle stands for all of its images.
SEASON_DATES: dict[str, str] = {
    "spring": "2018-04-15",
    "summer": "2018-07-16",
    "fall": "2018-10-16",
    "winter": "2018-01-15",
}

_SEN12MSCR = re.compile(
    r"ROIs(?P<seed>\d+)_(?P<season>[a-z]+)_(?P<kind>s1|s2|s2_cloudy)_(?P<roi>\d+)_p(?P<patch>\d+)\.tif"
)
_SEN12MSCRTS = re.compile(
    r"(?P<kind>s1|s2)_ROIs(?P<seed>\d+)_(?P<roi>\d+)_ImgNo_(?P<number>\d+)"
    r"_(?P<date>\d{4}-\d{2}-\d{2})_patch_(?P<patch>\d+)\.tif"
)


class Name(NamedTuple):
    """What a file name says."""

    kind: str  # s1 | s2 | s2_cloudy
    roi: str  # seed/number
    patch: int
    number: int  # of the date in the series; 0 in SEN12MS-CR
    date: str


def parse(layout: str, file_name: str) -> Name | None:
    """The parts of a file name, or None for a name that is not of this layout.

    >>> parse("sen12mscrts", "s2_ROIs1868_73_ImgNo_14_2018-06-21_patch_171.tif")
    Name(kind='s2', roi='1868/73', patch=171, number=14, date='2018-06-21')
    >>> parse("sen12mscr", "ROIs1158_spring_s2_cloudy_106_p407.tif")
    Name(kind='s2_cloudy', roi='1158/106', patch=407, number=0, date='2018-04-15')
    """
    pattern = _SEN12MSCR if layout == "sen12mscr" else _SEN12MSCRTS
    match = pattern.fullmatch(file_name)
    if match is None:
        return None
    roi = f"{match['seed']}/{int(match['roi'])}"
    if layout == "sen12mscrts":
        return Name(match["kind"], roi, int(match["patch"]), int(match["number"]), match["date"])
    if SEASONS.get(match["seed"]) != match["season"]:
        return None
    return Name(match["kind"], roi, int(match["patch"]), 0, SEASON_DATES[match["season"]])
