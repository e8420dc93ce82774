"""From a worker's answer to an observation, from the answers of all ranks to one, and from eager times to a verdict."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from bexplore.engine.protocol.failures import LOST_CONNECTION, classify_exit, read_ends_by_srun, read_ends_by_torchrun
from bexplore.engine.protocol.messages import Done, Failed, Hello, lost
from bexplore.host.records import read_fields
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.measurement.statistics import PairedRatio, paired_ratio
from bexplore.units import format_bytes

# Values of which the largest of all ranks counts.
_LARGEST = ("peak_memory_bytes", "resident_memory_bytes", "num_alloc_retries", "compile_time_s", "num_recompiles")
# Of the description of a device, those of which the smallest of all ranks counts.
_SMALLEST = ("total_memory_bytes", "free_memory_bytes")
_OF_RANK = ("peak_memory_bytes", "resident_memory_bytes")


def make_observation(answer: Done | Failed, *, spawn_s: float, warnings: Sequence[str], **common: Any) -> Observation:
    """Return the observation of an answer."""
    start_time_s = answer.start_time_s + spawn_s
    if isinstance(answer, Failed):
        common |= {"outcome": answer.outcome, "reason": answer.reason, "traceback_text": answer.traceback_text}
        common |= {"details": answer.details}
        if not answer.has_ended:
            common |= {"start_time_s": start_time_s, "warnings": tuple(warnings)}
        return Observation(**common)
    values = read_fields(Observation, answer.values)
    values["warnings"] = (*values.get("warnings", ()), *warnings)
    # Resident memory is no reason to refuse: reserved memory has its limit in the allocator, and a process on a CPU is
    # allowed a little more than its tensors (`engine.worker.own_process`).
    outcome, reason = Outcome.MEASURED, ""
    peak, budget = values.get("peak_memory_bytes"), common["memory_budget_bytes"]
    if peak and budget is not None and peak > budget:
        outcome = Outcome.OUT_OF_MEMORY
        reason = f"its peak is {format_bytes(peak - budget)} over the budget of {format_bytes(budget)}"
    return Observation(outcome=outcome, reason=reason, start_time_s=start_time_s, **common, **values)


def answers_both(one: Probe, other: Probe) -> bool:
    """Return whether the answer to one probe answers the other."""
    return (one.micro_batch_size, one.compilation) == (other.micro_batch_size, other.compilation)


def charge_for(observation: Observation, ahead: Observation) -> Observation:
    """Add what was done ahead of an observation to it."""
    start_time_s = observation.start_time_s
    if observation.worker == ahead.worker:
        start_time_s += ahead.start_time_s
    return dataclasses.replace(
        observation,
        start_time_s=start_time_s,
        elapsed_s=observation.elapsed_s + ahead.elapsed_s,
        started_at_s=ahead.started_at_s,
    )


def find_blamed_rank(failures: Mapping[int, Failed], log: str = "") -> int:
    """Return the rank whose failure is the cause of the others'.

    A rank that died explains more than one that answers: a rank out of memory may still say so, but one that was killed
    cannot, and its neighbours report the connection that they lose. So: ended by a signal or by the kernel, out of
    memory, any other exception, and last the words of a lost connection. Of equals the one that the launcher names,
    else the first.
    """
    roots = [end.ranks[0] for end in read_ends_by_torchrun(log) if end.is_root_cause]
    return min(failures, key=lambda rank: (_precedence(failures[rank]), rank not in roots))


def _precedence(failure: Failed) -> int:
    if LOST_CONNECTION.search(failure.reason):
        return 4
    if failure.has_ended and failure.outcome is Outcome.TIMED_OUT:
        return 3
    if failure.has_ended:
        return 0
    return 1 if failure.outcome is Outcome.OUT_OF_MEMORY else 2


def with_end_of_rank(failure: Failed, rank: int, log: str) -> Failed:
    """Return a failure of a rank that ended, with what its launcher wrote of its end."""
    if not failure.has_ended or failure.outcome is not Outcome.CRASHED:
        return failure
    ends = [*read_ends_by_torchrun(log), *read_ends_by_srun(log)]
    end = next((one for one in ends if rank in one.ranks), None)
    if end is None:
        return dataclasses.replace(failure, traceback_text=log)
    if end.return_code is None:
        return lost(Outcome.OUT_OF_MEMORY, "the scheduler ended it for its memory", log)
    told = classify_exit(end.return_code, killed_by_kernel=False, last_output=log, what="it")
    return lost(told.outcome, told.reason, log, ended_by=told.ended_by)


def name_rank_of(failure: Failed, hello: Hello, *, num_ranks: int) -> Failed:
    """Return a failure with its rank; the group of ranks that it has ended serves no other request."""
    where = f"rank {hello.rank} of {num_ranks} on {hello.host}"
    details = failure.details | {"failed_rank": hello.rank, "failed_host": hello.host}
    return dataclasses.replace(
        failure, reason=f"{where}: {failure.reason}", details=details, has_ended=True, is_reusable=False
    )


def merge_answers(answers: Mapping[int, Done], hellos: Mapping[int, Hello], *, launcher: str) -> Done:
    """Return one answer of all ranks.

    Times are those on which the ranks have agreed, so the first rank's are everybody's; of memory and of the compiler
    the worst rank counts.
    """
    first = answers[0]
    values = dict(first.values)
    for name, choose in [*((one, max) for one in _LARGEST), *((one, min) for one in _SMALLEST)]:
        known = [answer.values[name] for answer in answers.values() if answer.values.get(name) is not None]
        if known:
            values[name] = choose(known)
    if "details" in values:  # of a probe
        values["warnings"] = _warnings(answers)
        values["details"] = values["details"] | {"parallel": _parallel(answers, hellos, launcher)}
    headroom = [answer.has_headroom for answer in answers.values()]
    return dataclasses.replace(
        first,
        values=values,
        start_time_s=max(answer.start_time_s for answer in answers.values()),
        has_headroom=None if None in headroom else all(headroom),
    )


def _parallel(answers: Mapping[int, Done], hellos: Mapping[int, Hello], launcher: str) -> dict[str, Any]:
    """Return what the first rank reports of its passes, and what each rank reports of itself."""
    own: dict[int, dict[str, Any]] = {
        rank: answer.values["details"].get("parallel", {}) for rank, answer in answers.items()
    }
    ranks = [
        {
            "rank": rank,
            "host": hellos[rank].host,
            "products_per_s": own[rank].get("products_per_s"),
            "inner_pass_s": own[rank].get("own_inner_pass_s"),
            **{name: answer.values.get(name) for name in _OF_RANK},
        }
        for rank, answer in sorted(answers.items())
    ]
    return own[0] | {"num_ranks": len(answers), "launcher": launcher, "ranks": ranks}


def _warnings(answers: Mapping[int, Done]) -> Sequence[str]:
    """Return the warnings of the first rank, and what others alone warn of, with their rank."""
    first = list(answers[0].values.get("warnings", ()))
    known = {_without_numbers(text) for text in first}
    for rank, answer in sorted(answers.items()):
        for text in answer.values.get("warnings", ()):
            if _without_numbers(text) not in known:
                first.append(f"rank {rank}: {text}")
    fewest = min(answer.values.get("num_recompiles") or 0 for answer in answers.values())
    alone = [rank for rank, answer in answers.items() if (answer.values.get("num_recompiles") or 0) > fewest]
    if alone:
        which = ", ".join(map(str, sorted(alone)))
        first.append(f"rank {which} compiled again where others did not: all ranks waited for it")
    return first


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", text)


# Fewest pairs of timings. Timings scatter by 5 % (`EXPECTED_ROUND_SD` in `search.posterior.noise_model`): the interval
# of five pairs then reaches 9 % to each side. More follow until it is narrow.
MIN_PAIRS = 5


class EagerVerdict(StrEnum):
    """What the interval says of eager passes beside compiled ones."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerComparison:
    """Eager against compiled at one size."""

    verdict: EagerVerdict | None = None  # None where eager did not run, like the next three and `samples_per_s`
    over_compiled: float | None = None  # samples/s of eager passes over those of compiled ones
    low: float | None = None  # end of its 95 % interval
    high: float | None = None  # the other end
    num_pairs: int = 0  # pairs of timings, one compiled and one eager
    compiled_timed_s: float = 0.0  # seconds of all compiled passes that were timed
    eager_timed_s: float = 0.0  # seconds of all eager ones
    samples_per_s: float | None = None  # of eager passes
    peak_memory_bytes: int | None = None  # of an eager step; None where it was not read
    problem: str = ""  # why eager did not run; empty where it did


def are_enough(compiled_s: Sequence[float], eager_s: Sequence[float], *, tolerance: float, is_spent: bool) -> bool:
    """Return whether more pairs would change nothing, or cost more than they may; the fewest are always run."""
    if len(compiled_s) < MIN_PAIRS:
        return False
    return is_spent or paired_ratio(compiled_s, eager_s).is_narrow(tolerance)


def judge(answer: Mapping[str, Any], *, micro_batch_size: int, tolerance: float) -> EagerComparison:
    """Judge a worker's times."""
    if answer.get("problem"):
        return EagerComparison(problem=str(answer["problem"]))
    compiled, eager = np.array(answer["compiled_timings"]), np.array(answer["eager_timings"])  # (num_pairs, 2) each
    eager_s = eager[:, 1] / eager[:, 0]
    ratio = paired_ratio(compiled[:, 1] / compiled[:, 0], eager_s)
    return EagerComparison(
        verdict=_verdict(ratio, tolerance),
        over_compiled=ratio.value,
        low=ratio.low,
        high=ratio.high,
        num_pairs=ratio.num_pairs,
        compiled_timed_s=float(compiled[:, 1].sum()),
        eager_timed_s=float(eager[:, 1].sum()),
        samples_per_s=micro_batch_size / math.exp(float(np.mean(np.log(eager_s)))),
        peak_memory_bytes=answer["eager_peak_memory_bytes"],
    )


def _verdict(ratio: PairedRatio, tolerance: float) -> EagerVerdict:
    """Return the verdict; faster means by more than the tolerance: it takes that to train without the compiler."""
    if ratio.is_within(tolerance):
        return EagerVerdict.SAME
    if ratio.low > 1.0 + tolerance:
        return EagerVerdict.FASTER
    return EagerVerdict.SLOWER if ratio.high < 1.0 else EagerVerdict.UNSURE
