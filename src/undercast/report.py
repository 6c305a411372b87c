"""An evaluation as one HTML file that needs no network: tables, pictures, curves."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undercast import quicklook
from undercast.errors import DataError, MissingDependencyError
from undercast.evaluate import CLEAR, COVERED, Evaluation
from undercast.examples import Example
from undercast.files import final_file
from undercast.quicklook import Rgb

IMAGE_COLUMNS = ("PSNR", "SSIM", "SAM", "RMSE", "MAE", "correlation")
CALIBRATION_COLUMNS = (
    "UCE", "UCE_im", "UCE_equal_width", "UCE_im_equal_width", "UCE_legacy", "UCE_im_legacy",
    "NLL", "CRPS", "ENCE", "AUSE", "discard_area", "sharpness", "dispersion",
    "coverage_50", "coverage_80", "coverage_90", "coverage_95",
)  # fmt: skip
_REGIONS = {
    "all": "all pixels",
    COVERED: "pixels covered on every input date",
    CLEAR: "pixels clear on at least one input date",
}
_SHOWN_SIZE = 180  # px of a picture on the page

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:84rem;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse;margin:.6rem 0}
caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #eee;white-space:nowrap;
font-variant-numeric:tabular-nums}th:first-child,td:first-child{text-align:left}
tr.model td{font-weight:600;background:#f6f3ea}.row{display:flex;gap:.4rem;flex-wrap:wrap}
figure{margin:0}figcaption{font-size:.8rem;color:#555}
.row img{image-rendering:pixelated;outline:1px solid #ddd}
dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1.2rem}dt{color:#555}dd{margin:0}
.scroll{overflow-x:auto}p.note{color:#555;max-width:60rem}
"""


def number(value: float | None) -> str:
    """A figure for a table: four significant digits, – for what is not there.

    >>> number(0.0123456), number(27.12345), number(None), number(math.nan)
    ('0.01235', '27.12', '–', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4g}"


def summary(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table for the terminal: all pixels, one row a system."""
    calibrations = ("UCE", "UCE_im", "NLL", "coverage_90")
    header = ["system", *IMAGE_COLUMNS, *calibrations]
    rows = []
    for name, tables in evaluation.systems.items():
        image, calibration = tables["image"]["all"], (tables["calibration"] or {}).get("all", {})
        cells = [image[c] for c in IMAGE_COLUMNS] + [calibration.get(c) for c in calibrations]
        rows.append([name, *map(number, cells)])
    return header, rows


def check_report(path: Path, overwrite: bool) -> None:
    """Fails before the long work: no matplotlib, or a report that must not be replaced."""
    _axes("", "")
    if path.exists() and not overwrite:
        raise DataError(f"{path} is already there: choose another folder, or pass --overwrite")


def write_report(path: str | Path, evaluation: Evaluation) -> None:
    """Write the report, under its final name only when complete."""
    page = render(evaluation)
    with final_file(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(evaluation: Evaluation) -> str:
    """The report as the text of one HTML page."""
    model = str(evaluation.info["model"])
    title = f"{model} on {evaluation.info.get('dataset', 'a dataset')}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        _facts(evaluation.info),
        _pictures(evaluation.examples),
        _image_tables(evaluation, model),
        _calibration_tables(evaluation, model),
        _breakdowns(evaluation.systems[model]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _facts(info: Mapping[str, Any]) -> str:
    shown = {k: v for k, v in info.items() if v not in (None, [], {})}
    text = {k: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in shown.items()}
    if isinstance(cover := shown.get("images_per_cover"), Mapping):
        text["images_per_cover"] = ", ".join(f"{k[6:].replace('_', '–')} %: {n}"
                                             for k, n in cover.items())  # fmt: skip
    lines = (f"<dt>{html.escape(k.replace('_', ' '))}</dt><dd>{html.escape(v)}</dd>"
             for k, v in text.items())  # fmt: skip
    return f"<dl>{''.join(lines)}</dl>"


def _image_tables(evaluation: Evaluation, model: str) -> str:
    parts = ["<h2>How near to the truth</h2>"]
    for region, caption in _REGIONS.items():
        rows = [
            (name, *(number(tables["image"][region][c]) for c in IMAGE_COLUMNS))
            for name, tables in evaluation.systems.items()
        ]
        images = evaluation.systems[model]["image"][region]["images"]
        parts.append(
            _table(("system", *IMAGE_COLUMNS), rows, f"{caption} ({images} images)", model)
        )
    parts.append(
        '<p class="note">Means over images; PSNR in dB, SAM in degrees, RMSE and MAE in '
        "reflectance. Correlation is within each image and band: a flat image has 0. The rows "
        "named flat are single spectra without any structure; a model must beat them.</p>"
    )
    return "".join(parts)


def _calibration_tables(evaluation: Evaluation, model: str) -> str:
    found = {n: t["calibration"] for n, t in evaluation.systems.items() if t["calibration"]}
    if not found:
        return "<h2>How far to trust it</h2><p>No system here predicts a variance.</p>"
    parts = ["<h2>How far to trust it</h2>"]
    rows = [
        (column.replace("_", " "), *(number(table["all"][column]) for table in found.values()))
        for column in CALIBRATION_COLUMNS
    ]
    parts.append(_table(("all pixels", *found), rows))
    if model in found:
        mine = found[model]
        rows = [
            (c.replace("_", " "), *(number((mine[region] or {}).get(c)) for region in _REGIONS))
            for c in CALIBRATION_COLUMNS
        ]
        parts.append(_table((model, *_REGIONS.values()), rows))
    parts.append(f'<div class="row">{_reliability(found)}{_discard(found)}</div>')
    parts.append(
        '<p class="note">UCE in reflectance: 0 is perfect. NLL in nats per value, reflectance '
        "units, with its constant. Dispersion is the root mean square of error/σ: 1 is right, more "
        "is overconfident. Coverage is the share of values inside the Gaussian interval.</p>"
    )
    return "".join(parts)


def _breakdowns(tables: Mapping[str, Any]) -> str:
    calibration = tables["calibration"]
    chosen = ("UCE", "NLL", "coverage_90", "sharpness") if calibration else ()
    columns = ("PSNR", "SSIM", "RMSE", "MAE", "correlation")

    def rows(key: str, shown: Sequence[str]) -> list[Sequence[str]]:
        found: list[Sequence[str]] = []
        for name, row in tables[key].items():
            other = calibration[key][name] if calibration else {}
            cells = [row.get(c) for c in shown] + [(other or {}).get(c) for c in chosen]
            label = name.removeprefix("cover_").replace("_", "–") + " %" * (key == "per_cover")
            found.append((label, *map(number, cells)))
        return found

    return (
        "<h2>By cloud cover and by band</h2>"
        + _table(("mean cloud cover of the inputs", "images", *columns, *chosen),
                 rows("per_cover", ("images", *columns)))
        + _table(("band", *columns, *chosen), rows("per_band", columns))
    )  # fmt: skip


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", marked: str = ""
) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        lines.append(f'<tr class="model">{cells}</tr>' if row[0] == marked else f"<tr>{cells}</tr>")
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<tr>{head}</tr>{"".join(lines)}</table></div>'


def _pictures(examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    maps = [m for e in examples for m in (e.error, e.sigma) if m is not None]
    top = max(float(np.nanpercentile(np.concatenate([m.ravel() for m in maps]), 99)), 1e-4)
    parts = ["<h2>From mild haze to fully overcast</h2>"]
    for example in examples:
        titled = [(f"input {i + 1}", picture) for i, picture in enumerate(example.inputs)]
        titled += [("prediction", example.prediction), ("target", example.target)]
        titled.append(("error", quicklook.colour_map(example.error, 0, top)))
        if example.sigma is not None:
            titled.append(("σ", quicklook.colour_map(example.sigma, 0, top)))
        parts.append(f"<p>{html.escape(example.title)}, cloud cover {example.cover:.0%}</p>")
        parts.append(f'<div class="row">{"".join(_figure(t, p) for t, p in titled)}</div>')
    scale = quicklook.colour_map(np.tile(np.linspace(0, 1, 180), (12, 1)), 0, 1)
    parts.append(
        f'<p class="note">error and σ: 0 {_image(scale, 180)} {top:.3f} reflectance (RMS over the '
        "bands), the same colours in every row; true colour in the brightness of the target.</p>"
    )
    return "".join(parts)


def _figure(title: str, picture: Rgb) -> str:
    caption = html.escape(title)
    return (
        f"<figure>{_image(picture, _SHOWN_SIZE, title)}<figcaption>{caption}</figcaption></figure>"
    )


def _image(picture: Rgb, width: int, alt: str = "") -> str:
    return _png(quicklook.png_bytes(picture), width, alt)


def _png(data: bytes, width: int, alt: str) -> str:
    text = base64.b64encode(data).decode()
    return f'<img width="{width}" alt="{html.escape(alt)}" src="data:image/png;base64,{text}">'


def _reliability(found: Mapping[str, Any]) -> str:
    figure, axes = _axes("predicted: root mean variance of a bin", "measured: RMSE of a bin")
    for name, table in found.items():
        diagram = table["reliability"]
        axes.plot(diagram["rmv"], diagram["rmse"], marker="o", markersize=3, label=name)
    low, high = _common_range(axes)
    axes.plot([low, high], [low, high], color="0.6", linestyle="--", label="perfect")
    axes.set(title="Reliability (20 bins of equal mass)", xscale="log", yscale="log")
    return _plot(figure, axes, "reliability diagram")


def _discard(found: Mapping[str, Any]) -> str:
    figure, axes = _axes("most certain images kept, %", "mean squared error")
    for name, table in found.items():
        curve = table["discard_curve"]
        axes.plot([100 * k for k in curve["kept"]], curve["mse"], label=name)
    axes.set(title="Discard curve", yscale="log")
    return _plot(figure, axes, "discard curve")


def _common_range(axes: Any) -> tuple[float, float]:
    data = np.concatenate([np.concatenate(line.get_data()) for line in axes.lines])
    positive = data[data > 0]
    return (float(positive.min()), float(positive.max())) if positive.size else (1e-3, 1.0)


def _axes(xlabel: str, ylabel: str) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("the report", "plots") from error
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def _plot(figure: Any, axes: Any, alt: str) -> str:
    axes.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return _png(buffer.getvalue(), 520, alt)
