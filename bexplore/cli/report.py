"""`bexplore report`: a run as an HTML page, as Markdown, or as figure files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bexplore.errors import UserInputError
from bexplore.exploration.run_directory import open_run
from bexplore.output.report.files import write_figures, write_text
from bexplore.output.report.page import html, markdown
from bexplore.output.report.report_data import read_report_data


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
    data = read_report_data(open_run(run))
    if as_markdown and output is None and not as_json:
        click.echo(markdown(data), nl=False)
        return
    if figures:
        written = write_figures(data, output or data.run.directory / "figures", figures)
    else:
        written = [output or data.run.directory / ("report.md" if as_markdown else "report.html")]
        write_text(written[0], markdown(data) if as_markdown else html(data))
    if as_json:
        click.echo(json.dumps({"event": "report", "files": [str(path) for path in written]}))
    else:
        for path in written:
            click.echo(str(path))
