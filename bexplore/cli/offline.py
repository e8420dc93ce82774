"""`bexplore report`, `replay`, `batch-sizes` and `schema`, which run no job."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bexplore.config.dialects.families import FAMILIES
from bexplore.config.dialects.recognition import find_family
from bexplore.config.json_schema import make_family_schema, make_schema
from bexplore.errors import BexploreError, UserInputError, first_line
from bexplore.host.logs import log
from bexplore.job.batching import near_value_message, valid_global_batch_sizes
from bexplore.output.comparison import Comparison
from bexplore.output.report.files import write_figures, write_text
from bexplore.output.report.page import html, markdown
from bexplore.output.report.report_data import read_report_data
from bexplore.output.table import Table, stdout_width
from bexplore.output.tables import replay_cost_line, replay_line
from bexplore.replay.replay import ReplayOptions, replay_table
from bexplore.run.run_directory import Run, open_run
from bexplore.units import parse_device_memory


@click.command()
@click.argument("runs", metavar="RUN [RUN...]", nargs=-1, required=True, type=click.Path(path_type=Path))
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
def report(runs: tuple[Path, ...], output: Path | None, as_markdown: bool, figures: str | None, as_json: bool) -> None:
    """Write the results of RUN as one HTML page that needs no network, or compare several runs.

    RUN is a run's folder, its log, or the folder of all runs of a job, which stands for the newest. Of several runs the
    answers, the speeds of the sizes that all ran, and the differences of their jobs are printed; the first is what the
    others are compared with.

    \b
    Examples:
      bexplore report local_compile_train/quickstart               report.html in the newest run
      bexplore report local_compile_train/quickstart --markdown    short, for a pull request
      bexplore report RUN --figures png -o pictures                throughput.png, memory.png, confidence.png
      bexplore report BEFORE AFTER                                 two runs beside each other
    """
    if as_markdown and figures:
        raise UserInputError("--markdown and --figures exclude each other", hint="type two commands")
    # `run_*` of a shell names a run's folder and its log: one run.
    opened = list({run.directory: run for run in map(open_run, runs)}.values())
    if len(opened) > 1:
        _compare(opened, output, as_markdown=as_markdown, figures=figures, as_json=as_json)
        return
    (found,) = opened
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


def _compare(
    runs: Sequence[Run], output: Path | None, *, as_markdown: bool, figures: str | None, as_json: bool
) -> None:
    if figures:
        raise UserInputError("--figures is of one run", hint="type a command for each run, with its own -o")
    with _blaming(runs[0]):
        comparison = Comparison(runs)
        width = stdout_width() if output is None else None
        lines = comparison.markdown() if as_markdown else comparison.lines(width)
        record = comparison.record()
    if output is not None:
        write_text(output, "\n".join(lines) + "\n")
    if as_json:
        click.echo(json.dumps(record))
    else:
        click.echo("\n".join(lines) if output is None else str(output))


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


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--curve", "curve_id", metavar="ID", help="Only this curve of the table.")
@click.option("--all", "every_curve", is_flag=True, help="Every curve of the table, the default.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the noise and of the search."
)
@click.option(
    "--noise", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Noise of a pass, a fraction."
)
@click.option(
    "--compile-time", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds of a compilation."
)
@click.option("--shared-compile", is_flag=True, help="One compilation for all sizes instead of one for each.")
@click.option("--steps", type=click.IntRange(2), default=10, show_default=True, help="Most timed passes of a probe.")
@click.option(
    "--max-probes",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Most probes of a curve; 6 more for each further setting.",
)
@click.option(
    "--target-confidence", type=click.IntRange(1, 99), help="Stop at this score; by default 90, with settings 95."
)
@click.option("--memory-hint", metavar="SIZE", help="The memory budget, such as 80GiB, which a table lacks.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON lines to stdout, one event a line.")
def replay(
    table: Path,
    curve_id: str | None,
    every_curve: bool,
    memory_hint: str | None,
    compile_time: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the search over TABLE, a CSV file of recorded sweeps, and report what it would have recommended.

    Columns: micro_batch_size, throughput_samples_per_s or step_time_s; curve_id, where there are several curves;
    peak_mem_gib, oom; setting, where a curve was recorded with several settings of its job, among which the search then
    chooses too. Each answer is compared with the fastest size of the table.

    \b
    Examples:
      bexplore replay sweeps.csv                        every curve
      bexplore replay sweeps.csv --curve gpt2 --json    one curve, with every probe
    """
    if curve_id is not None and every_curve:
        raise UserInputError("--curve and --all exclude each other", hint="keep one of them")
    hint_gib = None if memory_hint is None else parse_device_memory(memory_hint) / 2**30
    settings = ReplayOptions(compile_time_s=compile_time, memory_hint_gib=hint_gib, **options)
    results = []
    for event in replay_table(table, settings, curve_id=curve_id):
        if as_json:
            click.echo(json.dumps(event))
        elif event["event"] == "result":
            click.echo(replay_line(event))
            results.append(event)
    cost = replay_cost_line(results)
    if cost:
        click.echo(cost)


@click.command("batch-sizes")
@click.option(
    "--micro-batch-size", type=click.IntRange(min=1), required=True, metavar="N", help="Samples of one replica."
)
@click.option(
    "--num-replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Data-parallel replicas."
)
@click.option("--near", type=click.IntRange(min=1), metavar="N", help="List sizes around this one.")
@click.option(
    "--rule", type=click.Choice(["strict", "even"]), default="strict", show_default=True, help="Divisibility."
)
@click.option("--sequence-length", type=click.IntRange(min=1), help="Tokens of a sample, to count tokens.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
def batch_sizes(
    micro_batch_size: int, num_replicas: int, near: int | None, rule: str, sequence_length: int | None, as_json: bool
) -> None:
    """List the global batch sizes that are valid with a micro-batch size.

    \b
    Examples:
      bexplore batch-sizes --micro-batch-size 6 --num-replicas 8
      bexplore batch-sizes --micro-batch-size 6 --near 512 --sequence-length 1024
    """
    sizes = valid_global_batch_sizes(micro_batch_size, num_replicas, near, rule, tokens_per_sample=sequence_length)
    if as_json:
        for size in sizes:
            click.echo(json.dumps(dataclasses.asdict(size)))
        return
    table = Table(
        headings=("batch_size", "accumulation", "tokens"),
        rows=tuple(
            (
                str(size.global_batch_size),
                str(size.accumulation_steps),
                "" if size.num_tokens is None else f"{size.num_tokens:,}",
            )
            for size in sizes
        ),
        is_number=(True,) * 3,
    )
    click.echo("\n".join(table.without_empty_columns("").as_lines()))
    if near is not None:
        click.echo(near_value_message(near, micro_batch_size, num_replicas, rule))


@click.command()
@click.option("--dialect", metavar="NAME", help="Schema of another family's files; `list` names the families.")
def schema(dialect: str | None) -> None:
    """Print a JSON Schema of the configuration, for editors.

    \b
    Examples:
      bexplore schema > bexplore.schema.json
      and, in the first line of job.yaml:  # yaml-language-server: $schema=bexplore.schema.json
      bexplore schema --dialect axolotl    the same for the files of a family
      bexplore schema --dialect list       the families, their keys and their commands
    """
    if dialect == "list":
        table = Table(
            headings=("family", "name", "key of the size"),
            rows=tuple((family.name, family.title, family.micro_batch_size[0]) for family in FAMILIES.values()),
            is_number=(False,) * 3,
        )
        click.echo("\n".join(table.as_lines(stdout_width())))
        return
    click.echo(json.dumps(make_schema() if dialect is None else make_family_schema(find_family(dialect)), indent=2))
