"""`bexplore plan`: from a size to the time, the devices and the price of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bexplore.cli.common import Common, common_options
from bexplore.errors import UserInputError
from bexplore.output.plan_table import plan_table
from bexplore.planning.api import PlanSource, plan_source, plans_of
from bexplore.planning.request import PlanRequest, Work, parse_batch_sizes, parse_devices, parse_rate
from bexplore.units import parse_bytes, parse_count, parse_seconds


@click.command()
@click.argument("source", metavar="RUN|CONFIG", type=click.Path(path_type=Path))
@click.option("--tokens", metavar="N", help="Tokens of the training, such as 300B.")
@click.option("--samples", metavar="N", help="Samples of the training, such as 1.2M.")
@click.option("--steps", metavar="N", help="Optimizer steps of the training.")
@click.option("--epochs", type=click.FloatRange(0, min_open=True), help="Times over --dataset-size.")
@click.option("--dataset-size", metavar="N", help="Samples of the data set.")
@click.option("--batch-size", metavar="N[,N...]", help="Global batch sizes: 512 samples, or '4M tokens'.")
@click.option("--devices", metavar="N[,N...]", help="Devices, or nodes x devices: 8,64 or 4x8.")
@click.option("--until", metavar="DURATION", help="The time that there is, such as 30d: how many devices it needs.")
@click.option(
    "--price-per-device-hour", type=click.FloatRange(0, min_open=True), metavar="PRICE", help="In any currency."
)
@click.option("--tensor-parallel", type=click.IntRange(min=1), metavar="N", help="Devices that share each layer.")
@click.option(
    "--pipeline-stages", type=click.IntRange(min=1), default=1, metavar="N", help="Devices that share the layers."
)
@click.option("--network", metavar="FILE", type=click.Path(path_type=Path), help="What bexplore network wrote.")
@click.option("--bandwidth", metavar="SPEED", help="Bus bandwidth between replicas, such as 50GB/s.")
@click.option("--overlap", type=click.FloatRange(0, 1), help="Share of the computation that hides communication.")
@click.option(
    "--effective-time",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="SHARE",
    help="Share of the time that trains: 0.9 with the usual restarts and checkpoints.",
)
@click.option("--device-name", metavar="NAME", help="Plan a CONFIG for a device by name, such as h100.")
@click.option(
    "--mfu", type=click.FloatRange(0, 1, min_open=True), help="Model-flops utilization of a whole step, for a CONFIG."
)
@click.option("--hfu", type=click.FloatRange(0, 1, min_open=True), help="The same with recomputed operations counted.")
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
    """
    found = plan_source(
        source,
        load=common.load_own_job,
        device_name=options["device_name"],
        model_dir=common.model_dir,
        on_progress=common.report_wait,
    )
    plans = plans_of(found, _request(options), network=_network(options, found))
    if not common.as_json:
        click.echo(plan_table(plans))
        return
    for record in plans.records():
        click.echo(json.dumps(record))


def _request(options: dict[str, Any]) -> PlanRequest:
    counts = {
        name: None if options[name] is None else parse_count(options[name])
        for name in ("tokens", "samples", "steps", "dataset_size")
    }
    return PlanRequest(
        work=Work(**counts, epochs=options["epochs"]),
        batch_sizes=() if options["batch_size"] is None else parse_batch_sizes(options["batch_size"]),
        devices=() if options["devices"] is None else parse_devices(options["devices"]),
        until_s=None if options["until"] is None else parse_seconds(options["until"]),
        price_per_device_hour=options["price_per_device_hour"],
        tensor_parallel_degree=options["tensor_parallel"],
        pipeline_stages=options["pipeline_stages"],
        effective_time=options["effective_time"],
        overlap=options["overlap"],
        mfu=options["mfu"],
        hfu=options["hfu"],
        rate=None if options["throughput"] is None else parse_rate(options["throughput"]),
    )


def _network(options: dict[str, Any], found: PlanSource) -> Any:
    """Return the speeds between replicas: as stated, from the file that is named, or from that beside the run."""
    if options["bandwidth"] is not None and options["network"] is not None:
        raise UserInputError("--bandwidth and --network each give the speed between replicas", hint="keep one of them")
    if options["bandwidth"] is not None:
        return parse_bytes(options["bandwidth"].removesuffix("/s"))
    return options["network"] or found.network_path
