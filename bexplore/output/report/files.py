"""Files of a report: the page that is written when a run ends, texts, and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bexplore.errors import UserInputError, first_line
from bexplore.host.json_files import replace_file
from bexplore.host.logs import log
from bexplore.output.report.figures import figures
from bexplore.output.report.page import html
from bexplore.output.report.png import png
from bexplore.output.report.report_data import ReportData, read_report_data
from bexplore.output.report.svg import draw
from bexplore.run.events import Finished, JobEvent


class ReportFile:
    """A sink that writes `report.html` at the end of a run; a failure is a warning.

    Args:
        warn: Called with the reason where the report cannot be written.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def __call__(self, event: JobEvent) -> None:
        """Write the report of a finished run that has a recommendation."""
        if not isinstance(event, Finished) or event.result.micro_batch_size is None:
            return
        try:
            write_text(event.run.directory / "report.html", html(read_report_data(event.run)))
        except Exception as error:  # the answer is on disk already: no fault of a figure may hide it
            log.info("report failed", exc_info=True)  # into the run's log; people read the line below
            self._warn(f"no report: {type(error).__name__}: {first_line(error)}; the result is complete")


def write_figures(data: ReportData, folder: Path, kind: str) -> list[Path]:
    """Write each figure to a file of its own.

    Args:
        folder: Created where it is missing.
        kind: `svg` or `png`.

    Raises:
        UserInputError: The folder cannot be written, or PNG is requested without matplotlib.
    """
    paths = []
    for figure in figures(data):
        path = folder / f"{figure.key}.{kind}"
        _write(path, png(figure) if kind == "png" else draw(figure, standalone=True).encode())
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
        replace_file(path, data)
    except OSError as error:
        raise UserInputError(f"cannot write {path}: {error.strerror}", hint="write another file with -o") from error
