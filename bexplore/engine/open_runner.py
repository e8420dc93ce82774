"""Opens the runner of a job: of one process, of all ranks, of several variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.engine.process.limits import Progress, StageLimits, resident_bytes
from bexplore.engine.process.pool import Workers
from bexplore.engine.runner import WORKER_OVERHEAD_BYTES, EngineRunner, RunnerSettings
from bexplore.host.machine import available_memory_bytes
from bexplore.job import device_kind
from bexplore.measurement.probe import Compilation, Observation, Probe

# Timed passes of a rank alone: enough to know about how long a pass takes without communication.
PASSES_ALONE = 3


class AllRanksRunner(EngineRunner):
    """Runs probes on all ranks of a job, each size after one rank has shown alone that it runs.

    Alone no collective can hang and no other rank is lost with one that runs out of memory. What a rank measures alone
    is also the pass without communication, with which that of all ranks is compared.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        workers: Workers | None = None,
        limits: StageLimits | None = None,
        on_progress: Progress = lambda message: None,
    ) -> None:
        super().__init__(settings, limits=limits, on_progress=on_progress)
        environment = {**settings.environment, **(settings.launcher.environment if settings.launcher else {})}
        alone = dataclasses.replace(
            settings,
            launcher=None,
            run_dir=settings.run_dir / "alone",
            environment=environment,
            keeps_artifacts=False,
        )
        self._alone = EngineRunner(alone, workers=workers, limits=self.limits.unlearned(), on_progress=on_progress)
        self._pass_s_alone: dict[int, float] = {}

    def __call__(self, probe: Probe) -> Observation:
        """Run a size on all ranks; what one rank alone shows not to run is the answer."""
        if not self._is_known_to_run(probe.micro_batch_size):
            if self._shares_devices:
                self.rest()
            alone = self._alone(probe.for_one_rank(PASSES_ALONE))
            if self._shares_devices:
                self._alone.rest()
            if not alone.is_measured:
                return dataclasses.replace(alone, probe=probe)
            self._pass_s_alone[probe.micro_batch_size] = alone.pass_time_s
        observation = super().__call__(probe)
        return self._add_pass_alone(observation)

    def prepare(self, probe: Probe) -> None:
        """Compile for a probe in the rank that is alone, which runs it first, while all ranks start."""
        if not self._shares_devices:
            self.start()
        self._alone.prepare(probe)

    def measure_memory(self, sizes: Sequence[int]) -> Observation:
        """Measure steps of one rank alone: see `EngineRunner.measure_memory`."""
        return self._alone.measure_memory(sizes)

    def gradient_equivalence(self, *, base_micro_batch_size: int, micro_batch_size: int) -> dict[str, Any]:
        """Compare gradients on one device: see `EngineRunner.gradient_equivalence`."""
        self.rest()
        return self._alone.gradient_equivalence(
            base_micro_batch_size=base_micro_batch_size, micro_batch_size=micro_batch_size
        )

    def time_loader(self, micro_batch_size: int) -> dict[str, Any]:
        """Time the user's own loader in one process: see `EngineRunner.time_loader`."""
        self.rest()
        return self._alone.time_loader(micro_batch_size)

    def close(self) -> None:
        """End all ranks and all workers."""
        super().close()
        self._alone.close()

    @property
    def _shares_devices(self) -> bool:
        """Whether the rank that is alone takes memory of a device that all ranks need."""
        return not self._on_cpu

    def _is_known_to_run(self, micro_batch_size: int) -> bool:
        """Return whether one rank need not run a size again; where it takes no device from the others, it runs each."""
        if not self._shares_devices:
            return micro_batch_size in self._pass_s_alone
        return micro_batch_size <= max(self.largest_measured, self._alone.largest_measured)

    def _add_pass_alone(self, observation: Observation) -> Observation:
        """Add the pass of one rank alone to what all ranks measured."""
        alone_s = self._pass_s_alone.get(observation.micro_batch_size)
        parallel = observation.details.get("parallel")
        if parallel is None or alone_s is None:
            return observation
        details = observation.details | {"parallel": parallel | {"one_rank_pass_s": alone_s}}
        return dataclasses.replace(observation, details=details)


def open_runner(
    settings: RunnerSettings,
    *,
    workers: Workers | None = None,
    limits: StageLimits | None = None,
    on_progress: Progress = lambda message: None,
) -> EngineRunner:
    """Return the runner of a job: of all its ranks where a launcher starts them, else of one process."""
    kind = EngineRunner if settings.launcher is None else AllRanksRunner
    return kind(settings, workers=workers, limits=limits, on_progress=on_progress)


class VariantsRunner:
    """Hands each probe to the runner of its variant.

    On a CPU the workers of other variants wait beside the one at work as long as the host has the memory that its probe
    needs; those that ran longest ago end first. Two workers do not share an accelerator's memory.
    """

    def __init__(self, runners: Sequence[EngineRunner], settings: Sequence[Mapping[str, Any]]) -> None:
        self._runners = tuple(runners)
        self._settings = tuple(settings)
        self._by_last_use = list(range(len(self._runners)))

    def __call__(self, probe: Probe) -> Observation:
        """Run one size of one variant."""
        runner = self._runners[probe.variant]
        self._make_room(probe)
        observation = runner(_as_the_variant_runs(probe, runner))
        details = observation.details | {"settings": dict(self._settings[probe.variant])}
        return dataclasses.replace(observation, probe=probe, details=details)

    def prepare(self, probe: Probe) -> None:
        """Compile for a probe ahead of it: see `EngineRunner.prepare`."""
        runner = self._runners[probe.variant]
        runner.prepare(_as_the_variant_runs(probe, runner))

    def alone(self, variant: int) -> EngineRunner:
        """Return the runner of a variant, and end the workers of all others: what follows needs their memory."""
        for number, runner in enumerate(self._runners):
            if number != variant:
                runner.close()
        return self._runners[variant]

    def close(self) -> None:
        """End all workers of all variants."""
        for runner in self._runners:
            runner.close()

    def __enter__(self) -> VariantsRunner:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _make_room(self, probe: Probe) -> None:
        """End workers of other variants where a probe needs their memory."""
        runner = self._runners[probe.variant]
        self._by_last_use.remove(probe.variant)
        for other in self._by_last_use:
            if device_kind(runner.job.device) != "cpu":
                self._runners[other].rest()
            elif available_memory_bytes() < _needed_bytes(runner, probe):
                self._runners[other].close()
        self._by_last_use.append(probe.variant)


def _as_the_variant_runs(probe: Probe, runner: EngineRunner) -> Probe:
    """Return the probe in the program that the variant has: of one that is not compiled it is always the same."""
    return probe if runner.job.compile.enabled else dataclasses.replace(probe, compilation=Compilation.EAGER)


def _needed_bytes(runner: EngineRunner, probe: Probe) -> int:
    """Return the host memory that a probe needs beside what the worker that may run it holds already."""
    tensors = probe.predicted_peak_memory_bytes or runner.settings.budget_bytes or 0
    held = 0 if runner.worker_pid is None else resident_bytes(runner.worker_pid)
    return tensors + WORKER_OVERHEAD_BYTES - held
