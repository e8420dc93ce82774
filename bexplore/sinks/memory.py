"""The memory of a size, in words."""

from __future__ import annotations

from bexplore.units import format_bytes

# The process holds so much more than its tensors, times and bytes, before people are told of both.
TOLD, TOLD_BYTES = 1.1, 64 * 2**20


def memory_words(peak_bytes: int | None, held_bytes: int | None) -> str:
    """The peak of the tensors, and what the process held where that is clearly more."""
    text = f"peak {format_bytes(peak_bytes)}"
    if peak_bytes is None or held_bytes is None or held_bytes <= max(TOLD * peak_bytes, peak_bytes + TOLD_BYTES):
        return text
    return f"{text} of tensors, {format_bytes(held_bytes)} held by the process"
