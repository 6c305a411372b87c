"""Remove the clouds from scenes: files in, georeferenced product out.

SCENES are the dates of one place: GeoTIFF stacks (one file per date), SAFE folders or zips, STAC
items or collections, Zarr stores, or folders of these. DIR gets mean.tif, sigma.tif, quality.tif
(Cloud-Optimized GeoTIFFs), item.json (STAC) and quicklook.png.

examples:
  undercast predict 2018*.tif -o clean
  undercast predict S2*.SAFE --s1 s1/*.tif --around 2018-06-21 --count 3 -o clean
  undercast predict scenes/ -o clean --model mosaic
  undercast predict scenes/ -o clean --workers 4 --resume
"""

from __future__ import annotations

from typing import Any

from undercast.cli.common import add_json, write_json

DIRECT = (  # options that have the same name in `predict_scene`
    "dates", "s1", "s1_unit", "masks", "clouds", "around", "count", "like", "baseline", "offset",
    "keep_clear", "mask_above", "zarr", "overlap", "batch", "device", "engine", "workers",
    "scheduler", "threads", "resume", "overwrite",
)  # fmt: skip


def configure(parser: Any) -> None:
    add = parser.add_argument
    flag = {"action": "store_true"}
    add("scenes", nargs="+", metavar="SCENES", help="files or folders, one place, any dates")
    add("-o", "--out", required=True, metavar="DIR", help="folder for the product")
    add("--model", nargs="+", default=["default"],
        help="packaged weights, a composite (mosaic, median, least-cloudy), a checkpoint; "
        "several make an ensemble")  # fmt: skip
    add("--s1", nargs="+", default=[], metavar="FILE", help="Sentinel-1 GeoTIFFs, VV and VH")
    add("--s1-unit", default="auto", help="auto, db or linear")
    add("--s1-tolerance", type=float, default=7.0, metavar="DAYS", help="between S1 and S2")
    add("--dates", nargs="+", default=None, metavar="DATE", help="where names do not tell them")
    add("--masks", nargs="+", default=None, metavar="FILE", help="one per scene, not 0 = unusable")
    add("--clouds", default="auto", help="detector without masks: auto, s2cloudless, rules")
    add("--around", default=None, metavar="DATE", help="use the most useful dates near this one")
    add("--count", type=int, default=None, metavar="T", help="how many dates, with --around")
    add("--like", default=None, metavar="FILE", help="grid of this file instead of the first")
    add("--baseline", default=None, help="processing baseline of files without scale tags")
    add("--offset", type=float, default=None, metavar="DN", help="to add, for such files")
    add("--keep-clear", help="leave clear pixels of the reference date unchanged", **flag)
    add("--mask-above", type=float, default=None, metavar="SIGMA", help="no data where above")
    add("--float32", help="reflectance as float32 instead of scaled uint16", **flag)
    add("--zarr", help="also write product.zarr", **flag)
    add("--overlap", type=int, default=96, metavar="PX", help="pixels that tiles share")
    add("--batch", type=int, default=1, help="tiles in one forward")
    add("--device", default="cpu", help="cpu, cuda, cuda:1")
    add("--engine", default="auto", help="how the model is run, see undercast benchmark")
    add("--workers", type=int, default=0, metavar="N", help="processes of a local Dask cluster")
    add("--scheduler", default=None, metavar="ADDRESS", help="of a running Dask scheduler")
    add("--threads", type=int, default=None, metavar="N", help="of torch in each process")
    add("--resume", help="go on with a run that was stopped", **flag)
    add("--overwrite", help="replace a product that is there", **flag)
    add_json(parser)


def run(args: Any) -> None:
    from undercast.pipeline import predict_scene

    product = predict_scene(
        args.scenes,
        args.out,
        args.model[0] if len(args.model) == 1 else args.model,
        s1_tolerance_days=args.s1_tolerance,
        dtype="float32" if args.float32 else "uint16",
        **{name: getattr(args, name) for name in DIRECT},
    )
    write_json(args.json, product.item)
    if args.json != "-":
        print(f"{product.folder}: {', '.join(sorted(product.item['assets']))}, item.json")
