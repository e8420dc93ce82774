"""How a loader keeps up with a training: the seconds that are spent in it, and what its workers have ready."""

from __future__ import annotations

import weakref
from array import array
from typing import Any

UNKNOWN = -1


class ReadAhead:
    """Counts the batches that are ready as each step ends, of the loader that the training reads, and times reading."""

    def __init__(self) -> None:
        self.num_workers = self.num_ahead = 0  # processes that load, and the batches that they may have ready
        self.ready_of_steps: array[int] = array("q")
        self.read_s_of_steps: array[float] = array("d")
        self._reading: weakref.ref[Any] | None = None  # the iterator
        self._counted: weakref.ref[Any] | None = None  # that of the step before

    def note(self, iterator: Any, step: int, read_s: float) -> None:
        """Note which iterator a batch of the training is from, and the seconds until the training had it."""
        if self._reading is None or self._reading() is not iterator:
            self._reading = weakref.ref(iterator)
            self.num_workers = getattr(iterator, "_num_workers", 0)
        self.read_s_of_steps.extend([0.0] * (step + 1 - len(self.read_s_of_steps)))
        self.read_s_of_steps[step] += read_s

    def end_step(self) -> None:
        """Keep what is ready now.

        It is unknown at the first step of an epoch, before which workers began anew, and at the last ones, for which
        the workers have no more to make.
        """
        iterator = None if self._reading is None or self._reading is not self._counted else self._reading()
        self._counted = self._reading
        try:
            self.ready_of_steps.append(UNKNOWN if iterator is None else self._count_ready(iterator))
        except Exception:  # no workers, another release of torch, a platform without the size of a queue
            self.ready_of_steps.append(UNKNOWN)

    def _count_ready(self, iterator: Any) -> int:
        self.num_ahead = iterator._num_workers * iterator._prefetch_factor
        # Not `_tasks_outstanding`: that leaves out what arrived before its turn.
        return UNKNOWN if len(iterator._task_info) < self.num_ahead else count_ready(iterator)

    def describe(self) -> dict[str, Any]:
        """Return what is reported."""
        return {"num_workers": self.num_workers, "num_ahead": self.num_ahead, "ready": list(self.ready_of_steps)}


def count_ready(iterator: Any) -> int:
    """Return the batches that the workers of an iterator have made, and that it has not returned.

    Source: `_MultiProcessingDataLoaderIter` of torch/utils/data/dataloader.py.
    """
    queues = {id(queue): queue for queue in (iterator._worker_result_queue, iterator._data_queue)}
    received = sum([len(info) == 2 for info in iterator._task_info.values()])
    return received + sum([queue.qsize() for queue in queues.values()])
