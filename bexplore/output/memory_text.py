"""The memory of a size, in words."""

from __future__ import annotations

from bexplore.units import format_bytes, format_share

# The process holds so much more than its tensors, times and bytes, before people are told of both.
TOLD, TOLD_BYTES = 1.1, 64 * 2**20


def memory_words(peak_bytes: int | None, resident_bytes: int | None, *, is_full: bool = False) -> str:
    """The peak of the tensors, and what the process held where that is clearly more, or fills the budget."""
    text = f"peak {format_bytes(peak_bytes)}"
    if peak_bytes is None or resident_bytes is None or resident_bytes <= peak_bytes:
        return text
    if not is_full and resident_bytes <= max(TOLD * peak_bytes, peak_bytes + TOLD_BYTES):
        return text
    return f"{text} of tensors, {format_bytes(resident_bytes)} held by the process"


def headroom_words(headroom_bytes: int, needed_bytes: int) -> str:
    """What a size leaves of the memory budget."""
    if headroom_bytes <= 0:
        return "nothing of the budget stays free"
    share = headroom_bytes / (headroom_bytes + needed_bytes)
    return f"{format_bytes(headroom_bytes)} ({format_share(share)}) of the budget stay free"
