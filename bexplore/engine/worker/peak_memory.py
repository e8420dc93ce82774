"""Peak memory of a step, as the allocator saw it.

On the CPU there is no running peak to read, and resident memory is off by a third in either direction on the same job,
so the profiler's memory events are summed over one untimed step. On CUDA the allocator keeps its own peaks: of the live
tensors, which a trace predicts, and of the segments that it reserved for them, which the limit is about.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from bexplore.engine.worker.torch_private import memory_events
from bexplore.workloads.modules import local


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Peak of one step."""

    allocated_bytes: int  # of live tensors
    reserved_bytes: int | None = None  # of the segments that hold them; None where the allocator has none (CPU)
    num_alloc_retries: int = 0  # times the caching allocator had to free its cache and try again; 0 on the CPU


def measure_peak(
    step: Callable[[], Any], device: torch.device, *, alive: Iterable[Any], hidden_bytes: int = 0
) -> PeakMemory | None:
    """Run `step` once and return the peak memory meanwhile; None where the device keeps no account.

    Args:
        step: Runs a pass onto gradients that are there already, and an update; leaves nothing behind that it did not
            find.
        alive: Pytrees of the tensors that live before the step (weights, optimizer states, the batch); their
            storages are counted once each. Only needed on the CPU, whose events begin with the step.
        hidden_bytes: Of what lives before the step and no tensor shows, as gradient buckets; likewise.
    """
    if device.type == "cpu":
        return PeakMemory(allocated_bytes=hidden_bytes + _profiled_peak(step, storages(alive)))
    memory: Any = getattr(torch, device.type, None)
    if not hasattr(memory, "max_memory_allocated"):
        step()
        return None
    memory.synchronize(device)
    release_cached_memory(device)
    memory.reset_peak_memory_stats(device)
    retries = memory.memory_stats(device).get("num_alloc_retries", 0)
    step()
    memory.synchronize(device)
    stats = memory.memory_stats(device)
    return PeakMemory(
        allocated_bytes=int(memory.max_memory_allocated(device)),
        reserved_bytes=int(memory.max_memory_reserved(device)),
        num_alloc_retries=int(stats.get("num_alloc_retries", 0) - retries),
    )


def num_alloc_retries(device: torch.device) -> int:
    """Return how often the caching allocator freed its cache and tried again so far; 0 where it keeps no account."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0)) if device.type == "cuda" else 0


def idle_bytes(device: torch.device) -> int:
    """Return the bytes in use on an accelerator once the allocator's cache is given back; 0 where unknown."""
    release_cached_memory(device)
    memory: Any = getattr(torch, device.type, None)
    return int(memory.memory_allocated(device)) if hasattr(memory, "memory_allocated") else 0


def storage_bytes(trees: Iterable[Any]) -> int:
    """Return the bytes of all distinct storages in the pytrees; of tensors that ranks share, of the rank's own part."""
    return sum(storages(trees).values())


def storages(trees: Iterable[Any]) -> dict[int, int]:
    """Return the bytes of each distinct storage in the pytrees by its address; of tensors that ranks share likewise."""
    found: dict[int, int] = {}
    for leaf in tree_leaves(list(trees)):
        for part in _list_parts(leaf) if isinstance(leaf, torch.Tensor) else ():
            storage = part.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def _list_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold a tensor's memory: itself, or the places and values of a sparse one."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [local(tensor)]


def _profiled_peak(step: Callable[[], Any], alive: Mapping[int, int]) -> int:
    """Return the most bytes that are alive at once, by the CPU allocator's events of a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    return highest_sum(memory_events(profiler), alive=alive)


def highest_sum(events: Iterable[tuple[int, int]], *, alive: Mapping[int, int]) -> int:
    """Return the most bytes that are alive at once, of events: an address and its bytes, negative where a block ends.

    The profiler sees the memory events of the threads of the step alone. What another thread frees (gloo's, which may
    drop the last reference to a tensor) lives on in the sum, until a block over its address proves that it is gone.
    Measured on two ranks of gloo: up to 27 % without, at most 4 % so. Source: benchmarks/results/distributed_trace.md.

    A block that ends without having been counted takes nothing from the sum: the loss of an earlier step, say. (The
    profiler reports the ends of the blocks that began in an earlier profile too.)
    """
    start = sum(alive.values())
    return max(itertools.accumulate(list_changes(events, alive=alive), initial=start))


def list_changes(events: Iterable[tuple[int, int]], *, alive: Mapping[int, int]) -> Iterator[int]:
    """Yield by how many bytes each event changes the sum of `highest_sum`."""
    sizes = dict(alive)  # of blocks that are believed alive
    starts = sorted(sizes)
    for address, num_bytes in events:
        change = 0
        if num_bytes > 0:
            for gone in _find_overlapped(starts, sizes, address, num_bytes):
                starts.remove(gone)
                change -= sizes.pop(gone)
            bisect.insort(starts, address)
            sizes[address] = num_bytes
            change += num_bytes
        elif address in sizes:
            starts.pop(bisect.bisect_left(starts, address))
            change -= sizes.pop(address)
        yield change


def _find_overlapped(starts: list[int], sizes: dict[int, int], address: int, num_bytes: int) -> list[int]:
    """Return the starts of blocks that a new one overlaps; blocks that are alive never overlap each other."""
    found = []
    place = bisect.bisect_left(starts, address + num_bytes)
    while place and starts[place - 1] + sizes[starts[place - 1]] > address:
        place -= 1
        found.append(starts[place])
    return found


def release_cached_memory(device: torch.device) -> None:
    """Give back what the allocator holds and nothing uses; where it keeps a cache at all."""
    memory: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(memory, "empty_cache"):
        memory.empty_cache()
