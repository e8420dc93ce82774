"""The report in the run directory, written when a run ends; it never breaks a run that has gone well."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from bexplore.exploration.events import Finished, JobEvent

log = structlog.get_logger()


class ReportFile:
    """Writes `report.html` beside the observations."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Warn through a function where the report cannot be written."""
        self._warn = warn

    def __call__(self, event: JobEvent) -> None:
        """Write the report after the last words."""
        if not isinstance(event, Finished) or event.result.recommendation is None:
            return
        from bexplore.output.report.files import html, read_report_data, write_text

        path = event.run.directory / "report.html"
        try:
            write_text(path, html(read_report_data(event.run)))
        except Exception as error:  # the answer is there and on disk: no fault of a picture may hide it
            log.exception("report failed")
            self._warn(f"no report: {error}; the result is complete all the same")
