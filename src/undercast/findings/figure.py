"""The discard curves as SVG text: small, the same on every machine, without a plotting package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Curve = Mapping[str, Sequence[float]]  # kept, mse
_WIDTH, _HEIGHT = 560, 340
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 20, 540, 290
_STYLES = {"diagonal": ("#888", 1.0, "members"), "ensemble": ("#c2410c", 2.5, "ensemble")}


def discard_figure(found: Mapping[str, Sequence[Curve]]) -> str:
    """Error of the most certain images relative to that of all: members thin, ensemble thick."""
    highest = max(1.0, *(max(relative(c)) for curves in found.values() for c in curves))

    def at(kept: float, share: float) -> tuple[float, float]:
        return (
            round(_LEFT + kept * (_RIGHT - _LEFT), 1),
            round(_BOTTOM - share / highest * (_BOTTOM - _TOP), 1),
        )

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_axes(at),
    ]
    for i, (label, (colour, thick, name)) in enumerate(_STYLES.items()):
        for curve in found[label]:
            pairs = map(at, curve["kept"], relative(curve))
            points = " ".join(f"{x},{y}" for x, y in pairs)
            lines.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="{thick}"/>'
            )
        y = _TOP + 16 * (i + 1)
        lines.append(f'<text x="{_LEFT + 12}" y="{y}" fill="{colour}">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def relative(curve: Curve) -> list[float]:
    """Errors as shares of the error of all images."""
    return [mse / curve["mse"][-1] for mse in curve["mse"]]


def _axes(at: Callable[[float, float], tuple[float, float]]) -> list[str]:
    lines = []
    for tick in range(6):
        (x, _), (_, y) = at(tick / 5, 0), at(0, tick / 5)
        lines += [
            f'<path d="M{_LEFT},{y} L{_RIGHT},{y}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick / 5:.1f}</text>',
            f'<text x="{x}" y="{_BOTTOM + 18}" text-anchor="middle">{20 * tick} %</text>',
        ]
    middle_x, middle_y = (_LEFT + _RIGHT) / 2, (_TOP + _BOTTOM) / 2
    return [
        *lines,
        f'<text x="{middle_x}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "most certain images kept</text>",
        f'<text x="14" y="{middle_y}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle_y})">mean squared error / that of all</text>',
    ]
