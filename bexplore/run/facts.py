"""The facts that a result is computed from: what a search found, and its observations at the printed speeds.

All numbers of one size follow from the size's one estimate, so that no two of them disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bexplore.job import Job
from bexplore.measurement.probe import Observation
from bexplore.run.selection import TracedVariant
from bexplore.search.recommendation import Recommendation, Speed
from bexplore.search.result import Result
from bexplore.trace.cost_model import CostModel, MemoryByLength

if TYPE_CHECKING:  # the schema imports pydantic, which reading a result need not
    from bexplore.config.config import Config


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run when its search has ended."""

    config: Config  # the job, with the settings of the recommended variant
    searched: Result  # what the search found
    observations: Sequence[Observation]  # every probe, of all variants
    elapsed_s: float  # seconds since the exploration began
    device_info: Mapping[str, Any] = field(default_factory=dict)  # torch's description of the device
    memory_by_length: MemoryByLength | None = None  # traces at several lengths of samples; None where all are as long
    # Seconds of a real step of the user's global batch size; None where none was run.
    verified_step_time_s: float | None = None
    variant: int = 0  # number of the recommended variant
    variants: Sequence[TracedVariant] = ()  # all variants of the search; empty for a job with one
    # Operations of a pass of the variant over those of the file's own; None if unknown.
    operations_over_file: float | None = None

    @property
    def best(self) -> Recommendation | None:
        """The recommendation; None where nothing was measured."""
        return self.searched.recommendation

    @cached_property
    def own(self) -> Sequence[Observation]:
        """Observations of the recommended variant, at the printed speed of their size."""
        speeds = () if self.best is None else self.best.speeds
        return [estimated(one, speeds) for one in self.observations if one.probe.variant == self.variant]

    @cached_property
    def ran(self) -> Observation | None:
        """The observation that verifies the recommended size; None where another explorer of the study has it."""
        return None if self.best is None else verified_by(self.own, self.best.micro_batch_size)


def verified_by(observations: Sequence[Observation], micro_batch_size: int) -> Observation | None:
    """Return the observation that verifies a size: the latest as the training runs, else the latest.

    Those of all ranks go before those of one.

    None where there is none: another explorer of a shared study may have measured the size.
    """
    own = [o for o in observations if o.is_measured and o.micro_batch_size == micro_batch_size]
    together = [o for o in own if ranks_of(o)] or own
    exact = [o for o in together if not o.probe.compilation.is_for_search]
    return next(reversed(exact or together), None)


def step_time_s(observation: Observation | None, accumulation_steps: int) -> float | None:
    """Return the seconds of one optimizer step: its passes, the last of which may reduce gradients, and one update.

    They hold the communication of replicas where all ranks ran. None where nothing was timed, or where a step of one
    pass was and one of several is wanted, whose other passes reduce nothing.
    """
    if observation is None or not observation.is_measured:
        return None
    update_s = observation.update_time_s if observation.update_times_s else 0.0
    inner_s, last_s = pass_times_by_kind(observation)
    if last_s is None:
        return accumulation_steps * observation.pass_time_s + update_s
    if accumulation_steps == 1:
        return last_s + update_s
    return None if inner_s is None else (accumulation_steps - 1) * inner_s + last_s + update_s


def ranks_of(observation: Observation) -> Sequence[Mapping[str, Any]]:
    """Return what each rank reported; empty where one rank of N ran alone, and for a job of one device."""
    ranks: Sequence[Mapping[str, Any]] = parallel_details(observation).get("ranks") or ()
    return ranks


def pass_times_by_kind(observation: Observation) -> tuple[float | None, float | None]:
    """Return the median seconds of a pass without, and of one with the reduction of gradients.

    Nobody waits between passes that reduce nothing: the first is the slowest rank's own median, and not the median of
    the slowest rank of each pass, which noise makes longer. It is None where a step has one pass, unless it is
    estimated, and both are where passes do not differ.
    """
    details = parallel_details(observation)
    pairs = details.get("pass_times_by_kind_s") or ()
    if not pairs:
        return None, None
    inner_s, last_s = map(float, np.median(list(pairs), axis=0))
    of_ranks = [rank["inner_pass_s"] for rank in details.get("ranks") or () if rank.get("inner_pass_s")]
    is_timed = observation.is_estimated or details.get("accumulation_steps") != 1
    return max(of_ranks, default=inner_s) if is_timed else None, last_s


def estimated_communication(observation: Observation) -> Mapping[str, Any] | None:
    """Return what ranks exchange in an estimated pass: the fields of `EstimatedCommunication`; None for nothing."""
    exchanged: Mapping[str, Any] | None = (observation.details.get("estimate") or {}).get("communication")
    return exchanged


def estimated(observation: Observation, speeds: Sequence[Speed]) -> Observation:
    """Return a measured observation with all times scaled so that its median pass is the estimate's.

    Its shares stay as they were measured: of the update in a step, of communication, of one rank beside another. One
    without an estimate, or without times, is returned as it is.
    """
    probe = observation.probe
    own = (one for one in speeds if (one.micro_batch_size, one.variant) == (probe.micro_batch_size, probe.variant))
    speed = next(own, None)
    if speed is None or not observation.is_measured or not observation.pass_times_s:
        return observation
    factor = speed.pass_time_s / observation.pass_time_s
    parallel = observation.details.get("parallel")
    details = observation.details if not parallel else observation.details | {"parallel": _scaled(parallel, factor)}
    return dataclasses.replace(observation.scale_times(factor), details=details)


def _scaled(parallel: Mapping[str, Any], factor: float) -> dict[str, Any]:
    found = dict(parallel)
    if found.get("pass_times_by_kind_s"):
        found["pass_times_by_kind_s"] = [[factor * one for one in pair] for pair in found["pass_times_by_kind_s"]]
    if found.get("one_rank_pass_s"):
        found["one_rank_pass_s"] *= factor
    if found.get("ranks"):
        found["ranks"] = [
            {**rank, "inner_pass_s": factor * rank["inner_pass_s"]} if rank.get("inner_pass_s") else rank
            for rank in found["ranks"]
        ]
    return found


def parallel_details(observation: Observation) -> Mapping[str, Any]:
    """Return what an observation holds of its ranks; empty for a job of one device."""
    details: Mapping[str, Any] = observation.details.get("parallel") or {}
    return details


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFacts:
    """The measurements of one size."""

    # Its latest exact probe, else its latest probe, at the speed that the result tells of the size.
    observation: Observation
    tokens_per_s: float | None  # tokens per second of the pass; None where samples are not sequences
    flops_per_s: float | None  # model operations per second of the pass; None without a trace
    mfu: float | None  # model-flops utilization, 0 to 1; None where the peak is unknown
    hfu: float | None  # hardware-flops utilization, which counts recomputation


def find_size_facts(
    job: Job,
    measured: Sequence[Observation],
    speeds: Sequence[Speed],
    cost_model: CostModel | None,
    peak_flops_per_s: float | None,
) -> list[SizeFacts]:
    """Return speed and utilization of each measured size, ascending.

    Args:
        job: The job that ran.
        measured: Its probes that have times.
        speeds: The speeds that the result tells of its sizes.
        cost_model: The trace; None for none.
        peak_flops_per_s: The device's published peak of the job's arithmetic; None if unknown.
    """
    # Exact probes come last, and of two the later one.
    latest = {
        item.micro_batch_size: item
        for item in sorted(measured, key=lambda item: not item.probe.compilation.is_for_search)
    }
    # The trace is of the longest samples: its operations are not those of batches of many lengths.
    model = cost_model if job.lengths is None and cost_model is not None and cost_model.has_operations else None
    found = []
    for size in sorted(latest):
        item = latest[size]
        if item.is_emulated:
            found.append(SizeFacts(observation=item, tokens_per_s=None, flops_per_s=None, mfu=None, hfu=None))
            continue
        item = estimated(item, speeds)
        flops_per_s = None if model is None else model.model_flops(size) / item.pass_time_s
        hardware = None if model is None else model.hardware_flops(size) / item.pass_time_s
        found.append(
            SizeFacts(
                observation=item,
                tokens_per_s=None if job.tokens_per_sample is None else item.samples_per_s * job.tokens_per_sample,
                flops_per_s=flops_per_s,
                mfu=None if peak_flops_per_s is None or flops_per_s is None else flops_per_s / peak_flops_per_s,
                hfu=None if peak_flops_per_s is None or hardware is None else hardware / peak_flops_per_s,
            )
        )
    return found
