"""Times of collectives between devices, and what of them computation hides.

`Interconnect` has the times of NCCL's rings and trees by the model with which NCCL chooses among them, whose numbers
are those of its source: NVIDIA/nccl, src/graph/tuning.cc (June 2026). How wrong it is:
benchmarks/results/published_collectives.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np

from bexplore.host.accelerators import Device, LinkKind, Links

# Share of a pass that is its backward half: it has two of the three matrix products for each weight.
# Source: Kaplan et al., arXiv 2001.08361, section 2.1: 2 N operations a token forward, 4 N backward.
BACKWARD_SHARE = 2 / 3


class Collective(StrEnum):
    """What ranks exchange together."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"

    @property
    def num_rounds(self) -> int:
        """Times that each part of the tensor goes around a ring."""
        return 2 if self is Collective.ALL_REDUCE else 1

    def sent_share(self, num_ranks: int) -> float:
        """Return the bytes that each rank sends in a ring, over the bytes of the tensor.

        Source: nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n for an all-reduce, (n - 1) / n for the other two.
        """
        return self.num_rounds * (num_ranks - 1) / num_ranks


class Network(Protocol):
    """Tells how long collectives take."""

    def seconds(self, collective: Collective, num_bytes: float, num_ranks: int, stride: int = 1) -> float:
        """Return the seconds of a collective of a tensor of some bytes, among ranks at some distance in the mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Collectives of one kind in a pass."""

    collective: Collective  # which
    num_bytes: float  # of the tensors of all of them
    num_ranks: int  # ranks that take part in each
    num_messages: float = 1  # number of them; each has an equal part of the bytes
    stride: int = 1  # distance of neighbours among all ranks, of which those of a node follow each other

    def seconds(self, network: Network) -> float:
        """Return how long all of them take, one after the other."""
        part = self.num_bytes / self.num_messages
        return self.num_messages * network.seconds(self.collective, part, self.num_ranks, self.stride)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends."""
        return self.collective.sent_share(self.num_ranks) * self.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PassExposure:
    """The seconds of the collectives of a pass, and beside what of its computation they run."""

    beside_s: float = 0.0  # of those that run beside computation
    last_s: float = 0.0  # of the last message of these, which nothing is left to hide
    beside_share: float = 1.0  # of the computation, beside which they run
    waited_s: float = 0.0  # of those for whose results the computation waits

    @property
    def seconds(self) -> float:
        """Seconds of all of them."""
        return self.beside_s + self.waited_s

    def exposed_s(self, compute_s: np.ndarray | float, factor: np.ndarray | float = 1.0) -> np.ndarray | float:
        """Return what a pass takes longer than its computation, where collectives take `factor` times their seconds."""
        waited_s = factor * self.waited_s
        left_s = factor * self.beside_s - self.beside_share * (compute_s + waited_s)
        return waited_s + np.maximum(left_s, factor * self.last_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExposure:
    """The collectives of the passes of a step."""

    inner: PassExposure  # of a pass
    last: PassExposure  # of the last one of a step
    last_share: float  # of the passes that are the last ones of their steps: 1 / accumulation steps; 0 if unknown

    @property
    def seconds(self) -> float:
        """Seconds of the collectives of a pass, the mean over a step."""
        return (1 - self.last_share) * self.inner.seconds + self.last_share * self.last.seconds

    def exposed_s(self, compute_s: np.ndarray | float, factor: np.ndarray | float = 1.0) -> np.ndarray | float:
        """Return what a pass takes longer than its computation, the mean over a step."""
        inner, last = self.inner.exposed_s(compute_s, factor), self.last.exposed_s(compute_s, factor)
        return (1 - self.last_share) * inner + self.last_share * last


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What one rank exchanges with the others that train the same weights."""

    every_pass: tuple[Exchange, ...] = ()  # in each pass
    last_pass: tuple[Exchange, ...] = ()  # in the last pass of a step beside that
    waited: tuple[Exchange, ...] = ()  # in each pass, and for the results of which its computation waits

    def in_pass(self, *, is_last: bool) -> tuple[Exchange, ...]:
        """Return what is exchanged beside the computation of a pass."""
        return self.every_pass + (self.last_pass if is_last else ())

    def sent_bytes(self, *, is_last: bool) -> float:
        """Return the bytes that each rank sends in a pass."""
        return sum(one.sent_bytes for one in self.in_pass(is_last=is_last) + self.waited)

    def seconds(self, network: Network, *, is_last: bool) -> float:
        """Return the seconds of the collectives of a pass, without what computation hides."""
        return self.expose(network, 1.0, is_last=is_last).seconds

    def expose(self, network: Network, overlap: float = 1.0, *, is_last: bool) -> PassExposure:
        """Return the seconds of the collectives of a pass.

        Gradients are reduced beside the backward half of the pass, and parameters gathered beside all of it; the last
        message runs alone, as nothing is left to compute. What ranks of tensor parallelism exchange is waited for:
        the next layer reads it.

        Args:
            overlap: Share of the computation that hides collectives, 0 to 1.
        """
        exchanged = self.in_pass(is_last=is_last)
        reduces_alone = bool(exchanged) and exchanged[0].collective is Collective.ALL_REDUCE
        return PassExposure(
            beside_s=sum(one.seconds(network) for one in exchanged),
            last_s=exchanged[-1].seconds(network) / exchanged[-1].num_messages if exchanged else 0.0,
            beside_share=overlap * (BACKWARD_SHARE if reduces_alone else 1.0),
            waited_s=sum(one.seconds(network) for one in self.waited),
        )

    def expose_step(self, network: Network, *, last_share: float) -> StepExposure:
        """Return the seconds of the collectives of the passes of a step."""
        inner, last = (self.expose(network, is_last=is_last) for is_last in (False, True))
        return StepExposure(inner=inner, last=last, last_share=last_share)


class _Protocol(NamedTuple):
    """How NCCL sends: microseconds before the first step and of a step, by what the step crosses, and its bandwidth."""

    base_us: float
    nvlink_us: float
    pcie_us: float
    network_us: float
    share: float  # of the bandwidth of the links
    overhead_us: float = 1.0  # least of a step of a ring that leaves the node: `getNetOverhead`

    def step_us(self, kind: LinkKind) -> float:
        return self.nvlink_us if kind is LinkKind.NVLINK else self.pcie_us


# Latencies and shares of tuning.cc: `baseLatencies`, `hwLatencies`, and the refinements of `busBw`.
_LL, _LL128, _SIMPLE = "LL", "LL128", "Simple"
_RING = {
    _LL: _Protocol(6.6, 0.6, 1.0, 2.7, 0.5),
    _LL128: _Protocol(14.0, 1.9, 2.5, 4.0, 0.92),
    _SIMPLE: _Protocol(8.4, 3.4, 5.7, 14.0, 1.0, overhead_us=3.0),
}
_TREE = {
    _LL: _Protocol(6.8, 0.6, 1.0, 5.0, 0.92 / 3.8),
    _LL128: _Protocol(14.0, 1.25, 1.9, 8.5, 0.92 * 120 / 128),
    _SIMPLE: _Protocol(8.4, 4.0, 4.0, 14.0, 0.92),
}
# Bytes/s that the protocol LL reaches at most, by the first number of the compute capability; and over a network.
_LL_BYTES_PER_S, _LL_NETWORK_BYTES_PER_S = {7: 39e9, 8: 87.7e9, 9: 141e9, 10: 282e9, 12: 282e9}, 20.4e9
_PLATEAU = 1.4  # factor of the latency of a long ring over a network
# Share of a tree's bandwidth, by the power of two of the bytes over 64.
_TREE_SHARES = {
    _LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    _LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    _SIMPLE: (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
# A switch that adds up (NVLink SHARP), in an all-reduce of more than two devices: its latency, and the bus bandwidth
# over that of a ring. Source: 480 over 370 GB/s on 8 H100, NVIDIA/nccl-tests issue 212; from Blackwell on less by the
# ratio of its `nvlsEfficiency`.
_SWITCH_US, _SWITCH_SHARES = 25.0, {9: 480 / 370, 10: 480 / 370 * 0.74 / 0.85}
# Standard deviation of ln of the seconds of a collective. Source: benchmarks/results/published_collectives.md, messages
# of up to 128 MiB.
LINK_SDS = {LinkKind.NVLINK: 0.37, LinkKind.PCIE: 0.51}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The links of devices that are built alike, within nodes and between them; a `Network`."""

    links: Links  # of each device
    generation: int  # first number of the compute capability
    # Bus bandwidth between nodes; None where it is unknown: then all ranks are taken to be in one node.
    network_bytes_per_s: float | None = None

    @classmethod
    def find(cls, device: Device, network_bytes_per_s: float | None = None) -> Interconnect | None:
        """Return the links of a device; None where they are not known."""
        if device.links is None or device.capability is None:
            return None
        return cls(links=device.links, generation=device.capability[0], network_bytes_per_s=network_bytes_per_s)

    @property
    def relative_sd(self) -> float:
        """Standard deviation of ln of the seconds of collectives, which all have in common."""
        return LINK_SDS[self.links.kind]

    def knows(self, num_ranks: int) -> bool:
        """Return whether all links between so many ranks are known."""
        return self.network_bytes_per_s is not None or num_ranks <= self.links.num_devices

    def __str__(self) -> str:
        between = self.network_bytes_per_s
        network = "" if between is None else f", {between / 1e9:.3g} GB/s between nodes of {self.links.num_devices}"
        return f"{self.links.kind} at {self.links.bytes_per_s / 1e9:.3g} GB/s{network}, not timed"

    def describe(self, num_ranks: int) -> str:
        """Return the links by which so many ranks are counted, in words."""
        if self.knows(num_ranks):
            return str(self)
        return (
            f"{self}: as if all {num_ranks} ranks were in one node, as the network between nodes of "
            f"{self.links.num_devices} is not known"
        )

    def seconds(self, collective: Collective, num_bytes: float, num_ranks: int, stride: int = 1) -> float:
        """Return the seconds of a collective: the shortest of NCCL's ways."""
        if num_ranks < 2 or num_bytes <= 0:
            return 0.0
        in_node = max(1, self.links.num_devices // stride)
        num_nodes = 1 if self.network_bytes_per_s is None else -(-num_ranks // in_node)
        return 1e-6 * min(self._list_ways(collective, num_bytes, num_ranks, num_nodes))

    def _list_ways(self, collective: Collective, num_bytes: float, num_ranks: int, num_nodes: int) -> Iterator[float]:
        """Yield the microseconds of each."""
        for name in (_LL, _LL128, _SIMPLE) if self.links.kind is LinkKind.NVLINK else (_LL, _SIMPLE):
            yield self._ring_us(name, collective, num_bytes, num_ranks, num_nodes)
            if collective is Collective.ALL_REDUCE and num_nodes > 1:
                yield self._tree_us(name, num_bytes, num_ranks, num_nodes)
        is_switched = self.links.kind is LinkKind.NVLINK and self.generation in _SWITCH_SHARES
        if is_switched and collective is Collective.ALL_REDUCE and num_nodes == 1 and num_ranks > 2:
            bus_bytes_per_s = _SWITCH_SHARES[self.generation] * self.links.bytes_per_s
            yield _SWITCH_US + 1e6 * collective.sent_share(num_ranks) * num_bytes / bus_bytes_per_s

    def _ring_us(self, name: str, collective: Collective, num_bytes: float, num_ranks: int, num_nodes: int) -> float:
        protocol, rounds = _RING[name], collective.num_rounds
        steps, between = rounds * (num_ranks - 1), rounds * (num_nodes - 1)
        within_us = protocol.step_us(self.links.kind)
        if between:
            within_us = max(within_us, protocol.overhead_us)
        latency_us = protocol.base_us + (steps - between) * within_us + between * protocol.network_us
        if between and name == _SIMPLE and collective is Collective.ALL_REDUCE:
            latency_us *= _PLATEAU
        bus_bytes_per_s = self._limit(name, protocol.share, num_nodes)
        return latency_us + 1e6 * collective.sent_share(num_ranks) * num_bytes / bus_bytes_per_s

    def _tree_us(self, name: str, num_bytes: float, num_ranks: int, num_nodes: int) -> float:
        protocol, shares = _TREE[name], _TREE_SHARES[name]
        within = num_ranks / num_nodes - 1
        latency_us = protocol.base_us + 2 * (
            within * protocol.step_us(self.links.kind) + math.floor(math.log2(num_nodes)) * protocol.network_us
        )
        power = max(0, math.floor(math.log2(max(num_bytes / 64, 1.0))))
        share = shares[power] if power < len(shares) else 1.0
        return latency_us + 1e6 * 2 * num_bytes / (share * self._limit(name, protocol.share, num_nodes))

    def _limit(self, name: str, share: float, num_nodes: int) -> float:
        """Return the bus bandwidth of a protocol."""
        slowest = self.links.bytes_per_s
        if num_nodes > 1 and self.network_bytes_per_s is not None:
            slowest = min(slowest, self.network_bytes_per_s)
        if name != _LL:
            return share * slowest
        most = _LL_BYTES_PER_S.get(self.generation, math.inf) if num_nodes == 1 else _LL_NETWORK_BYTES_PER_S
        return min(share * slowest, most)
