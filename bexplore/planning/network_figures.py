"""Speeds of a network: collectives that were timed on it, or one bandwidth that the user states.

Bandwidths as in NVIDIA's nccl-tests (doc/PERFORMANCE.md): the algorithm bandwidth is bytes over seconds, where the
bytes of an all-gather and of a reduce-scatter are those of the whole tensor; the bus bandwidth is that times the share
of the bytes that each rank sends in a ring, which does not depend on the number of ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bexplore.errors import UserInputError
from bexplore.host.json_files import read_json
from bexplore.units import format_bytes

FILE_NAME = "network.json"
# Larger files are none of ours: three collectives of 14 sizes, and 200 bytes a link of ten thousand ranks, have 3 MB.
_MOST_FILE_BYTES = 16 * 2**20
_MAKE_AGAIN = "make it again: torchrun --nproc-per-node 8 -m bexplore network"


class Collective(StrEnum):
    """What ranks exchange together."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"

    def sent_share(self, num_ranks: int) -> float:
        """Return the bytes that each rank sends in a ring, over the bytes of the tensor.

        Source: nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n for an all-reduce, (n - 1) / n for the other two.
        """
        return (2 if self is Collective.ALL_REDUCE else 1) * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """One collective of one size, as it was timed.

    Attributes:
        collective: Which.
        num_bytes: Of the whole tensor.
        times_s: Seconds of each round, of the slowest rank.
        median_s: Their median.
        algorithm_bytes_per_s: Bytes over the median.
        bus_bytes_per_s: The same times the share that each rank sends.
        spread: Half of the difference of the quartiles, over the median.
    """

    collective: Collective
    num_bytes: int
    times_s: tuple[float, ...]
    median_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Two ranks that are neighbours in the ring, and how fast they send to each other.

    Attributes:
        ranks: The sender and the receiver.
        hosts: Where they run.
        bytes_per_s: Of one message after the other, one way; the median of the rounds.
        rounds_bytes_per_s: Of each round.
    """

    ranks: tuple[int, int]
    hosts: tuple[str, str]
    bytes_per_s: float
    rounds_bytes_per_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFigures:
    """The speeds of a network.

    Attributes:
        num_ranks: Ranks that exchanged; 0 where the bandwidth was stated.
        num_hosts: Hosts that they ran on.
        backend: `gloo`, `nccl`; empty where the bandwidth was stated.
        device_name: Of the devices that exchanged.
        timed: What was timed.
        links: Neighbours in the ring.
        slow: Ranks and links that hold the others up, a sentence each.
        notes: Where the library sends other bytes than the bus bandwidth counts, a sentence each.
        stated_bytes_per_s: Bus bandwidth that the user states; None where it was timed.
        made_at: When it was timed (ISO 8601, UTC).
        versions: Of torch and of the library of collectives.
    """

    num_ranks: int
    num_hosts: int = 1
    backend: str = ""
    device_name: str = ""
    timed: tuple[TimedCollective, ...] = ()
    links: tuple[Link, ...] = ()
    slow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stated_bytes_per_s: float | None = None
    made_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def stated(cls, bytes_per_s: float) -> NetworkFigures:
        """Return a network of one bandwidth, the same for every message."""
        return cls(num_ranks=0, stated_bytes_per_s=bytes_per_s)

    @classmethod
    def read(cls, path: Path) -> NetworkFigures:
        """Read what `bexplore network` wrote.

        Raises:
            UserInputError: The file is missing, or holds something else.
        """
        try:
            if path.exists() and path.stat().st_size > _MOST_FILE_BYTES:
                raise ValueError(f"it is larger than {format_bytes(_MOST_FILE_BYTES)}")
            record = read_json(path)
            figures = cls(
                **record
                | {"timed": tuple(_timed_of(one) for one in record["timed"])}
                | {"links": tuple(_link_of(one) for one in record["links"]), "slow": tuple(record["slow"])}
                | {"notes": tuple(record.get("notes", ()))}
            )
            figures._check()
        except UserInputError as error:
            raise UserInputError(error.message, hint=_MAKE_AGAIN) from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserInputError(f"{path} is not what bexplore network writes: {error}", hint=_MAKE_AGAIN) from error
        return figures

    def _check(self) -> None:
        """Check the values that plans reckon with.

        Raises:
            ValueError: One of them is impossible.
        """
        if self.stated_bytes_per_s is None:
            _require_above_0("num_ranks", self.num_ranks)
        else:
            _require_above_0("stated_bytes_per_s", self.stated_bytes_per_s)
        _require_above_0("num_hosts", self.num_hosts)
        for name in ("backend", "device_name", "made_at"):
            _require_text(name, getattr(self, name))
        for text in (*self.slow, *self.notes):
            _require_text("slow or notes", text)
        for one in self.timed:
            for name in ("num_bytes", "median_s", "algorithm_bytes_per_s", "bus_bytes_per_s"):
                _require_above_0(f"{name} of {one.collective}", getattr(one, name))
        sizes = [(one.collective, one.num_bytes) for one in self.timed]
        if len(set(sizes)) < len(sizes):
            raise ValueError("a collective was timed twice with the same size")
        for link in self.links:
            _require_above_0("bytes_per_s of a link", link.bytes_per_s)

    def seconds(self, collective: Collective, num_bytes: float, num_ranks: int) -> float:
        """Return the seconds of a collective among some ranks.

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
        return speed * num_bytes / smallest if num_bytes < smallest else _between(points, num_bytes)

    def __str__(self) -> str:
        if self.stated_bytes_per_s is not None:
            return f"{self.stated_bytes_per_s / 1e9:.3g} GB/s of bus bandwidth, as stated"
        return f"{self.backend} between {self.num_ranks} ranks, timed {self.made_at[:10]}"


def _between(points: Sequence[tuple[int, float]], num_bytes: float) -> float:
    """Return the speed at a size by the nearest two, in logarithms; that of the largest beyond it."""
    for (low, low_speed), (high, high_speed) in itertools.pairwise(points):
        if num_bytes <= high:
            share = math.log(num_bytes / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(low_speed) + share * math.log(high_speed))
    return points[-1][1]


def _require_above_0(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}")


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name} is {value!r}")


def _timed_of(record: Mapping[str, Any]) -> TimedCollective:
    return TimedCollective(
        **{**record, "collective": Collective(record["collective"]), "times_s": tuple(record["times_s"])}
    )


def _link_of(record: Mapping[str, Any]) -> Link:
    names = ("ranks", "hosts", "rounds_bytes_per_s")
    return Link(**{**record, **{name: tuple(record[name]) for name in names if name in record}})
