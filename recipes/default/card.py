"""Writes the model card and MODELS.md from the figures that `package.py` has measured.

    python recipes/default/card.py src/undercast/weights/default.json

Sentences are here, numbers only in the JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bars import Bar, all_bars

from undercast.files import final_file

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("PSNR dB", "SSIM", "SAM °", "correlation", "UCE", "in 90 %", "MSE half / all")

INTRODUCTION = """\
# default

The cloud-free image of a Sentinel-2 series, with or without Sentinel-1, for any number of
dates, with a variance for every pixel and band that is compared with errors on real images below.
`undercast.load_model("default")`.
"""

LIMITS = """\
## Limits

- **Level 1C** (top-of-atmosphere reflectance), all 13 bands. Level 2A is read, but is not what
  it was trained on.
- Trained for hours on a processor, not for days on a GPU, mostly on simulated clouds over real
  or simulated land: where the published weights of the method fit your data, compare.
- The estimate is of the *land between the dates* of the inputs. It is no image of a given day,
  and what changed on one date only (a harvest, a flood, a ship) may be missing or smeared.
- The real places on which the figures below are measured are few (they are named with each
  table), and dry land is over-represented among them. Differences of a few tenths of a dB
  between systems mean nothing here.
- The intervals are at best right on average over places like those of the calibration, which
  are few. A single image can be brighter or darker than its intervals as a whole: see *UCE of
  images*.
- Sigma is right for an image more than for its pixels: it hardly rises where no date shows the
  ground, or falls a little where usual land is believed there, whether errors rise or not
  (*hidden*, in the tables of images).
- Of one date under a closed sky, expect land as it mostly is and little of its detail: an image
  that is not much nearer to the truth than a flat one of the mean spectrum (*Image by image*), with
  woods and fields as radar tells them apart.
- Masks that are given, as people or s2cloudless make them, are used: below them estimates are
  trusted less. The figures of real images are with the masks named there; without any they are
  nearer to those of the network alone. Ground that a mask calls cloudy by mistake loses detail.
- Radar is used where it is there. Six real images with VV and VH were trained on; what they tell of
  hidden land is mostly one linear relation: woods are darker than fields, and one field is as
  another.
- What no date shows is taken for usual land, unless the land around and the estimate say otherwise:
  land that is a little brighter or darker than usual comes out as usual, and details that thin
  clouds let through are partly lost, most where masks call thin clouds clouds. Give it several
  dates.
- The dates of the CloudSEN12 series are not known; they are given to the model as ten days
  apart.
"""

CLEAR_GROUND = """\
### Clear ground

The clear image of each place as the only input: nothing is hidden, and the estimate should be that
image. It is drawn towards land as it mostly is, for the dates that were trained on differ.
Where your dates are clear, a composite keeps them as they are.
"""

EACH = """\
Image by image. *PSNR there* compares what the inputs show of the ground, where the masks call them
clear, with the truth: where it is low, the ground, its light or the air was another on those days.
*Hidden*: how many times larger sigma, and the error, are where no date shows the ground.
"""

SIMULATED_NOTE = """\
The simulated world is a draw of its own, made as training data are made, so that these figures
are kinder than those on real images. Clean protocol: the target is a clear date of the series
and never among the inputs. Masks by s2cloudless.
"""

FAILURES = """\
## Where it fails

Looked for on simulated scenes, {scenes} of each kind; the table has means, each picture shows
the scene on which the model does worst against the best composite. Inputs above; mean, truth,
sigma and absolute error below, without Sentinel-1.
"""


def card(results: dict[str, Any], pictures: str) -> str:
    """The text of the card; pictures: the folder of the pictures, seen from the card."""
    parts = [
        INTRODUCTION,
        _identity(results["weights"], results["calibration"]),
        _falls_short(all_bars(results)),
        LIMITS,
        _real(results["real"]["sets"]),
        _clear(results["real"]["clear"]),
        _simulated(results["simulated"]),
        _calibration(results["calibration"]),
        _failures(results["failures"], pictures),
        _data(results["weights"]["provenance"]),
    ]
    return "\n".join(parts)


def _identity(weights: dict[str, Any], calibration: dict[str, Any]) -> str:
    known = weights["provenance"]
    rows = [
        ("architecture", f"UnCRtainTS, {weights['parameters']:,} parameters, diagonal covariance"),
        ("file", f"`{weights['file']}`, {weights['bytes'] / 1e6:.2f} MB"),
        ("SHA-256", f"`{weights['sha256']}`"),
        ("recipe", f"`{known['recipe']}` of commit `{known['recipe_commit'][:12]}`"),
        *_stages(known["stages"]),
        *(
            (("weights", f"their mean with {mean}"),)
            if (mean := known.get("averaged_with"))
            else ()
        ),
        *_hidden_ground(weights["surroundings"]),
        ("calibration", f"{_corrected(calibration)}, by {', '.join(calibration['places'])}"),
        ("licence", "MIT, as the package; the data and their licences are named below"),
    ]
    return _table(("", ""), rows)


def _hidden_ground(reach: int) -> list[tuple[str, str]]:
    words = (
        f"after the network, usual land or else the land within about {reach} pixels, in the "
        "colour of its radar echo: `undercast.models.surroundings`, `undercast.models.echo`"
    )
    return [("hidden ground", words)] if reach else []


def _corrected(calibration: dict[str, Any]) -> str:
    if calibration["method"] == "raw":
        return "none: no correction did better on places held out"
    return str(calibration["method"])


def _stages(stages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (f"stage {s['stage']}" if len(stages) > 1 else "training",
         f"`{s['command']}`; seed {s['seed']}; {s['taken']}; begun at commit "
         f"`{(s['commit'] or 'unknown')[:12]}`")
        for s in stages
    ]  # fmt: skip


def _falls_short(bars: Sequence[Bar]) -> str:
    missed = [bar for bar in bars if not bar.met]
    head = f"## What it should reach\n\n{len(bars) - len(missed)} of {len(bars)} demands are met."
    if not missed:
        return f"{head}\n"
    rows = [(bar.where, bar.wanted, bar.got) for bar in missed]
    return f"{head} It falls short of these:\n\n{_table(('where', 'wanted', 'got'), rows)}"


def _real(sets: dict[str, Any]) -> str:
    parts = [
        "## Real images\n\nPlaces that neither training nor calibration has seen; means over "
        "images, each place with equal\nweight. UCE, coverage, and the mean squared error of the "
        "most certain half of the pixels against all,\nare pooled over all pixels of a set; *UCE "
        "of images* is the mean of each image's own. Composites\nget masks made by people "
        "(series) and by s2cloudless (triplets)."
    ]
    for found in sets.values():
        places = ", ".join(found["places"])
        rows = [
            (name, *_figures(row, row.get("pooled", {}))) for name, row in found["systems"].items()
        ]
        model = found["systems"]["model"]
        parts.append(
            f"### {found['title']}\n\n{found['images']} images of {places}.\n\n"
            f"{_table(('', *COLUMNS), rows)}\nUCE of images: {model['of_images']['UCE']:.4f}. "
            f"In 90 %, each place with equal weight: {model['of_images']['coverage_90']:.3f}. "
            f"By band, pooled:\n\n{_bands(model['bands'])}\n{_each(found['each'])}"
        )
    return "\n\n".join(parts)


def _each(images: Sequence[dict[str, Any]]) -> str:
    rows = [
        (image["place"], f"{image['PSNR']:.1f}", f"{image['flat_PSNR']:.1f}",
         f"{image['clear']:.2f}",
         _or_none(image["inputs_PSNR"], ".1f"), f"{image['coverage_90']:.2f}",
         _or_none(image["hidden_sigma"], ".2f"), _or_none(image["hidden_error"], ".2f"))
        for image in images
    ]  # fmt: skip
    header = ("image of", "PSNR", "of flat mean", "clear in inputs", "PSNR there", "in 90 %",
              "hidden: sigma", "hidden: error")  # fmt: skip
    return f"{EACH}\n{_table(header, rows)}"


def _or_none(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _bands(shares: dict[str, float]) -> str:
    return _table(list(shares), [[f"{share:.2f}" for share in shares.values()]])


def _clear(found: dict[str, dict[str, float]]) -> str:
    rows = [
        (place, f"{row['brightness']:.3f}", f"{row['bias']:+.3f}", f"{row['PSNR']:.1f}")
        for place, row in sorted(found.items(), key=lambda item: item[1]["brightness"])
    ]
    header = ("place", "mean reflectance", "the estimate is brighter by", "PSNR")
    return f"{CLEAR_GROUND}\n{_table(header, rows)}"


def _simulated(found: dict[str, Any]) -> str:
    world = found["world"]
    made = (
        f"`undercast simulate DIR --rois {world['rois']} --patches {world['patches']} "
        f"--dates {world['dates']} --seed {world['seed']}`"
    )
    parts = [f"## Simulated test split\n\n{SIMULATED_NOTE}\n{made}"]
    for name, setting in found["settings"].items():
        rows = [(system, *_figures(row, row)) for system, row in setting["systems"].items()]
        parts.append(
            f"### {name}\n\n{setting['images']} images; MSE of the most certain half of the images "
            f"against all.\n\n{_table(('', *COLUMNS), rows)}"
        )
    return "\n\n".join(parts)


def _figures(row: dict[str, Any], variance: dict[str, Any]) -> tuple[str, ...]:
    """The cells of COLUMNS; – for a system without a variance."""
    image = (f"{row['PSNR']:.2f}", f"{row['SSIM']:.3f}", f"{row['SAM']:.2f}",
             f"{row['correlation']:.3f}")  # fmt: skip
    if variance.get("UCE") is None:
        return (*image, "–", "–", "–")
    return (
        *image,
        f"{variance['UCE']:.4f}",
        f"{variance['coverage_90']:.3f}",
        f"{variance['mse_half']:.5f} / {variance['mse_all']:.5f}",
    )


WORDS = {  # of a method, by what its name holds
    "power": " A power below 1 evens the variance out, where errors of pixels that look certain "
    "are larger than the network says: the order of the variances stays, and on calm scenes, as "
    "simulated ones, they are too wide.",
    "floor": " A floor is for the part of the errors that the network does not know of, mostly of "
    "an image as a whole: the order of the variances stays, but on calm scenes, as simulated ones, "
    "they are too wide and nearly the same everywhere.",
}


def _calibration(found: dict[str, Any]) -> str:
    columns = list(next(iter(found["held_out"].values())))
    rows = [
        (name, *(f"{row[key]:.3f}" for key in columns)) for name, row in found["held_out"].items()
    ]
    words = "".join(text for name, text in WORDS.items() if name in found["method"])
    return (
        f"## Calibration\n\nOn {found['images']} images of the calibrating places, each place held "
        f"out once. Taken: **{found['method']}** (smallest NLL), fitted on all; the variance is "
        f"then {found['wider']:.2f} times that, as the held-out places ask for. All this is of the "
        "network's own output; hidden ground comes after it."
        f"{words}\n\n"
        f"{_table(('variance', *(key.replace('_', ' ') for key in columns)), rows)}"
    )


def _failures(found: dict[str, Any], pictures: str) -> str:
    scenes = next(iter(found.values()))["scenes"]
    header = ("", "PSNR", "with S1", "best composite", "correlation", "of the composite",
              "in 90 %", "with S1")  # fmt: skip
    keys = ("PSNR", "PSNR_s1", "composite_PSNR", "correlation", "composite_correlation",
            "coverage_90", "coverage_90_s1")  # fmt: skip
    rows = [(name, *(f"{case['mean'][key]:.2f}" for key in keys)) for name, case in found.items()]
    parts = [FAILURES.format(scenes=scenes), _table(header, rows)]
    for case in found.values():
        shown = case["shown"]
        parts.append(
            f"### {case['title']}\n\n![{case['title']}]({pictures}/{case['picture']})\n\n"
            f"Here {shown['PSNR']:.1f} dB against {shown['composite_PSNR']:.1f} dB of "
            f"{shown['composite']}; {shown['coverage_90']:.0%} in the 90 % intervals.\n"
        )
    return "\n".join(parts)


def _data(known: dict[str, Any]) -> str:
    rows = [(d["name"], str(d["places"]), d["licence"]) for d in known["training_data"]]
    return (
        "## Data\n\nTrained on, with simulated clouds, shadows, haze and change:\n\n"
        f"{_table(('data', 'places', 'licence'), rows)}\n"
        "Chosen, calibrated and measured on, never trained on: CloudSEN12 series (labelled by "
        "people) and the other SEN12MS-CR\ntriplets (CC BY 4.0), by place as in "
        "`recipes/default/places.json`. "
        "None of these images is part of this repository.\n"
    )


def models_page(found: Iterable[tuple[Path, dict[str, Any]]]) -> str:
    """MODELS.md: one row for each weight file."""
    rows = []
    for path, results in found:
        weights, series = results["weights"], results["real"]["sets"]["series_t3"]["systems"]
        others = {name: row["PSNR"] for name, row in series.items() if name != "model"}
        best = max(others, key=lambda name: others[name])
        missed = sum(not bar.met for bar in all_bars(results))
        card_path = os.path.relpath(path.with_suffix(".md"), ROOT)
        rows.append(
            (f"`{path.stem}`", "UnCRtainTS", f"{weights['bytes'] / 1e6:.2f} MB",
             f"{series['model']['PSNR']:.2f} dB ({best}: {others[best]:.2f} dB)",
             f"{series['model']['pooled']['coverage_90']:.2f}",
             f"{missed} of {len(all_bars(results))}",
             f"[card]({card_path})")
        )  # fmt: skip
    header = ("name", "system", "file", "real series of three dates", "in the 90 % interval",
              "demands missed", "")  # fmt: skip
    return (
        "# Weights that come with the package\n\n"
        '`undercast.load_model("default")`, `undercast predict … --model default`. Data, licences, '
        "recipe, figures and limits are in\neach card; how they are made is in "
        f"[recipes/default](recipes/default/README.md).\n\n{_table(header, rows)}"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_cards(figures: Path, pictures: Path, models: Path = ROOT / "MODELS.md") -> None:
    """The card beside the figures, and MODELS.md of all figures in that folder."""
    beside = os.path.relpath(pictures.resolve(), figures.resolve().parent)
    _write(figures.with_suffix(".md"), card(json.loads(figures.read_text()), beside))
    every = sorted(figures.resolve().parent.glob("*.json"))
    _write(models, models_page((path, json.loads(path.read_text())) for path in every))


def _write(path: Path, text: str) -> None:
    with final_file(path) as temporary:
        temporary.write_text(text)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, help="default.json of package.py")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs" / "models")
    parser.add_argument("--models", type=Path, default=ROOT / "MODELS.md")
    args = parser.parse_args()
    write_cards(args.figures, args.pictures, args.models)


if __name__ == "__main__":
    main()
