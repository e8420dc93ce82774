"""`bexplore apply`: show the change of the user's file, then write the size and the settings that were found."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bexplore.actions.apply import BatchSizeRule, Choice, Edit, plan_edit, refuse, write_edit
from bexplore.cli.options import (
    COMMAND,
    CONFIG,
    DEVICE_NAME,
    CommandBehindDashes,
    Common,
    command_options,
    common_options,
    overrides_of_command,
    refuse_without_command,
)
from bexplore.config.variants import name_settings
from bexplore.errors import UserInputError
from bexplore.host.secret_values import hidden
from bexplore.run.run_directory import open_run

_WRITTEN = ("={micro_batch_size}", "={accumulation}")  # the ends of --set for keys that get their numbers here


@click.command(cls=CommandBehindDashes)
@CONFIG
@click.option("--run", "run_path", type=click.Path(path_type=Path), help="The run; default: this job's newest.")
@click.option(
    "--keep-batch-size",
    "batch_size",
    flag_value="keep",
    help="Where batch_size is not valid with the recommended size: write the fastest size that keeps it.",
)
@click.option(
    "--change-batch-size",
    "batch_size",
    flag_value="change",
    help="In that case: write the recommended size, and the nearest batch_size that is valid with it.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write FILE instead of CONFIG.")
@click.option(
    "--drop-section", is_flag=True, help="Remove the section explore, for a program that refuses keys of others."
)
@click.option(
    "--also",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A further file of the training whose numbers of the batch change too, such as DeepSpeed's; repeatable.",
)
@DEVICE_NAME
@click.option("--force", is_flag=True, help="Write even if the job has changed since it was explored.")
@click.option("-y", "--yes", is_flag=True, help="Write without asking.")
@command_options
@common_options
@click.pass_context
def apply(
    context: click.Context,
    /,
    config: Path,
    run_path: Path | None,
    batch_size: str | None,
    output: Path | None,
    drop_section: bool,
    also: tuple[Path, ...],
    device_name: str | None,
    force: bool,
    yes: bool,
    common: Common,
    **of_command: Any,
) -> None:
    """Write the micro-batch size that was found, and its settings, into CONFIG; all else in the file stays as it is.

    The change is shown first. A job that has changed since it was explored is refused without --force. Where your
    batch_size is not valid with the recommended size, you are asked which of the two to keep.

    \b
    Examples:
      bexplore apply job.yaml                            show the change, ask, write
      bexplore apply job.yaml --keep-batch-size --yes    write the fastest size that keeps batch_size
      bexplore apply job.yaml --change-batch-size --yes  move batch_size to what goes with the fastest size of all
      bexplore apply job.yaml -o tuned.yaml              leave job.yaml alone
      bexplore apply trl.yaml --also ds_config.json      the same numbers in the file of DeepSpeed
      bexplore apply trl.explore.yaml --drop-section -o trl.yaml    the file without what bexplore added
      bexplore apply axolotl.yaml -- axolotl train {config} --output-dir {output_dir}   as it was explored
    """
    given = [one for one in common.overrides if not one.endswith(_WRITTEN)]
    common = common.with_device_name(device_name)
    for override in overrides_of_command(command=context.meta.get(COMMAND, ()), **of_command):
        common = common.with_override(override)
    loaded = common.load(config)
    if loaded.command is None:
        refuse_without_command(of_command)
    if common.model_dir is not None:
        loaded = dataclasses.replace(loaded, model_dir=common.model_dir)
    run = open_run(run_path) if run_path is not None else None
    can_ask = sys.stdin.isatty() and not yes and not common.as_json
    edit = plan_edit(
        loaded,
        run=run,
        batch_size=None if batch_size is None else BatchSizeRule(batch_size),
        choose=_choose if can_ask else refuse,
        drop_section=drop_section,
        force=force,
        also=also,
    )
    if given and common.verbosity >= 0:
        click.echo(f"note: values of --set are not written into {config}: {', '.join(given)}", err=True)
    left = loaded.command.file.list_placeholders() if loaded.command and loaded.command.file else ()
    if left and common.verbosity >= 0:
        note = f"note: {config} still has {', '.join(left)}: a training without bexplore needs your own values there"
        click.echo(note, err=True)
    is_change = edit.is_change or output is not None
    if not common.as_json:
        _show(edit)
    is_agreed = is_change and (yes or _ask([output or config, *also]))
    written = write_edit(edit, output) if is_agreed else ()
    if common.as_json:
        click.echo(json.dumps(_record(edit, written)))
    elif written:
        click.echo(f"wrote {', '.join(map(str, (output or config, *also)))}")


def _show(edit: Edit) -> None:
    answer = edit.answer
    settings = f" with {name_settings(edit.settings)}" if edit.settings else ""
    found = (
        "the largest size that fits an emulated device; its speed is not known"
        if answer.relative_performance is None
        else f"{answer.relative_performance:.2f}x the speed of size {edit.base_micro_batch_size}, "
        f"confidence {answer.confidence} out of 100"
    )
    estimated = f"{edit.estimated}: " if edit.estimated else ""
    click.echo(f"micro_batch_size {answer.micro_batch_size}{settings}: {estimated}{found} ({edit.run.directory})")
    click.echo(f"\n{hidden(edit.diff)}" if edit.diff else f"{edit.file.path} has this size already")
    if edit.keeps_section:
        click.echo("the section explore stays; --drop-section removes it, for a program that refuses keys of others")
    if edit.batch_size_change is not None:
        before, after = edit.batch_size_change
        click.echo(
            f"The global batch size changes from {before} to {after}. The learning rate and its schedule belong to the "
            "global batch;\nthey are not touched."
        )


def _choose(choice: Choice) -> BatchSizeRule:
    click.echo(f"{choice.message}.", err=True)
    for rule in BatchSizeRule:
        click.echo(f"  {rule.value:<8}{choice.sentence(rule)}", err=True)
    names = click.Choice([rule.value for rule in BatchSizeRule])
    return BatchSizeRule(click.prompt("Keep batch_size, or change it?", type=names, err=True))


def _ask(targets: Sequence[Path]) -> bool:
    if not sys.stdin.isatty():
        raise UserInputError("nothing was written: there is no terminal to ask on", hint="--yes writes without asking")
    return click.confirm(f"Write {', '.join(map(str, targets))}?", err=True)


def _record(edit: Edit, written: Sequence[Path]) -> dict[str, object]:
    before, after = edit.batch_size_change or (None, None)
    return {
        "event": "apply",
        "micro_batch_size": edit.answer.micro_batch_size,
        "settings": dict(edit.settings),
        "is_estimated": bool(edit.estimated),
        "batch_size_before": before,
        "batch_size_after": after,
        "diff": hidden(edit.diff),
        "written": str(written[0]) if written else None,
        "also_written": [str(path) for path in written[1:]],
        "run_dir": str(edit.run.directory),
    }
