"""Kinds of the program that all probes of the search share, best first; known to both sides of the process border."""

from __future__ import annotations

from enum import StrEnum


class SharedMode(StrEnum):
    """How the number of samples is made symbolic.

    An unbacked number has no hint to specialise on, so that one program serves every size; a backed one compiles again
    for a single sample and at the backend's own thresholds; a static one compiles for every size.
    """

    NESTED = "nested"  # unbacked, and repeated blocks are compiled once, as a region inside the whole
    UNBACKED = "unbacked"
    DYNAMIC = "dynamic"
    STATIC = "static"

    @property
    def serves_every_size(self) -> bool:
        """Whether one compilation is enough."""
        return self in (SharedMode.NESTED, SharedMode.UNBACKED)

    @property
    def next(self) -> SharedMode | None:
        """What to try where this one does not compile; None after the last."""
        modes = list(SharedMode)
        later = modes[modes.index(self) + 1 :]
        return later[0] if later else None
