"""List every system: what it takes and gives, its parameters and its cost.

The cost is counted in multiply-adds (GMAC) of one forward at 256 × 256 pixels, with 3 dates for
multi-temporal systems and 1 for mono-temporal ones.

examples:
  undercast models                      the table
  undercast models --size 128           the cost at another size
  undercast models --json -             for programs
"""

from __future__ import annotations

from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    parser.add_argument("--size", type=int, default=256, help="pixels of a side (default: 256)")
    add_json(parser)


def run(args: Any) -> None:
    rows = table(args.size)
    if args.json != "-":
        print_table(
            ("system", "takes", "gives", "parameters", "GMAC"),
            [(r["name"], r["takes"], r["gives"], _count(r), _gmac(r)) for r in rows],
        )
        print(
            f"\nGMAC: 10⁹ multiply-adds of one forward at {args.size} × {args.size} pixels, ",
            end="",
        )
        print("3 dates (multi-temporal) or 1 (mono)")
    write_json(args.json, {"size": args.size, "systems": rows})


def table(size: int) -> list[dict[str, Any]]:
    """One row a system of the registry, with its published settings; UnCRtainTS also mono."""
    import torch

    from undercast.models import create, names
    from undercast.models.cost import gmac, parameters

    variants: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in names()]
    variants += [
        ("uncrtaints (no variance)", "uncrtaints", {"covariance": "none"}),
        ("uncrtaints (mono)", "uncrtaints", {"mono": True}),
    ]
    rows = []
    for label, name, config in variants:
        with torch.device("meta"):  # shapes only: some systems have tens of millions of weights
            system = create(name, **config).network
        dates = "3 dates" if system.temporal == "multi" else "1 date"
        rows.append(
            {
                "name": label,
                "title": system.title,
                "takes": f"{dates}, S2{' + S1' if system.uses_s1 else ''}"
                f"{' + mask' if system.needs_mask else ''}",
                "gives": "mean, variance" if system.gives_variance else "mean",
                "parameters": parameters(system),
                "gmac": round(gmac(system, size), 3),
            }
        )
    return rows


def _count(row: dict[str, Any]) -> str:
    return f"{row['parameters']:,}" if row["parameters"] else "–"


def _gmac(row: dict[str, Any]) -> str:
    return f"{row['gmac']:.1f}" if row["gmac"] else "–"
