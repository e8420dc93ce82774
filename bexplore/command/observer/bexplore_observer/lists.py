"""The lists of samples that loaders take their batches from, cut to the size of a probe before anything is loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

WRAPPED_SAMPLERS = 3  # one in the other, that are looked into


class IndexLists:
    """Cuts the lists of samples.

    A list is cut into as many lists as it has: an epoch keeps its samples. Batches that a loader had loaded ahead at
    another size are dropped, as many on every rank.
    """

    def __init__(self) -> None:
        # Of the batches that are wanted, and of the command's; None cuts nothing, and is so for all of a start.
        self.size: int | None = None
        self._longest: int | None = None
        self.num_cut = 0
        self.longest_cut = 0  # of all of a start: a probe may live on what the one before left of a list
        # Of the list that the last batch was taken from, and of the epoch of its loader; None where there is none.
        self.length: int | None = None
        self.num_samples: int | None = None
        self.drops_last = False

    def begin(self, size: int, longest: int | None) -> None:
        """Cut to a size from now on; lists that are longer than the command's batches are not of what is explored."""
        self.size, self._longest = (size, longest) if longest else (None, None)
        self.num_cut = 0

    def take_next(self, iterator: Any, next_index: Callable[[Any], Any]) -> Any:
        """Return the next list of an iterator."""
        state, size = self._read_state(iterator), self.size
        has_rest = size is not None and len(state.rest) >= size
        index = state.rest if has_rest else next_index(iterator)
        state.rest = []
        if size is not None and isinstance(index, list) and len(index) <= (self._longest or 0):
            self.num_cut, self.longest_cut = self.num_cut + 1, max(self.longest_cut, len(index))
            index, state.rest = index[:size], index[size:]
        state.taken.append((size, len(index) if isinstance(index, (list, tuple)) else None))
        return index

    def is_stale(self, iterator: Any) -> bool:
        """Return whether the batch that an iterator has returned was loaded for another size; note its lengths."""
        state = self._read_state(iterator)
        self.num_samples, self.drops_last = state.num_samples, state.drops_last
        size, self.length = state.taken.popleft() if state.taken else (self.size, None)
        return size != self.size

    def _read_state(self, iterator: Any) -> _ListState:
        state: _ListState | None = iterator.__dict__.get("_bexplore")
        # Persistent workers begin an epoch with another sampler.
        if state is None or state.sampler is not getattr(iterator, "_sampler_iter", None):
            state = iterator._bexplore = _ListState(iterator)
        return state


class _ListState:
    """What is kept of a loader's iterator: its sampler, the rest of a list, and the lists that batches come from."""

    __slots__ = ("drops_last", "num_samples", "rest", "sampler", "taken")

    def __init__(self, iterator: Any) -> None:
        self.sampler = getattr(iterator, "_sampler_iter", None)
        self.rest: list[Any] = []
        self.taken: deque[tuple[int | None, int | None]] = deque()  # size and length of each, loaded ahead
        self.num_samples = read_num_samples(iterator)
        self.drops_last = bool(getattr(getattr(iterator, "_index_sampler", None), "drop_last", False))


def read_num_samples(iterator: Any) -> int | None:
    """Return the samples of an epoch of a loader's iterator; None where its sampler does not tell.

    A sampler of batches may be wrapped, as by loaders that never end: the innermost sampler is that of samples.
    """
    try:
        sampler = iterator._index_sampler.sampler
        for _ in range(WRAPPED_SAMPLERS):
            sampler = getattr(sampler, "sampler", sampler)
        return len(sampler)
    except Exception:  # samples without an end, batches of a sampler of the user's own
        return None
