"""`bexplore guard`: for continuous integration, and before a commit."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from bexplore.cli.field_names import name_options
from bexplore.cli.options import CONFIG, Common, common_options
from bexplore.errors import BexploreError, UserInputError
from bexplore.guard.baseline import Baseline
from bexplore.guard.guard import EXACT, GuardOptions, update_baseline
from bexplore.guard.guard import guard as run_guard
from bexplore.guard.report import Report, Tier
from bexplore.host.secret_values import hidden
from bexplore.output.guard_report import (
    annotate_error,
    append_step_summary,
    error_markdown,
    github_annotations,
    guard_markdown,
    guard_table,
    write_junit,
    write_junit_error,
)
from bexplore.units import parse_seconds

_TIERS = {"portable": frozenset({Tier.ANY_MACHINE}), "exact": EXACT, "all": frozenset(Tier)}


@click.command()
@CONFIG
@click.option(
    "--baseline",
    "baseline_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The baseline, a JSON file to commit.",
)
@click.option("--update", is_flag=True, help="Write the baseline of the present program instead of comparing.")
@click.option("--against", metavar="REF", help="Compare with a git revision, a folder or a second configuration.")
@click.option(
    "--facts",
    "tiers",
    type=click.Choice(list(_TIERS)),
    default="all",
    show_default=True,
    callback=lambda context, parameter, value: _TIERS[value],
    help="portable: exact on any machine; exact: also those of this toolchain and device; all: also times.",
)
@click.option("--micro-batch-size", type=click.IntRange(min=1), metavar="N", help="The size to guard.")
@click.option(
    "--time-tolerance",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.03,
    show_default=True,
    metavar="FRACTION",
    help="Relative difference of times that counts as none.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    default="2min",
    show_default=True,
    metavar="DURATION",
    callback=lambda context, parameter, value: parse_seconds(value),
    help="With --against: add pairs of new processes for this long while noise leaves the answer open.",
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--github", is_flag=True, help="Print annotations on stderr, and append to the step summary.")
@common_options
def guard(config: Path, update: bool, junit: Path | None, github: bool, common: Common, **options: Any) -> None:
    """Report whether CONFIG became slower, bigger or compiled worse than a baseline or a revision.

    Exit code 0: unchanged. 1: a regression, or nothing could be measured. 5: no answer, because of noise, a changed
    toolchain or a stale baseline.

    \b
    Examples:
      bexplore guard job.yaml --baseline baseline.json --update    write it, then commit it
      bexplore guard job.yaml --baseline baseline.json             compare with it
      bexplore guard job.yaml --against main                       compare with another revision, both here
    """
    wanted = GuardOptions(
        **options,
        model_dir=common.model_dir,
        load=common.load_own_job,
        say=lambda line: click.echo(line, err=True) if common.verbosity >= 0 else None,
    )
    if update and wanted.against is not None:
        raise UserInputError("--update and --against exclude each other", hint="keep one of them")
    if update:
        written = update_baseline(common.load_own_job(config), wanted)
        record = {"event": "baseline", "path": str(wanted.baseline_path), **written.as_record()}
        click.echo(json.dumps(record) if common.as_json else _written(written, wanted.baseline_path))
        return
    try:
        report = name_options_of_report(run_guard(common.load_own_job(config), wanted))
    except BexploreError as error:
        _tell_error(error, str(config), junit=junit, github=github)
        raise
    # First: a file that cannot be written must not hide the verdict.
    click.echo(json.dumps(report.as_record()) if common.as_json else guard_table(report, verbose=common.verbosity > 0))
    if junit is not None:
        write_junit(report, junit)
    if github:
        for line in github_annotations(report, config.parent):
            click.echo(line, err=True)
        append_step_summary(guard_markdown(report))
    sys.exit(report.exit_code)


def _tell_error(error: BexploreError, config: str, *, junit: Path | None, github: bool) -> None:
    """Show continuous integration what kept the guard from an answer."""
    message = hidden("\n".join(filter(None, map(name_options, (error.message, error.hint)))))
    if junit is not None:
        write_junit_error(config, message, junit)
    if github:
        click.echo(annotate_error(config, message), err=True)
        append_step_summary(error_markdown(config, message))


def name_options_of_report(report: Report) -> Report:
    """Return a report whose advice and reasons name options in place of fields."""
    missing = (dataclasses.replace(one, reason=name_options(one.reason)) for one in report.not_compared)
    return dataclasses.replace(
        report, not_compared=tuple(missing), advice=tuple(name_options(line) for line in report.advice)
    )


def _written(baseline: Baseline, path: Path | None) -> str:
    facts = baseline.any_device
    size = baseline.recommended_micro_batch_size
    program = "not compiled"
    if facts.num_graphs is not None:
        program = f"graphs {facts.num_graphs}, graph breaks {facts.num_graph_breaks}, kernels {facts.num_kernels}"
    lines = [
        f"Wrote {path}: {facts.num_parameters or 0:,} parameters, {program}, "
        + (f"times of size {size}." if baseline.times else "no times."),
        "Commit it; a later run compares with it.",
    ]
    lines += [f"graph break: {one.label} at {one.where}" for one in facts.graph_breaks]
    lines += [f"warning: {line}" for line in facts.problems]
    if size is None:
        lines.append("note: no recommended size is known: explore first, or give --micro-batch-size, to guard times")
    return "\n".join(lines)
