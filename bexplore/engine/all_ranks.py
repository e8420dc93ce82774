"""A runner of all ranks of a job, beside one rank that is alone: memory first by the one, times by all.

Alone no collective can hang and no other rank is lost with one that runs out of memory. What a rank measures alone is
also the pass without communication, with which that of all ranks is compared.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bexplore.engine.process.pool import Workers
from bexplore.engine.process.timeouts import Progress, StageLimits
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.measurement.probe import Observation, Probe

# Timed passes of a rank alone: enough to know about how long a pass takes without communication.
PASSES_ALONE = 3


class AllRanksRunner(EngineRunner):
    """Runs probes on all ranks of a job, each size after one rank has shown alone that it runs."""

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
        return self._compared(observation)

    def prepare(self, probe: Probe) -> None:
        """Compile for a probe in the rank that is alone, which runs it first, while all ranks start."""
        if not self._shares_devices:
            self.start()
        self._alone.prepare(probe)

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

    def _compared(self, observation: Observation) -> Observation:
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
