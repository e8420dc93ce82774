"""Figures as PNG, by matplotlib: an extra, imported only when a PNG is requested."""

from __future__ import annotations

import io
from typing import Any

from bexplore.errors import UserInputError
from bexplore.output.report.figure import Axis, Band, Dots, Figure, Line, Rule

CURVES = ("#2f6fde", "#c05a00", "#2a8a4a", "#a03fb0", "#0a8a94", "#b8292a")
COLOURS = {"posterior": "#2460d0", "measured": "#1c2330", "trace": "#8a5a00", "budget": "#b8292a", "score": "#2460d0"}
COLOURS |= {f"curve{number}": colour for number, colour in enumerate(CURVES)}
_MARKERS = {"filled": "o", "hollow": "o", "cross": "x", "ring": "o"}


def png(figure: Figure) -> bytes:
    """Draw a figure as a PNG of 1520 x 760 pixels.

    Raises:
        UserInputError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise UserInputError(
            "PNG needs matplotlib, which is not installed", hint="pip install matplotlib, or export SVG: `figures=svg`"
        ) from error
    canvas = Canvas(figsize=(7.6, 3.8), dpi=200, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    axes.set_title(figure.title, loc="left", fontsize=10)
    _axis(axes.xaxis, axes.set_xlim, figure.x, lambda: axes.set_xscale("log", base=2))
    _axis(axes.yaxis, axes.set_ylim, figure.y, lambda: axes.set_yscale("log", base=2))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    for mark in figure.marks:
        _draw(axes, mark)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
    stream = io.BytesIO()
    canvas.savefig(stream, format="png")
    return stream.getvalue()


def _axis(axis: Any, set_limits: Any, spec: Axis, set_log2: Any) -> None:
    if spec.is_log2:
        set_log2()
        axis.minorticks_off()
    set_limits(spec.low, spec.high)
    axis.set_ticks(list(spec.ticks), labels=[spec.text(value) for value in spec.ticks])
    axis.set_label_text(spec.label)


def _draw(axes: Any, mark: Line | Band | Dots | Rule) -> None:
    colour, label = COLOURS[mark.role], mark.name or None
    if isinstance(mark, Rule):
        axes.axhline(mark.value, color=colour, linestyle="--", linewidth=1.2, label=label)
    elif isinstance(mark, Band):
        x, low, high = zip(*mark.points, strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0, label=label)
    elif isinstance(mark, Line):
        x, y = zip(*mark.points, strict=True)
        axes.plot(x, y, color=colour, label=label, drawstyle="steps-post" if mark.is_stepped else "default")
    elif mark.dots:
        _draw_dots(axes, mark, colour, label)


def _draw_dots(axes: Any, mark: Dots, colour: str, label: str | None) -> None:
    x, y = [dot.x for dot in mark.dots], [dot.y for dot in mark.dots]
    for dot in mark.dots:
        if dot.low is not None and dot.high is not None:
            axes.plot([dot.x, dot.x], [dot.low, dot.high], color=colour, linewidth=1)
    face = {"filled": colour, "hollow": "white", "cross": colour, "ring": "none"}[mark.shape]
    size = 11 if mark.shape == "ring" else 5
    axes.plot(
        x, y, _MARKERS[mark.shape], color=colour, markerfacecolor=face, markersize=size, label=label, clip_on=False
    )
