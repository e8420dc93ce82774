"""`bexplore probe` and `bexplore trace`: one size measured, or all sizes predicted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from bexplore.actions.probe import probe_once
from bexplore.actions.trace import trace_devices, trace_job
from bexplore.cli.field_names import name_options
from bexplore.cli.options import CONFIG, DEVICE_NAME, Common, common_options
from bexplore.cli.plan_options import parse_device_names, parse_prices
from bexplore.diagnosis.profiled import find_profile_bottlenecks
from bexplore.emulated_gpu.config_environment import build_environment
from bexplore.errors import ExitCode, UserInputError
from bexplore.host.accelerators import DEVICES
from bexplore.output.bexp import probe_sentence
from bexplore.output.profile_text import profile_lines
from bexplore.output.table import stdout_width
from bexplore.output.tables import compared_devices_table, devices_table, settings_table, trace_table
from bexplore.planning.evidence import find_measured_bottlenecks
from bexplore.run.event_records import probe_record, profile_record
from bexplore.search.result import ProbeFinished


@click.command()
@CONFIG
@click.option("--micro-batch-size", type=click.IntRange(min=1), required=True, metavar="N", help="The size to run.")
@click.option(
    "--compilation",
    type=click.Choice(["exact", "shared", "eager"]),
    default="exact",
    show_default=True,
    help="How the program is compiled.",
)
@click.option(
    "--profile",
    "trace_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Then profile two steps: a trace for Perfetto in FILE (.json or .json.gz), and memory beside it.",
)
@DEVICE_NAME
@common_options
def probe(
    config: Path,
    micro_batch_size: int,
    compilation: str,
    trace_path: Path | None,
    device_name: str | None,
    common: Common,
) -> None:
    """Compile and run one size of CONFIG for real, and report what was measured.

    \b
    Examples:
      bexplore probe job.yaml --micro-batch-size 8
      bexplore probe job.yaml --micro-batch-size 8 --compilation eager   without torch.compile
      bexplore probe job.yaml --micro-batch-size 8 --profile trace.json  and where its time goes
    """
    loaded = common.with_device_name(device_name).load(config)
    if loaded.command is None:
        common.require_torch()
    common.announce(loaded)
    probed = probe_once(
        loaded,
        micro_batch_size=micro_batch_size,
        compilation=compilation,
        model_dir=common.model_dir,
        trace_path=trace_path,
        environment=build_environment(loaded, common.report_wait),
        on_progress=common.report_wait,
    )
    observation, profile = probed.observation, probed.profile
    click.echo(
        json.dumps(probe_record(observation))
        if common.as_json
        else probe_sentence(ProbeFinished(observation=observation))
    )
    if profile is not None and common.as_json:
        click.echo(json.dumps(profile_record(profile, find_profile_bottlenecks(profile))))
    elif profile is not None:
        run_dir = None if probed.run is None else probed.run.directory
        found = find_measured_bottlenecks(probed.run, profile)
        click.echo("\n".join(profile_lines(profile, found, run_dir, width=stdout_width())))
    if observation.traceback_text and not observation.is_measured:
        click.echo(observation.traceback_text, err=True)
    if not observation.is_measured:
        sys.exit(ExitCode.NOTHING_FITS if observation.outcome == "out_of_memory" else ExitCode.USER_INPUT)


_MOST_DEVICES = 10**6  # as many as a degree of `explore.parallelism` may have


def _complete_device(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in DEVICES if name.startswith(incomplete.lower())]


@click.command()
@CONFIG
@click.option("--memory-budget", metavar="SIZE", help="Such as 80GiB; same as --set explore.memory_budget=SIZE.")
@click.option("--micro-batch-sizes", metavar="N,N,...", help="Sizes to print; default: powers of two.")
@click.option("--devices", metavar="N,N,...", help="Memory of one rank on so many devices, none of which is needed.")
@click.option(
    "--device-name",
    metavar="NAME",
    shell_complete=_complete_device,
    help="A device by name, such as h100: its memory and estimated speed; with commas, several side by side.",
)
@click.option(
    "--price-per-device-hour",
    metavar="NAME=PRICE,...",
    help="Of the devices that are compared, in any currency: h100=2.5,a100=1.6.",
)
@click.option("--fresh", is_flag=True, help="Trace again, even if an unchanged job was traced before.")
@common_options
def trace(
    config: Path,
    memory_budget: str | None,
    micro_batch_sizes: str | None,
    devices: str | None,
    device_name: str | None,
    price_per_device_hour: str | None,
    fresh: bool,
    common: Common,
) -> None:
    """Trace the step of CONFIG once: memory, flops and bytes at every size, without running it.

    Where CONFIG has explore.settings, each combination is traced. A trace is reused until CONFIG, your code or an
    installed package changes. The exit code is 3 where no size fits.

    \b
    Examples:
      bexplore trace job.yaml
      bexplore trace job.yaml --device-name h100        which sizes would fit an H100
      bexplore trace job.yaml --device-name h100,l40s   side by side, with --price-per-device-hour h100=2.5,l40s=1.1
      bexplore trace job.yaml --devices 1,8,64          a rank of as many, by explore.parallelism
      bexplore trace job.yaml --micro-batch-sizes 6,7   these two alone
    """
    common.require_torch()
    if memory_budget is not None:
        common = common.with_override(f"explore.memory_budget={memory_budget}")
    sizes = _numbers(micro_batch_sizes, option="--micro-batch-sizes", example="1,2,4")
    numbers = _numbers(devices, option="--devices", example="1,8,64", most=_MOST_DEVICES)
    names = parse_device_names(device_name)
    prices = parse_prices(price_per_device_hour, names)
    given: dict[str, Any] = {
        "micro_batch_sizes": sizes,
        "model_dir": common.model_dir,
        "fresh": fresh,
        "on_progress": common.report_wait,
    }
    if len(names) > 1 and numbers:
        raise UserInputError("--devices and several names of --device-name exclude each other", hint="leave one out")
    if len(names) > 1 or prices:
        records = trace_devices(common.load_own_job(config), names, prices=prices, **given)
    else:
        records = trace_job(
            common.load_own_job(config),
            num_devices=sorted(set(numbers or ())),
            device_name=device_name,
            **given,
        )
    if common.as_json:
        for record in records:
            click.echo(json.dumps(record))
    elif "named_device" in records[0]:
        click.echo(name_options(compared_devices_table(records, width=stdout_width())))
    elif "name" in records[0]:  # of variants
        click.echo(settings_table(records, width=stdout_width()))
    else:
        several = len(records) > 1
        width = stdout_width()
        table = devices_table(records, width=width) if several else trace_table(records[0], width=width)
        click.echo(name_options(table))
    if not any(record["max_micro_batch_size"] for record in records):
        sys.exit(ExitCode.NOTHING_FITS)


def _numbers(text: str | None, *, option: str, example: str, most: int = 10**9) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 0 < int(part) <= most for part in parts):
        raise UserInputError(
            f'{option} must be positive integers of at most {most:,}, with commas between them, not "{text}"',
            hint=f"type {option} {example}",
        )
    return tuple(int(part) for part in parts)
