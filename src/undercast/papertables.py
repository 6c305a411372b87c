"""The tables of the paper (Ebel et al., EarthVision 2023): rows, their configs, their figures.

How a row is trained stands in `configs/paper/<row>.yaml`, and only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUALITY = ("RMSE", "PSNR", "SSIM", "SAM")
CALIBRATION = ("UCE_im", "UCE")
COST = ("params_k", "GMAC")


@dataclass(frozen=True)
class Row:
    """One row: its label, the stem of its config, the paper's figures, the T of its evaluation."""

    label: str
    config: str
    paper: Mapping[str, float | None]
    t: int | None = None  # None = as trained


@dataclass(frozen=True)
class Table:
    """One table: what it compares, on which dataset, in which columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    layout: str = "sen12mscrts"
    curve: bool = False  # also the discard curve
    notes: tuple[str, ...] = field(default=())


def _rows(columns: tuple[str, ...], *lines: tuple[Any, ...]) -> tuple[Row, ...]:
    """Lines of (label, config, figures…)."""
    return tuple(Row(n, c, dict(zip(columns, rest, strict=False))) for n, c, *rest in lines)


_T1 = (*QUALITY, *CALIBRATION)
_T2 = (*COST, *QUALITY)
_T4 = ("MAE", "PSNR", "SSIM", "SAM")
_T6 = (0.049, 28.19, 0.872, 10.18, 0.012, 0.002)  # the ensemble at T = 3, also in Table 5
_L2_NOTE = "every row trains with L2 only, without a variance"

TABLES: dict[str, Table] = {
    "table1": Table(
        "Multi-temporal reconstruction, T = 3",
        _T1,
        _rows(
            _T1,
            ("least cloudy", "table1-least-cloudy", 0.079, None, 0.815, 12.204),
            ("DSen2-CR", "table1-dsen2-cr", 0.060, 26.04, 0.810, 12.147),
            ("STGAN", "table1-stgan", 0.057, 25.42, 0.818, 12.548),
            ("CR-TS Net", "table1-cr-ts-net", 0.051, 26.68, 0.836, 10.657),
            ("U-TAE", "table1-utae", 0.051, 27.05, 0.849, 11.649),
            ("UnCRtainTS no σ", "table1-uncrtaints-no-sigma", 0.049, 27.23, 0.859, 10.168),
            ("UnCRtainTS", "table1-uncrtaints", 0.051, 27.84, 0.866, 10.160, 0.010, 0.007),
        ),
    ),
    "table2": Table(
        "Blocks before and after the aggregation",
        _T2,
        _rows(
            _T2,
            ("n_e 1, n_d 3", "table2-e1-d3", 400, 29.3, 0.052, 27.03, 0.859, 11.614),
            ("n_e 1, n_d 4", "table2-e1-d4", 483, 34.0, 0.050, 27.00, 0.851, 11.771),
            ("n_e 1, n_d 5", "table2-e1-d5", 568, 38.7, 0.049, 27.23, 0.859, 10.168),
            ("n_e 1, n_d 6", "table2-e1-d6", 654, 43.4, 0.050, 27.55, 0.860, 10.471),
            ("n_e 1, n_d 7", "table2-e1-d7", 740, 48.1, 0.049, 27.21, 0.859, 10.300),
            ("n_e 0, n_d 5", "table2-e0-d5", 483, 24.6, 0.052, 26.97, 0.853, 11.002),
            ("n_e 2, n_d 5", "table2-e2-d5", 654, 52.9, 0.048, 27.55, 0.864, 10.641),
        ),
        notes=(_L2_NOTE, "the paper lists n_e 1, n_d 5 twice; it is one row here"),
    ),
    "table3": Table(
        "Attention heads",
        _T2,
        _rows(
            _T2,
            ("1 head", "table3-heads1", 556, 38.7, 0.049, 27.56, 0.856, 10.497),
            ("4 heads", "table3-heads4", 559, 38.7, 0.052, 27.40, 0.856, 10.825),
            ("8 heads", "table3-heads8", 563, 38.7, 0.051, 27.00, 0.851, 11.131),
            ("16 heads", "table3-heads16", 568, 38.7, 0.049, 27.23, 0.859, 10.168),
            ("32 heads", "table3-heads32", 588, 38.8, 0.051, 27.12, 0.861, 10.245),
            ("64 heads", "table3-heads64", 621, 38.9, 0.051, 27.24, 0.858, 11.054),
        ),
        notes=(_L2_NOTE,),
    ),
    "table4": Table(
        "Mono-temporal reconstruction, T = 1, SEN12MS-CR",
        _T4,
        _rows(
            _T4,
            ("McGAN", "table4-mcgan", 0.048, 25.14, 0.744, 15.676),
            ("SAR-Opt-cGAN", "table4-sar-opt-cgan", 0.043, 25.59, 0.764, 15.494),
            ("SAR2OPT", "table4-sar2opt", 0.042, 25.87, 0.793, 14.788),
            ("SpA GAN", "table4-spa-gan", 0.045, 24.78, 0.754, 18.085),
            (
                "Simulation-Fusion GAN",
                "table4-simulation-fusion-gan",
                0.045,
                24.73,
                0.701,
                16.633,
            ),
            ("DSen2-CR", "table4-dsen2-cr", 0.031, 27.76, 0.874, 9.472),
            ("GLF-CR", "table4-glf-cr", 0.028, 28.64, 0.885, 8.981),
            ("UnCRtainTS", "table4-uncrtaints", 0.027, 28.90, 0.880, 8.320),
        ),
        layout="sen12mscr",
        notes=("UnCRtainTS trains with L2, the other systems with their published losses",),
    ),
    "table5": Table(
        "Uncertainty models",
        _T1,
        _rows(
            _T1,
            ("isotropic Σ", "table5-isotropic", 0.053, 26.74, 0.842, 11.77, 0.029, 0.023),
            ("UnCRtainTS", "table5-diagonal", 0.051, 27.84, 0.866, 10.16, 0.010, 0.007),
            ("ensemble", "table5-ensemble", *_T6),
            ("ensemble no SAR", "table5-ensemble-no-sar", 0.048, 27.97, 0.869, 10.76, 0.018, 0.014),
        ),
    ),
    "table6": Table(
        "Sequence length: the ensemble trained with T = 3, evaluated at T",
        _T1,
        (
            Row(
                "T = 2",
                "table6-t2",
                dict(zip(_T1, (0.051, 27.78, 0.861, 10.86, 0.012, 0.004), strict=True)),
                2,
            ),
            Row("T = 3", "table6-t3", dict(zip(_T1, _T6, strict=True)), 3),
            Row(
                "T = 4",
                "table6-t4",
                dict(zip(_T1, (0.047, 28.41, 0.875, 9.99, 0.013, 0.001), strict=True)),
                4,
            ),
        ),
        notes=("no row is trained again: all three evaluate one ensemble",),
    ),
    "discard": Table(
        "Error when the most uncertain images are discarded",
        _T1,
        _rows(_T1, ("UnCRtainTS", "table1-uncrtaints", 0.051, 27.84, 0.866, 10.160, 0.010, 0.007)),
        curve=True,
        notes=("the paper's curve has no numbers: discarding half 'almost halves' the error",),
    ),
}

# `--scale small`: the same budget for every row, whatever its published recipe.
SMALL: dict[str, Any] = {
    "crop": 64,
    "batch_size": 4,
    "epochs": 8,
    "steps_per_epoch": 20,
    "lr": 1e-3,
    "decay": 0.8,
    "max_val_samples": 12,
    "workers": 0,
    "compile": False,
    "nodata": "skip",
}
SMALL_LR: dict[str, float] = {"glf-cr": 3e-4}  # it diverges at the rate of the others
SMALL_MEMBERS = 3
SMALL_TEST_SAMPLES = 60
SMALL_DATA: dict[str, Any] = {
    "rois": 24,
    "patches": 4,
    "dates": 10,
    "size": 128,
    "cover": 0.6,
    "seed": 0,
}
# Systems of more than 5 million parameters keep their depth and an eighth of their width, which
# brings them to the size of UnCRtainTS (0.2 to 0.9 million) and to minutes on a CPU.
NARROW: dict[str, dict[str, Any]] = {
    "dsen2-cr": {"features": 32},
    "cr-ts-net": {"features": 32},
    "stgan": {"width": 8},
    "glf-cr": {"features": 12, "growth": 6, "heads": 1},
    "mcgan": {"width": 8},
    "sar-opt-cgan": {"width": 8},
    "sar2opt": {"width": 8},
    "simulation-fusion-gan": {"width": 8},
}
