"""A model of the caching allocator of CUDA: what a sequence of allocations and frees makes it reserve.

Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h of torch 2.11 to 2.13, one stream, default
settings: no expandable segments, no garbage collection, no limit on splitting.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

MIN_BLOCK_BYTES = 512  # kMinBlockSize: every request is a multiple of it
SMALL_BYTES = 2**20  # kSmallSize: up to here a request is small
SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer: small requests share segments of this size
LARGE_SEGMENT_BYTES = 20 * 2**20  # kLargeBuffer: requests below the next size share segments of this size
OWN_SEGMENT_BYTES = 10 * 2**20  # kMinLargeAlloc: from here on a request gets a segment of its own
OWN_SEGMENT_STEP_BYTES = 2 * 2**20  # kRoundLarge: whose size is a multiple of this


class OutOfMemoryError(Exception):
    """The limit refuses a segment, even after every unused one was released."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment.

    Attributes:
        address: Of its first byte.
        size: Bytes.
        is_small: Whether its segment is one of the small requests.
        is_free: Whether nothing lives in it.
        before: The block that ends where this one begins; None at the segment's start.
        after: The block that begins where this one ends; None at the segment's end.
    """

    address: int
    size: int
    is_small: bool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a replay came to.

    Attributes:
        allocated_bytes: `torch.cuda.max_memory_allocated`.
        reserved_bytes: `torch.cuda.max_memory_reserved`.
        num_alloc_retries: Times the limit made it release its cache and try again.
    """

    allocated_bytes: int
    reserved_bytes: int
    num_alloc_retries: int


class CachingAllocator:
    """Places blocks as torch does.

    Args:
        limit_bytes: Most that it may reserve; None for no limit.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._free: dict[bool, list[Block]] = {True: [], False: []}  # by is_small, ordered by size and address
        self._next_address = 0
        self._allocated_bytes = self._reserved_bytes = 0
        self._peak_allocated_bytes = self._peak_reserved_bytes = 0
        self._num_alloc_retries = 0

    @property
    def peaks(self) -> Peaks:
        """What it came to so far."""
        return Peaks(
            allocated_bytes=self._peak_allocated_bytes,
            reserved_bytes=self._peak_reserved_bytes,
            num_alloc_retries=self._num_alloc_retries,
        )

    def allocate(self, num_bytes: int) -> Block:
        """Take the smallest free block that is large enough, else a new segment; what is left over becomes free.

        Raises:
            OutOfMemoryError: Neither is there.
        """
        size = rounded(num_bytes)
        block = self._best_fit(size) or self._new_segment(size)
        if _is_worth_splitting(block, size):
            self._split(block, size)
        block.is_free = False
        self._allocated_bytes += block.size
        self._peak_allocated_bytes = max(self._peak_allocated_bytes, self._allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Make a block free, one with its free neighbours."""
        self._allocated_bytes -= block.size
        block.is_free = True
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                self._forget(neighbour)
                _merge(block, neighbour)
        self._keep(block)

    def empty_cache(self) -> None:
        """Release every segment in which nothing lives."""
        for is_small, blocks in self._free.items():
            unused = [block for block in blocks if block.before is block.after is None]
            self._reserved_bytes -= sum(block.size for block in unused)
            self._free[is_small] = [block for block in blocks if block not in unused]

    def _best_fit(self, size: int) -> Block | None:
        blocks = self._free[size <= SMALL_BYTES]
        at = bisect.bisect_left(blocks, (size, 0), key=_order)
        return blocks.pop(at) if at < len(blocks) else None

    def _new_segment(self, size: int) -> Block:
        segment_bytes = segment_size(size)
        if self._is_refused(segment_bytes):
            self.empty_cache()
            self._num_alloc_retries += 1
            if self._is_refused(segment_bytes):
                raise OutOfMemoryError(f"{segment_bytes} bytes beyond {self._reserved_bytes} of {self._limit_bytes}")
        self._reserved_bytes += segment_bytes
        self._peak_reserved_bytes = max(self._peak_reserved_bytes, self._reserved_bytes)
        block = Block(self._next_address, segment_bytes, is_small=size <= SMALL_BYTES)
        self._next_address += segment_bytes
        return block

    def _is_refused(self, segment_bytes: int) -> bool:
        return self._limit_bytes is not None and self._reserved_bytes + segment_bytes > self._limit_bytes

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.is_small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._keep(rest)

    def _keep(self, block: Block) -> None:
        bisect.insort(self._free[block.is_small], block, key=_order)

    def _forget(self, block: Block) -> None:
        blocks = self._free[block.is_small]
        del blocks[bisect.bisect_left(blocks, _order(block), key=_order)]


def rounded(num_bytes: int) -> int:
    """Bytes of the block that a request asks for."""
    return max(MIN_BLOCK_BYTES, -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_size(size: int) -> int:
    """Bytes of the segment that is reserved where no free block holds `size` bytes."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // OWN_SEGMENT_STEP_BYTES) * OWN_SEGMENT_STEP_BYTES


def replay(events: Iterable[tuple[str, int, int]], *, limit_bytes: int | None = None) -> Peaks:
    """Run a recording through the model.

    Args:
        events: (action, address, bytes) as `torch.cuda.memory._snapshot()["device_traces"]` has them, begun before the
            first allocation. Of the actions, `alloc` and `free_completed` count; `segment_free` while nothing else
            happens is a call of `empty_cache`, unless a limit brings it about; the others say nothing new.
        limit_bytes: Most that may be reserved; None for no limit.

    Raises:
        OutOfMemoryError: The events do not fit the limit.
        ValueError: Something is freed that was never allocated.
    """
    allocator = CachingAllocator(limit_bytes)
    alive: dict[int, Block] = {}
    for action, address, num_bytes in events:
        if action == "alloc":
            alive[address] = allocator.allocate(num_bytes)
        elif action == "free_completed":
            if address not in alive:
                raise ValueError(f"address {address:#x} is freed and was never allocated: the recording began too late")
            allocator.free(alive.pop(address))
        elif action == "segment_free" and limit_bytes is None:
            allocator.empty_cache()
    return allocator.peaks


def _order(block: Block) -> tuple[int, int]:
    return block.size, block.address


def _is_worth_splitting(block: Block, size: int) -> bool:
    rest = block.size - size
    return rest >= MIN_BLOCK_BYTES if block.is_small else rest > SMALL_BYTES


def _merge(block: Block, neighbour: Block) -> None:
    """Make the block cover its neighbour too."""
    block.size += neighbour.size
    if neighbour is block.before:
        block.address, block.before = neighbour.address, neighbour.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = neighbour.after
        if block.after is not None:
            block.after.before = block
