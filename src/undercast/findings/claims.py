"""Paired comparisons of what was measured, and which claims they bear out.

The rule: a claim says that a quantity lies in a range. It *holds* if both 95 % intervals (images,
seeds) lie inside the range, it *does not hold* if both lie outside, and otherwise the noise is too
large to tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undercast.findings.intervals import Interval, draw_interval, mean_interval
from undercast.findings.measure import HALF, METRICS, Scored
from undercast.papertables import TABLES

Scores = Mapping[str, Sequence[Scored]]  # label → one for each seed, or one alone
HOLDS, FAILS, UNCLEAR = "holds", "does not hold", "noise too large to tell"
BETTER, THREE_FOLD, ABOUT_HALF, AT_MOST = (1.0, math.inf), (2.5, math.inf), (0.4, 0.6), (0.0, 0.6)
MORE, LESS = (0.0, math.inf), (-math.inf, 0.0)
RATIOS = ("UCE", "UCE_im", "UCE_legacy", "sharpness")  # positive, so that a factor has a meaning


@dataclass(frozen=True)
class Comparison:
    """How two labels differ: differences a − b, or factors a / b (means of logarithms)."""

    section: int
    a: str
    b: str


@dataclass(frozen=True)
class Claim:
    """A sentence, and the range in which it puts a quantity. b = None: the quantity of a alone."""

    section: int
    text: str
    a: str
    b: str | None
    metric: str
    kind: str  # difference | ratio | value
    range: tuple[float, float]
    paper: str  # the paper's figure for the same quantity


def _paper(table: str, row: str, metric: str) -> float:
    value = next(r for r in TABLES[table].rows if r.config == row).paper[metric]
    assert value is not None  # these rows are complete
    return value


def _factor(metric: str, a: str, b: str, table: str = "table5") -> str:
    return f"{_paper(table, a, metric) / _paper(table, b, metric):.1f}"


def _gain(metric: str, a: str, b: str, table: str = "table5", digits: int = 2) -> str:
    return f"{_paper(table, a, metric) - _paper(table, b, metric):+.{digits}f}"


_ISO, _DIAG, _ENS, _BLIND = (
    f"table5-{n}" for n in ("isotropic", "diagonal", "ensemble", "ensemble-no-sar")
)
COMPARISONS = (
    Comparison(1, "isotropic", "diagonal"),
    Comparison(1, "legacy", "diagonal"),
    Comparison(2, "no-sar", "diagonal"),
    Comparison(3, "T = 3", "T = 2"),
    Comparison(3, "T = 4", "T = 3"),
    Comparison(3, "T = 5", "T = 4"),
    Comparison(4, "ensemble", "diagonal"),
    Comparison(4, "ensemble, calibrated", "diagonal, calibrated"),
)
CLAIMS = (
    Claim(1, "a variance for each band is better calibrated than one for all (UCE, factor > 1)",
          "isotropic", "diagonal", "UCE", "ratio", BETTER, _factor("UCE", _ISO, _DIAG)),
    Claim(1, "… three-fold better (UCE, factor ≥ 2.5)",
          "isotropic", "diagonal", "UCE", "ratio", THREE_FOLD, _factor("UCE", _ISO, _DIAG)),
    Claim(1, "… three-fold better (UCE_im, factor ≥ 2.5)",
          "isotropic", "diagonal", "UCE_im", "ratio", THREE_FOLD, _factor("UCE_im", _ISO, _DIAG)),
    Claim(1, "… with better images (PSNR, diagonal − isotropic > 0)",
          "diagonal", "isotropic", "PSNR", "difference", MORE, _gain("PSNR", _DIAG, _ISO)),
    Claim(1, "… with better images (SSIM, diagonal − isotropic > 0)",
          "diagonal", "isotropic", "SSIM", "difference", MORE,
          _gain("SSIM", _DIAG, _ISO, digits=3)),
    Claim(1, "… with better images (SAM, diagonal − isotropic < 0)",
          "diagonal", "isotropic", "SAM", "difference", LESS, _gain("SAM", _DIAG, _ISO)),
    Claim(1, "the released likelihood makes σ half as large at batch size 4 (factor 0.4 to 0.6)",
          "legacy", "diagonal", "sharpness", "ratio", ABOUT_HALF, "– (its optimum: 0.5)"),
    Claim(1, "… and so is worse calibrated (UCE, factor > 1)",
          "legacy", "diagonal", "UCE", "ratio", BETTER, "–"),
    Claim(2, "without radar UCE is higher (factor > 1)",
          "no-sar", "diagonal", "UCE", "ratio", BETTER,
          f"{_factor('UCE', _BLIND, _ENS)} (ensembles)"),
    Claim(2, "without radar UCE_im is higher (factor > 1)",
          "no-sar", "diagonal", "UCE_im", "ratio", BETTER,
          f"{_factor('UCE_im', _BLIND, _ENS)} (ensembles)"),
    Claim(2, "radar improves PSNR (with − without > 0)",
          "diagonal", "no-sar", "PSNR", "difference", MORE,
          f"{_gain('PSNR', _ENS, _BLIND)} (ensembles)"),
    *(
        claim
        for longer, shorter in ((3, 2), (4, 3))
        for claim in (
            Claim(3, f"T = {longer} gives a higher PSNR than T = {shorter}",
                  f"T = {longer}", f"T = {shorter}", "PSNR", "difference", MORE,
                  _gain("PSNR", f"table6-t{longer}", f"table6-t{shorter}", "table6")),
            Claim(3, f"T = {longer} is better calibrated than T = {shorter} (UCE, factor > 1)",
                  f"T = {shorter}", f"T = {longer}", "UCE", "ratio", BETTER,
                  _factor("UCE", f"table6-t{shorter}", f"table6-t{longer}", "table6")),
        )
    ),
    Claim(4, "the ensemble gives a higher PSNR than its members",
          "ensemble", "diagonal", "PSNR", "difference", MORE, _gain("PSNR", _ENS, _DIAG)),
    Claim(4, "the ensemble is better calibrated than its members (UCE, factor > 1)",
          "diagonal", "ensemble", "UCE", "ratio", BETTER, _factor("UCE", _DIAG, _ENS)),
    Claim(5, "discarding the most uncertain half of the images 'almost halves' the error "
             "(share left at most 0.6)",
          "diagonal", None, HALF, "value", AT_MOST, "“almost halves”"),
)  # fmt: skip


def compared(
    scores: Scores, a: str, b: str | None, metric: str, kind: str
) -> tuple[float, Interval, Interval]:
    """Estimate, interval over images (seeds averaged), interval over seeds (images fixed).

    A label with one entry (the ensemble) is compared with each seed of the other.
    """
    ours = list(scores[a])
    if b is None:
        return _summary(
            [s.values[metric] for s in ours], [s.draws[metric] for s in ours], lambda x: x
        )
    theirs = list(scores[b])
    n = max(len(ours), len(theirs))
    pairs = list(zip(ours * (n // len(ours)), theirs * (n // len(theirs)), strict=True))
    if kind == "ratio":
        return _summary(
            [math.log(x.values[metric] / y.values[metric]) for x, y in pairs],
            [np.log(x.draws[metric] / y.draws[metric]) for x, y in pairs],
            math.exp,
        )
    return _summary(
        [x.values[metric] - y.values[metric] for x, y in pairs],
        [x.draws[metric] - y.draws[metric] for x, y in pairs],
        lambda x: x,
    )


def _summary(
    values: list[float], draws: list[Any], back: Callable[[float], float]
) -> tuple[float, Interval, Interval]:
    images, seeds = draw_interval(np.mean(draws, axis=0)), mean_interval(values)
    return (
        back(float(np.mean(values))),
        Interval(*(back(x) for x in images)),
        Interval(*(_unbounded(x, back) for x in seeds)),
    )


def _unbounded(x: float, back: Callable[[float], float]) -> float:
    try:
        return back(x)
    except OverflowError:  # an interval of logarithms so wide that it has no upper end
        return math.inf


def verdict(range_: tuple[float, float], images: Interval, seeds: Interval) -> str:
    """The rule at the top of this file.

    >>> verdict((1.0, 2.0), Interval(1.2, 1.8), Interval(0.9, 1.9))
    'noise too large to tell'
    """
    low, high = range_

    def inside(i: Interval) -> bool:  # no difference at all is not more than none
        return (i.low > low or low == -math.inf) and (i.high < high or high == math.inf)

    if inside(images) and inside(seeds):
        return HOLDS
    if all(i.high <= low or i.low >= high for i in (images, seeds)):
        return FAILS
    return UNCLEAR


def all_comparisons(scores: Scores) -> list[dict[str, Any]]:
    """Every metric of every pair, differences and (where they mean something) factors."""
    found = []
    for pair in COMPARISONS:
        for metric in METRICS:
            for kind in ("difference", "ratio") if metric in RATIOS else ("difference",):
                estimate, images, seeds = compared(scores, pair.a, pair.b, metric, kind)
                found.append(
                    {"section": pair.section, "a": pair.a, "b": pair.b, "metric": metric,
                     "kind": kind, "estimate": estimate, "images": list(images),
                     "seeds": list(seeds)}
                )  # fmt: skip
    return found


def all_claims(scores: Scores) -> list[dict[str, Any]]:
    """Every claim with what was found and the verdict of the rule."""
    found = []
    for claim in CLAIMS:
        estimate, images, seeds = compared(scores, claim.a, claim.b, claim.metric, claim.kind)
        found.append(
            {"section": claim.section, "claim": claim.text, "paper": claim.paper,
             "estimate": estimate, "images": list(images), "seeds": list(seeds),
             "verdict": verdict(claim.range, images, seeds)}
        )  # fmt: skip
    return found
