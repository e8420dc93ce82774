"""Values that a program reads out of its tensors, for branches and sizes: as two small real passes have them.

A fake tensor has no values. Where a program asks for one (a check of its labels, the tokens of an expert), a pass of
real tensors is run on the CPU at two sizes, and what it reads is noted by the line that reads. A fake pass is told
these: the same branch is taken, and a number that grew with the samples grows further.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch

from bexplore.errors import WITHOUT_TRACE, TraceError
from bexplore.host.machine import available_memory_bytes
from bexplore.job import CompileSettings, Job, Precision
from bexplore.trace.torch_private import storage_bytes
from bexplore.workloads import build
from bexplore.workloads.torch_private import FakeTensor, TorchDispatchMode

_ATEN = torch.ops.aten
SCALAR_READS = (_ATEN._local_scalar_dense.default,)
_NONZERO = _ATEN.nonzero.default
_INDEX = _ATEN.index.Tensor
_CTC_LOSS = _ATEN._ctc_loss.Tensor
_UNIQUE = (_ATEN._unique2.default, _ATEN.unique_dim.default, _ATEN.unique_consecutive.default)
# Operators whose result has as many rows as their values tell; of the CTC loss, columns for the longest target.
_SIZES = {
    _NONZERO: lambda result: result.shape[0],
    _ATEN.masked_select.default: lambda result: result.shape[0],
    _ATEN.repeat_interleave.Tensor: lambda result: result.shape[0],
    _ATEN.bincount.default: lambda result: result.shape[0],
    _CTC_LOSS: lambda result: result[1].shape[2] // 2,
    **dict.fromkeys(_UNIQUE, lambda result: result[0].shape[0]),
}
# Files of torch, the code of its graphs, and this package.
_OWN_FILES = (f"{Path(torch.__file__).parent}{os.sep}", "<eval_with_key>", f"{Path(__file__).parent}{os.sep}")
REAL_SIZES = (2, 6)  # samples of the real passes: few, and far enough apart to tell what grows from what does not
_LIMIT_S = 45.0  # of a real pass; whoever waits for a trace should not wait for minutes
_COPIES = 4  # of the weights that a pass takes at least, gradients among them

Place = tuple[str, int, str]  # file, line, and what is read there
Reads = dict[Place, list[Any]]  # what is read at each, in order


class ValuesNeededError(Exception):
    """A fake pass or update came to a value that no real one has shown yet."""

    def __init__(self, values: RealValues) -> None:
        super().__init__()
        self.values = values


class RealValues:
    """What the real passes have read, for one fake pass after another; or what two updates have read."""

    def __init__(self, job: Job, *, of_updates: bool = False) -> None:
        self._job = job
        self.of_updates = of_updates
        self.is_unavailable = False  # whether no real update can show them: a number is then read as 1, as a rule
        self._reads: list[Reads] = []
        self._asked: Counter[Place] = Counter()

    @property
    def is_known(self) -> bool:
        """Whether the real passes were run."""
        return bool(self._reads)

    def observe(self) -> None:
        """Run the real passes; what they raise is the user's."""
        try:
            self._reads = [_run_real(self._job, size, of_updates=self.of_updates) for size in REAL_SIZES]
        except TraceError:
            if not self.of_updates:
                raise
            self.is_unavailable = True

    def tells_all(self, tensor: torch.Tensor) -> bool:
        """Return whether a number of an update is as a real one has it: from the first truth value on that is read."""
        return self.of_updates and not self.is_unavailable and (self.is_known or tensor.dtype is torch.bool)

    def start_pass(self) -> None:
        """Begin with the first value of each line."""
        self._asked.clear()

    def ask(self, kind: str) -> list[Any]:
        """Return what the line that runs now has read in each of the real passes."""
        if not self._reads:
            raise ValuesNeededError(self)
        place = _find_line(kind)
        number = self._asked[place]
        self._asked[place] += 1
        found = [reads.get(place, []) for reads in self._reads]
        if not all(found):
            raise TraceError(
                f"{place[0]}:{place[1]} reads values ({kind}) that it does not read in a pass of a few samples.",
                hint=WITHOUT_TRACE,
            )
        return [values[min(number, len(values) - 1)] for values in found]

    def ask_number(self, kind: str, probe_batch: int) -> Any:
        """Return what a line would read at a micro-batch size."""
        first, second = self.ask(kind)
        return grow(first, second, probe_batch) if type(first) is int else second


def grow(first: int, second: int, probe_batch: int) -> int:
    """Return a number at a micro-batch size from those at `REAL_SIZES`; what grows is a multiple of the size or square.

    Values differ from batch to batch, so that the nearest power of the size is taken.
    """
    small, large = REAL_SIZES
    if first <= 0 or second <= 0:
        return second
    power = min(2, max(0, round(math.log(second / first) / math.log(large / small))))
    each = second / large**power
    return (round(each) if each >= 1 else math.ceil(each)) * probe_batch**power


def _run_real(job: Job, micro_batch_size: int, *, of_updates: bool) -> Reads:
    """Return what a pass reads, or what two updates read that each follow one."""
    if job.parallelism.is_distributed:
        raise TraceError("A size or a branch depends on the values of the data, on several ranks.", hint=WITHOUT_TRACE)
    precision = Precision.AUTOCAST_BFLOAT16 if job.precision is Precision.AUTOCAST_FLOAT16 else job.precision
    job = dataclasses.replace(job, device="cpu", precision=precision, compile=CompileSettings(enabled=False))
    workload = build(job)
    weights = storage_bytes(one for module in workload.compiled_modules for one in module.parameters())
    copies = _COPIES + sum(2 * one.defaults.get("history_size", 0) for one in workload.optimizers)
    if copies * weights > available_memory_bytes():
        raise TraceError(
            "A size or a branch depends on the values of the data, and a pass on the CPU, which would show them, "
            f"needs {copies} times {weights / 1e9:.1f} GB of memory.",
            hint=WITHOUT_TRACE,
        )
    batch = workload.make_batch(micro_batch_size)
    recorder, bounded = _Recorder(), _Recorder()
    parts = [(bounded, lambda: workload.forward_backward(batch)), (recorder, workload.update)] * 2
    for own, run in parts if of_updates else [(recorder, lambda: workload.forward_backward(batch))]:
        with own, _report_lists(own.read_list):
            run()
    return recorder.reads


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.reads: Reads = defaultdict(list)
        self._end = time.perf_counter() + _LIMIT_S

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.perf_counter() > self._end:
            raise TraceError(
                "A size or a branch depends on the values of the data, and a pass on the CPU, which would show them, "
                f"takes more than {_LIMIT_S:.0f} s.",
                hint=WITHOUT_TRACE,
            )
        result = func(*args, **(kwargs or {}))
        if func in SCALAR_READS:
            self.reads[_find_line("number")].append(result)
        elif func in _SIZES:
            self.reads[_find_line(str(func))].append(_SIZES[func](result))
        elif func is _INDEX:
            for mask in filter(_is_mask, args[1]):
                self.reads[_find_line("mask")].append(int(mask.count_nonzero()))
        return result

    def read_list(self, tensor: torch.Tensor, read: Callable[[torch.Tensor], Any]) -> Any:
        """Note what a list or an array of a tensor holds."""
        values = read(tensor)
        self.reads[_find_line("list")].append(values)
        return values


@contextlib.contextmanager
def _report_lists(report: Callable[[torch.Tensor, Callable[[torch.Tensor], Any]], Any]) -> Iterator[None]:
    to_list: Callable[[torch.Tensor], Any] = torch.Tensor.tolist
    with mock.patch.object(torch.Tensor, "tolist", lambda tensor: report(tensor, to_list)):
        yield


@contextlib.contextmanager
def tell_values(values: RealValues) -> Iterator[None]:
    """Let fake tensors make lists and texts, within this context, of the values of the real pass.

    A list has the rows of the real one over and over; where these are counts of each sample, as lengths are, their
    mean, since sums of them are sizes. A text is made of a number, which the mode of fake tensors tells. A compiler
    that followed these functions would take a fake tensor for a real one.
    """
    to_text = torch.Tensor.__format__

    def told(tensor: torch.Tensor, read: Callable[[torch.Tensor], Any]) -> Any:
        if not isinstance(tensor, FakeTensor):
            return read(tensor)
        _, known = values.ask("list")
        if not isinstance(known, list) or not known:
            return known
        if len(known) % REAL_SIZES[1] == 0 and all(type(one) is int and one >= 0 for one in known):
            known = [round(sum(known) / len(known))]
        return [known[row % len(known)] for row in range(len(tensor))]

    def write(tensor: torch.Tensor, form: str) -> str:
        is_number = isinstance(tensor, FakeTensor) and tensor.dim() == 0
        return format(tensor.item(), form) if is_number else to_text(tensor, form)

    with (
        _report_lists(told),
        # whose own reads number by number
        mock.patch.object(FakeTensor, "tolist", torch.compiler.disable(lambda tensor: told(tensor, FakeTensor.item))),
        mock.patch.object(torch.Tensor, "__format__", torch.compiler.disable(write)),
    ):
        yield


def has_unknown_size(operator: Any, arguments: Any) -> bool:
    """Return whether the size of an operator's result follows from values."""
    if operator is _CTC_LOSS:
        return bool(arguments[1].dim() == 1)  # targets in one row: the longest is unknown
    return operator in _SIZES or (operator is _INDEX and any(map(_is_mask, arguments[1])))


def run_with_sizes(values: RealValues, operator: Any, arguments: Any, keywords: Any, probe_batch: int) -> Any:
    """Return the fake result of an operator whose size follows from values."""
    if operator is _INDEX:
        return operator(arguments[0], _replace_masks(arguments[1], values, probe_batch), *arguments[2:])
    size = values.ask_number(str(operator), probe_batch)
    first = arguments[0]
    if operator is _NONZERO:
        return first.new_empty((size, first.dim()), dtype=torch.int64)
    if operator is _CTC_LOSS:
        num_steps, batch = first.shape[:2]
        return first.new_empty((batch,)), first.new_empty((batch, num_steps, 2 * size + 1))
    if operator in _UNIQUE:
        return _make_unique(operator, first, size, arguments)
    dtype = first.dtype if operator is _ATEN.masked_select.default else torch.int64
    return first.new_empty((size,), dtype=dtype)


def _make_unique(operator: Any, values: torch.Tensor, size: int, arguments: Any) -> tuple[torch.Tensor, ...]:
    shape: tuple[int, ...] = (size,)
    inverse = tuple(values.shape)
    if operator is _ATEN.unique_dim.default:
        dimension = arguments[1]
        shape = (*values.shape[:dimension], size, *values.shape[dimension + 1 :])
        inverse = (values.shape[dimension],)
    numbers = (values.new_empty(own, dtype=torch.int64) for own in (inverse, (size,)))
    return (values.new_empty(shape), *numbers)


def _replace_masks(indices: Any, values: RealValues, probe_batch: int) -> list[Any]:
    replaced: list[Any] = []
    for index in indices:
        if _is_mask(index):
            size = values.ask_number("mask", probe_batch)
            replaced += [index.new_empty((size,), dtype=torch.int64) for _ in range(index.dim())]
        else:
            replaced.append(index)
    return replaced


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _find_line(kind: str) -> Place:
    frame = find_user_frame()
    return (frame.f_code.co_filename, frame.f_lineno, kind) if frame is not None else ("", 0, kind)


def find_user_frame() -> FrameType | None:
    """Return the innermost frame outside of torch and of the trace; None where torch runs alone."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@functools.cache
def _is_own(path: str) -> bool:
    return path.startswith(_OWN_FILES)
