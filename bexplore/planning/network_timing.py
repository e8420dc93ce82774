"""Time collectives and links between the ranks of this process group, as nccl-tests and OSU's benchmarks do.

Every rank runs `time_network`: a launcher starts them, such as torchrun. All ranks wait for each other before a round,
and a round takes as long as its slowest rank.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import torch
import torch.distributed as dist

from bexplore.errors import EngineError, UserInputError
from bexplore.estimate.collectives import Collective
from bexplore.host.machine import available_memory_bytes
from bexplore.planning.network import (
    Link,
    NetworkFigures,
    TimedCollective,
    explain_sent_bytes,
    find_slow_parts,
    format_bandwidth,
    group_senders,
    limit_tensor_bytes,
)
from bexplore.units import format_bytes

Report = Callable[[str], None]

MIN_ROUNDS, MAX_ROUNDS = 5, 20  # Source: 20 iterations by default in nccl-tests; five have quartiles
ROUNDS_S = 2.0  # seconds of rounds after which the fewest suffice
BACK_TO_BACK_S = 0.02  # seconds of collectives in a round: well above the resolution of clocks and of a barrier
MAX_BACK_TO_BACK = 20
LONGEST_ROUND_S = 10.0  # seconds of a collective, beyond which no larger one is timed
LINK_BYTES = 64 * 2**20
LINK_ROUNDS = 9  # enough for quartiles that one disturbed round does not move
TIMEOUT = timedelta(minutes=5)
HEADS = f"{'collective':<15} {'size':>9}  {'median':>13} {'algorithm':>11} {'bus':>11}  spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this process group, seen from one of them."""

    rank: int  # this one
    num_ranks: int  # all of them
    device: torch.device  # of this rank
    hosts: Sequence[str]  # host of each rank

    @property
    def num_here(self) -> int:
        """Ranks on this host."""
        return self.hosts.count(self.hosts[self.rank])

    def wait_for_all(self) -> None:
        """Wait until every rank is here and its device is idle."""
        self.synchronize()
        dist.barrier()
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor]


def time_network(smallest_bytes: int, largest_bytes: int, report: Report = lambda line: None) -> NetworkFigures | None:
    """Time all collectives and links; return what was found on the first rank, and None on the others.

    Args:
        largest_bytes: Of the largest one, where memory and time allow it.
        report: Called on the first rank with a line for each collective.
    """
    with process_group() as ranks:
        say = report if ranks.rank == 0 else lambda line: None
        largest = _limit_bytes(ranks, largest_bytes)
        if largest < smallest_bytes:
            raise EngineError(
                f"only {format_bytes(largest)} fit into the memory that is free, and the smallest size is "
                f"{format_bytes(smallest_bytes)}",
                hint="free memory, or choose a smaller smallest size",
            )
        say(HEADS)
        timed = tuple(_time_all(ranks, smallest_bytes, largest, say))
        links = _time_links(ranks, _limit_bytes(ranks, LINK_BYTES))
        if ranks.rank != 0:
            return None
        return NetworkFigures(
            num_ranks=ranks.num_ranks,
            num_hosts=len(set(ranks.hosts)),
            backend=dist.get_backend(),
            device_name=torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu",
            timed=timed,
            links=links,
            slow=tuple(find_slow_parts(links)),
            notes=tuple(explain_sent_bytes(dist.get_backend(), ranks.num_ranks)),
            made_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            versions=_find_versions(),
        )


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the ranks that a launcher started."""
    local_rank = check_launched(os.environ)
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if is_cuda else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise EngineError(
            f"the ranks cannot reach each other: {error}", hint="check --rdzv-endpoint, firewalls, GLOO_SOCKET_IFNAME"
        ) from error
    try:
        hosts: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(hosts, socket.gethostname())
        yield Ranks(rank=dist.get_rank(), num_ranks=dist.get_world_size(), device=device, hosts=hosts)
    finally:
        dist.destroy_process_group()


def check_launched(environment: Mapping[str, str]) -> int:
    """Check what a launcher tells this process; return its number on this host."""
    hint = "type torchrun --nproc-per-node 2 -m bexplore network, on every node"
    if not all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        raise UserInputError("no launcher started this process", hint=hint)
    told = {name: environment.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    for name, text in told.items():
        if not text.isdecimal():
            raise UserInputError(f"{name}={text} in the environment is not a number", hint=f"unset it, or {hint}")
    if int(told["WORLD_SIZE"]) < 2:
        raise UserInputError("bexplore network needs at least two ranks", hint=hint)
    return int(told["LOCAL_RANK"])


def _time_all(ranks: Ranks, smallest: int, largest: int, report: Report) -> Iterator[TimedCollective]:
    for collective in Collective:
        num_bytes = smallest
        while num_bytes <= largest:
            timed = time_collective(ranks, collective, num_bytes)
            report(_format_row(timed))
            yield timed
            if timed.median_s > LONGEST_ROUND_S:
                break
            num_bytes *= 2


def _limit_bytes(ranks: Ranks, num_bytes: int) -> int:
    is_cuda = ranks.device.type == "cuda"
    free = torch.cuda.mem_get_info(ranks.device)[0] if is_cuda else available_memory_bytes()
    (most,) = ranks.largest([-limit_tensor_bytes(free, 1 if is_cuda else ranks.num_here)])
    return min(num_bytes, int(-most))


def time_collective(ranks: Ranks, collective: Collective, num_bytes: int) -> TimedCollective:
    """Time one collective of one size: a warm-up, then rounds until these suffice."""
    run, whole_bytes = _prepare(ranks, collective, num_bytes)
    run()
    (first_s,) = ranks.largest([_time_round(ranks, run, 1)])
    back_to_back = max(1, min(MAX_BACK_TO_BACK, math.ceil(BACK_TO_BACK_S / first_s)))
    num_rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, math.ceil(ROUNDS_S / (first_s * back_to_back))))
    times_s = ranks.largest([_time_round(ranks, run, back_to_back) for _ in range(num_rounds)])
    return TimedCollective.from_rounds(collective, whole_bytes, times_s, ranks.num_ranks)


def _prepare(ranks: Ranks, collective: Collective, num_bytes: int) -> tuple[Callable[[], object], int]:
    """Return a collective that is ready to run, and the bytes of its whole tensor: a multiple of the ranks."""
    of_rank = max(1, num_bytes // 4 // ranks.num_ranks)
    whole = torch.zeros(of_rank * ranks.num_ranks, dtype=torch.float32, device=ranks.device)
    part = torch.zeros(of_rank, dtype=torch.float32, device=ranks.device)
    # PyTorch 2.13 has other names for these two, and warns of the names of before.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    runs: Mapping[Collective, Callable[[], object]] = {
        Collective.ALL_REDUCE: lambda: dist.all_reduce(whole),
        Collective.REDUCE_SCATTER: lambda: scatter(part, whole),
        Collective.ALL_GATHER: lambda: gather(whole, part),
    }
    return runs[collective], whole.numel() * whole.element_size()


def _time_round(ranks: Ranks, run: Callable[[], object], back_to_back: int) -> float:
    """Return the seconds of a collective, the mean of some that run back to back."""
    ranks.wait_for_all()
    began = time.perf_counter()
    for _ in range(back_to_back):
        run()
    ranks.synchronize()
    return (time.perf_counter() - began) / back_to_back


def _time_links(ranks: Ranks, num_bytes: int) -> tuple[Link, ...]:
    """Time each rank's link to the next one in the ring; links that share a rank are timed one after the other.

    All links have a round before any has its next, so that what disturbs the machine for a while disturbs all alike.
    """
    tensor = torch.zeros(max(1, num_bytes // 4), dtype=torch.float32, device=ranks.device)
    count = ranks.num_ranks
    rounds: list[list[float]] = []
    for _ in range(LINK_ROUNDS + 1):
        speeds = [0.0] * count  # by sender; each receiver knows its own
        for group in group_senders(count):
            spent_s = _time_send(ranks, tensor, group)
            if spent_s is not None:
                speeds[(ranks.rank - 1) % count] = tensor.numel() * tensor.element_size() / spent_s
        rounds.append(ranks.largest(speeds))
    measured = rounds[1:]  # the first warms up
    return tuple(
        Link.from_rounds(pair, (ranks.hosts[pair[0]], ranks.hosts[pair[1]]), [speeds[pair[0]] for speeds in measured])
        for pair in ((sender, (sender + 1) % count) for sender in range(count))
    )


def _time_send(ranks: Ranks, tensor: torch.Tensor, senders: set[int]) -> float | None:
    """Send a tensor to the next rank; return the seconds on a receiver, None on the others."""
    previous, following = (ranks.rank - 1) % ranks.num_ranks, (ranks.rank + 1) % ranks.num_ranks
    ranks.wait_for_all()
    began = time.perf_counter()
    if ranks.rank in senders:
        dist.send(tensor, following)
        ranks.synchronize()
        return None
    if previous not in senders:
        return None
    dist.recv(tensor, previous)
    ranks.synchronize()
    return time.perf_counter() - began


def _format_row(timed: TimedCollective) -> str:
    algorithm, bus = format_bandwidth(timed.algorithm_bytes_per_s), format_bandwidth(timed.bus_bytes_per_s)
    size, median = format_bytes(timed.num_bytes), f"{1e3 * timed.median_s:.3f} ms"
    return f"{timed.collective:<15} {size:>9}  {median:>13} {algorithm:>11} {bus:>11}  ±{timed.spread:.0%}"


def _find_versions() -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
