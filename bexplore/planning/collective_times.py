"""What rounds of a collective and of a link mean: medians, bandwidths, spread, and what holds the others up.

And what is timed: sizes that fit, and links that share no rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from bexplore.planning.network_figures import Collective, Link, TimedCollective

# A link, or the links of a rank, that has less than this share of the median speed of its kind is named. A judgement:
# such a link makes a collective of all ranks longer by two fifths. The gap must exceed the spread of rounds as well.
SLOW_SHARE = 0.7
# Share of the memory that is free which tensors may take: twice the bytes of a collective, and some for its library.
MEMORY_SHARE = 0.4
# Which collective a backend runs in place of another. Source: torch 2.13, c10d's ProcessGroupGloo, whose profile shows
# `gloo:all_reduce` for a reduce-scatter; the kernel's count of bytes in tests/jobs/network_reckoning.py agrees.
RUNS_INSTEAD: Mapping[tuple[str, Collective], Collective] = {("gloo", Collective.REDUCE_SCATTER): Collective.ALL_REDUCE}


def sent_share(backend: str, collective: Collective, num_ranks: int) -> float:
    """Return the bytes that each rank really sends over the bytes of the tensor, by what the backend runs."""
    return RUNS_INSTEAD.get((backend, collective), collective).sent_share(num_ranks)


def notes_on_bytes(backend: str, num_ranks: int) -> Iterator[str]:
    """Yield a sentence for each collective of which a backend sends other bytes than its bus bandwidth counts."""
    for (name, collective), runs in RUNS_INSTEAD.items():
        if name == backend:
            yield (
                f"{backend} runs {runs} for {collective}: each rank sends {runs.sent_share(num_ranks):.3g} times the "
                f"tensor, and the bus bandwidth counts {collective.sent_share(num_ranks):.3g}, as nccl-tests define "
                "it, over the seconds that were measured"
            )


def sizes_between(smallest_bytes: int, largest_bytes: int) -> Iterator[int]:
    """Yield the smallest size and each double of it, up to the largest."""
    num_bytes = smallest_bytes
    while num_bytes <= largest_bytes:
        yield num_bytes
        num_bytes *= 2


def most_bytes(free_bytes: float, ranks_on_memory: int) -> float:
    """Return the largest tensor of a collective that one of some ranks can hold, which share a memory."""
    return MEMORY_SHARE * free_bytes / ranks_on_memory


def apart(num_ranks: int) -> Iterator[set[int]]:
    """Yield groups of senders of a ring, none of which shares a rank with another, as sender or receiver."""
    last = {num_ranks - 1} if num_ranks % 2 else set()  # in an odd ring its receiver is the first sender
    groups = (set(range(0, num_ranks, 2)) - last, set(range(1, num_ranks, 2)) - last, last)
    yield from (group for group in groups if group)


def timed_collective(
    collective: Collective, num_bytes: int, times_s: Sequence[float], num_ranks: int
) -> TimedCollective:
    """Return the figures of the rounds of a collective.

    Args:
        num_bytes: Of the whole tensor.
        times_s: Seconds of each round.
    """
    median_s = statistics.median(times_s)
    low, _, high = statistics.quantiles(times_s, n=4)
    return TimedCollective(
        collective=collective,
        num_bytes=num_bytes,
        times_s=tuple(times_s),
        median_s=median_s,
        algorithm_bytes_per_s=num_bytes / median_s,
        bus_bytes_per_s=collective.sent_share(num_ranks) * num_bytes / median_s,
        spread=(high - low) / 2 / median_s,
    )


def link_of(ranks: tuple[int, int], hosts: tuple[str, str], rounds_bytes_per_s: Sequence[float]) -> Link:
    """Return the figures of the rounds of a link."""
    speed = statistics.median(rounds_bytes_per_s)
    return Link(ranks=ranks, hosts=hosts, bytes_per_s=speed, rounds_bytes_per_s=tuple(rounds_bytes_per_s))


def slow_parts(links: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence for each rank or link that is much slower than others of its kind: within a host, or between.

    A link is slow where its median is far below that of its kind, and by more than rounds differ: its own, or those of
    most links.
    """
    for is_within in (True, False):
        alike = [link for link in links if (link.hosts[0] == link.hosts[1]) is is_within]
        if len(alike) < 2:
            continue
        usual = statistics.median_high([link.bytes_per_s for link in alike])
        usual_spread = statistics.median_high([spread_of(link) for link in alike])
        slow = [
            link
            for link in alike
            if link.bytes_per_s < SLOW_SHARE * usual and usual - link.bytes_per_s > max(spread_of(link), usual_spread)
        ]
        yield from _named(slow, usual)


def spread_of(link: Link) -> float:
    """Return the distance of the quartiles of a link's rounds, bytes/s; 0 where none is known."""
    if len(link.rounds_bytes_per_s) < 2:
        return 0.0
    low, _, high = statistics.quantiles(link.rounds_bytes_per_s, n=4)
    return high - low


def _named(slow: Sequence[Link], usual: float) -> Iterator[str]:
    """Name a rank whose links are both slow, and the links that remain."""
    receives = {link.ranks[1]: link for link in slow}
    both = [link.ranks[0] for link in slow if link.ranks[0] in receives]
    for rank in both:
        host = receives[rank].hosts[1]
        yield (
            f"rank {rank} on {host} receives at {_link_speed(receives[rank])} and sends slowly as well; the median of "
            f"such links is {speed_text(usual)}"
        )
    for link in slow:
        if not set(link.ranks) & set(both):
            ends = " to ".join(f"rank {rank} on {host}" for rank, host in zip(link.ranks, link.hosts, strict=True))
            yield f"{ends}: {_link_speed(link)}, and the median of such links is {speed_text(usual)}"


def _link_speed(link: Link) -> str:
    """Show the median of a link's rounds, and by how much they differ."""
    return f"{speed_text(link.bytes_per_s)} (±{spread_of(link) / 2 / link.bytes_per_s:.0%})"


def speed_text(bytes_per_s: float) -> str:
    """Show a bandwidth."""
    return f"{bytes_per_s / 1e9:.3g} GB/s"
