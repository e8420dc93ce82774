"""The ranks of a job: their hosts, the slowest of them, the cost of communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bexplore.engine.process.launcher import EXTERNAL
from bexplore.job import Parallelism
from bexplore.measurement.probe import Compilation, Observation
from bexplore.run.facts import estimated_communication, parallel_details, pass_times_by_kind, ranks_of
from bexplore.run.parts.row import Row, View
from bexplore.units import counted, format_bytes, format_seconds, format_share

MAX_HOSTS = 4  # names; a cluster has too many for a line


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPart:
    """The ranks of a job at the recommended size. None means unknown or not applicable, never 0."""

    description: str  # how ranks share the work, in words
    num_ranks: int  # ranks of the training, one a device
    num_replicas: int  # ranks with a micro-batch of their own
    launcher: str | None = None  # what started the ranks; None where one rank of N ran alone
    hosts: tuple[str, ...] = ()  # where they ran, each host once; empty where one rank ran alone
    # Whether the times hold the communication of all ranks: these ran, or it was estimated.
    holds_communication: bool = False
    accumulation_steps: int | None = None  # passes of a step of the user's batch size, by which passes were ranked
    # Median seconds of a pass that reduces no gradients; None where there is none in a step.
    inner_pass_s: float | None = None
    last_pass_s: float | None = None  # median seconds of a pass that reduces gradients; None where passes do not differ
    # Median seconds of a pass as it was ranked: the mean over the passes of a step.
    effective_pass_s: float | None = None
    update_s: float | None = None  # median seconds of an update; None in evaluation
    slowest_rank: int | None = None  # the rank that computes slowest by itself
    slowest_rank_lag: float | None = None  # share by which its speed lies below the median of the ranks
    worst_peak_rank: int | None = None  # the rank whose tensors need most memory
    worst_peak_memory_bytes: int | None = None  # peak of its tensors
    # As `effective_pass_s`, of one rank that runs alone, which communicates with none; where it ran the search's
    # program alone, at the ratio that it had there.
    one_rank_pass_s: float | None = None
    # `effective_pass_s` less `one_rank_pass_s`; noise may make it negative.
    exposed_communication_s: float | None = None
    parallel_efficiency: float | None = None  # `one_rank_pass_s` over `effective_pass_s`

    def rows(self, view: View) -> Iterator[Row]:
        """Yield where the ranks ran, which one holds the others up, and what communication costs."""
        texts = [_where_ranks_ran(self), *_worst_ranks(self), *_passes_of_step(self), *_communication_words(self)]
        yield Row("ranks", "; ".join(texts))


def find_ranks(
    parallelism: Parallelism, ran: Observation | None, observations: Sequence[Observation]
) -> RanksPart | None:
    """Return what the observations tell of the ranks; None for a job of one device.

    Args:
        ran: The observation that verifies the recommended size; None where another explorer of the study measured it.
        observations: Every probe.
    """
    if not parallelism.is_distributed:
        return None
    common: dict[str, Any] = {
        "description": str(parallelism),
        "num_ranks": parallelism.num_ranks,
        "num_replicas": parallelism.num_replicas,
    }
    if ran is None:
        return RanksPart(**common)
    ranks = ranks_of(ran)
    inner_s, last_s = pass_times_by_kind(ran)
    return RanksPart(
        **common,
        launcher=parallel_details(ran).get("launcher") if ranks else None,
        hosts=tuple(dict.fromkeys(str(rank["host"]) for rank in ranks)),
        holds_communication=bool(ranks) or estimated_communication(ran) is not None,
        accumulation_steps=parallel_details(ran).get("accumulation_steps"),
        inner_pass_s=inner_s,
        last_pass_s=last_s,
        effective_pass_s=ran.pass_time_s,
        update_s=ran.update_time_s if ran.update_times_s else None,
        **_slowest(ranks),
        **_worst_peak(ranks),
        **_communication(ran, observations),
    )


def one_rank_caution(parallelism: Parallelism) -> str:
    """Return what the times of one rank of N lack, and what that means for larger sizes."""
    lacks = f"one rank of {parallelism.num_ranks}: the times hold no communication"
    if parallelism.tensor_parallel_degree > 1:
        return f"{lacks}, and what ranks of tensor parallelism exchange grows with the size"
    exchanged = "gathered" if parallelism.is_sharded else "reduced"
    shared = "sharded parameters" if parallelism.is_sharded else "replicas"
    return (
        f"{lacks}; with {shared} larger sizes can only gain from it, since what is {exchanged} does not grow with the "
        "size"
    )


def _slowest(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rank with the fewest products of matrices in a second, and its lag."""
    speeds = {rank["rank"]: rank["products_per_s"] for rank in ranks if rank.get("products_per_s")}
    if not speeds:
        return {}
    slowest = min(speeds, key=lambda rank: (speeds[rank], rank))
    lag = 1.0 - speeds[slowest] / float(np.median(list(speeds.values())))
    return {"slowest_rank": slowest, "slowest_rank_lag": lag}


def _worst_peak(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    peaks = {rank["rank"]: rank["peak_memory_bytes"] for rank in ranks if rank.get("peak_memory_bytes")}
    if not peaks:
        return {}
    worst = max(peaks, key=lambda rank: (peaks[rank], -rank))
    return {"worst_peak_rank": worst, "worst_peak_memory_bytes": peaks[worst]}


def _communication(ran: Observation, observations: Sequence[Observation]) -> dict[str, Any]:
    """Return what communication adds to a pass: by an estimate, or by one rank of N that ran the same size alone."""
    told = estimated_communication(ran)
    if not ranks_of(ran) and told is None:
        return {"one_rank_pass_s": ran.pass_time_s}
    if told is not None:
        efficiency: float | None = 1.0 - told["exposed_s"] / ran.details["estimate"]["pass_s"]
    else:
        efficiency = _efficiency(ran.micro_batch_size, observations)
    if efficiency is None:
        return {}
    one_rank_s = efficiency * ran.pass_time_s
    return {
        "one_rank_pass_s": one_rank_s,
        "exposed_communication_s": ran.pass_time_s - one_rank_s,
        "parallel_efficiency": efficiency,
    }


def _efficiency(micro_batch_size: int, observations: Sequence[Observation]) -> float | None:
    """Return the seconds of a pass of one rank alone over those of all ranks, in the same program; None if unknown.

    Another program may be faster or slower by more than communication takes. One rank runs alone in the program of the
    search, so that the ratio of the search is taken for that of the training's own program.
    """
    own = [one for one in observations if one.is_measured and one.micro_batch_size == micro_batch_size]
    for compilation in (Compilation.SHARED, Compilation.EAGER, Compilation.EXACT):
        alike = [one for one in own if one.probe.compilation is compilation]
        together = [one.pass_time_s for one in alike if ranks_of(one)]
        alone = [one.pass_time_s for one in alike if not ranks_of(one)]
        if compilation is not Compilation.EXACT:
            alone += [
                parallel_details(one)["one_rank_pass_s"]
                for one in alike
                if parallel_details(one).get("one_rank_pass_s")
            ]
        if alone and together:
            return float(np.median(alone) / np.median(together))
    return None


def _where_ranks_ran(ranks: RanksPart) -> str:
    if not ranks.holds_communication:
        return f"one of {counted(ranks.num_ranks, 'rank')} ran, alone ({ranks.description})"
    if not ranks.hosts:
        return f"{ranks.num_ranks}, none of which ran ({ranks.description})"
    shown = ", ".join(ranks.hosts[:MAX_HOSTS])
    more = f" and {len(ranks.hosts) - MAX_HOSTS} more" if len(ranks.hosts) > MAX_HOSTS else ""
    starter = "you" if ranks.launcher == EXTERNAL else ranks.launcher
    return f"{ranks.num_ranks} ran on {shown}{more}, started by {starter} ({ranks.description})"


def _worst_ranks(ranks: RanksPart) -> Iterator[str]:
    if ranks.slowest_rank is not None and ranks.slowest_rank_lag is not None:
        yield (
            f"rank {ranks.slowest_rank} computes slowest: at {format_share(1.0 - ranks.slowest_rank_lag)} of the "
            "median rank's speed"
        )
    if ranks.worst_peak_rank is not None:
        yield f"rank {ranks.worst_peak_rank} needs most memory, {format_bytes(ranks.worst_peak_memory_bytes)}"


def _passes_of_step(ranks: RanksPart) -> Iterator[str]:
    """Tell of the passes of a step where they differ: those of one alone, else the last and the others."""
    if ranks.last_pass_s is None:
        return
    last = format_seconds(ranks.last_pass_s)
    if ranks.inner_pass_s is None:
        yield f"the one pass of a step reduces gradients, {last}"
        return
    steps = "" if ranks.accumulation_steps is None else f" of {ranks.accumulation_steps} passes"
    inner = format_seconds(ranks.inner_pass_s)
    yield f"a pass takes {inner}, and the last of a step{steps}, which reduces gradients, {last}"


def _communication_words(ranks: RanksPart) -> Iterator[str]:
    if ranks.exposed_communication_s is None or ranks.parallel_efficiency is None:
        return
    if ranks.exposed_communication_s <= 0.0:
        inner_s, last_s = ranks.inner_pass_s, ranks.last_pass_s
        if inner_s is not None and last_s is not None and last_s > inner_s:
            yield f"communication adds {format_seconds(last_s - inner_s)} to it"  # to the last pass, told before
        else:
            yield "computation hides all communication"
        return
    exposed = format_seconds(ranks.exposed_communication_s)
    yield f"communication adds {exposed} to a pass: parallel efficiency {ranks.parallel_efficiency:.0%}"
