"""A runner of several variants of a job: a worker for each, which keeps its program while memory allows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.engine.process.memory_watchdog import resident_bytes
from bexplore.engine.runner import WORKER_OVERHEAD_BYTES, EngineRunner
from bexplore.host.machine import available_memory_bytes
from bexplore.job import device_kind
from bexplore.measurement.probe import Compilation, Observation, Probe


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
        runner = self.of(probe.variant)
        self._make_room(probe)
        observation = runner(_as_the_variant_runs(probe, runner))
        details = observation.details | {"settings": dict(self._settings[probe.variant])}
        return dataclasses.replace(observation, probe=probe, details=details)

    def prepare(self, probe: Probe) -> None:
        """Compile for a probe ahead of it: see `EngineRunner.prepare`."""
        runner = self.of(probe.variant)
        runner.prepare(_as_the_variant_runs(probe, runner))

    def of(self, variant: int) -> EngineRunner:
        """Return the runner of a variant."""
        return self._runners[variant]

    def alone(self, variant: int) -> EngineRunner:
        """Return the runner of a variant, and end the workers of all others: what follows needs their memory."""
        for number, runner in enumerate(self._runners):
            if number != variant:
                runner.close()
        return self.of(variant)

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
        runner = self.of(probe.variant)
        self._by_last_use.remove(probe.variant)
        for other in self._by_last_use:
            if device_kind(runner.job.device) != "cpu":
                self.of(other).rest()
            elif available_memory_bytes() < _needed_bytes(runner, probe):
                self.of(other).close()
        self._by_last_use.append(probe.variant)


def _as_the_variant_runs(probe: Probe, runner: EngineRunner) -> Probe:
    """Return the probe in the program that the variant has: of one that is not compiled it is always the same."""
    return probe if runner.job.compile.enabled else dataclasses.replace(probe, compilation=Compilation.EAGER)


def _needed_bytes(runner: EngineRunner, probe: Probe) -> int:
    """Return the host memory that a probe needs beside what the worker that may run it holds already."""
    tensors = probe.predicted_peak_memory_bytes or runner.settings.budget_bytes or 0
    held = 0 if runner.worker_pid is None else resident_bytes(runner.worker_pid)
    return tensors + WORKER_OVERHEAD_BYTES - held
