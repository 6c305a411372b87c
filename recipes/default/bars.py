"""What the packaged weights should reach, against what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

COVERAGE = (0.85, 0.95)
UCE = 0.02
LARGEST, SLOWEST = 5_000_000, 1.0  # bytes, seconds
IMAGE = ("PSNR", "SSIM", "SAM", "correlation")


class Bar(NamedTuple):
    """One demand: where, what was wanted, what was got, and whether it holds."""

    where: str
    wanted: str
    got: str
    met: bool


def all_bars(results: dict[str, Any]) -> list[Bar]:
    """Every demand on the figures that `package.py` wrote."""
    real, weights = results["real"]["sets"], results["weights"]
    found = [*_series(real["series_t3"]), *_triplets(real["triplets_s1"])]
    for name, setting in results["simulated"]["settings"].items():
        found += _simulated(f"simulated, {name}", setting["systems"])
    size, seconds = weights["bytes"], weights["load_seconds"]
    found.append(Bar("file", f"under {LARGEST / 1e6:.0f} MB", f"{size / 1e6:.2f} MB",
                     size < LARGEST))  # fmt: skip
    found.append(Bar("loading", f"under {SLOWEST:.0f} s", f"{seconds:.2f} s", seconds < SLOWEST))
    return found


def _series(found: dict[str, Any]) -> Iterable[Bar]:
    where, rows = found["title"], found["systems"]
    model = rows["model"]
    yield _against(where, "PSNR", rows, at_least=0.0)
    yield _against(where, "correlation", rows, at_least=0.05)
    yield _against(where, "SSIM", rows)
    yield _against(where, "SAM", rows)
    yield from _variance(where, model)


def _triplets(found: dict[str, Any]) -> Iterable[Bar]:
    where, rows = found["title"], found["systems"]
    flat, cloudy = (
        {name: rows[name] for name in (other, "model")} for other in ("flat mean", "cloudy input")
    )
    yield _against(where, "PSNR", flat, at_least=0.0)
    yield _against(where, "correlation", cloudy, at_least=0.10)
    yield from _variance(where, rows["model"])


def _simulated(where: str, rows: dict[str, Any]) -> Iterable[Bar]:
    for key in IMAGE:
        yield _against(where, key, rows)


def _against(where: str, key: str, rows: dict[str, Any], at_least: float | None = None) -> Bar:
    """The model against the best of the others: better, or so much above it."""
    sign = -1 if key == "SAM" else 1  # smaller angles are better
    mine = rows["model"][key]
    best = max((name for name in rows if name != "model"), key=lambda name: sign * rows[name][key])
    other = rows[best][key]
    if at_least is None:
        wanted, met = "better than", sign * mine > sign * other
    else:
        wanted, met = f"at least {at_least:g} above", mine >= other + at_least
    if at_least == 0:
        wanted = "not below"
    return Bar(where, f"{key} {wanted} {best} ({other:.3f})", f"{mine:.3f}", bool(met))


def _variance(where: str, model: dict[str, Any]) -> Iterable[Bar]:
    """The demands on pooled pixels; places with equal weight are told of, not asked."""
    low, high = COVERAGE
    cover, uce = model["pooled"]["coverage_90"], model["pooled"]["UCE"]
    got = f"{cover:.3f} ({model['of_images']['coverage_90']:.3f} with places of equal weight)"
    yield Bar(where, f"90 % intervals cover {low} to {high}", got, low <= cover <= high)
    yield Bar(where, f"UCE at most {UCE}", f"{uce:.4f}", uce <= UCE)
