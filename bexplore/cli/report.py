"""`bexplore report`: a run as an HTML page, as Markdown, or as figure files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bexplore.errors import BexploreError, UserInputError, first_line
from bexplore.host.logs import log
from bexplore.output.report.files import write_figures, write_text
from bexplore.output.report.page import html, markdown
from bexplore.output.report.report_data import read_report_data
from bexplore.run.run_directory import Run, open_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to write; default: report.html in RUN.",
)
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Write short Markdown for pull requests; to stdout without -o."
)
@click.option("--figures", type=click.Choice(["svg", "png"]), help="Write each figure to a file; -o names the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object that lists the files.")
def report(run: Path, output: Path | None, as_markdown: bool, figures: str | None, as_json: bool) -> None:
    """Write the results of RUN as one HTML page that needs no network.

    RUN is a run's folder, its log, or the folder of all runs of a job, which stands for the newest.

    \b
    Examples:
      bexplore report local_compile_train/quickstart               report.html in the newest run
      bexplore report local_compile_train/quickstart --markdown    short, for a pull request
      bexplore report RUN --figures png -o pictures                throughput.png, memory.png, confidence.png
    """
    if as_markdown and figures:
        raise UserInputError("--markdown and --figures exclude each other", hint="type two commands")
    found = open_run(run)
    with _blaming(found):
        data = read_report_data(found)
        if as_markdown and output is None and not as_json:
            text = markdown(data)
        elif figures:
            written = write_figures(data, output or found.directory / "figures", figures)
        else:
            written = [output or found.directory / ("report.md" if as_markdown else "report.html")]
            write_text(written[0], markdown(data) if as_markdown else html(data))
    if as_markdown and output is None and not as_json:
        click.echo(text, nl=False)
    elif as_json:
        click.echo(json.dumps({"event": "report", "files": [str(path) for path in written]}))
    else:
        for path in written:
            click.echo(str(path))


@contextmanager
def _blaming(run: Run) -> Iterator[None]:
    """Turn whatever fails on the files of a run into one message that names them."""
    try:
        yield
    except BexploreError:
        raise
    except Exception as error:  # a file that was damaged, or written by another version, can fail anywhere
        log.debug("report failed", exc_info=True)
        raise UserInputError(
            f"no report of {run.directory}: {type(error).__name__}: {first_line(error)}",
            hint="its files are not as this version writes them: explore again with --fresh, or restore them",
        ) from error
