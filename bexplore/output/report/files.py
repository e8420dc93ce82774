"""The report of a run: one HTML page, a short Markdown text, and its figures as files."""

from __future__ import annotations

from pathlib import Path

from bexplore.errors import UserInputError
from bexplore.output.report.figures import figures
from bexplore.output.report.markdown import markdown
from bexplore.output.report.page import html
from bexplore.output.report.png import png
from bexplore.output.report.report_data import ReportData, read_report_data
from bexplore.output.report.svg import draw

__all__ = ["ReportData", "html", "markdown", "read_report_data", "write_figures", "write_text"]


def write_figures(facts: ReportData, folder: Path, kind: str) -> list[Path]:
    """Write each figure to a file of its own.

    Args:
        facts: The run.
        folder: Made where it is missing.
        kind: `svg` or `png`.

    Raises:
        UserInputError: The folder cannot be written, or PNG is asked for without matplotlib.
    """
    paths = []
    for figure in figures(facts):
        data = png(figure) if kind == "png" else draw(figure, standalone=True).encode()
        path = folder / f"{figure.key}.{kind}"
        _write(path, data)
        paths.append(path)
    return paths


def write_text(path: Path, text: str) -> None:
    """Write a report.

    Raises:
        UserInputError: The file cannot be written.
    """
    _write(path, text.encode())


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise UserInputError(f"cannot write {path}: {error.strerror}", hint="write another file with -o") from error
