"""Figures as inline SVG: readable without scripts, coloured by the page's variables (light and dark)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bexplore.output.report.figure import Band, Dot, Dots, Figure, Line, Mark, Rule

# Colours of a standalone figure; the page's own style sets the same variables.
STANDALONE_STYLE = """
svg{--paper:#fff;--ink:#1c2330;--soft:#5b6576;--grid:#e3e7ee;--posterior:#2f6fde;--measured:#1c2330;--trace:#8a5a00;
--budget:#c4302b;--score:#2f6fde;--curve0:#2f6fde;--curve1:#c05a00;--curve2:#2a8a4a;--curve3:#a03fb0;--curve4:#0a8a94;
--curve5:#b8292a;background:var(--paper);font-family:system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg{--paper:#12161f;--ink:#e8ecf4;--soft:#a3adbf;--grid:#2a3140;--posterior:#7fb0ff;
--measured:#e8ecf4;--trace:#f0b45a;--budget:#ff7b74;--score:#7fb0ff;--curve0:#7fb0ff;--curve1:#ffab5e;--curve2:#7fd89a;
--curve3:#dd93ea;--curve4:#5fd3dc;--curve5:#ff857e}}
"""
SHAPES = """
.figure text{font-size:13px;fill:var(--soft)}.figure .grid{stroke:var(--grid)}.figure .axis{stroke:var(--soft)}
.figure .line{fill:none;stroke-width:2;stroke-linejoin:round}
.figure .band{opacity:.22}.figure .rule{stroke-dasharray:6 4}
.figure .dot{outline:none}.figure .dot .hit{fill:transparent}
.figure .dot:hover .shape,.figure .dot:focus .shape{stroke-width:4}
"""
_LEFT, _RIGHT, _TOP, _BOTTOM, _LEGEND_ROW, _LABEL_ROW = 64, 14, 8, 46, 20, 18


def draw(figure: Figure, *, width: int = 760, height: int = 380, standalone: bool = False, tag: str = "") -> str:
    """Draw a figure as one `<svg>` element.

    Args:
        width: Natural width, pixels; the drawing scales with its container.
        height: Natural height, pixels.
        standalone: Whether to include a style, for a file of its own.
        tag: Makes the ids of title and description unique in a page.
    """
    canvas = _Canvas(figure, width, height)
    name = f"{figure.key}{tag}"
    style = f"<style>{STANDALONE_STYLE}{SHAPES}</style>" if standalone else ""
    return (
        f'<svg class="figure" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="group" '
        f'aria-labelledby="{name}-title {name}-text">{style}<title id="{name}-title">{escape(figure.title)}</title>'
        f'<desc id="{name}-text">{escape(figure.description)}</desc>'
        f"{canvas.legend()}{canvas.axes()}{''.join(canvas.mark(mark) for mark in figure.marks)}</svg>"
    )


class _Canvas:
    """Converts data coordinates to pixels."""

    def __init__(self, figure: Figure, width: int, height: int) -> None:
        self.figure, self.width = figure, width
        self.rows = _legend_rows(figure.marks, width - _LEFT - _RIGHT)
        self.left, self.right = _LEFT, width - _RIGHT
        self.top, self.bottom = _TOP + _LEGEND_ROW * len(self.rows) + _LABEL_ROW + 8, height - _BOTTOM

    def x(self, value: float) -> float:
        return round(self.left + self.figure.x.fraction(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - self.figure.y.fraction(value) * (self.bottom - self.top), 1)

    def axes(self) -> str:
        parts = [f'<text x="4" y="{self.top - 14}">{escape(self.figure.y.label)}</text>']
        for value in self.figure.y.ticks:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{y}" y2="{y}"/>')
            text = escape(self.figure.y.text(value))
            parts.append(f'<text x="{self.left - 8}" y="{y + 4}" text-anchor="end">{text}</text>')
        widest = max((len(self.figure.x.text(value)) for value in self.figure.x.ticks), default=1)
        fitting = max(1, int((self.right - self.left) / (9 * widest + 14)))
        for value in self.figure.x.ticks[:: -(-len(self.figure.x.ticks) // fitting)]:
            x = self.x(value)
            parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{self.bottom}" y2="{self.bottom + 5}"/>')
            text = escape(self.figure.x.text(value))
            anchor = "middle" if x < self.right - 5 * widest else "end"  # the last one would be cut at the edge
            parts.append(f'<text x="{x}" y="{self.bottom + 19}" text-anchor="{anchor}">{text}</text>')
        middle = (self.left + self.right) / 2
        parts.append(f'<line class="axis" x1="{self.left}" x2="{self.right}" y1="{self.bottom}" y2="{self.bottom}"/>')
        parts.append(
            f'<text x="{middle}" y="{self.bottom + 39}" text-anchor="middle">{escape(self.figure.x.label)}</text>'
        )
        return "".join(parts)

    def legend(self) -> str:
        parts = []
        for row, marks in enumerate(self.rows):
            x, y = float(self.left), _TOP + _LEGEND_ROW * row + 12
            for mark in marks:
                parts.append(_swatch(mark, x + 9, y - 4))
                parts.append(f'<text x="{x + 24}" y="{y}">{escape(mark.name)}</text>')
                x += _legend_width(mark)
        return f'<g aria-hidden="true">{"".join(parts)}</g>'

    def mark(self, mark: Mark) -> str:
        if isinstance(mark, Band):
            return self._band(mark)
        if isinstance(mark, Line):
            return self._line(mark)
        if isinstance(mark, Rule):
            y = self.y(mark.value)
            return (
                f'<line class="rule" x1="{self.left}" x2="{self.right}" y1="{y}" y2="{y}" '
                f'stroke="var(--{mark.role})" stroke-width="1.5"/>'
            )
        return "".join(self._dot(mark, dot) for dot in mark.dots)

    def _band(self, band: Band) -> str:
        upper = [f"{self.x(x)},{self.y(high)}" for x, _, high in band.points]
        lower = [f"{self.x(x)},{self.y(low)}" for x, low, _ in reversed(band.points)]
        return f'<polygon class="band" fill="var(--{band.role})" points="{" ".join(upper + lower)}"/>'

    def _line(self, line: Line) -> str:
        points: list[str] = []
        for index, (x, y) in enumerate(line.points):
            if line.is_stepped and index:
                points.append(f"{self.x(x)},{self.y(line.points[index - 1][1])}")
            points.append(f"{self.x(x)},{self.y(y)}")
        return f'<polyline class="line" stroke="var(--{line.role})" points="{" ".join(points)}"/>'

    def _dot(self, dots: Dots, dot: Dot) -> str:
        x, y = self.x(dot.x), self.y(dot.y)
        spread = ""
        if dot.low is not None and dot.high is not None:
            spread = (
                f'<line x1="{x}" x2="{x}" y1="{self.y(dot.low)}" y2="{self.y(dot.high)}" '
                f'stroke="var(--{dots.role})" stroke-width="1.5"/>'
            )
        text = escape(dot.text, quote=True)
        return (
            f'<g class="dot" tabindex="0" role="img" aria-label="{text}" data-tip="{text}"><title>{text}</title>'
            f'{spread}{_shape(dots, x, y)}<circle class="hit" cx="{x}" cy="{y}" r="12"/></g>'
        )


def _shape(dots: Dots, x: float, y: float, *, ring: int = 10) -> str:
    colour = f"var(--{dots.role})"
    if dots.shape == "cross":
        path = f"M{x - 5} {y - 5}L{x + 5} {y + 5}M{x - 5} {y + 5}L{x + 5} {y - 5}"
        return f'<path class="shape" d="{path}" stroke="{colour}" stroke-width="2.5" fill="none"/>'
    fill = {"filled": colour, "hollow": "var(--paper)", "ring": "none"}[dots.shape]
    radius = ring if dots.shape == "ring" else 5
    return f'<circle class="shape" cx="{x}" cy="{y}" r="{radius}" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _swatch(mark: Mark, x: float, y: float) -> str:
    colour = f"var(--{mark.role})"
    if isinstance(mark, Dots):
        return _shape(mark, x, y, ring=7)
    if isinstance(mark, Band):
        return f'<rect class="band" x="{x - 9}" y="{y - 6}" width="18" height="12" fill="{colour}"/>'
    dashed = ' class="rule"' if isinstance(mark, Rule) else ""
    return f'<line{dashed} x1="{x - 9}" x2="{x + 9}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'


def _legend_width(mark: Mark) -> float:
    return 24 + 7.2 * len(mark.name) + 14


def _legend_rows(marks: Sequence[Mark], width: float) -> list[list[Mark]]:
    """Arrange the named marks in rows that fit the width."""
    rows: list[list[Mark]] = []
    used = width
    for mark in marks:
        if not mark.name or (isinstance(mark, Dots) and not mark.dots):
            continue
        if used + _legend_width(mark) > width:
            rows.append([])
            used = 0.0
        rows[-1].append(mark)
        used += _legend_width(mark)
    return rows
