"""The memory budget of one replica."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bexplore.errors import UserInputError
from bexplore.host.accelerators import COLLECTIVES_BYTES, CUDA_CONTEXT_BYTES
from bexplore.host.machine import available_memory_bytes, total_memory_bytes
from bexplore.job import Job, Mode, device_kind
from bexplore.search.space import MemoryAccount
from bexplore.units import format_bytes

if TYPE_CHECKING:
    from bexplore.config.config import ExploreSettings  # pydantic's schema, which no plan of a run needs

# Share of the host's available memory that a job on the CPU may take; the rest is for page cache and other programs.
HOST_SHARE = 0.8
# Interpreter, torch and the compiler at work, beside the job's tensors. Measured: 0.6 to 1.4 GiB resident.
HOST_OVERHEAD_BYTES = int(1.5 * 2**30)
# Kept free on an accelerator: fragmentation, and libraries that load late.
DEVICE_MARGIN_SHARE = 0.03
DEVICE_MARGIN_BYTES = 512 * 2**20

_COUNTED_OF_RANK = "; gradient buckets and shards of a rank are in its trace and its probes"


def find_memory_account(device: str) -> MemoryAccount:
    """Return the account of memory that the limit of a device is about: see `engine.worker.own_process`."""
    kind = device_kind(device)
    if kind == "cuda":
        return MemoryAccount.RESERVED
    return MemoryAccount.RESIDENT if kind == "cpu" and sys.platform == "linux" else MemoryAccount.TENSORS


def count_gradient_bytes(job: Job, num_parameters: int | None) -> int | None:
    """Return the bytes of one copy of a job's gradients; None where its parameters are unknown or not trained."""
    if num_parameters is None or job.mode is Mode.EVAL:
        return None
    return num_parameters * job.precision.weight_bytes


def describe_absent_memory(memory_bytes: int) -> dict[str, int]:
    """Return the memory that torch would report of an idle device that is known by name alone."""
    return {"total_memory_bytes": memory_bytes, "free_memory_bytes": memory_bytes - CUDA_CONTEXT_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The memory budget for the peak of one replica's tensors."""

    budget_bytes: int  # the limit in force
    why: str  # its source, in one line for people
    warnings: tuple[str, ...] = ()  # memory that other processes use, or a budget beyond the device


def resolve_budget(
    settings: ExploreSettings,
    facts: Mapping[str, Any],
    *,
    num_replicas: int,
    gradient_bytes: int | None,
    host_available_bytes: int | None = None,
    is_traced_for_ranks: bool = False,
    num_ranks_here: int = 1,
) -> MemoryBudget:
    """Return the user's budget, or a safe one.

    Args:
        facts: torch's description of the device.
        num_replicas: Data-parallel replicas; a reserve is kept from two on.
        gradient_bytes: Size of one copy of the gradients; None if unknown.
        host_available_bytes: Available memory of the host before the job's own worker started; None for the present.
        is_traced_for_ranks: Whether traces and probes are those of a rank, and hold its gradient buckets and shards.
        num_ranks_here: Ranks that share the memory of this host, where they run on its processors.
    """
    device, free = str(facts.get("device", "cpu")), facts.get("free_memory_bytes")
    on_host = device_kind(device) == "cpu" and free is None
    if not on_host and free is None and not isinstance(settings.memory_budget, int):
        raise UserInputError(
            f"the memory of device '{device}' is not known: torch keeps no account of it here",
            hint="give the size: explore.memory_budget: 16GiB",
        )
    total = facts.get("total_memory_bytes") or total_memory_bytes()
    warnings: tuple[str, ...] = ()
    available = available_memory_bytes() if host_available_bytes is None else host_available_bytes
    given = settings.memory_budget_bytes(total)
    if given is not None:
        whole, why = given, "set by explore.memory_budget"
        limit = available if on_host else free
        if limit is not None and given > limit:
            warnings = (
                f"the memory budget of {format_bytes(given)} is more than the {format_bytes(limit)} that are free",
            )
    elif free is None:  # on the host
        whole = max(0, int(available * HOST_SHARE / num_ranks_here) - HOST_OVERHEAD_BYTES)
        overhead = format_bytes(HOST_OVERHEAD_BYTES)
        shared = f", shared by {num_ranks_here} ranks" if num_ranks_here > 1 else ""
        why = f"{HOST_SHARE:.0%} of {format_bytes(available)} available{shared}, less {overhead} for torch"
    else:
        margin = max(DEVICE_MARGIN_BYTES, int(DEVICE_MARGIN_SHARE * total))
        whole = max(0, free - margin)
        why = f"{format_bytes(free)} free on the device, less a margin of {format_bytes(margin)}"
        if total - free > 2 * margin:
            warnings = (f"{format_bytes(total - free)} of the device's memory are used by other processes",)
    reserve, why_reserved = _reserve(
        settings,
        num_replicas=num_replicas,
        gradient_bytes=gradient_bytes,
        on_host=on_host,
        is_traced_for_ranks=is_traced_for_ranks,
    )
    if given is not None and given <= reserve:
        raise UserInputError(
            f"explore.memory_budget of {format_bytes(given)} leaves nothing to the job{why_reserved}",
            hint=f"give more than {format_bytes(reserve)}, or set explore.replica_reserve to a smaller size",
        )
    return MemoryBudget(budget_bytes=max(0, whole - reserve), why=why + why_reserved, warnings=warnings)


def _reserve(
    settings: ExploreSettings,
    *,
    num_replicas: int,
    gradient_bytes: int | None,
    on_host: bool,
    is_traced_for_ranks: bool,
) -> tuple[int, str]:
    """Return the memory that is kept free for other ranks, and why.

    Gradient buckets take up to one more copy. Source: DistributedDataParallel's bucket views. Those of a rank that is
    traced and probed are counted exactly, so that what is left are the buffers of collectives.
    """
    reserve_bytes = settings.replica_reserve_bytes
    if reserve_bytes is None:
        needs_buckets = num_replicas > 1 and not is_traced_for_ranks
        needs_collectives = (num_replicas > 1 or is_traced_for_ranks) and not on_host
        reserve_bytes = (gradient_bytes or 0) * needs_buckets + COLLECTIVES_BYTES * needs_collectives
    kept = f"; {format_bytes(reserve_bytes)} kept free for " if reserve_bytes else ""
    if is_traced_for_ranks:
        return reserve_bytes, (f"{kept}collectives" if kept else "") + _COUNTED_OF_RANK
    return reserve_bytes, f"{kept}gradient buckets and collectives of {num_replicas} replicas" if kept else ""
