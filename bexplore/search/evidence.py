"""What the belief needs of a probe: an observation in short, small enough to live in an Optuna trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.measurement.probe import Compilation, Observation, Outcome, Purpose, needed_bytes

CONTENTION_IGNORED = 0.02  # share of the processors
WAITING_IGNORED = 0.05  # share of a pass; a quiet machine has up to 2 %
CONTENTION_INTERLEAVED = 0.25  # of what neighbours add, where sizes took turns: the rest of it met all of them
MOST_SCHEDULER_WAIT = 0.99  # share of a pass; beyond it nothing was measured
ROUNDING = 1e-6  # of a number of turns that is a whole one


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """What a probe of one size tells of another that took turns with it.

    Attributes:
        micro_batch_size: Samples of one pass.
        log_throughput: ln(samples/s), comparable with that of the probe's own size and of the others in these turns.
        log_throughput_se: Its standard error beside what all of them share; NaN where unknown.
    """

    micro_batch_size: int
    log_throughput: float
    log_throughput_se: float

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Interleaved:
        """Rebuild it from `dataclasses.asdict`, in which NaN may be None."""
        se = record["log_throughput_se"]
        return cls(
            micro_batch_size=record["micro_batch_size"],
            log_throughput=record["log_throughput"],
            log_throughput_se=math.nan if se is None else se,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the belief needs of one probe; an observation in short.

    Attributes:
        micro_batch_size: Samples of one pass.
        outcome: How it ended; None while it is in flight.
        reason: Why, for people.
        log_throughput: ln(samples/s) of the median pass; NaN where nothing was timed.
        log_throughput_se: Its standard error within the probe, beside what other sizes share that took turns with it;
            NaN where unknown.
        interleaved: What it tells of these others.
        contention_sd: Standard deviation that busy neighbours add to `log_throughput`; the passes of one probe do not
            show it.
        num_passes: Timed passes that count; rounds, where sizes took turns, without what somebody else disturbed.
        purpose: Why it was made.
        compilation: Which program was run.
        worker: Ordinal of the worker process; None where unknown.
        peak_memory_bytes: Peak of the live tensors; None where unknown.
        resident_memory_bytes: What was held for them at its peak; None where the tensors are all that is known.
        num_alloc_retries: As in `Observation`.
        memory_budget_bytes: Budget in force; None where unknown.
        start_time_s: Seconds to start a worker, where one was started.
        compile_time_s: Seconds to compile, where something was compiled.
        update_time_s: Median seconds of an update; 0 where none was timed.
        elapsed_s: Seconds of the whole probe.
        needs_full_depth: Whether it showed that the model does not run at reduced depth.
    """

    micro_batch_size: int
    outcome: Outcome | None
    reason: str = ""
    log_throughput: float = math.nan
    log_throughput_se: float = math.nan
    interleaved: tuple[Interleaved, ...] = ()
    contention_sd: float = 0.0
    num_passes: int = 0
    purpose: Purpose = Purpose.SEARCH
    compilation: Compilation = Compilation.SHARED
    worker: int | None = None
    peak_memory_bytes: int | None = None
    resident_memory_bytes: int | None = None
    num_alloc_retries: int = 0
    memory_budget_bytes: int | None = None
    start_time_s: float = 0.0
    compile_time_s: float = 0.0
    update_time_s: float = 0.0
    elapsed_s: float = 0.0
    needs_full_depth: bool = False

    @property
    def timed_sizes(self) -> tuple[int, ...]:
        """Its own size, and those that took turns with it."""
        return (self.micro_batch_size, *(other.micro_batch_size for other in self.interleaved))

    @property
    def log_pass_sd(self) -> float:
        """Noise between two passes, ln; NaN where unknown."""
        return self.log_throughput_se * math.sqrt(self.num_passes)

    @property
    def is_measured(self) -> bool:
        """Whether there is a throughput."""
        return self.outcome is Outcome.MEASURED

    @property
    def needed_memory_bytes(self) -> int | None:
        """What must fit the budget; None where unknown."""
        return needed_bytes(self.peak_memory_bytes, self.resident_memory_bytes)

    @classmethod
    def of(cls, observation: Observation) -> Evidence:
        """The evidence in an observation."""
        update_s = observation.update_time_s
        contention_sd = _contention_sd(observation.background_cpu_share, observation.scheduler_wait_fraction)
        levels = observation.levels  # of a size whose peak turned out to be over the budget too: no throughput then
        num_turns = min(level.num_turns for level in levels.values())
        own = levels.pop(observation.micro_batch_size)
        return cls(
            micro_batch_size=observation.micro_batch_size,
            outcome=observation.outcome,
            reason=observation.reason,
            log_throughput=own.log_throughput(observation.micro_batch_size) if observation.is_measured else math.nan,
            log_throughput_se=own.log_se,
            interleaved=tuple(
                Interleaved(
                    micro_batch_size=size, log_throughput=level.log_throughput(size), log_throughput_se=level.log_se
                )
                for size, level in levels.items()
                if observation.is_measured
            ),
            contention_sd=contention_sd * (CONTENTION_INTERLEAVED if levels else 1.0),
            num_passes=max(math.floor(num_turns + ROUNDING), 1) if num_turns else 0,
            purpose=observation.probe.purpose,
            compilation=observation.probe.compilation,
            worker=observation.worker,
            peak_memory_bytes=observation.peak_memory_bytes,
            resident_memory_bytes=observation.resident_memory_bytes,
            num_alloc_retries=observation.num_alloc_retries,
            memory_budget_bytes=observation.memory_budget_bytes,
            start_time_s=observation.start_time_s,
            compile_time_s=observation.compile_time_s,
            update_time_s=0.0 if math.isnan(update_s) else update_s,
            elapsed_s=observation.elapsed_s,
            needs_full_depth=observation.needs_full_depth,
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; NaN becomes None."""
        record = _without_nan(dataclasses.asdict(self))
        return record | {"interleaved": [_without_nan(item) for item in record["interleaved"]]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """Rebuild evidence from `as_dict`; unknown keys are ignored."""
        fields = {field.name for field in dataclasses.fields(cls)}
        kept = {key: value for key, value in record.items() if key in fields}
        for name in ("log_throughput", "log_throughput_se"):
            kept[name] = math.nan if kept.get(name) is None else kept[name]
        kept["interleaved"] = tuple(Interleaved.from_dict(item) for item in kept.get("interleaved", ()))
        kept["outcome"] = None if kept.get("outcome") is None else Outcome(kept["outcome"])
        kept["purpose"] = Purpose(kept.get("purpose", Purpose.SEARCH))
        kept["compilation"] = Compilation(kept.get("compilation", Compilation.SHARED))
        return cls(**kept)


def _without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in record.items()}


def _contention_sd(background_cpu_share: float | None, scheduler_wait_fraction: float | None) -> float:
    """Standard deviation, ln, that neighbours add to a throughput.

    Args:
        background_cpu_share: Share of the processors that others used; it stands for the spread of what they cost, a
            factor between 1 and 1 / (1 - share).
        scheduler_wait_fraction: Share of a pass for which a thread waited for a processor: without the neighbours the
            pass might have taken 1 - share of its time. Threads that wait for each other make this far more than the
            first.

    What a quiet machine has of either is left out.
    """
    sds = [share for share in (background_cpu_share,) if share is not None and share > CONTENTION_IGNORED]
    if scheduler_wait_fraction is not None and scheduler_wait_fraction > WAITING_IGNORED:
        sds.append(-math.log1p(-min(scheduler_wait_fraction, MOST_SCHEDULER_WAIT)))
    return max(sds, default=0.0)
