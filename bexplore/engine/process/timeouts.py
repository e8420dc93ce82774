"""Limits of silence of each stage of a probe, beyond which its worker counts as hung."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.measurement.probe import Observation

# Called with what a worker reports while it works.
Progress = Callable[[dict[str, Any]], None]

# While nothing is known of the job. Compilers are slow and silent; steps report each pass. Seconds.
FIRST_LIMITS_S: Mapping[str, float] = {
    "start": 120.0,
    "import": 300.0,
    "join": 300.0,
    "build": 900.0,
    "compile": 3600.0,
}
STEP_LIMIT_S = 900.0
# A stage is lost when it takes this many times what is known of it ...
PATIENCE = 20.0
# ... and longer than the floor, however short it is known to be: other processes may start. Seconds.
STAGE_FLOOR_S = 60.0
COMPILE_FLOOR_S = 900.0
# No device that anybody trains on is slower. Flops per second.
SLOWEST_FLOPS_PER_S = 1e9


class StageLimits:
    """Learns from what earlier probes took; before the first one, from the trace."""

    def __init__(
        self,
        *,
        step_limit_s: float | None = None,
        flops_per_sample: float | None = None,
        floor_s: float = STAGE_FLOOR_S,
    ) -> None:
        self._step_limit_s = STEP_LIMIT_S if step_limit_s is None else step_limit_s
        self._flops_per_sample = flops_per_sample
        self._floor_s = floor_s
        self._pass_s_per_sample: float | None = None
        self._pass_s = 0.0
        self._compile_s: float | None = None

    def unlearned(self) -> StageLimits:
        """Return the same limits for another program, of which nothing is known yet."""
        return StageLimits(
            step_limit_s=self._step_limit_s, flops_per_sample=self._flops_per_sample, floor_s=self._floor_s
        )

    def learn(self, observation: Observation) -> None:
        """Take in what a probe took; one that failed, or timed nothing, teaches nothing."""
        if not observation.is_measured or not observation.pass_times_s:
            return
        longest_s = max(observation.pass_times_s)
        self._pass_s = max(self._pass_s, longest_s)
        self._pass_s_per_sample = max(self._pass_s_per_sample or 0.0, longest_s / observation.micro_batch_size)
        if observation.compile_time_s:
            self._compile_s = max(self._compile_s or 0.0, observation.compile_time_s)

    def limit_s(self, stage: str, micro_batch_size: int) -> float:
        """Return the seconds of silence that a stage may take at a size."""
        return max(self._floor_s, self._known_limit_s(stage, micro_batch_size))

    def _known_limit_s(self, stage: str, micro_batch_size: int) -> float:
        pass_s = self._expected_pass_s(micro_batch_size)
        if stage == "compile":
            if self._compile_s is None:
                return FIRST_LIMITS_S[stage] + PATIENCE * (pass_s or 0.0)
            return max(COMPILE_FLOOR_S, PATIENCE * (self._compile_s + (pass_s or 0.0)))
        if stage in FIRST_LIMITS_S:
            return FIRST_LIMITS_S[stage]
        if self._pass_s_per_sample is not None:
            return PATIENCE * (pass_s or 0.0)
        return max(self._step_limit_s, pass_s or 0.0)

    def _expected_pass_s(self, micro_batch_size: int) -> float | None:
        """Return an upper bound: a pass grows no faster than its samples."""
        if self._pass_s_per_sample is not None:
            return max(self._pass_s, self._pass_s_per_sample * micro_batch_size)
        if self._flops_per_sample is not None:
            return self._flops_per_sample * micro_batch_size / SLOWEST_FLOPS_PER_S
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the answer to a request may take."""

    # Seconds that each stage may be silent, or a function of the stage's name; None for no limit.
    stage_s: float | Callable[[str], float] | None
    total_s: float | None = None  # seconds of the whole answer; None for no limit
    resident_bytes: int | None = None  # resident memory of the worker and its children; None for no limit

    def of_stage_s(self, stage: str) -> float | None:
        """Return the seconds that a stage may be silent; None for no limit."""
        return self.stage_s(stage) if callable(self.stage_s) else self.stage_s


class Patience:
    """How long a worker may take: each stage, silence included, and all of them together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.stage = "start"  # that the worker reported last
        self._began_s = self._heard_s = time.monotonic()

    def heard(self, message: Mapping[str, Any]) -> None:
        """Note that a stage begins, or that a pass of it is done."""
        if message.get("stage") or "pass_time_s" in message:
            self.stage, self._heard_s = str(message.get("stage") or self.stage), time.monotonic()

    def lost(self) -> str:
        """Return why the worker is lost; empty while it is not."""
        now, limit_s = time.monotonic(), self._limits.of_stage_s(self.stage)
        if limit_s is not None and now - self._heard_s > limit_s:
            return f"no progress in stage '{self.stage}' for {limit_s:.0f} s"
        total_s = self._limits.total_s
        if total_s is not None and now - self._began_s > total_s:
            return f"not done after {total_s:.0f} s, now in stage '{self.stage}'"
        return ""
