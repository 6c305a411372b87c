"""The index of a dataset folder: what is there, what belongs together, what is broken.

Built once by scanning, stored beside the data (or in a cache folder where that is read-only), and
brought up to date when a file appears, vanishes or changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from undercast import bands
from undercast.datasets import splits
from undercast.datasets.layouts import LAYOUTS, Name, parse
from undercast.datasets.reading import Header, read_header
from undercast.errors import DataError, InputError
from undercast.files import final_file

FORMAT = 1
FOLDER = ".undercast"
BAND_COUNTS = {"s1": bands.N_S1, "s2": bands.N_S2, "s2_cloudy": bands.N_S2}


class Problem(NamedTuple):
    """A file that is missing or cannot be used, and why."""

    kind: str  # missing | broken | wrong_size | wrong_bands | duplicate | misplaced | unknown_…
    path: str  # relative to the dataset, or a description of what is missing
    detail: str


class Stamp(NamedTuple):
    """How a file is recognised as unchanged."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Image:
    """One file, by its path relative to the dataset, and its date."""

    path: str
    date: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One date of a patch: its number in the series, Sentinel-2, and Sentinel-1 where it exists."""

    number: int
    s2: Image
    s1: Image | None


@dataclass(frozen=True, slots=True)
class Patch:
    """All usable images of one place; `clear` is the target where the layout names one."""

    roi: str
    number: int
    observations: tuple[Observation, ...]
    clear: Image | None = None

    @property
    def optical(self) -> tuple[Image, ...]:
        """Every Sentinel-2 image, the clear one last."""
        images = tuple(observation.s2 for observation in self.observations)
        return images if self.clear is None else (*images, self.clear)

    @property
    def images(self) -> int:
        """The number of usable files."""
        return len(self.optical) + sum(o.s1 is not None for o in self.observations)


@dataclass(frozen=True)
class Index:
    """A scanned dataset: patches in the order of ROI and number, and every problem found."""

    root: Path
    layout: str
    hash: str
    size: tuple[int, int]  # height and width of the patches
    stamps: dict[str, Stamp]
    patches: tuple[Patch, ...]
    problems: tuple[Problem, ...]

    @property
    def rois(self) -> tuple[str, ...]:
        """The regions of interest that have at least one usable patch."""
        return tuple(dict.fromkeys(patch.roi for patch in self.patches))

    def patch_id(self, patch: Patch) -> str:
        """A name that does not depend on where the data lie or on what else is there."""
        return f"{self.layout}/{patch.roi}/{patch.number}"


def open_index(root: str | Path, layout: str = "auto") -> Index:
    """The index of a folder; reads the headers of files that are new or changed since last time."""
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"got {root}, which is no folder; expected the root of a dataset")
    stamps = dict(sorted(_scan(root)))
    layout = _layout(root, layout, stamps)
    fingerprint = content_hash(stamps)
    saved = [_read_index(folder / "index.json") for folder in stores(root)]
    known = _known_headers(saved, stamps)
    headers = known | _inspect(root, [path for path in stamps if path not in known])
    if all(content.get("hash") != fingerprint for content in saved):
        _store(root, fingerprint, stamps, headers)
    return _assemble(root, layout, fingerprint, stamps, headers)


def content_hash(stamps: dict[str, Stamp]) -> str:
    """SHA-256 over the relative path, size and modification time of every file."""
    hasher = hashlib.sha256()
    for path in sorted(stamps):
        hasher.update(f"{path}\0{stamps[path].size}\0{stamps[path].mtime_ns}\n".encode())
    return hasher.hexdigest()


def stores(root: Path) -> list[Path]:
    """The folders where an index of `root` may lie: beside the data first, then the cache."""
    base = os.environ.get("UNDERCAST_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "undercast"
    )
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return [root / FOLDER, Path(base) / "datasets" / f"{root.resolve().name}-{name}"]


def writable_store(root: Path) -> Path:
    """The first of `stores` that can be written to, created if need be."""
    reasons = []
    for folder in stores(root):
        probe = folder / f".probe-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
            return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise DataError(f"cannot store the index ({'; '.join(reasons)}): set UNDERCAST_CACHE")


def _scan(folder: Path, prefix: str = "") -> Iterator[tuple[str, Stamp]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _scan(Path(entry.path), f"{prefix}{entry.name}/")
            elif entry.name.lower().endswith((".tif", ".tiff")):
                status = entry.stat()
                yield f"{prefix}{entry.name}", Stamp(status.st_size, status.st_mtime_ns)


def _inspect(root: Path, paths: list[str]) -> dict[str, Header]:
    with ThreadPoolExecutor(max_workers=8) as pool:
        headers = pool.map(lambda path: read_header(root / path), paths)
        progress = tqdm(headers, desc="indexing", total=len(paths), unit="file", delay=1)
        return dict(zip(paths, progress, strict=True))


def _read_index(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent or damaged: scanning again restores it
        return {}
    return content if isinstance(content, dict) and content.get("format") == FORMAT else {}


def _known_headers(saved: list[dict[str, Any]], stamps: dict[str, Stamp]) -> dict[str, Header]:
    """What stored indexes say of files that have not changed since."""
    return {
        path: Header(*header)
        for content in saved
        for path, (size, mtime_ns, *header) in content.get("files", {}).items()
        if stamps.get(path) == (size, mtime_ns)
    }


def _store(
    root: Path, fingerprint: str, stamps: dict[str, Stamp], headers: dict[str, Header]
) -> None:
    files = {path: [*stamps[path], *headers[path]] for path in stamps}
    content = {"format": FORMAT, "hash": fingerprint, "files": files}
    with final_file(writable_store(root) / "index.json") as temporary:
        temporary.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def _layout(root: Path, layout: str, stamps: dict[str, Stamp]) -> str:
    if layout not in ("auto", *LAYOUTS):
        raise InputError(f"got layout {layout!r}, expected auto or one of {' '.join(LAYOUTS)}")
    candidates = LAYOUTS if layout == "auto" else (layout,)
    names = [path.rsplit("/", 1)[-1] for path in stamps]
    found = [name for name in candidates if any(parse(name, file) for file in names)]
    if not found:
        raise DataError(
            f"no file of {' or '.join(candidates)} among the {len(names)} GeoTIFFs of {root}; "
            "expected names such as s2_ROIs1868_73_ImgNo_14_2018-06-21_patch_171.tif or "
            "ROIs1158_spring_s2_cloudy_106_p407.tif"
        )
    if len(found) > 1:
        raise DataError(f"{root} holds files of both {' and '.join(found)}: name one as layout")
    return found[0]


def _assemble(
    root: Path,
    layout: str,
    fingerprint: str,
    stamps: dict[str, Stamp],
    headers: dict[str, Header],
) -> Index:
    problems: list[Problem] = []
    named = dict(_named(layout, stamps, problems))
    size = _usual_size(headers, named)
    usable: dict[str, Name] = {}
    for path, name in named.items():
        problem = _problem_of(path, name, headers[path], size)
        if problem is None:
            usable[path] = name
        else:
            problems.append(problem)
    files = _by_place(usable, problems)
    patches, missing = _pair(layout, files, set(_by_place(named, [])))
    problems += missing
    problems.sort()
    return Index(root, layout, fingerprint, size, stamps, patches, tuple(problems))


def _named(
    layout: str, stamps: dict[str, Stamp], problems: list[Problem]
) -> Iterator[tuple[str, Name]]:
    known = set(splits.listed(layout, "all"))
    strangers: Counter[str] = Counter()
    for path in stamps:
        *folders, file = path.split("/")
        name = parse(layout, file)
        if name is None:
            problems.append(Problem("unknown_name", path, f"not a file name of {layout}"))
            continue
        strangers[name.roi] += name.roi not in known
        if layout == "sen12mscrts":
            seed, number = name.roi.split("/")
            expected = [f"ROIs{seed}", number, name.kind.upper(), str(name.number)]
            if folders[-4:] != expected:
                problems.append(
                    Problem("misplaced", path, f"expected in {'/'.join(expected)}; used as named")
                )
        yield path, name
    for roi, count in strangers.items():
        if count:
            problems.append(
                Problem("unknown_roi", roi, f"{count} files of an ROI that is in no split")
            )


def _usual_size(headers: dict[str, Header], named: dict[str, Name]) -> tuple[int, int]:
    """The size that most readable files have: the patches of one dataset are all of one size."""
    sizes = Counter(headers[path][:2] for path in named if headers[path].error is None)
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else (0, 0)


def _problem_of(path: str, name: Name, header: Header, size: tuple[int, int]) -> Problem | None:
    if header.error is not None:
        return Problem("broken", path, header.error)
    if header.bands != (expected := BAND_COUNTS[name.kind]):
        return Problem("wrong_bands", path, f"{header.bands} bands, expected {expected}")
    if header[:2] != size:
        found = f"{header.height} × {header.width} pixels"
        return Problem("wrong_size", path, f"{found}, expected {size[0]} × {size[1]}")
    return None


Key = tuple[str, int, int, str]  # roi, patch, number of the date, kind


def _by_place(named: dict[str, Name], problems: list[Problem]) -> dict[Key, Image]:
    files: dict[Key, Image] = {}
    for path, name in named.items():
        key = (name.roi, name.patch, name.number, name.kind)
        if key in files:
            problems.append(Problem("duplicate", path, f"{files[key].path} is used instead"))
        else:
            files[key] = Image(path, name.date)
    return files


def _pair(
    layout: str, files: dict[Key, Image], present: set[Key]
) -> tuple[tuple[Patch, ...], list[Problem]]:
    """Patches from usable files; what should be there by its neighbours' names is missing.

    A key that is present but not usable already has its own problem.
    """
    places = sorted({key[:2] for key in present}, key=lambda p: (splits.roi_key(p[0]), p[1]))
    kinds = ("s1", "s2") if layout == "sen12mscrts" else ("s1", "s2", "s2_cloudy")
    numbers = range(max((key[2] for key in present), default=-1) + 1)
    of_roi = {(roi, number) for roi, _, number, _ in present}
    missing = [
        Problem("missing", f"{roi} date {number}", "no image of this date in any patch")
        for roi in dict.fromkeys(roi for roi, _ in places)
        for number in numbers
        if (roi, number) not in of_roi
    ]
    patches = []
    for roi, patch in places:
        missing += [
            Problem("missing", f"{roi} patch {patch} date {number} {kind}", "no such file")
            for number in numbers
            for kind in kinds
            if (roi, number) in of_roi and (roi, patch, number, kind) not in present
        ]
        found = _patch(layout, roi, patch, numbers, files)
        if found is None:
            detail = "no usable Sentinel-2 input or no clear image"
            missing.append(Problem("unusable", f"{roi} patch {patch}", detail))
        else:
            patches.append(found)
    return tuple(patches), missing


def _patch(
    layout: str, roi: str, patch: int, numbers: range, files: dict[Key, Image]
) -> Patch | None:
    if layout == "sen12mscr":
        cloudy, clear = (files.get((roi, patch, 0, kind)) for kind in ("s2_cloudy", "s2"))
        if cloudy is None or clear is None:
            return None
        radar = files.get((roi, patch, 0, "s1"))
        return Patch(roi, patch, (Observation(0, cloudy, radar),), clear)
    observations = tuple(
        Observation(number, s2, files.get((roi, patch, number, "s1")))
        for number in numbers
        if (s2 := files.get((roi, patch, number, "s2"))) is not None
    )
    return Patch(roi, patch, observations) if len(observations) > 1 else None
