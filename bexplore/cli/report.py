"""`bexplore report`: a run as a page, as Markdown, and its figures as files."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(short_help="Show a run as an HTML page, Markdown or pictures.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where to; report.html in RUN.")
@click.option("--markdown", "as_markdown", is_flag=True, help="A short one for pull requests, on stdout without -o.")
@click.option("--figures", type=click.Choice(["svg", "png"]), help="Write each figure to a file; -o names the folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the files that were written.")
def report(run: Path, output: Path | None, as_markdown: bool, figures: str | None, as_json: bool) -> None:
    """Write what RUN has found as one HTML page that needs no network.

    RUN is a run's folder, its log, or the folder of all runs of a job: then the newest is meant.

    \b
    Examples:
      bexplore report local_compile_train/quickstart               report.html in the newest run
      bexplore report local_compile_train/quickstart --markdown    short, for a pull request
      bexplore report RUN --figures png -o pictures                throughput.png, memory.png, confidence.png
    """
    from bexplore.errors import UserInputError
    from bexplore.exploration.run_directory import open_run
    from bexplore.output.report.files import html, read_report_data, write_figures, write_text
    from bexplore.output.report.markdown import markdown

    if as_markdown and figures:
        raise UserInputError("--markdown and --figures exclude each other", hint="type two commands")
    facts = read_report_data(open_run(run))
    if as_markdown and output is None and not as_json:
        click.echo(markdown(facts), nl=False)
        return
    if figures:
        written = write_figures(facts, output or facts.run.directory / "figures", figures)
    else:
        written = [output or facts.run.directory / ("report.md" if as_markdown else "report.html")]
        write_text(written[0], markdown(facts) if as_markdown else html(facts))
    if as_json:
        click.echo(json.dumps({"event": "report", "files": [str(path) for path in written]}))
    else:
        for path in written:
            click.echo(str(path))
