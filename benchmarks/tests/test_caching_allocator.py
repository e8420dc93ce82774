"""The model of CUDA's caching allocator: its rules, and that it agrees with recordings."""

from __future__ import annotations

import json

import pytest

from benchmarks.caching_allocator import CachingAllocator, OutOfMemoryError, replay
from tests.builders import RECORDED

KIB, MIB = 2**10, 2**20
RECORDINGS = [
    recording
    for path in sorted(RECORDED.glob("cuda_allocator_events*.json"))
    for recording in json.loads(path.read_text())["recordings"]
]


def reserved(*sizes: int) -> int:
    """Bytes reserved for these requests, all alive together."""
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.peaks.reserved_bytes


@pytest.mark.parametrize("told", RECORDINGS, ids=lambda told: f"{len(told['events'])} events")
def test_a_replayed_recording_comes_to_the_peaks_that_the_device_told(told):
    peaks = replay(told["events"])

    assert peaks.allocated_bytes == told["max_memory_allocated"]
    assert abs(peaks.reserved_bytes - told["max_memory_reserved"]) <= 2 * MIB


def test_small_requests_share_segments_of_2_mib_and_larger_ones_segments_of_20_mib():
    assert reserved(1) == reserved(*[512] * 4096) == 2 * MIB
    assert reserved(*[512] * 4097) == 4 * MIB
    assert reserved(MIB) == 2 * MIB
    assert reserved(MIB + 1) == reserved(*[5 * MIB] * 4) == 20 * MIB
    assert reserved(MIB, MIB + 1) == 22 * MIB


def test_from_10_mib_on_a_request_has_a_segment_of_its_own_rounded_up_to_2_mib():
    assert reserved(10 * MIB - 512) == 20 * MIB
    assert reserved(10 * MIB) == 10 * MIB
    assert reserved(10 * MIB + 1) == 12 * MIB
    assert reserved(33 * MIB, 33 * MIB) == 68 * MIB


def test_requests_are_rounded_to_512_bytes_and_take_up_to_1_mib_that_is_not_worth_splitting():
    allocator = CachingAllocator()
    assert allocator.allocate(513).size == 1024
    assert allocator.allocate(19 * MIB).size == 20 * MIB  # 1 MiB is left
    assert allocator.allocate(13 * MIB - 512).size == 13 * MIB - 512  # 512 bytes more are
    assert allocator.peaks.allocated_bytes == 1024 + 33 * MIB - 512


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    large, _, small = (allocator.allocate(size) for size in (40 * MIB, 12 * MIB, 30 * MIB))
    where = small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(25 * MIB).address == where
    assert allocator.peaks.reserved_bytes == 82 * MIB


def test_freed_neighbours_become_one_block_in_whatever_order_they_are_freed():
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 3, 0, 2)):
        allocator = CachingAllocator()
        blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
        for index in order:
            allocator.free(blocks[index])
        assert allocator.allocate(20 * MIB).size == 20 * MIB
        assert allocator.peaks.reserved_bytes == 20 * MIB


def test_at_the_limit_unused_segments_are_released_and_those_in_use_in_part_are_not():
    events = [
        ("alloc", 1, 5 * MIB),
        ("alloc", 2, 5 * MIB),
        ("alloc", 3, 40 * MIB),
        ("free_completed", 1, 5 * MIB),
        ("free_completed", 3, 40 * MIB),
        ("alloc", 4, 60 * MIB),
        ("alloc", 5, 44 * MIB),
    ]
    free = replay(events)
    assert (free.reserved_bytes, free.num_alloc_retries) == (164 * MIB, 0)  # 20, 40, 60 and 44
    tight = replay(events, limit_bytes=124 * MIB)
    assert (tight.reserved_bytes, tight.num_alloc_retries) == (124 * MIB, 1)
    assert tight.allocated_bytes == free.allocated_bytes == 109 * MIB
    with pytest.raises(OutOfMemoryError):
        replay(events, limit_bytes=124 * MIB - 1)


def test_segments_that_the_program_gave_back_are_not_reserved_any_more():
    emptied = [("alloc", 1, 40 * MIB), ("free_completed", 1, 40 * MIB), ("segment_free", 1, 40 * MIB)]
    assert replay([*emptied, ("alloc", 2, 60 * MIB)]).reserved_bytes == 60 * MIB


def test_a_recording_that_began_too_late_is_refused():
    with pytest.raises(ValueError, match="0x10 is freed and was never allocated"):
        replay([("free_completed", 16, 512)])
