"""What the loaders of a training return: batches that are counted, from lists of samples that are cut to the size."""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .batches import UNKNOWN, Fetches, ReadSet, count_tokens, digest, find_tensors, read_leading_dimension
from .exchange import clock, parse_json
from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from .steps import Observer

SHOWN = 3  # batches in a row of which a dimension shows the size, after which no list of a loader is read
DIGESTS = 3  # batches that are compared between ranks
# Epochs without a batch, and seconds since the first, after which no batch is expected any more. Source: chosen;
# an empty epoch takes a millisecond, and with workers a tenth of a second.
EMPTY_EPOCHS, EMPTY_S = 3, 2.0
REFUSED = 2  # batches without a pass that are refused memory, from which on a program catches that
WRAPPED_SAMPLERS = 3  # one in the other, that are looked into


class LoaderWatch:
    """Counts the batches that loaders return, of this probe and of those before it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.lists, self._reads_lists = IndexLists(), True
        self.readers = Readers()
        self.reset()

    def reset(self) -> None:
        """Forget what was read; after a fork it was the parent's."""
        self.num_read_before = 0  # batches of this start before the probe
        self._num_waiting = 0  # batches that another thread read while this one was parked
        self.reset_probe()

    def reset_probe(self) -> None:
        """Forget what was read in a probe."""
        self.fetches = Fetches(lambda: self._observer.size)
        self.num_read = 0  # batches that were read for passes
        self._last_fetch: tuple[Any, int, float] | None = None  # its key, the passes before, and when it began
        self._passes_before = -1  # the last fetch, of whatever epoch
        self._num_refusals, self._num_refused = 0, 0  # of the allocator so far; batches since a pass that met one
        self._first_read: Any = None  # a weak reference to a tensor of the first of these batches
        self.ahead = ReadAhead()
        self._fetched_s = 0.0  # when the first batch after the last update was read; 0 for not yet
        self.fetched_s_of_steps: array[float] = array("d")  # of the step after each
        self.num_empty_epochs, self._empty_since_s = 0, 0.0
        self._num_samples: int | None = None  # of an epoch without a batch
        self._num_shown = 0  # batches in a row of which a dimension shows the size
        self._shows_tokens = True  # whether all batches so far have shown their tokens
        self.digests: list[str] = []

    def end_probe(self) -> None:
        """Count what was read as of before the next probe."""
        self.num_read_before += self.fetches.count() + self._num_waiting
        self._num_waiting = 0

    def end_step(self) -> None:
        """Keep when the first batch of the step that begins was read."""
        self.fetched_s_of_steps.append(self._fetched_s)
        self._fetched_s = 0.0
        self.ahead.end_step()

    def stop_reading_lists(self) -> None:
        """Read no list of a loader any more; the hooks replace this."""

    def is_stale(self, iterator: Any) -> bool:
        """Return whether the batch that an iterator has returned was loaded for another size."""
        try:
            return self.lists.is_stale(iterator)
        except Exception as error:
            self._observer.note("batch", error)
            return False

    def find_key(self, iterator: Any, has_gradients: bool) -> tuple[int, bool, int]:
        """Return the key of the data set that an iterator reads."""
        dataset = id(getattr(iterator, "_dataset", None))
        return dataset, has_gradients, self.readers.find_place(iterator, dataset)

    def note_use(self, key: tuple[int, bool, int]) -> None:
        """Note what the last batch was used for, before the next one is read.

        It is of an evaluation, which may read the training's own loader, where it was used without gradients and no
        pass followed. A thread that reads ahead has its passes later.
        """
        observer, last, now_s = self._observer, self._last_fetch, clock()
        self._last_fetch = key, observer.total_passes, now_s
        self._note_refused(has_pass=observer.total_passes != self._passes_before)
        self._passes_before = observer.total_passes
        if last is None or not observer.total_passes or not self.fetches.is_off:
            return
        if last[:2] == (key, observer.total_passes) and threading.get_ident() == observer.thread:
            self.fetches.drop_last(last[0], (last[2], now_s))
            self._fetched_s = 0.0  # the step has not read its own yet

    def _note_refused(self, *, has_pass: bool) -> None:
        """Tell that memory is refused for one batch after the other, and the program goes on without a pass.

        A compiler that tries kernels may be refused memory before its first pass.
        """
        if has_pass or self.fetches.is_off:
            self._num_refused = 0
            return
        num_refusals = self._observer.device.count_refusals()
        self._num_refused += num_refusals > self._num_refusals
        self._num_refusals = num_refusals
        if self._num_refused >= REFUSED:
            self._observer.errors.note(MemoryError("CUDA out of memory, which the program caught"), "handled")

    def end_epoch(self, iterator: Any) -> None:
        """Note that an iterator has no further batch."""
        self._last_fetch = None
        self.readers.release(iterator)

    def note_batch(self, batch: Any, key: tuple[int, bool, int]) -> None:
        """Count a micro-batch that a loader returned, of a data set and with gradients on or off."""
        observer = self._observer
        self.fetches.is_off = False
        if observer.is_done:
            self._num_waiting += key[1]
            return
        try:
            leaves = find_tensors(batch, observer.torch.Tensor)
            rows = read_leading_dimension(leaves, observer.size)
            read = self.fetches.sets.get(key) or self.fetches.begin(key)
            if self._reads_lists:
                rows = self._find_listed_rows(rows, read, has_gradients=key[1])
            num_elements = leaves[0].numel() if len(leaves) == 1 else sum([leaf.numel() for leaf in leaves])
            rows, num_tokens = UNKNOWN if rows is None else rows, self._count_tokens(batch, leaves)
            # What is fetched between an update and the next pass is of the next step.
            read.micro_batches.extend((observer.number_of_step(), rows, num_elements, num_tokens))
            if key[1]:
                self.note_digest(leaves)
            if self.fetches.turn.is_off or not key[1]:  # of an evaluation
                observer.exchange.num_signs += 1
                observer.exchange.give_sign()
            else:
                self._note_read(leaves)
        except Exception as error:
            observer.note("batch", error)

    def _count_tokens(self, batch: Any, leaves: Sequence[Any]) -> int:
        """Return the tokens of a batch without padding: by the lengths that the user gave, else by the batch."""
        listed = self.lists.num_tokens
        if listed != UNKNOWN or not self._shows_tokens:
            return listed
        num_tokens = count_tokens(batch, leaves)
        self._shows_tokens = num_tokens != UNKNOWN
        return num_tokens

    def note_digest(self, leaves: Sequence[Any]) -> None:
        """Keep a digest of one of the first batches.

        A tensor of a class of its own is read as a plain one: a part of it may be refused, as by MONAI's MetaTensor.
        """
        if leaves and len(self.digests) < DIGESTS:
            torch = self._observer.torch
            # A name of "Extending PyTorch", in PyTorch's docs.
            read_plainly = getattr(getattr(torch, "_C", None), "DisableTorchFunctionSubclass", nullcontext)
            with read_plainly():
                self.digests.append(digest(leaves, torch.strided))

    def _note_read(self, leaves: Sequence[Any]) -> None:
        """Count a batch for a pass; tell the explorer where no pass follows: the program may train elsewhere."""
        observer = self._observer
        self.num_read += 1
        if observer.is_pending and not self._fetched_s:
            self._fetched_s = clock()
        if observer.total_passes:
            return
        if self._first_read is None and leaves:
            self._first_read = weakref.ref(leaves[0])
            observer.exchange.log.write("first_batch", shape=tuple(leaves[0].shape))
        if self.num_read == 1:  # at once: where the pass fails that follows, another process may be the one to tell
            observer.exchange.report_progress()
        observer.exchange.give_sign()

    def keeps_batches(self) -> bool:
        """Return whether the program still holds the first batch that it read for a pass."""
        return self._first_read is not None and self._first_read() is not None

    def note_end_of_epoch(self, iterator: Any) -> None:
        """Note an epoch without a batch, ahead of any pass: a program may begin it again and again."""
        observer = self._observer
        try:
            if observer.is_done or observer.number_of_step() or getattr(iterator, "_num_yielded", True):
                return
            now_s = clock()
            self.num_empty_epochs += 1
            self._empty_since_s = self._empty_since_s or now_s
            self._num_samples = read_num_samples(iterator)
            if self.num_empty_epochs >= EMPTY_EPOCHS and now_s - self._empty_since_s > EMPTY_S:
                observer.finish("no_batch")
        except Exception as error:
            observer.note("batch", error)

    def find_num_samples(self) -> int | None:
        """Return the samples of an epoch; None if unknown."""
        return self.fetches.find_num_samples() or self._num_samples

    def _find_listed_rows(self, rows: int | None, read: ReadSet, *, has_gradients: bool) -> int | None:
        """Return the samples of a batch by the list that it was loaded for, where its tensors do not show them.

        Graphs, images of several sizes and the like have no dimension of samples. Where tensors have one, the lists are
        read no longer: that costs more than all else at a fetch.
        """
        listed, size = self.lists.length, self._observer.size
        if listed is not None:
            read.lists[listed] = read.lists.get(listed, 0) + 1
        if self._observer.total_passes and has_gradients:  # an evaluation may come first, of samples of its own
            self._num_shown = self._num_shown + 1 if rows == size else 0
        if listed is not None and (rows is None or listed == size):
            rows = listed
        if rows == size:
            read.num_samples, read.drops_last = self.lists.num_samples, self.lists.drops_last
        if self._num_shown >= SHOWN and self.lists.size is None and not self.lists.sample_lengths:
            self._reads_lists = False
            self.stop_reading_lists()
        return rows


class Readers:
    """Which iterators read one data set at the same time, as two loaders whose batches are mixed.

    Each has a place of its own, which the iterator of a later epoch takes over.
    """

    def __init__(self) -> None:
        self._of_datasets: dict[int, list[weakref.ref[Any] | None]] = {}  # those amid an epoch, by their place

    def find_place(self, iterator: Any, dataset: int) -> int:
        """Return the place of an iterator; the first that is free, where it has none yet."""
        places = self._of_datasets.setdefault(dataset, [])
        found = [None if one is None else one() for one in places]
        for place, one in enumerate(found):
            if one is iterator:
                return place
        place = next((place for place, one in enumerate(found) if one is None), len(found))
        places[place : place + 1] = [weakref.ref(iterator)]
        return place

    def release(self, iterator: Any) -> None:
        """Free the place of an iterator whose epoch has ended: a program may hold it on."""
        for places in self._of_datasets.values():
            for place, one in enumerate(places):
                if one is not None and one() is iterator:
                    places[place] = None


class IndexLists:
    """Cuts the lists of samples that loaders take their batches from, before anything is loaded.

    A list is cut into as many lists as it has: an epoch keeps its samples. Batches that a loader had loaded ahead at
    another size are dropped, as many on every rank.
    """

    def __init__(self) -> None:
        # Of the batches that are wanted, and of the command's; None cuts nothing, and is so for all of a start.
        self.size: int | None = None
        self._longest: int | None = None
        self.num_cut = 0
        self.longest_cut = 0  # of all of a start: a probe may live on what the one before left of a list
        self._longest_samples: Sequence[int] = ()  # of the training's data, the longest first
        self._of_longest = range(0)  # which lists of a probe are of these
        self.sample_lengths: Sequence[int] = ()  # of the training's data, in its order; empty where unknown
        self._num_taken = 0
        self.num_of_longest = 0  # lists that were
        # Of the list that the last batch was taken from, and of the epoch of its loader; None where there is none.
        self.length: int | None = None
        self.num_tokens = UNKNOWN
        self.num_samples: int | None = None
        self.drops_last = False

    def begin(self, size: int, longest: int | None) -> None:
        """Cut to a size from now on; lists that are longer than the command's batches are not of what is explored."""
        self.size, self._longest = (size, longest) if longest else (None, None)
        self.num_cut = 0

    def put_longest(self, settings: Mapping[str, Any]) -> None:
        """Let the step whose memory is read have the longest samples, where the settings of a probe name them."""
        self._longest_samples, num_batches = settings.get("longest_samples", ()), settings.get("accumulation", 1)
        if "lengths_file" in settings and not self.sample_lengths:
            with open(settings["lengths_file"]) as file:
                self.sample_lengths = parse_json(file.read())["lengths"]
        step = settings.get("memory_step", 0)
        self._of_longest = range(step * num_batches, (step + 1) * num_batches if self._longest_samples else 0)
        self._num_taken = self.num_of_longest = 0

    @property
    def awaits_longest(self) -> bool:
        """Whether lists of the longest samples are still to come."""
        return self._num_taken < self._of_longest.stop

    def take_next(self, iterator: Any, next_index: Callable[[Any], Any]) -> Any:
        """Return the next list of an iterator."""
        state, size = self._read_state(iterator), self.size
        has_rest = size is not None and len(state.rest) >= size
        index = state.rest if has_rest else next_index(iterator)
        state.rest = []
        if size is not None and isinstance(index, list) and len(index) <= (self._longest or 0):
            self.num_cut, self.longest_cut = self.num_cut + 1, max(self.longest_cut, len(index))
            index, state.rest = index[:size], index[size:]
        is_of_data = bool(self.sample_lengths) and isinstance(index, list) and self._is_of_data(state)
        if self.awaits_longest and is_of_data:
            if self._num_taken in self._of_longest:
                samples = self._longest_samples
                index = [samples[place % len(samples)] for place in range(len(index))]
                self.num_of_longest += 1
            self._num_taken += 1
        num_tokens = self._count_tokens(index) if is_of_data else UNKNOWN
        state.taken.append((size, len(index) if isinstance(index, (list, tuple)) else None, num_tokens))
        return index

    def _count_tokens(self, index: Sequence[Any]) -> int:
        try:
            return sum([self.sample_lengths[sample] for sample in index])
        except (IndexError, TypeError):  # of a sampler that names samples in its own way
            return UNKNOWN

    def _is_of_data(self, state: _ListState) -> bool:
        """Return whether an epoch has as many samples as lengths are known of, or a rank's share of them."""
        num_lengths, num_ranks = len(self.sample_lengths), int(os.environ.get("WORLD_SIZE", 1))
        is_share = state.num_samples in (num_lengths, -(-num_lengths // num_ranks))
        return is_share or num_lengths == state.num_data_samples

    def is_stale(self, iterator: Any) -> bool:
        """Return whether the batch that an iterator has returned was loaded for another size; note its lengths."""
        state = self._read_state(iterator)
        self.num_samples, self.drops_last = state.num_samples, state.drops_last
        size, self.length, self.num_tokens = state.taken.popleft() if state.taken else (self.size, None, UNKNOWN)
        return size != self.size

    def _read_state(self, iterator: Any) -> _ListState:
        state: _ListState | None = iterator.__dict__.get("_bexplore")
        # Persistent workers begin an epoch with another sampler.
        if state is None or state.sampler is not getattr(iterator, "_sampler_iter", None):
            state = iterator._bexplore = _ListState(iterator)
        return state


class _ListState:
    """What is kept of a loader's iterator: its sampler, the rest of a list, and the lists that batches come from."""

    __slots__ = ("drops_last", "num_data_samples", "num_samples", "rest", "sampler", "taken")

    def __init__(self, iterator: Any) -> None:
        self.sampler = getattr(iterator, "_sampler_iter", None)
        self.rest: list[Any] = []
        # Size, length and tokens of each, loaded ahead
        self.taken: deque[tuple[int | None, int | None, int]] = deque()
        self.num_samples, self.num_data_samples = read_num_samples(iterator), read_num_data_samples(iterator)
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


def read_num_data_samples(iterator: Any) -> int | None:
    """Return the samples of the data set of a loader's iterator; None where it does not tell."""
    try:
        return len(iterator._dataset)
    except Exception:  # samples that are read one after the other
        return None
