"""The seam to hardware: a `Runner` runs a `Probe` and returns an `Observation`.

The engine, a training command, the replay of a recorded table and the simulator are its implementations; nothing else
measures. A fifth one estimates: what it returns says so, and never ran.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from bexplore.host.secret_values import hidden
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.interleaving import Estimate, estimate_alone, estimate_interleaved
from bexplore.measurement.statistics import PairedRatio, paired_ratio


class Outcome(StrEnum):
    """How a probe ended. A closed set: a failed probe is data, a broken program is an exception."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    COMPILE_FAILED = "compile_failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    NOT_FINITE = "not_finite"
    ESTIMATED = "estimated"  # nothing ran: a model tells its times, and a trace its memory

    @property
    def has_times(self) -> bool:
        """Whether there are times to rank, measured or estimated."""
        return self in (Outcome.MEASURED, Outcome.ESTIMATED)


class Compilation(StrEnum):
    """The program of a probe: shared by all sizes, the user's exact one, or eager.

    A job that is not compiled runs eagerly in each of them. What it shares with other sizes then is its process, and
    with it the heap, which makes small passes faster on a CPU than they are in a training.
    """

    SHARED = "shared"
    EXACT = "exact"
    EAGER = "eager"

    @property
    def is_for_search(self) -> bool:
        """Whether the search alone runs this program, and no training does."""
        return self is Compilation.SHARED


# Key of the details of an observation after the search: the training's own accumulation, with which the answer ran once
# more; null for a start that checks whether the command follows its size.
REAL_STEP = "accumulation_of_real_step"


class Purpose(StrEnum):
    """The reason of a probe; a replicate, a repeated base and a confirmation each count as a probe."""

    SEARCH = "search"
    REPLICATE = "replicate"
    BASE = "base"
    CONTENDER = "contender"
    VERIFY = "verify"
    KEEP_BATCH_SIZE = "keep_batch_size"  # after the search: see `policy.keep_batch_size`

    @property
    def is_verification(self) -> bool:
        """Whether the probe runs the training's own program in a fresh process."""
        return self in (Purpose.VERIFY, Purpose.KEEP_BATCH_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One size to compile and run for real."""

    number: int  # position in the exploration, from 0; the Optuna trial has the same number
    micro_batch_size: int  # samples of one replica in one forward and backward pass
    compilation: Compilation = Compilation.SHARED
    purpose: Purpose = Purpose.SEARCH
    fresh_worker: bool = False  # start a new process first, so that process-to-process noise is seen
    # Upper bound on undisturbed timings, each of a pass or of several short ones; a runner stops earlier when the noise
    # allows it.
    max_passes: int = 10
    predicted_peak_memory_bytes: int | None = None  # expected by the trace; None where unknown
    time_limit_s: float | None = None  # the runner ends the probe as `timed_out` beyond it; None for no limit
    tolerance: float = INDIFFERENCE_ZONE  # the indifference zone, which bounds the precision of the timing
    # Sizes that ran before, to be timed interleaved with this one, so that common-mode drift cancels; a runner without
    # interleaved timing leaves them out.
    interleaved_with: tuple[int, ...] = ()
    variant: int = 0  # which variant of the job: 0 is the file's own settings

    @property
    def alone(self) -> Probe:
        """The same probe, timed alone."""
        return dataclasses.replace(self, interleaved_with=())

    def for_one_rank(self, max_passes: int) -> Probe:
        """Return the probe of one rank alone: of the shared program, so that it is compiled once, and timed alone."""
        compilation = Compilation.EAGER if self.compilation is Compilation.EAGER else Compilation.SHARED
        return dataclasses.replace(self.alone, compilation=compilation, max_passes=max_passes, fresh_worker=False)

    @property
    def program(self) -> tuple[Compilation, int]:
        """The program that a warm worker holds, and its size; 0 for a program that serves every size."""
        return self.compilation, self.micro_batch_size if self.compilation is Compilation.EXACT else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of a probe. Raw times are kept; every statistic is derived from them."""

    probe: Probe
    outcome: Outcome
    reason: str = ""  # why, for people; empty for a measurement without remarks
    # Seconds of each timed forward and backward pass, in order, warm-up excluded; on an accelerator each is the mean of
    # passes that ran back to back, `num_back_to_back` in `details`.
    pass_times_s: tuple[float, ...] = ()
    update_times_s: tuple[float, ...] = ()  # seconds of each timed optimizer update; empty in evaluation
    # By size, its own among them, seconds of a pass in each round (the median of a timing of several passes); empty
    # where the size was timed alone.
    interleaved_times_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    start_time_s: float = 0.0  # seconds to start the worker and build the job; 0 where the worker was warm
    compile_time_s: float = 0.0  # seconds of the first pass beyond a warm one; 0 where nothing was compiled
    elapsed_s: float = 0.0  # seconds of the whole probe, start and compilation included
    started_at_s: float = 0.0  # Unix time of its start
    worker: int | None = None  # ordinal of the worker process within the exploration; None without a worker
    peak_memory_bytes: int | None = None  # peak of the live tensors, which a trace predicts; None if unknown
    # Peak of the memory that holds the tensors, free pieces included: reserved by the caching allocator (CUDA),
    # resident memory of the process (CPU); None if unknown.
    resident_memory_bytes: int | None = None
    # Times that the caching allocator reached the limit, released its cache and tried again. From one on,
    # `resident_memory_bytes` is the limit and not the need of the size.
    num_alloc_retries: int = 0
    memory_budget_bytes: int | None = None  # the budget in force; None for no limit
    ran_eagerly: bool | None = False  # whether no compiled graph took part, whatever was asked for; None if unknown
    num_graphs: int | None = None  # graphs that this probe compiled; 0 where an earlier probe did; None if not compiled
    num_graph_breaks: int | None = None  # graph breaks; None if not compiled
    graph_break_reasons: tuple[str, ...] = ()  # a line per distinct break
    num_recompiles: int | None = None  # compilations of this probe beyond the first; None if not compiled
    max_samples: int | None = None  # the largest micro-batch that the data of a replica fills; None if unknown
    loss: float | None = None  # the loss of the last pass; None if unknown
    # Share of the host's processors, 0 to 1, that other processes used; None if unknown.
    background_cpu_share: float | None = None
    # Median share of a timed pass, 0 to 1, for which one of its threads was ready and had no processor; None if
    # unknown.
    scheduler_wait_fraction: float | None = None
    warnings: tuple[str, ...] = ()  # reasons for caution with the numbers
    traceback_text: str = ""  # the user's own traceback of a crash
    details: dict[str, Any] = field(default_factory=dict)  # further values by name, JSON values only

    def __post_init__(self) -> None:
        """Mask secrets in what the program itself said: all that is written or shown of a probe is made of this."""
        for name in ("reason", "traceback_text"):
            object.__setattr__(self, name, hidden(getattr(self, name)))
        for name in ("warnings", "graph_break_reasons"):
            object.__setattr__(self, name, tuple(map(hidden, getattr(self, name))))

    @property
    def micro_batch_size(self) -> int:
        """Samples of one replica in one pass."""
        return self.probe.micro_batch_size

    @property
    def is_after_search(self) -> bool:
        """Whether it is no evidence of the search: a start of a command that checks the answer."""
        return REAL_STEP in self.details

    @property
    def program_name(self) -> str | None:
        """The program that ran, in a word: without a compiler it is `eager`, whatever process it shares.

        None where it is unknown: a command of the user's own failed before it showed whether it compiles.
        """
        if self.ran_eagerly is None:
            return None
        return "eager" if self.ran_eagerly else self.probe.compilation.value

    @property
    def is_measured(self) -> bool:
        """Whether there are times to rank."""
        return self.outcome.has_times

    @property
    def is_estimated(self) -> bool:
        """Whether nothing ran: its times are a model's, and its memory a trace's."""
        return self.outcome is Outcome.ESTIMATED

    @property
    def is_emulated(self) -> bool:
        """Whether it ran on an emulated device: its memory is that of a real one, and its times mean nothing."""
        return bool(self.details.get("is_emulated"))

    @property
    def needed_memory_bytes(self) -> int | None:
        """Bytes that must fit the budget; None if unknown."""
        return needed_bytes(self.peak_memory_bytes, self.resident_memory_bytes)

    @property
    def pass_time_s(self) -> float:
        """Median seconds of a pass; NaN if nothing was timed."""
        return float(np.median(self.pass_times_s)) if self.pass_times_s else math.nan

    @property
    def update_time_s(self) -> float:
        """Median seconds of an update; NaN if nothing was timed."""
        return float(np.median(self.update_times_s)) if self.update_times_s else math.nan

    @property
    def samples_per_s(self) -> float:
        """Samples per second of the pass, the quantity that is ranked; NaN if nothing was timed."""
        return self.micro_batch_size / self.pass_time_s

    @property
    def estimates(self) -> dict[int, Estimate]:
        """Estimates of its own size and of those that were timed interleaved with it."""
        if self.interleaved_times_s:
            return estimate_interleaved(self.interleaved_times_s)
        return {self.micro_batch_size: estimate_alone(self.pass_times_s)}

    @property
    def num_rounds(self) -> int:
        """Rounds of interleaved timing; 0 where the size was timed alone."""
        return len(self.interleaved_times_s.get(self.micro_batch_size, ()))

    @property
    def over_other(self) -> tuple[float, int] | None:
        """Speed over the first other size of its rounds, the leader or a contender, and that size; None if alone."""
        own, levels = self.micro_batch_size, self.estimates
        other = next((size for size in levels if size != own), None)
        if other is None:
            return None
        return math.exp(levels[own].log_throughput(own) - levels[other].log_throughput(other)), other

    def scale_times(self, factor: float) -> Observation:
        """Return the same observation with all times of passes and updates multiplied by a factor."""

        def scaled(times_s: Sequence[float]) -> tuple[float, ...]:
            return tuple(factor * seconds for seconds in times_s)

        return dataclasses.replace(
            self,
            pass_times_s=scaled(self.pass_times_s),
            update_times_s=scaled(self.update_times_s),
            interleaved_times_s={size: scaled(times_s) for size, times_s in self.interleaved_times_s.items()},
        )

    def drop_times(self, pass_time_s: float) -> Observation:
        """Return the observation of an emulated device: its memory, and nothing that its clock and its losses say."""
        if not self.is_measured:
            return dataclasses.replace(self, warnings=())
        return dataclasses.replace(
            self,
            pass_times_s=(pass_time_s,) * len(self.pass_times_s),
            update_times_s=(),
            interleaved_times_s={},
            loss=None,
            background_cpu_share=None,
            scheduler_wait_fraction=None,
            warnings=(),
            details={**self.details, "is_emulated": True},
        )

    @property
    def times_s(self) -> dict[str, Any]:
        """All raw times by the names of their fields, JSON values only; none where nothing was timed."""
        if self.is_emulated or self.is_estimated:
            return {"pass_times_s": [], "update_times_s": [], "interleaved_times_s": {}}
        rounds = {str(size): list(times_s) for size, times_s in self.interleaved_times_s.items()}
        passes, updates = list(self.pass_times_s), list(self.update_times_s)
        return {"pass_times_s": passes, "update_times_s": updates, "interleaved_times_s": rounds}


def compare_sizes(observations: Sequence[Observation], best: int | None) -> tuple[int | None, dict[int, PairedRatio]]:
    """Compare each interleaved size with a reference: the best, else the size of most interleaved probes.

    Return the reference, and by size, ascending, its samples/s over those of the reference; a pair is a round.
    """
    rounds = [item.interleaved_times_s for item in observations if item.interleaved_times_s]
    counts = Counter(size for times in rounds for size in times)
    if not counts:
        return None, {}
    most = max(counts, key=lambda size: (counts[size], size))
    reference = best if best is not None and best in counts else most
    compared = {}
    for size in sorted(set(counts) - {reference}):
        shared = [times for times in rounds if size in times and reference in times]
        own_s, others_s = (
            [seconds / one for times in shared for seconds in times[one]] for one in (size, reference)
        )  # seconds of a sample
        if own_s:
            compared[size] = paired_ratio(others_s, own_s)
    return reference, compared


def needed_bytes(peak_bytes: int | None, resident_bytes: int | None) -> int | None:
    """Return the larger of two accounts of one peak; None without either."""
    return max((account for account in (peak_bytes, resident_bytes) if account is not None), default=None)


Runner = Callable[[Probe], Observation]
