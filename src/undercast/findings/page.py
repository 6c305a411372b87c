"""The findings as a page of Markdown and a figure, from the plain results alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from undercast.findings.claims import COMPARISONS
from undercast.findings.measure import METRICS
from undercast.findings.plan import LENGTHS, VARIANTS
from undercast.papertables import TABLES
from undercast.tablepages import minutes

_DIGITS = {"PSNR": 2, "SAM": 2, "NLL": 3, "SSIM": 3, "coverage_90": 3, "RMSE": 4}
_SECTIONS = {
    1: "Uncertainty: isotropic or diagonal, the released likelihood",
    2: "Radar",
    3: "Sequence length",
    4: "The ensemble and its members",
}
_FIVE = "ensemble of five"
_PAPER_ROWS = {  # label → what the paper has beside it: caption, table, row
    "isotropic": [("paper, isotropic", "table5", "table5-isotropic")],
    "diagonal": [("paper, diagonal", "table5", "table5-diagonal")],
    "no-sar": [
        (f"paper, {_FIVE} without radar", "table5", "table5-ensemble-no-sar"),
        (f"paper, {_FIVE} with radar", "table5", "table5-ensemble"),
    ],
    **{f"T = {t}": [(f"paper, {_FIVE}, T = {t}", "table6", f"table6-t{t}")] for t in (2, 3, 4)},
    "ensemble": [(f"paper, {_FIVE}", "table5", "table5-ensemble")],
}
_RULE = (
    "Rule of the verdicts: a claim puts a quantity into a range. It **holds** if both 95 % "
    "intervals lie inside the range, **does not hold** if both lie outside, and otherwise the "
    "**noise is too large to tell**."
)


def markdown(results: Mapping[str, Any]) -> str:
    """The page; without the sections for a few rows alone."""
    lines = _heading(results)
    if "claims" not in results:
        lines += _value_table(results, list(results["rows"]), METRICS)
        return "\n".join(lines) + "\n"
    lines += ["## Verdicts", "", *_verdicts(results["claims"])]
    lines += ["", "## What needs no learning", "", *_baselines(results)]
    for section, title in _SECTIONS.items():
        lines += ["", f"## {section}. {title}", "", *_section(results, section)]
    lines += ["", "## 5. Discarding uncertain images", "", *_discard(results)]
    lines += ["", "## 6. Blocks and heads", "", *_costs(results)]
    lines += ["", "## Runs", "", *_runs(results)]
    return "\n".join(lines) + "\n"


def _heading(results: Mapping[str, Any]) -> list[str]:
    budget, seeds = results["budget"], ", ".join(map(str, results["seeds"]))
    trainings = [run["seconds"] for run in results["runs"]]
    total = None if None in trainings else sum(trainings) + results["evaluation_seconds"]
    return [
        "# The paper's findings, re-examined at small scale",
        "",
        "```",
        results["command"],
        "```",
        "",
        f"Seeds {seeds}. Machine: {'; '.join(results['machine'])}. "
        f"Training and evaluation: {minutes(total)} in total (simulating the data not counted).",
        "",
        f"Every row is trained with the same {budget['epochs'] * budget['steps_per_epoch']} steps "
        f"of {budget['batch_size']} crops of {budget['crop']}² pixels, the same samples and crops "
        f"for one seed, lr {budget['lr']} × {budget['decay']} for each of {budget['epochs']} "
        f"epochs, float32, T = 3, width {budget['d_m']} instead of 128 "
        f"({results['trained_parameters']} parameters). Tested on {results['images']} images of "
        f"{results['regions']} regions that no training has seen, protocol `clean`. Simulated "
        "data: compare rows with each other. The paper's figures are single runs, or one ensemble "
        "of five, on SEN12MS-CR-TS.",
        "",
    ]


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "Two intervals of 95 % for every quantity, each with one kind of noise. **Images**: "
        "bootstrap over the test regions with the seeds averaged; which places were looked at, "
        "not how training went. **Seeds**: Student's t over the seeds, paired by seed, at fixed "
        "images; initial weights, order and crops of training, not the choice of places. Of the "
        "ensemble there is one: its interval over seeds is that over its members, and the noise "
        "of another ensemble is in none. UCE is a mean of absolute values, so noise adds to it. "
        "Factors are averaged as logarithms.",
        "",
        _RULE,
        "",
        "| | claim | paper | ours | images | seeds | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in claims:
        cells = (number(claim["estimate"]), bounds(claim["images"]), bounds(claim["seeds"]))
        lines.append(
            f"| {claim['section']} | {claim['claim']} | {claim['paper']} | {' | '.join(cells)} "
            f"| **{claim['verdict']}** |"
        )
    return lines


def _baselines(results: Mapping[str, Any]) -> list[str]:
    """Composites and flat images beside the mean of a row: did training learn anything?"""
    metrics = ("RMSE", "PSNR", "SSIM", "SAM")
    lines = [
        "Composites and flat images on the same test images. A model that does not beat them says "
        "little about the paper's claims; `diagonal` is the mean over seeds.",
        "",
        f"| | {' | '.join(metrics)} |",
        f"|---|{'---|' * len(metrics)}",
    ]
    rows = results["rows"]["diagonal"]
    learnt = {m: statistics.fmean(row[m] for row in rows) for m in metrics}
    for name, scores in {"diagonal": learnt, **results["baselines"]}.items():
        cells = (f"{scores[m]:.{_DIGITS[m]}f}" for m in metrics)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _section(results: Mapping[str, Any], section: int) -> list[str]:
    labels = {
        1: ["isotropic", "diagonal", "legacy"],
        2: ["diagonal", "no-sar"],
        3: [f"T = {t}" for t in LENGTHS],
        4: ["diagonal", "ensemble", "diagonal, calibrated", "ensemble, calibrated"],
    }[section]
    lines = [*_NOTES[section], "", *_value_table(results, labels, METRICS)]
    if section == 4:
        lines += ["", *_parts(results, labels)]
    for pair in (c for c in COMPARISONS if c.section == section):
        lines += ["", *_comparison(results["comparisons"], pair.a, pair.b)]
    return lines


_NOTES = {
    1: [f"- `{n}`: {VARIANTS[n].meaning}" for n in ("isotropic", "diagonal", "legacy")]
    + [
        "- sharpness is the mean σ; UCE_legacy is the released computation (signed errors, bins "
        "of equal width)",
        "- UCE averages squared errors and variances over the bands of a pixel before it bins "
        "them, so it cannot see where one variance for all bands is wrong for each of them; NLL, "
        "CRPS and coverage can",
    ],
    2: ["The paper compares ensembles of five; here single models, paired by seed."],
    3: [
        "The `diagonal` models, trained with T = 3, with more and fewer dates of the same targets."
    ],
    4: [
        "`diagonal` are the members. Calibrated: `undercast calibrate` on the validation split, "
        "members and ensemble alike. That split has also chosen the best epoch of each run."
    ],
}


def _value_table(
    results: Mapping[str, Any], labels: Sequence[str], metrics: Sequence[str]
) -> list[str]:
    """Mean over seeds ± standard deviation between them; below, the paper's figures."""
    lines = [f"| | {' | '.join(metrics)} |", f"|---|{'---|' * len(metrics)}"]
    for label in labels:
        rows = results["rows"][label]
        cells = [spread([row[metric] for row in rows], metric) for metric in metrics]
        lines.append(f"| {label} | {' | '.join(cells)} |")
        lines += [_paper_line(*found, metrics) for found in _PAPER_ROWS.get(label, ())]
    return lines


def _paper_line(caption: str, table: str, config: str, metrics: Sequence[str]) -> str:
    paper = next(row for row in TABLES[table].rows if row.config == config).paper
    digits = {metric: 2 if metric in ("PSNR", "SAM") else 3 for metric in metrics}
    figures = ["–" if paper.get(m) is None else f"{paper[m]:.{digits[m]}f}" for m in metrics]
    return f"| *{caption}* | {' | '.join(figures)} |"


def _parts(results: Mapping[str, Any], labels: Sequence[str]) -> list[str]:
    lines = ["| mean variance × 10⁴ | aleatoric | epistemic | total |", "|---|---|---|---|"]
    for label in labels:
        rows = results["rows"][label]
        total = statistics.fmean(row["variance"] for row in rows)
        known = [row["epistemic"] for row in rows if row["epistemic"] is not None]
        epistemic = statistics.fmean(known) if known else None
        aleatoric = statistics.fmean(row["aleatoric"] for row in rows) if known else total
        cells = ["–" if x is None else f"{1e4 * x:.3g}" for x in (aleatoric, epistemic, total)]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _comparison(comparisons: Sequence[Mapping[str, Any]], a: str, b: str) -> list[str]:
    lines = [
        f"| {a} against {b} | difference | images | seeds | factor | images | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    chosen = {(c["metric"], c["kind"]): c for c in comparisons if (c["a"], c["b"]) == (a, b)}
    for metric in METRICS:
        cells = []
        for kind in ("difference", "ratio"):
            found = chosen.get((metric, kind))
            cells += (
                ["", "", ""]
                if found is None
                else [number(found["estimate"]), bounds(found["images"]), bounds(found["seeds"])]
            )
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    return lines


def mean_curve(curves: Sequence[Mapping[str, Sequence[float]]]) -> list[float]:
    """The mean of several discard curves at each share."""
    return [statistics.fmean(values) for values in zip(*(c["mse"] for c in curves), strict=True)]


def _discard(results: Mapping[str, Any]) -> list[str]:
    found = results["discard"]
    ensemble, members = mean_curve(found["ensemble"]), mean_curve(found["diagonal"])
    lines = [
        "![discard curve](findings-discard.svg)",
        "",
        "Mean squared error (× 10⁴) of the most certain images, sorted by their mean variance, and "
        "as a share of the error of all. The members' curves are averaged.",
        "",
        "| kept images | ensemble | share | members | share |",
        "|---|---|---|---|---|",
    ]
    for kept, e, m in list(zip(found["ensemble"][0]["kept"], ensemble, members, strict=True))[1::2]:
        lines.append(
            f"| {100 * kept:.0f} % | {1e4 * e:.3g} | {e / ensemble[-1]:.2f} | {1e4 * m:.3g} "
            f"| {m / members[-1]:.2f} |"
        )
    return lines


def _costs(results: Mapping[str, Any]) -> list[str]:
    lines = [
        "Parameters (thousands) and multiply-adds (10⁹, 3 × 256² pixels) of the published size, "
        "computed / paper; the paper's counter adds normalisations. The quality of a row is one "
        "seed of the small scale: its command runs it (“not run” where that has not been done "
        "here), and one seed cannot rank such rows.",
        "",
        "| | params_k | GMAC | PSNR, one seed / paper | command |",
        "|---|---|---|---|---|",
    ]
    for row in (row for rows in results["cost"].values() for row in rows):
        paper = row["paper"]
        quality = "not run" if row["PSNR"] is None else f"{row['PSNR']:.2f}"
        lines.append(
            f"| {row['label']} | {row['params_k']:.1f} / {paper['params_k']} "
            f"| {row['GMAC']:.1f} / {paper['GMAC']} | {quality} / {paper['PSNR']} "
            f"| `{row['command']}` |"
        )
    return lines


def _runs(results: Mapping[str, Any]) -> list[str]:
    lines = [
        "One row alone, from nothing: its command with a new DIR, which simulates the same data "
        "again. In a DIR that has it, it is read back.",
        "",
        "| row | seed | training | command |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {r['row']} | {r['seed']} | {minutes(r['seconds'])} | `{r['command']}` |"
        for r in results["runs"]
    ]


def number(value: float | None) -> str:
    """Three significant digits; ∞ for None, a bound that is not there.

    >>> number(0.012345), number(27.1234), number(None)
    ('0.0123', '27.1', '∞')
    """
    return "∞" if value is None else f"{value:.3g}"


def bounds(interval: Sequence[float | None]) -> str:
    """Both ends of an interval; None, or 0 below a factor, is an end that noise took away."""
    low, high = interval
    return f"{'−∞' if low is None else number(low)} to {number(high)}"


def spread(values: Sequence[float], metric: str) -> str:
    """The mean, with the standard deviation where there are several.

    >>> spread([27.0, 28.0], "PSNR"), spread([0.01], "UCE")
    ('27.50 ± 0.71', '0.0100')
    """
    digits = _DIGITS.get(metric, 4)
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
