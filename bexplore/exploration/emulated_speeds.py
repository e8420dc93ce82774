"""Speeds of what runs on an emulated device, whose clock means nothing: estimates by kernels, or none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bexplore.estimate.confidence import ErrorDraws, SizeEstimate
from bexplore.estimate.kernels import Kernel
from bexplore.estimate.model import PROGRAM_SD, Estimate, estimate_sum
from bexplore.exploration.emulated import PASS_TIME_S
from bexplore.exploration.estimate_errors import allow_for_errors, qualify
from bexplore.host.accelerators import Device
from bexplore.job import Job
from bexplore.measurement.probe import Observation, Outcome, Probe, Runner
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Result
from bexplore.trace.cost_model import CostModel

# Sizes whose errors are drawn together. Source: chosen; a thousand draws of so many take some milliseconds.
MOST_SIZES = 256
# Keys of details, and of those of ranks in them, that the clock of the device has filled.
_OF_CLOCK = frozenset(
    ["collations", "pass_times_by_kind_s", "own_inner_pass_s", "inner_pass_s", "products_per_s", "one_rank_pass_s"]
)
_UNKNOWN = "it ran, and its kernels have no estimate, unlike those of other sizes"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one rank asks its device to do: how often each kernel runs, and what its host does for them."""

    passes: Mapping[Kernel, float]  # in a pass
    host_s: float = 0.0  # for a pass
    updates: Mapping[Kernel, float] = dataclasses.field(default_factory=dict)  # in an update, where that is apart
    update_host_s: float = 0.0
    has_update: bool = False  # whether a pass has its share of the update
    program: str = ""  # whose kernels they are, where they are not the device's own


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """A program whose passes are estimated."""

    job: Job
    cost_model: CostModel

    @property
    def of_processor(self) -> str:
        """Return whose kernels the trace has, where they are not the device's own."""
        is_other = self.job.compile.enabled and self.cost_model.device != "cuda"
        return "the CPU's program, for lack of Triton" if is_other else ""


class EmulatedSpeeds:
    """What is known of speed on an emulated device: estimates of the sizes that ran, or nothing.

    Args:
        device: What is emulated; None where no speed is asked for.
        find_work: Returns what each rank of a probe that ran does; the slowest one counts. Empty where that is unknown.
    """

    def __init__(self, device: Device | None, find_work: Callable[[Observation], Sequence[Work]]) -> None:
        self.device = device
        self._find_work = find_work
        self._known: dict[tuple[int, int], Mapping[str, Any]] = {}  # by size and variant, what is kept of its estimate
        self._is_unknown = device is None  # whether no speed is told: sizes with and without one cannot be compared

    @property
    def are_estimated(self) -> bool:
        """Whether speeds are estimated."""
        return bool(self._known)

    def learn(self, observation: Observation) -> None:
        """Take over what is known of a size that ran."""
        if observation.is_estimated and self.device is not None:
            key = observation.micro_batch_size, observation.probe.variant
            self._known[key] = observation.details["estimate"]
        self._is_unknown |= observation.is_emulated

    def describe_device(self, device_info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of a result's device."""
        if self.device is None or not self._known:
            return dict(device_info)
        return {"device_name": self.device.name, **device_info, "is_emulated": False, "is_estimated": True}

    def wrap(self, runner: Runner, is_emulated: Callable[[], bool]) -> Runner:
        """Return a runner with estimated times on an emulated device; else with times that say nothing.

        Args:
            is_emulated: Whether the device is, asked after each probe.
        """

        def run(probe: Probe) -> Observation:
            ran = runner(probe.alone if is_emulated() else probe)
            if not is_emulated():
                return ran
            ran = dataclasses.replace(ran, probe=probe)
            found = self.estimate(ran) if ran.is_measured and not self._is_unknown else None
            if found is None and ran.is_measured and self._known:
                return dataclasses.replace(ran, outcome=Outcome.CRASHED, reason=_UNKNOWN)
            ran = found or ran.drop_times(PASS_TIME_S)
            self.learn(ran)
            return ran

        return run

    def qualify(self, event: Any, candidates: Sequence[int], *, tolerance: float, seed: int) -> Any:
        """Return an event of the search whose score and intervals hold the model's error."""
        if not self._known or not isinstance(event, Recommendation | Result):
            return event
        draws = self.draw_errors(candidates, seed=seed)
        if isinstance(event, Result):
            return qualify(event, draws, self._find_sd, tolerance=tolerance)
        return allow_for_errors(event, draws, self._find_sd, tolerance=tolerance)

    def estimate(self, ran: Observation) -> Observation | None:
        """Return a probe that ran with estimated times; None where nothing can be estimated."""
        found = [self._estimate_rank(work, ran) for work in self._find_work(ran)]
        known = [one for one in found if one is not None]
        return max(known, key=lambda one: one.pass_times_s[0], default=None)

    def _estimate_rank(self, work: Work, of: Observation) -> Observation | None:
        if self.device is None:
            return None
        of_pass = estimate_sum(self.device, work.passes, host_s=work.host_s)
        of_update = estimate_sum(self.device, work.updates, host_s=work.update_host_s)
        if of_pass is None or of_update is None or not of_pass.seconds:
            return None
        details = {**_drop_clock(of.details), "estimate": _describe(self.device, work, of_pass)}
        if "step_time_s" in details:
            details["step_time_s"] = of_pass.seconds * details["micro_batches_per_step"] + of_update.seconds
        return dataclasses.replace(
            of.drop_times(of_pass.seconds),
            outcome=Outcome.ESTIMATED,
            pass_times_s=(of_pass.seconds,) * 2,  # which differ by nothing: an estimate has no noise
            update_times_s=(of_update.seconds,) * 2 if work.updates else (),
            details=details,
        )

    def _find_sd(self, micro_batch_size: int, variant: int) -> float:
        return float(self._known[micro_batch_size, variant]["relative_sd"])

    def draw_errors(self, candidates: Sequence[int], *, seed: int) -> ErrorDraws:
        """Return draws of the errors of the sizes that were estimated, and of candidates between them.

        Between sizes that ran, times are taken to be affine in the size.
        """
        variants = sorted({variant for _, variant in self._known})
        estimates = [one for variant in variants for one in self._interpolate(candidates, variant)]
        return ErrorDraws(estimates, seed=seed)

    def _interpolate(self, candidates: Sequence[int], variant: int) -> list[SizeEstimate]:
        ran = sorted(size for size, of in self._known if of == variant)
        between = [size for size in candidates if ran[0] < size < ran[-1]]
        places = np.unique(np.linspace(0, max(len(between) - 1, 0), MOST_SIZES).round().astype(int))
        sizes = sorted({*ran, *(between[place] for place in places if between)})

        def interpolate(name: str) -> np.ndarray:
            return np.interp(sizes, ran, [self._known[size, variant][name] for size in ran])

        values = zip(sizes, interpolate("kernels_s"), interpolate("own_sd"), interpolate("host_s"), strict=True)
        return [
            SizeEstimate(
                micro_batch_size=size,
                seconds=float(kernels_s),
                own_sd=float(own_sd),
                host_s=float(host_s),
                variant=variant,
            )
            for size, kernels_s, own_sd, host_s in values
        ]


def _drop_clock(values: Any) -> Any:
    """Return details without what the clock of the device has filled."""
    if isinstance(values, Mapping):
        return {name: _drop_clock(value) for name, value in values.items() if name not in _OF_CLOCK}
    return list(map(_drop_clock, values)) if isinstance(values, list | tuple) else values


def _describe(device: Device, work: Work, found: Estimate) -> dict[str, Any]:
    return {
        "device_name": device.name,
        "program": work.program,
        "pass_s": found.seconds,
        "update_s": None,
        "relative_sd": math.hypot(PROGRAM_SD, found.relative_sd),
        "own_sd": found.own_sd,
        "kernels_s": found.kernels_s,
        "host_s": found.host_s,
        "shares": {bound.value: share for bound, share in found.shares.items()},
        "waves": None,
        "mfu": None,
        "has_update": work.has_update,
    }
