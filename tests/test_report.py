"""The report: complete, self-contained, and with the numbers of the evaluation."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio

from undercast.datasets.samples import Provenance, Sample
from undercast.errors import DataError, MissingDependencyError
from undercast.evaluate import Evaluation, evaluate
from undercast.models import create
from undercast.report import check_report, number, render, summary, write_report
from undercast.types import Stack, Tile


def sample(i: int, n: int = 8, size: int = 24) -> Sample:
    rng = np.random.default_rng(i)
    target = rng.uniform(0.1, 0.3, (13, size, size)).astype(np.float32)
    mask = rng.random((2, size, size)) < i / (n - 1)
    s2 = np.where(mask[:, None], np.float32(0.8), target + rng.normal(0, 0.02, (2, *target.shape)))
    provenance = Provenance(
        "memory", "<roi>", i, "test", (0, 1), 2, i / (n - 1), 0.0, ("a", "b"), (None, None), "c",
        Tile(0, 0, size, size),
    )  # fmt: skip
    stack = Stack(s2, ["2018-06-01", "2018-06-06"], mask=mask)
    return Sample(stack, target, mask[0], np.datetime64("2018-06-11"), provenance)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    samples = [sample(i) for i in range(8)]
    return evaluate(
        create("median"), samples, train_spectrum=np.full(13, 0.2), progress=False,
        info={"dataset": "memory & more", "protocol": "clean"},
    )  # fmt: skip


def test_report_needs_no_network_and_shows_every_system(evaluation: Evaluation) -> None:
    page = render(evaluation)
    assert not re.findall(r"https?://|<script|<link|url\(", page)
    for name in evaluation.systems:
        assert f"<td>{name}</td>" in page
    for band in ("B1", "B8A", "B12"):
        assert f"<td>{band}</td>" in page
    assert "&lt;roi&gt;" in page  # text is escaped
    assert "memory &amp; more" in page
    assert "<roi>" not in page


def test_report_holds_the_numbers_of_the_evaluation(evaluation: Evaluation) -> None:
    page = render(evaluation)
    tables = evaluation.systems["median"]
    for value in (
        tables["image"]["all"]["PSNR"],
        tables["image"]["covered_on_every_date"]["RMSE"],
        tables["per_band"]["B11"]["SSIM"],
        tables["per_cover"]["cover_10_50"]["MAE"],
        tables["calibration"]["all"]["UCE"],
        tables["calibration"]["per_band"]["B2"]["NLL"],
    ):
        assert f"<td>{number(value)}</td>" in page


def test_every_picture_of_the_report_can_be_read(evaluation: Evaluation, tmp_path: Path) -> None:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', render(evaluation))
    rows = len(evaluation.examples)
    assert rows == 6
    assert len(found) == rows * (2 + 4) + 1 + 2  # inputs and four more, scale, two plots
    for i, text in enumerate(found[:3] + found[-2:]):
        file = tmp_path / f"{i}.png"
        file.write_bytes(base64.b64decode(text))
        with rasterio.open(file) as picture:
            assert picture.read().std() > 0


def test_report_appears_complete_or_not_at_all(evaluation: Evaluation, tmp_path: Path) -> None:
    write_report(tmp_path / "r" / "report.html", evaluation)
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["report.html"]
    text = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert text.endswith("</html>\n")
    with pytest.raises(DataError, match="already there"):
        check_report(tmp_path / "r" / "report.html", overwrite=False)
    check_report(tmp_path / "r" / "report.html", overwrite=True)


def test_without_matplotlib_the_error_is_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingDependencyError, match=r"undercast\[plots\]"):
        check_report(tmp_path / "report.html", overwrite=False)


def test_terminal_table_has_one_row_a_system(evaluation: Evaluation) -> None:
    header, rows = summary(evaluation)
    assert [row[0] for row in rows] == list(evaluation.systems)
    assert all(len(row) == len(header) for row in rows)
    flat = next(row for row in rows if row[0] == "flat-train-mean")
    assert flat[header.index("UCE")] == "–"
    assert flat[header.index("correlation")] == "0"
