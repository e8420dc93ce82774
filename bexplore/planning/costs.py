"""The costs of an optimizer step at each micro-batch size, as measured or as a trace predicts them."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bexplore.estimate.collectives import Communication, Interconnect
from bexplore.job import Job, Parallelism, Precision
from bexplore.job.batching import Divisibility, is_valid_global_batch_size, sizes_that_keep
from bexplore.trace.communication import find_communication
from bexplore.trace.cost_model import CostModel

# Probability that a size fits, from which its predicted speed may be planned. Source: a choice: between sizes that ran,
# one that is known to fail has none, and all others have nearly all of it.
LIKELY_FITS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """One forward and backward pass of a size, on each of the ranks that were timed."""

    seconds: float  # of a pass that reduces no gradients, with what of other communication it holds
    last_s: float  # of the last pass of a step, which reduces them; `seconds` where passes do not differ
    # Communication within `seconds` that computation does not hide; None where it was not timed apart.
    exposed_s: float | None = 0.0
    # Whether it ran as the training runs it; else in the search's program, and scaled by the ratio of both at the size
    # that was verified.
    is_exact: bool = True
    is_predicted: bool = False  # whether the size did not run
    is_estimated: bool = False  # whether none did: a model tells the seconds for a device that is not here
    peak_bytes: int | None = None  # peak of the live tensors, as measured; None if unknown

    @property
    def compute_s(self) -> float | None:
        """Seconds of a pass without communication; None where it was not timed apart."""
        return None if self.exposed_s is None else self.seconds - self.exposed_s

    def exposed_of_step_s(self, accumulation_steps: int) -> float | None:
        """Return the communication of a step that computation does not hide; None where it was not timed apart."""
        if self.exposed_s is None:
            return None
        return accumulation_steps * self.exposed_s + self.last_s - self.seconds

    def mean_s(self, accumulation_steps: int) -> float:
        """Return the seconds of a pass in the mean over a step, communication included."""
        return self.seconds + (self.last_s - self.seconds) / accumulation_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpeeds:
    """Throughput at sizes that the search did not run: the median of its posterior."""

    sizes: tuple[int, ...]  # micro-batch sizes, ascending
    samples_per_s: tuple[float, ...]  # of each
    fits: tuple[float, ...]  # probability, 0 to 1, that each fits and runs
    candidates: frozenset[int] | None = None  # sizes to which the user has restricted the search; None for no such list

    def at(self, size: int) -> float | None:
        """Return samples/s, between two sizes by their logarithms; None outside of them, or where it may not run."""
        if not self.sizes or not self.sizes[0] <= size <= self.sizes[-1]:
            return None
        if self.candidates is not None and size not in self.candidates:
            return None
        right = bisect.bisect_left(self.sizes, size)
        left = right if self.sizes[right] == size else right - 1
        if min(self.fits[left], self.fits[right]) < LIKELY_FITS:
            return None
        if left == right:
            return self.samples_per_s[left]
        share = math.log(size / self.sizes[left]) / math.log(self.sizes[right] / self.sizes[left])
        low, high = self.samples_per_s[left], self.samples_per_s[right]
        return math.exp((1 - share) * math.log(low) + share * math.log(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSettings:
    """The job with another precision, checkpointing or compilation."""

    settings: Mapping[str, Any]  # the values, by key
    micro_batch_size: int  # the size at which it is fastest
    time_share: float  # seconds of a sample over those of the plan's settings
    is_measured: bool  # whether it ran; else it was predicted
    changes_training: tuple[str, ...] = ()  # what it trains otherwise, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What is known of the optimizer steps of a job. None means unknown, never 0."""

    title: str  # the job in words
    origin: str  # where the figures are from, in words
    # By micro-batch size; empty where only the speed of whole steps is known.
    passes: Mapping[int, PassCost] = field(default_factory=dict)
    predicted: PredictedSpeeds | None = None  # speeds of sizes between those that ran; None for none
    # Seconds of an optimizer update; None in evaluation, and where no pass is known either.
    update_s: float | None = None
    parallelism: Parallelism = field(default_factory=Parallelism)  # how the ranks that were timed share the work
    holds_communication: bool = False  # whether the passes hold that of these ranks
    num_hosts: int | None = None  # hosts on which these ranks ran; None if unknown
    num_replicas: int = 1  # replicas of the file's own numbers
    model_flops: float | None = None  # operations of a sample without recomputation, forward and backward
    hardware_flops: float | None = None  # the same with recomputation
    num_parameters: int | None = None  # of the whole model
    gradient_bytes: float | None = None  # one copy of the gradients of one rank; None in evaluation
    num_blocks: int = 0  # identical blocks of the model; 0 if unknown
    cost_model: CostModel | None = None  # the trace of a rank that was timed; None for none
    memory_budget_bytes: int | None = None  # for the tensors of a rank; None if unknown
    sizes: int = 0  # micro-batch sizes that fit, where passes are not known: from 1 to this
    device_name: str = ""  # of the device; empty if unknown
    interconnect: Interconnect | None = None  # links of such devices by what is published; None if unknown
    is_on_cpu: bool = False  # whether it is the CPU, whose cores also do the communication
    precision: Precision | None = None  # of the job's arithmetic; None if unknown
    peak_flops_per_s: float | None = None  # published peak of the device in bfloat16; None where it is in no table
    tokens_per_sample: float | None = None  # mean tokens of a sample; None where samples are not sequences
    micro_batch_size: int | None = None  # the file's own, or the recommended one; None for none
    batch_size: int | None = None  # the file's own global batch size
    max_steps: int | None = None  # the file's own optimizer steps
    divisibility: Divisibility = Divisibility.STRICT  # rule by which sizes must divide the batch
    other_settings: tuple[OtherSettings, ...] = ()  # what other settings change: see `OtherSettings`
    notes: tuple[str, ...] = ()  # lines that qualify all plans

    @property
    def is_measured(self) -> bool:
        """Whether seconds of passes are known, measured or estimated."""
        return bool(self.passes)

    def without_estimates(self) -> StepCosts:
        """Return what the trace of a configuration tells beside estimated seconds, where a speed is stated instead."""
        is_of_trace = self.sizes and any(one.is_estimated for one in self.passes.values())
        return dataclasses.replace(self, passes={}, predicted=None) if is_of_trace else self

    @property
    def largest_useful_size(self) -> int:
        """The size that a batch should feed: the file's own, the recommended one, or the largest that fits; 0: none."""
        return self.micro_batch_size or max(self.passes, default=self.sizes)

    def find_communication(self, parallelism: Parallelism, division: float = 1.0) -> Communication:
        """Return what a rank exchanges with other replicas, of gradients that are known.

        Args:
            parallelism: How ranks share the work.
            division: The gradients of a rank that was timed, over those of such a rank before replicas share them.
        """
        assert self.gradient_bytes is not None  # the caller has asked
        itemsize = (self.precision or Precision.FLOAT32).weight_bytes
        return find_communication(
            parallelism, self.gradient_bytes / division, num_blocks=self.num_blocks, itemsize=itemsize
        )

    def find_cost(self, size: int) -> PassCost | None:
        """Return the cost of a pass of a size that ran, or of one between two that ran; None of others.

        What is predicted is scaled to the program of the answer, and communicates as much as that.
        """
        if size in self.passes or self.predicted is None or not min(self.passes) < size < max(self.passes):
            return self.passes.get(size)
        own = self.micro_batch_size
        known = own if own is not None and own in self.passes else max(self.passes)
        speed, speed_of_known = self.predicted.at(size), self.predicted.at(known)
        if speed is None or speed_of_known is None:
            return None
        answer = self.passes[known]
        seconds = answer.seconds * (size / speed) / (known / speed_of_known)
        last_s = seconds + answer.last_s - answer.seconds
        return PassCost(
            seconds=seconds,
            last_s=last_s,
            exposed_s=answer.exposed_s,
            is_exact=False,
            is_predicted=True,
            is_estimated=answer.is_estimated,
        )

    def feasible_sizes(self, batch_size: int, num_replicas: int) -> list[int]:
        """Return the micro-batch sizes, run or not, with which a global batch is valid, ascending."""
        rule = self.divisibility
        if self.is_measured:
            known = {*self.passes, *(self._between(-(-batch_size // num_replicas)) if self.predicted else ())}
        else:
            known = set(range(1, min(self.sizes, batch_size) + 1))
        return [size for size in sorted(known) if is_valid_global_batch_size(batch_size, size, num_replicas, rule)]

    def _between(self, replica_batch_size: int) -> list[int]:
        return [size for size in sizes_that_keep(replica_batch_size, self.divisibility) if self.find_cost(size)]


def find_peak(job: Job, bfloat16_flops_per_s: float | None) -> float | None:
    """Return the published peak of a job's arithmetic; None for float32, as the figures are those of 16 bits."""
    return None if job.precision is Precision.FLOAT32 else bfloat16_flops_per_s
