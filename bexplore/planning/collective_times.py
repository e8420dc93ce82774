"""What rounds of a collective and of a link mean: medians, bandwidths, spread, and what holds the others up."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bexplore.planning.network_figures import Collective, Link, TimedCollective

# A link, or the links of a rank, that has less than this share of the median speed of its kind is named. A judgement:
# such a link makes a collective of all ranks longer by two fifths, and noise of links that are alike is far from it.
SLOW_SHARE = 0.7


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


def slow_parts(links: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence for each rank or link that is much slower than others of its kind: within a host, or between."""
    for is_within in (True, False):
        alike = [link for link in links if (link.hosts[0] == link.hosts[1]) is is_within]
        if len(alike) < 2:
            continue
        usual = statistics.median_high([link.bytes_per_s for link in alike])
        slow = [link for link in alike if link.bytes_per_s < SLOW_SHARE * usual]
        yield from _named(slow, usual)


def _named(slow: Sequence[Link], usual: float) -> Iterator[str]:
    """Name a rank whose links are both slow, and the links that remain."""
    receives = {link.ranks[1]: link for link in slow}
    both = [link.ranks[0] for link in slow if link.ranks[0] in receives]
    for rank in both:
        host = receives[rank].hosts[1]
        yield (
            f"rank {rank} on {host} receives at {speed_text(receives[rank].bytes_per_s)} and sends slowly as well; the "
            f"median of such links is {speed_text(usual)}"
        )
    for link in slow:
        if not set(link.ranks) & set(both):
            ends = " to ".join(f"rank {rank} on {host}" for rank, host in zip(link.ranks, link.hosts, strict=True))
            yield f"{ends}: {speed_text(link.bytes_per_s)}, and the median of such links is {speed_text(usual)}"


def speed_text(bytes_per_s: float) -> str:
    """Show a bandwidth."""
    return f"{bytes_per_s / 1e9:.3g} GB/s"
