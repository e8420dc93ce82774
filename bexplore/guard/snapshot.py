"""The present program as a baseline holds it: facts, machine, times."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.engine.program_client import metrics_in_worker
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.errors import EngineError
from bexplore.exploration.memory_budget import count_gradient_bytes, resolve_budget
from bexplore.guard.baseline import Baseline, SizeTimes
from bexplore.guard.report import Tier
from bexplore.guard.sizes import NUM_WORKERS, time_in_worker
from bexplore.guard.timing import Block
from bexplore.host.logs import log
from bexplore.host.machine import package_version, processor_name
from bexplore.host.secret_values import hidden_record
from bexplore.job import device_kind
from bexplore.measurement.probe import Compilation, Observation, Probe, Purpose
from bexplore.run import run_directory

# Changes whenever the same program gives other facts.
FACTS_VERSION = "2"
DEVICE_KEYS = ("device", "device_name", "capability")  # decide planned memory, kernels and fusions
HOST_KEYS = ("processor", "num_processors", "num_threads", "host")  # decide times, along with the device
PASSES_OF_A_PROBE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one side is measured."""

    run_dir: Path  # folder of the workers' logs
    tiers: frozenset[Tier]  # the facts to find
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)  # environment variables of the workers
    say: Callable[[str], None] = lambda line: None  # called with progress lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The guarded size and its settings, and the size that its speed is relative to."""

    recommended: int | None = None  # the size; None where none is known
    base: int | None = None  # the smallest size; None likewise
    # By key of `explore.settings`; empty for those of the file itself.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One side of a comparison."""

    config: Config  # its configuration, on its device
    setup: Setup  # how it is measured
    snapshot: Baseline  # its baseline, without times
    device_info: Mapping[str, Any]  # torch's description of the device


def observe(config: Config, setup: Setup, wanted: Guarded) -> Observed:
    """Find the exact facts of a configuration's program and the properties of the machine.

    The program is traced for the CPU, which every machine can do, and also for another device of the job where facts of
    the same toolchain are compared.

    Its settings count where one of the configuration's variants has them.
    """
    variant = next((one for one in config.variants if dict(one.values) == dict(wanted.settings) != {}), None)
    config = config if variant is None else config.with_variant(variant)
    setup.say(f"tracing {config.path.name}" + (f" with {variant.name}" if variant else ""))
    needs_device = Tier.SAME_TOOLCHAIN in setup.tiers
    kind = config.job.device if needs_device else "cpu"
    on_cpu = config.on_device("cpu")
    log_path = setup.run_dir / "workers" / "facts.log"
    any_device, facts = metrics_in_worker(on_cpu.job, log_path, device=kind, environment=setup.environment)
    device = None
    name = str(facts.get("device", "cpu"))
    placed = config.on_device(name)
    if needs_device and device_kind(name) != "cpu":
        setup.say(f"tracing it for {name}")
        device, _ = metrics_in_worker(placed.job, log_path, device=name, environment=setup.environment)
    budget = config.settings.memory_budget  # not declared by a fraction, nor by `auto`
    return Observed(
        config=placed,
        setup=setup,
        device_info=facts,
        snapshot=Baseline(
            config=config.path.name,
            job=hidden_record(config.job.as_record() | {"import_root": None}, by_value=False),
            job_fingerprint=config.job.fingerprint(),
            toolchain=_find_toolchain(config),
            machine=_describe_machine(facts),
            any_device=any_device,
            device=device,
            recommended_micro_batch_size=wanted.recommended,
            base_micro_batch_size=wanted.base,
            memory_budget_bytes=budget if isinstance(budget, int) else None,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            settings=wanted.settings,
        ),
    )


def find_guarded(config: Config, wanted: int | None, folder: Path) -> Guarded:
    """Return what to guard: by the user, by the configuration's number, or by the newest result."""
    base = config.minimum
    if wanted is not None or config.fixed_size is not None:
        return Guarded(recommended=wanted or config.fixed_size, base=base)
    for run in run_directory.find_runs(folder):
        result = run.result()
        if result is not None and result.micro_batch_size is not None and result.has_run:
            for text in run.warn_of_later_probes(result):
                log.warning(text)
            return Guarded(
                recommended=result.micro_batch_size,
                base=result.answer.base_micro_batch_size or base,
                settings=result.choice.settings if result.choice.variant else {},
            )
    return Guarded()


class RecommendedSizeFailedError(EngineError):
    """The recommended size no longer runs; `outcome` has the outcome and reason of its probe."""

    def __init__(self, micro_batch_size: int, outcome: str) -> None:
        super().__init__(
            f"micro-batch size {micro_batch_size} could not be timed: {outcome}",
            hint=f"bexplore probe CONFIG --micro-batch-size {micro_batch_size} shows what happens",
        )
        self.outcome = outcome


def time_sizes(observed: Observed, sizes: tuple[int, ...], recommended: int) -> tuple[tuple[SizeTimes, ...], ...]:
    """Time several sizes in `NUM_WORKERS` live workers, one worker after the other.

    A neighbour of the recommended size that does not run is dropped: it cannot win.
    """
    workers = []
    for number in range(NUM_WORKERS):
        observed.setup.say(f"timing sizes {', '.join(map(str, sizes))}: worker {number + 1} of {NUM_WORKERS}")
        with open_runner(observed) as runner:
            pass_times_s = _run_each_size(runner, sizes, recommended)
            sizes = tuple(pass_times_s)
            workers.append(tuple(time_in_worker(partial(time_block, runner), sizes, pass_times_s)))
    return tuple(workers)


def _run_each_size(runner: EngineRunner, sizes: tuple[int, ...], recommended: int) -> dict[int, float]:
    """Run each size once in one live worker; return rough seconds of a pass by size."""
    compilation = Compilation.SHARED if runner.job.compile.enabled else Compilation.EAGER
    pass_times_s: dict[int, float] = {}
    for size in sizes:
        observation = run_first_probe(runner, size, compilation)
        if observation.is_measured:
            pass_times_s[size] = observation.pass_time_s
        elif size == recommended:
            raise RecommendedSizeFailedError(size, f"{observation.outcome}: {observation.reason}")
        else:  # the worker is gone, and the sizes before have to be run again in the next one
            return _run_each_size(runner, tuple(one for one in sizes if one != size), recommended)
    return pass_times_s


def open_runner(observed: Observed) -> EngineRunner:
    """Return a runner whose worker stays alive between timings."""
    setup = observed.setup

    def report_wait(message: Mapping[str, Any]) -> None:
        if message.get("stage") == "lock":
            setup.say(f"waiting for the device, which {message['holder']} uses")

    budget = resolve_budget(
        observed.config.settings,
        observed.device_info,
        num_replicas=observed.config.num_replicas,
        gradient_bytes=count_gradient_bytes(observed.config.job, observed.snapshot.any_device.num_parameters),
        is_traced_for_ranks=observed.config.job.parallelism.is_distributed,
    )
    return EngineRunner(
        RunnerSettings(
            job=observed.config.job,
            run_dir=setup.run_dir,
            budget_bytes=budget.budget_bytes,
            environment=setup.environment,
            device_info=observed.device_info,
            replica_batch_size=observed.config.replica_batch_size,
        ),
        on_progress=report_wait,
    )


def run_first_probe(runner: EngineRunner, micro_batch_size: int, compilation: Compilation) -> Observation:
    """Compile and run a size once, so that its passes can be timed."""
    return runner(
        Probe(
            number=0,
            micro_batch_size=micro_batch_size,
            compilation=compilation,
            purpose=Purpose.VERIFY,
            max_passes=PASSES_OF_A_PROBE,
        )
    )


def time_block(runner: EngineRunner, micro_batch_size: int, num_passes: int, round_number: int | None = None) -> Block:
    """Time passes in a live worker; workers of the same round run on the same processors."""
    answer = runner.time_passes(micro_batch_size=micro_batch_size, num_passes=num_passes, round_number=round_number)
    return Block(
        pass_times_s=tuple(answer["pass_times_s"]), cpu_time_s=answer["cpu_time_s"], loss=float(answer["loss"])
    )


def _find_toolchain(config: Config) -> dict[str, str]:
    """Return the versions that decide exact facts; a local build of torch (`+cpu`) is the same version."""
    versions = {"torch": package_version("torch").partition("+")[0], "bexplore facts": FACTS_VERSION}
    if config.job.workload == "transformers":
        versions["transformers"] = package_version("transformers")
    return versions


def _describe_machine(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that decide where numbers may be compared; the host's name is hashed."""
    host = hashlib.sha256(f"{platform.node()} {_machine_id()}".encode()).hexdigest()[:12]
    return {
        **{key: facts.get(key) for key in DEVICE_KEYS},
        "processor": processor_name(),
        "num_processors": os.cpu_count(),
        "num_threads": facts.get("num_threads"),
        "host": host,
    }


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""  # the host's name alone identifies it
