"""`bexplore plan`: from a size to the time, the devices and the price of a training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bexplore.cli.options import Common, common_options
from bexplore.cli.plan_options import (
    name_options,
    options_in_errors,
    parse_bandwidth_option,
    parse_batch_sizes,
    parse_device_names,
    parse_devices,
    parse_number,
    parse_prices,
    parse_rate,
    parse_until,
    parse_whole,
)
from bexplore.errors import UserInputError
from bexplore.output.plan_table import plan_table
from bexplore.output.table import stdout_width
from bexplore.planning.api import is_run, open_source, plan_from
from bexplore.planning.plan import Plans
from bexplore.planning.request import PlanRequest, Work


@click.command()
@click.argument("source", metavar="RUN|CONFIG", type=click.Path(path_type=Path))
@click.option("--tokens", metavar="N", help="Tokens of the training, such as 300B.")
@click.option("--samples", metavar="N", help="Samples of the training, such as 1.2M.")
@click.option("--steps", metavar="N", help="Optimizer steps of the training.")
@click.option("--epochs", metavar="N", help="Times over --dataset-size.")
@click.option("--dataset-size", metavar="N", help="Samples of the data set.")
@click.option("--batch-size", metavar="N[,N...]", help="Global batch sizes: 512 samples, or '4M tokens'.")
@click.option("--devices", metavar="N[,N...]", help="Devices, or nodes x devices: 8,64 or 4x8.")
@click.option("--until", metavar="DURATION", help="The time that there is, such as 30d: how many devices it needs.")
@click.option("--price-per-device-hour", metavar="PRICE", help="In any currency; of several: h100=2.5,a100=1.6.")
@click.option("--tensor-parallel", metavar="N", help="Devices that share each layer.")
@click.option("--pipeline-stages", metavar="N", help="Devices that share the layers.")
@click.option("--network", metavar="FILE", type=click.Path(path_type=Path), help="What bexplore network wrote.")
@click.option("--bandwidth", metavar="SPEED", help="Bus bandwidth between replicas: 50GB/s, 400Gbit/s.")
@click.option("--overlap", metavar="SHARE", help="Share of the computation that hides communication, 0 to 1.")
@click.option(
    "--effective-time",
    metavar="SHARE",
    help="Share of the time that trains: 0.9 with the usual restarts and checkpoints.",
)
@click.option("--device-name", metavar="NAME", help="Plan a CONFIG for a device, such as h100, or several.")
@click.option("--mfu", metavar="SHARE", help="Model-flops utilization of a whole step, 0 to 1, for a CONFIG.")
@click.option("--hfu", metavar="SHARE", help="The same with recomputed operations counted.")
@click.option("--throughput", metavar="RATE", help="Of one device in a whole step, '24000 tokens/s', for a CONFIG.")
@common_options
def plan(source: Path, common: Common, **options: Any) -> None:
    """Plan a training: time, devices, price, and the share of each part of a step.

    From a RUN, with the times that it measured; from a CONFIG, with what its trace predicts.

    \b
    Examples:
      bexplore plan local_compile_train/job --tokens 300B --devices 8,64,4x8
      bexplore plan local_compile_train/job --tokens 300B --until 30d --price-per-device-hour 2.5
      bexplore plan job.yaml --device-name h100 --mfu 0.4 --tokens 1.4T --batch-size '4M tokens' --devices 256
      bexplore plan job.yaml --device-name h100,a100 --tokens 3B --price-per-device-hour h100=2.5,a100=1.6
    """
    network = _read_network(options)
    if common.overrides and is_run(source):
        raise UserInputError(
            f"--set {common.overrides[0]} changes a CONFIG, and {source} was measured as it is",
            hint="leave it out, or name the configuration in place of the run",
        )
    with options_in_errors():
        names = parse_device_names(options["device_name"])
        prices = parse_prices(options["price_per_device_hour"], names) if names else {}
        request = _read_request(options | ({"price_per_device_hour": None} if prices else {}))
        wanted: Sequence[str | None] = names or [None]
        for number, name in enumerate(wanted):
            found = open_source(
                source,
                load=common.load_own_job,
                device_name=name,
                model_dir=common.model_dir,
                on_progress=common.report_wait,
            )
            price = None if name is None else prices.get(name)
            own = request if price is None else replace(request, price_per_device_hour=price)
            plans = plan_from(found, own, network=network)
            head = f"{name}: " if len(names) > 1 else ""
            _show(plans, common, head=f"\n{head}" if number else head)


def _show(plans: Plans, common: Common, *, head: str) -> None:
    if common.as_json:
        texts = [json.dumps(record) for record in plans.records()]
    else:
        texts = [head + plan_table(plans, width=stdout_width())]
    for text in texts:
        click.echo(name_options(text))


# Option -> how its text is read.
_READERS: dict[str, Callable[[str], Any]] = {
    "batch_size": parse_batch_sizes,
    "devices": parse_devices,
    "until": parse_until,
    "throughput": parse_rate,
}
_WHOLE = {"tokens": "300B", "samples": "1.2M", "steps": "10000", "dataset_size": "1.2M"}
_WHOLE |= {"tensor_parallel": "8", "pipeline_stages": "4"}
_NUMBERS = {"epochs": "3", "price_per_device_hour": "2.5", "overlap": "0.8", "effective_time": "0.9"}
_NUMBERS |= {"mfu": "0.4", "hfu": "0.5"}


def _read(options: dict[str, Any], name: str) -> Any:
    """Return the value of an option; None where it is not given."""
    text, option = options[name], f"--{name.replace('_', '-')}"
    if text is None:
        return None
    if name in _WHOLE:
        return parse_whole(text, option, _WHOLE[name])
    return parse_number(text, option, _NUMBERS[name]) if name in _NUMBERS else _READERS[name](text)


def _read_request(options: dict[str, Any]) -> PlanRequest:
    given = {name: _read(options, name) for name in (*_WHOLE, *_NUMBERS, *_READERS)}
    effective_time, stages = given["effective_time"], given["pipeline_stages"]
    return PlanRequest(
        work=Work(**{name: given[name] for name in ("tokens", "samples", "steps", "epochs", "dataset_size")}),
        batch_sizes=given["batch_size"] or (),
        devices=given["devices"] or (),
        until_s=given["until"],
        price_per_device_hour=given["price_per_device_hour"],
        tensor_parallel_degree=given["tensor_parallel"],
        pipeline_stages=1 if stages is None else stages,
        effective_time=1.0 if effective_time is None else effective_time,
        overlap=given["overlap"],
        mfu=given["mfu"],
        hfu=given["hfu"],
        rate=given["throughput"],
    )


def _read_network(options: dict[str, Any]) -> Path | float | None:
    """Return the speeds between replicas, as stated or in the file that is named; None for those beside the run."""
    if options["bandwidth"] is not None and options["network"] is not None:
        raise UserInputError("--bandwidth and --network each give the speed between replicas", hint="keep one of them")
    if options["bandwidth"] is not None:
        return parse_bandwidth_option(options["bandwidth"])
    path: Path | None = options["network"]
    return path
