"""The cost model of a job that cannot be traced: real steps at a few small sizes, run by the engine as probes are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from bexplore.config.config import Config
from bexplore.engine.process.limits import Progress
from bexplore.engine.process.pool import Workers
from bexplore.engine.program_client import GivenUp
from bexplore.engine.runner import EngineRunner
from bexplore.errors import EngineError, UserProgramError
from bexplore.exploration.memory_budget import resolve_budget
from bexplore.exploration.setup import find_lone_environment, make_runner_settings
from bexplore.host.records import from_record
from bexplore.job import Job, Precision
from bexplore.measurement.probe import Outcome
from bexplore.trace import cache
from bexplore.trace.cost_model import CostModel
from bexplore.trace.measured import MOST_SIZES

# Of a step on the CPU for one on a device: that of a trace of the CPU's program (`trace.tracer`).
_SD_OF_CPU_PROGRAM = 0.4


def list_small_sizes(minimum: int, maximum: int | None) -> list[int]:
    """Return the sizes that may be measured: the smallest and its doubles."""
    sizes = [minimum * 2**exponent for exponent in range(MOST_SIZES)]
    return [size for size in sizes if maximum is None or size <= maximum]


def measure_untraced(
    config: Config,
    reason: str,
    run_dir: Path,
    on_progress: Progress = lambda message: None,
    *,
    is_absent: bool = False,
    environment: Mapping[str, str] | None = None,
) -> CostModel:
    """Measure steps of a job that cannot be traced, in a worker of its own; keep what was found for later runs.

    Args:
        config: The job, on its device.
        reason: Why there is no trace, in one line.
        is_absent: Whether the job's device is not here: the CPU then stands in for it.

    Raises:
        UserProgramError: The program itself fails.
        EngineError: It could not be measured.
    """
    if is_absent:
        config = dataclasses.replace(config, job=_move_to_cpu(config.job))
    environment = {**(environment or {}), **find_lone_environment(config)}
    with Workers(run_dir, environment) as workers:
        facts = workers.device_info(config.job.device, on_progress=on_progress)
        budget = resolve_budget(
            config.settings,
            facts,
            num_replicas=config.num_replicas,
            gradient_bytes=None,
            is_traced_for_ranks=config.job.parallelism.is_distributed,
            num_ranks_here=config.num_ranks_here,
        )
        settings = make_runner_settings(
            config,
            facts,
            run_dir=run_dir,
            budget_bytes=budget.budget_bytes,
            environment=environment,
            is_timed=False,
        )
        alone = dataclasses.replace(settings, launcher=None)
        with EngineRunner(alone, workers=workers, on_progress=on_progress) as runner:
            return measure_with(runner, config, reason, is_absent=is_absent)


def measure_with(runner: EngineRunner, config: Config, reason: str, *, is_absent: bool = False) -> CostModel:
    """Measure in a runner's worker: see `measure_untraced`."""
    ran = runner.measure_memory(list_small_sizes(config.minimum, config.maximum))
    if not ran.is_measured:
        failure = f"at micro_batch_size {config.minimum}: {ran.reason}"
        if ran.outcome is Outcome.CRASHED:
            raise UserProgramError(f"your program fails {failure}", traceback_text=ran.traceback_text)
        raise EngineError(f"this job cannot be traced: {reason}; it ends as {ran.outcome.value} {failure}")
    cost_model = from_record(CostModel, ran.details["cost_model"])
    cost_model = dataclasses.replace(cost_model, why_untraced=reason)
    is_lasting = not isinstance(reason, GivenUp)
    if is_lasting and ran.details["sources"] is not None and cost_model.device == "cpu":
        cache.remember(runner.job, cost_model, cache.Sources(**ran.details["sources"]), gpu=None)
    if not is_absent:
        return cost_model
    note = "an estimate: the steps ran on the CPU, since the device is not here"
    return dataclasses.replace(
        cost_model, relative_sd=max(cost_model.relative_sd, _SD_OF_CPU_PROGRAM), notes=(note, *cost_model.notes)
    )


def _move_to_cpu(job: Job) -> Job:
    scaled = job.precision is Precision.AUTOCAST_FLOAT16
    precision = Precision.AUTOCAST_BFLOAT16 if scaled else job.precision
    return dataclasses.replace(job, device="cpu", precision=precision)
