"""Speeds of a network, as `bexplore network` times them or a user states them.

Bandwidths as in NVIDIA's nccl-tests (doc/PERFORMANCE.md): the algorithm bandwidth is bytes over seconds, where the
bytes of an all-gather and of a reduce-scatter are those of the whole tensor; the bus bandwidth is that times the share
of the bytes that each rank sends in a ring, which does not depend on the number of ranks.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bexplore.errors import UserInputError
from bexplore.estimate.collectives import Collective
from bexplore.host.json_files import read_json
from bexplore.host.records import from_record
from bexplore.units import format_bytes

FILE_NAME = "network.json"
# Larger files are none of ours: three collectives of 14 sizes, and 200 bytes a link of ten thousand ranks, have 3 MB.
_MOST_FILE_BYTES = 16 * 2**20
_MAKE_AGAIN = "make it again: torchrun --nproc-per-node 8 -m bexplore network"

# A link, or the links of a rank, that has less than this share of the median speed of its kind is named. Chosen: such a
# link makes a collective of all ranks longer by two fifths. The gap must exceed the spread of rounds as well.
SLOW_SHARE = 0.7
# Share of the memory that is free which tensors may take: twice the bytes of a collective, and some for its library.
MEMORY_SHARE = 0.4


# Which collective a backend runs in place of another. Source: torch 2.13, c10d's ProcessGroupGloo, whose profile shows
# `gloo:all_reduce` for a reduce-scatter; the kernel's count of bytes in tests/jobs/network_reckoning.py agrees.
RUNS_INSTEAD: Mapping[tuple[str, Collective], Collective] = {("gloo", Collective.REDUCE_SCATTER): Collective.ALL_REDUCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """One collective of one size, as it was timed."""

    collective: Collective  # which
    num_bytes: int  # of the whole tensor
    times_s: tuple[float, ...]  # seconds of each round, of the slowest rank
    median_s: float  # their median
    algorithm_bytes_per_s: float  # bytes over the median
    bus_bytes_per_s: float  # the same times the share that each rank sends
    spread: float  # half of the difference of the quartiles, over the median

    @classmethod
    def from_rounds(
        cls, collective: Collective, num_bytes: int, times_s: Sequence[float], num_ranks: int
    ) -> TimedCollective:
        """Return the figures of rounds of some seconds each; `num_bytes` are those of the whole tensor."""
        median_s = statistics.median(times_s)
        low, _, high = statistics.quantiles(times_s, n=4)
        return cls(
            collective=collective,
            num_bytes=num_bytes,
            times_s=tuple(times_s),
            median_s=median_s,
            algorithm_bytes_per_s=num_bytes / median_s,
            bus_bytes_per_s=collective.sent_share(num_ranks) * num_bytes / median_s,
            spread=(high - low) / 2 / median_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Two ranks that are neighbours in the ring, and how fast they send to each other."""

    ranks: tuple[int, int]  # the sender and the receiver
    hosts: tuple[str, str]  # where they run
    bytes_per_s: float  # of one message after the other, one way; the median of the rounds
    rounds_bytes_per_s: tuple[float, ...] = ()  # of each round

    @classmethod
    def from_rounds(cls, ranks: tuple[int, int], hosts: tuple[str, str], rounds_bytes_per_s: Sequence[float]) -> Link:
        """Return the figures of the rounds of a link."""
        speed = statistics.median(rounds_bytes_per_s)
        return cls(ranks=ranks, hosts=hosts, bytes_per_s=speed, rounds_bytes_per_s=tuple(rounds_bytes_per_s))

    @property
    def spread_bytes_per_s(self) -> float:
        """Distance of the quartiles of the rounds; 0 where none are known."""
        if len(self.rounds_bytes_per_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rounds_bytes_per_s, n=4)
        return high - low

    def __str__(self) -> str:
        """Show the median of the rounds, and by how much they differ."""
        return f"{format_bandwidth(self.bytes_per_s)} (±{self.spread_bytes_per_s / 2 / self.bytes_per_s:.0%})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFigures:
    """The speeds of a network."""

    num_ranks: int  # ranks that exchanged; 0 where the bandwidth was stated
    num_hosts: int = 1  # hosts that they ran on
    backend: str = ""  # `gloo`, `nccl`; empty where the bandwidth was stated
    device_name: str = ""  # of the devices that exchanged
    timed: tuple[TimedCollective, ...] = ()  # what was timed
    links: tuple[Link, ...] = ()  # neighbours in the ring
    slow: tuple[str, ...] = ()  # ranks and links that hold the others up, a sentence each
    notes: tuple[str, ...] = ()  # where the library sends other bytes than the bus bandwidth counts, a sentence each
    stated_bytes_per_s: float | None = None  # bus bandwidth that the user states; None where it was timed
    made_at: str = ""  # when it was timed (ISO 8601, UTC)
    versions: Mapping[str, str] = field(default_factory=dict)  # of torch and of the library of collectives

    @classmethod
    def stated(cls, bytes_per_s: float) -> NetworkFigures:
        """Return a network of one bandwidth, the same for every message."""
        return cls(num_ranks=0, stated_bytes_per_s=bytes_per_s)

    @classmethod
    def read(cls, path: Path) -> NetworkFigures:
        """Read what `bexplore network` wrote."""
        try:
            if path.exists() and path.stat().st_size > _MOST_FILE_BYTES:
                raise ValueError(f"it is larger than {format_bytes(_MOST_FILE_BYTES)}")
            figures = from_record(cls, read_json(path))
            figures._check()
        except UserInputError as error:
            raise UserInputError(error.message, hint=_MAKE_AGAIN) from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserInputError(f"{path} is not what bexplore network writes: {error}", hint=_MAKE_AGAIN) from error
        return figures

    def _check(self) -> None:
        """Check the values that plans compute with; raise ValueError for one that no network has."""
        if self.stated_bytes_per_s is None:
            _require_above_0("num_ranks", self.num_ranks)
        else:
            _require_above_0("stated_bytes_per_s", self.stated_bytes_per_s)
        _require_above_0("num_hosts", self.num_hosts)
        for text in (self.backend, self.device_name, self.made_at, *self.slow, *self.notes):
            if not text.isprintable():
                raise ValueError(f"it has {text!r}")
        for one in self.timed:
            for name in ("num_bytes", "median_s", "algorithm_bytes_per_s", "bus_bytes_per_s"):
                _require_above_0(f"{name} of {one.collective}", getattr(one, name))
        sizes = [(one.collective, one.num_bytes) for one in self.timed]
        if len(set(sizes)) < len(sizes):
            raise ValueError("a collective was timed twice with the same size")
        for link in self.links:
            _require_above_0("bytes_per_s of a link", link.bytes_per_s)

    def seconds(self, collective: Collective, num_bytes: float, num_ranks: int, stride: int = 1) -> float:
        """Return the seconds of a collective among some ranks; where they are, which `stride` tells, changes nothing.

        The bus bandwidth of the nearest sizes that were timed is taken, in between by their logarithms; a smaller
        message than all takes as long as the smallest.
        """
        if num_ranks < 2 or num_bytes <= 0:
            return 0.0
        return collective.sent_share(num_ranks) * num_bytes / self._bus_bytes_per_s(collective, num_bytes)

    def _bus_bytes_per_s(self, collective: Collective, num_bytes: float) -> float:
        if self.stated_bytes_per_s is not None:
            return self.stated_bytes_per_s
        points = sorted((one.num_bytes, one.bus_bytes_per_s) for one in self.timed if one.collective is collective)
        if not points:
            raise UserInputError(f"the network was timed without {collective}", hint="run bexplore network again")
        smallest, speed = points[0]
        return speed * num_bytes / smallest if num_bytes < smallest else _interpolate(points, num_bytes)

    def __str__(self) -> str:
        if self.stated_bytes_per_s is not None:
            return f"{format_bandwidth(self.stated_bytes_per_s)} of bus bandwidth, as stated"
        return f"{self.backend} between {self.num_ranks} ranks, timed {self.made_at[:10]}"


def _interpolate(points: Sequence[tuple[int, float]], num_bytes: float) -> float:
    """Return the speed at a size by the nearest two, in logarithms; that of the largest beyond it."""
    for (low, low_speed), (high, high_speed) in itertools.pairwise(points):
        if num_bytes <= high:
            share = math.log(num_bytes / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(low_speed) + share * math.log(high_speed))
    return points[-1][1]


def _require_above_0(name: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}")


def format_bandwidth(bytes_per_s: float) -> str:
    """Show a bandwidth."""
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def explain_sent_bytes(backend: str, num_ranks: int) -> Iterator[str]:
    """Yield a sentence for each collective of which a backend sends other bytes than its bus bandwidth counts."""
    for (name, collective), runs in RUNS_INSTEAD.items():
        if name == backend:
            yield (
                f"{backend} runs {runs} for {collective}: each rank sends {runs.sent_share(num_ranks):.3g} times the "
                f"tensor, and the bus bandwidth counts {collective.sent_share(num_ranks):.3g}, as nccl-tests define "
                "it, over the seconds that were measured"
            )


def limit_tensor_bytes(free_bytes: float, ranks_on_memory: int) -> float:
    """Return the largest tensor of a collective that one of some ranks can hold, which share a memory."""
    return MEMORY_SHARE * free_bytes / ranks_on_memory


def group_senders(num_ranks: int) -> Iterator[set[int]]:
    """Yield groups of senders of a ring, none of which shares a rank with another, as sender or receiver."""
    last = {num_ranks - 1} if num_ranks % 2 else set()  # in an odd ring its receiver is the first sender
    groups = (set(range(0, num_ranks, 2)) - last, set(range(1, num_ranks, 2)) - last, last)
    yield from (group for group in groups if group)


def find_slow_parts(links: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence for each rank or link that is much slower than others of its kind: within a host, or between.

    A link is slow where its median is far below that of its kind, and by more than rounds differ: its own, or those of
    most links.
    """
    for is_within in (True, False):
        alike = [link for link in links if (link.hosts[0] == link.hosts[1]) is is_within]
        if len(alike) < 2:
            continue
        usual = statistics.median_high([link.bytes_per_s for link in alike])
        usual_spread = statistics.median_high([link.spread_bytes_per_s for link in alike])
        slow = [
            link
            for link in alike
            if link.bytes_per_s < SLOW_SHARE * usual
            and usual - link.bytes_per_s > max(link.spread_bytes_per_s, usual_spread)
        ]
        yield from _name_slow_links(slow, format_bandwidth(usual))


def _name_slow_links(slow: Sequence[Link], usual: str) -> Iterator[str]:
    # A rank whose links are both slow is named once, then the links that remain.
    receives = {link.ranks[1]: link for link in slow}
    both = [link.ranks[0] for link in slow if link.ranks[0] in receives]
    for rank in both:
        link = receives[rank]
        yield (
            f"rank {rank} on {link.hosts[1]} receives at {link} and sends slowly as well; the median of such links is "
            f"{usual}"
        )
    for link in slow:
        if not set(link.ranks) & set(both):
            ends = " to ".join(f"rank {rank} on {host}" for rank, host in zip(link.ranks, link.hosts, strict=True))
            yield f"{ends}: {link}, and the median of such links is {usual}"
