"""The memory of the recommended size, and what of the budget is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bexplore.run.facts import Facts
from bexplore.run.parts.row import Row, View
from bexplore.units import format_bytes, format_share

CLEARLY_MORE, CLEARLY_MORE_BYTES = 1.1, 64 * 2**20
SHOWN_SHARE = 0.005  # of the budget that shows in three digits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """The memory of the recommended size; None if unknown."""

    peak_memory_bytes: int | None = None  # peak of the live tensors
    # The same by the trace, or by steps measured at small sizes; None without either
    predicted_peak_memory_bytes: int | None = None
    resident_memory_bytes: int | None = None  # memory that the process or the allocator held for these tensors
    memory_headroom_bytes: int | None = None  # memory budget less the larger of peak and resident memory

    is_of_longest: bool = False  # whether a training command was given its longest samples when the peak was read

    @classmethod
    def find(cls, facts: Facts) -> MemoryPart:
        """Return the memory that the search measured."""
        searched, ran = facts.searched, facts.ran
        return cls(
            peak_memory_bytes=searched.peak_memory_bytes,
            predicted_peak_memory_bytes=ran.probe.predicted_peak_memory_bytes if ran else None,
            resident_memory_bytes=searched.resident_memory_bytes,
            memory_headroom_bytes=searched.memory_headroom_bytes,
            is_of_longest=bool(ran and ran.details.get("num_lists_of_longest")),
        )

    def rows(self, view: View) -> Iterator[Row]:
        """Yield the peak, and what of the budget is left."""
        peak, predicted = self.peak_memory_bytes, self.predicted_peak_memory_bytes
        if peak is None:
            yield Row("memory", "peak unknown on this device")
            return
        texts = [memory_words(peak, self.resident_memory_bytes, headroom_bytes=self.memory_headroom_bytes)]
        texts.append("with the longest samples" if self.is_of_longest else "")
        texts.append(self.headroom_words())
        if view.is_emulated and predicted:  # the peak is all that was looked for
            texts.append(f"predicted {format_bytes(predicted)}, {100 * (predicted / peak - 1.0):+.1f}%")
        yield Row("memory", ", ".join(filter(None, texts)))

    def headroom_words(self) -> str:
        """Return the memory budget that stays free, in words; empty if unknown."""
        headroom, peak = self.memory_headroom_bytes, self.peak_memory_bytes
        if headroom is None or peak is None:
            return ""
        if headroom <= 0:
            return "no memory budget left"
        share = headroom / (headroom + max(peak, self.resident_memory_bytes or 0))
        return f"{format_bytes(headroom)} ({format_share(share)}) of the budget stay free"


def memory_words(peak_bytes: int | None, resident_bytes: int | None, *, headroom_bytes: int | None = None) -> str:
    """Return the tensors' peak in words, and the resident memory where it is clearly more.

    Beside a headroom it is told wherever it shows: the budget is what is held and what stays free.
    """
    text = f"peak {format_bytes(peak_bytes)}"
    if peak_bytes is None:
        return text
    text = f"{text} of tensors"
    if resident_bytes is None or resident_bytes <= peak_bytes:
        return text
    least = max(CLEARLY_MORE * peak_bytes, peak_bytes + CLEARLY_MORE_BYTES)
    if headroom_bytes is not None:
        least = peak_bytes + SHOWN_SHARE * (resident_bytes + headroom_bytes)
    if resident_bytes <= least and headroom_bytes != 0:
        return text
    return f"{text}, {format_bytes(resident_bytes)} held (PyTorch itself not counted)"
