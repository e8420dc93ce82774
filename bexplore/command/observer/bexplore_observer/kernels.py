"""What one step asks an emulated device to do: operators with their shapes, and the bytes of compiled kernels.

An emulated device has no times; the explorer estimates them by these kernels, and by the calls that the host makes for
them. A mode of PyTorch's dispatcher sees each operator, in the threads of the backward pass too. Triton's kernels do
not pass it: their launches are seen, with the bytes of their arguments. What a graph of the device replays was seen
when it was captured.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

RECORDED_STEP = 3  # the first that is timed on a device: compiled, warmed up, its graphs captured
NUM_RECORDED = 2  # steps in a row, of which one at most has the last batch of an epoch, which may have fewer samples
# Operators of these make no kernel whose time is known: collectives, and what makes no tensor.
LEFT_OUT = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "prim", "profiler")
# Operators that take memory alone, and the view that schemas do not tell as one.
SILENT = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")
MOST_ARGUMENTS = 16  # tensors of a call whose shapes are kept: those of all parameters at once only move bytes
TRITON = "triton"  # name of a call of a compiled kernel

Add = Callable[[Any, Any, Any, Any], None]  # takes an operator, its arguments, its keywords and its result


class RecordedStep(NamedTuple):
    """Kernels of a step: their places among the calls, and what the host does for them, with their numbers."""

    number: int  # of steps before it
    passes: Counter[int | str]
    without_gradients: Counter[int | str]  # those of them that ran without gradients, as of an evaluation
    updates: Counter[int | str]
    num_passes: int


class KernelLog:
    """Kernels of a step on a kind of device, by where they belong: to its passes, or to its updates."""

    def __init__(self, torch: Any, note: Callable[[str, Any], None], *, device: str = "cuda") -> None:
        self._torch, self._note, self._device = torch, note, device
        self._places: dict[str, int] = {}  # text of a call -> its place among `calls`
        self.calls: list[dict[str, Any]] = []
        self._mode: Any = None
        self._undo: list[Callable[[], None]] = []
        self._is_recording = False
        self.reset()

    def reset(self) -> None:
        """Forget what was seen of a probe, and look no further."""
        if self._is_recording:
            self._leave()
        # Place of a call, or name of what the host does for one -> how often it was seen
        self.passes: Counter[int | str] = Counter()
        self.updates: Counter[int | str] = Counter()
        self._without_gradients: Counter[int | str] = Counter()  # those of passes
        # Since the last pass or update, with gradients and without
        self._since: Counter[int | str] = Counter()
        self._since_without: Counter[int | str] = Counter()
        self._own_sink: Counter[int | str] | None = None  # what is counted into otherwise
        self.num_without_gradients = 0  # contexts without gradients that the program is in
        self._is_recording = False
        self._began_at_pass = 0
        self.recorded: list[RecordedStep] = []

    def attach(self) -> None:
        """Watch the capture and the replay of graphs."""
        log, kind = self, self._torch.cuda.CUDAGraph
        begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay

        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            found = begin(graph, *args, **kwargs)
            log._try(log._begin_capture, graph)
            return found

        @functools.wraps(end)
        def capture_end(graph: Any) -> Any:
            log._try(log._end_capture, graph)
            return end(graph)

        @functools.wraps(replay)
        def replay_counted(graph: Any) -> Any:
            if log._is_recording:
                log._add_replay(getattr(graph, "_bexplore_kernels", {}))
            return replay(graph)

        kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, replay_counted

    # -- the step

    def at_step(self, number: int, num_passes: int) -> None:
        """Begin or end to record, where the update of so many steps, with so many passes in all, has ended."""
        if self._is_recording:
            self.turn_to(self.passes)
            self._is_recording = False
            self._leave()
            if num_passes > self._began_at_pass:
                step = RecordedStep(
                    number=number - 1,
                    passes=self.passes,
                    without_gradients=self._without_gradients,
                    updates=self.updates,
                    num_passes=num_passes - self._began_at_pass,
                )
                self.recorded.append(step)
        if number >= RECORDED_STEP and len(self.recorded) < NUM_RECORDED:
            self.passes, self.updates, self._without_gradients = Counter(), Counter(), Counter()
            self._began_at_pass, self._is_recording, self._own_sink = num_passes, True, None
            self._enter()

    def turn_to(self, kind: Counter[int | str]) -> None:
        """Count what was seen since the last pass or update among passes, or among updates."""
        kind.update(self._since)
        kind.update(self._since_without)
        if kind is self.passes:
            self._without_gradients.update(self._since_without)
        self._since.clear()
        self._since_without.clear()

    def set_updating(self, is_updating: bool) -> None:
        """Count what is seen from now on among updates, or wait for what it belongs to."""
        if self._is_recording:
            self._own_sink = self.updates if is_updating else None

    @property
    def _sink(self) -> Counter[int | str]:
        if self._own_sink is not None:
            return self._own_sink
        return self._since_without if self.num_without_gradients else self._since

    def describe(self, *, are_batches_equal: bool, with_evaluation: Collection[int] = ()) -> dict[str, Any] | None:
        """Return the kernels of a step of full batches, JSON values only; None where no step was recorded.

        Frameworks read ahead, so that the batch of a step is not known: where batches have different numbers of
        samples, the step that moves most bytes has the full ones. Of steps in which an evaluation ran, which are named
        by their numbers, another is preferred; else what ran without gradients is left out.
        """
        if not self.recorded:
            return None
        steps = [step for step in self.recorded if step.number not in with_evaluation]
        steps = steps or [step._replace(passes=step.passes - step.without_gradients) for step in self.recorded]
        step = steps[0] if are_batches_equal else max(steps, key=self._count_bytes)
        passes, of_passes = split_counts(step.passes)
        updates, of_updates = split_counts(step.updates)
        return {
            "calls": self.calls,
            "passes": passes,
            "pass_dispatches": of_passes,
            "updates": updates,
            "update_dispatches": of_updates,
            "num_passes": step.num_passes,
        }

    def _count_bytes(self, step: RecordedStep) -> float:
        of_passes = sum(self.calls[place].get("bytes", 0) * number for place, number in split_counts(step.passes)[0])
        return of_passes / step.num_passes

    # -- graphs of the device

    def _begin_capture(self, graph: Any) -> None:
        self._own_sink = graph._bexplore_kernels = Counter()
        if not self._is_recording:
            self._enter()

    def _end_capture(self, graph: Any) -> None:
        self._own_sink = None
        if not self._is_recording:
            self._leave()

    def _add_replay(self, kernels: Any) -> None:
        """Count the kernels of a graph, for which the host makes one call."""
        captured = {place: number for place, number in kernels.items() if isinstance(place, int)}
        self._sink.update(captured)
        self._sink.update({"recorded_graph": 1, "recorded_kernel": sum(captured.values())})

    def _try(self, function: Callable[[Any], None], graph: Any) -> None:
        try:
            function(graph)
        except Exception as error:
            self._note("graphs", error)

    # -- what is seen

    def _enter(self) -> None:
        if self._mode is None:
            self._mode = make_mode(self._torch, self._add_safely)
        watched = (self._watch_compiled(), self._watch_triton(), self._watch_graphs())
        self._undo = [undo for undo in watched if undo is not None]
        self._mode.__enter__()

    def _leave(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []
        self._mode.__exit__(None, None, None)

    def _add_safely(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        try:
            if not works_on(self._torch, (args, kwargs, result), self._device):
                return
            self._sink.update(count_dispatches(self._torch, operator, args, kwargs))
            call = describe_call(self._torch, operator, args, kwargs, result)
            if call is not None:
                self._count(call)
        except Exception as error:
            self._note("kernels", error)

    def _count(self, call: dict[str, Any]) -> None:
        text = repr(call)
        if text not in self._places:
            self._places[text] = len(self.calls)
            self.calls.append(call)
        self._sink[self._places[text]] += 1

    def _watch_compiled(self) -> Callable[[], None] | None:
        """Watch the launches of the compiler's kernels."""
        module = sys.modules.get("torch._inductor.runtime.triton_heuristics")
        return None if module is None else self._watch_launches(module.CachingAutotuner, "run", describe_launch)

    def _watch_triton(self) -> Callable[[], None] | None:
        """Watch the launches of kernels of the user's own."""
        module = sys.modules.get("triton.runtime.jit")
        return None if module is None else self._watch_launches(module.JITFunction, "run", describe_own_launch)

    def _watch_graphs(self) -> Callable[[], None] | None:
        """Watch the calls of compiled graphs."""
        module = sys.modules.get("torch._inductor.output_code")
        return None if module is None else self._watch_launches(module.CompiledFxGraph, "__call__", None)

    def _watch_launches(
        self, kind: Any, name: str, describe: Callable[[Any, Any, Any, Any], Any] | None
    ) -> Callable[[], None]:
        """Watch a method that launches a kernel, which `describe` tells, or a compiled graph; return what ends it."""
        inner, log = getattr(kind, name), self

        @functools.wraps(inner)
        def run(launched: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                log._sink["graph" if describe is None else "kernel"] += 1
                if describe is not None:
                    log._count(describe(log._torch, launched, args, kwargs))
            except Exception as error:
                log._note("launches", error)
            return inner(launched, *args, **kwargs)

        setattr(kind, name, run)

        def undo() -> None:
            setattr(kind, name, inner)

        return undo


def split_counts(counts: Counter[int | str]) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """Return how often each call was seen, by its place, and how often the host did what, by its name."""
    calls = sorted((place, number) for place, number in counts.items() if isinstance(place, int))
    return calls, {name: number for name, number in counts.items() if isinstance(name, str)}


def works_on(torch: Any, values: Any, device: str) -> bool:
    """Return whether tensors of a kind of device are among values."""
    return any(one.device.type == device for one in list_tensors(torch, values))


def launches_nothing(operator: Any) -> bool:
    """Return whether an operator makes a view, or takes memory alone."""
    return getattr(operator, "is_view", False) or getattr(operator, "__name__", "").partition(".")[0] in SILENT


def count_dispatches(torch: Any, operator: Any, args: Any, kwargs: Any) -> dict[str, int]:
    """Return what the host does for an operator, by the names of `bexplore.estimate.dispatch`, as the trace counts it.

    Compiled graphs call operators that write to a tensor that is given.
    """
    if getattr(operator, "_overloadname", "").endswith("out"):
        return {"kernel": 1}
    is_autograd = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
    kind = "view" if launches_nothing(operator) else "operator"
    calls = {f"backward_{kind}" if is_autograd else kind: 1}
    in_lists = sum(
        isinstance(one, torch.Tensor)
        for own in (*args, *kwargs.values())
        if isinstance(own, (tuple, list))
        for one in own
    )
    return {**calls, "list_tensor": in_lists} if in_lists else calls


def make_mode(torch: Any, add: Add) -> Any:
    """Return a mode of the dispatcher that adds each operator, once it has run."""
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = (torch.Tensor, torch.nn.Parameter)
    disabled = torch._C._disabled_torch_dispatch_impl

    class Recording(TorchDispatchMode):
        supports_higher_order_operators = True

        @classmethod
        def is_infra_mode(cls) -> bool:
            """Let torch.compile work under this mode."""
            return True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Let torch.compile work under this mode."""
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Of tensors that hold others, such as those that ranks share, the operators on these are seen.
            if any(one not in plain and one.__torch_dispatch__ is not disabled for one in types):
                return NotImplemented
            result = func(*args, **(kwargs or {}))
            add(func, args, kwargs or {}, result)
            return result

    return Recording()


def describe_call(torch: Any, operator: Any, args: Any, kwargs: Any, result: Any) -> dict[str, Any] | None:
    """Return an operator, its shapes and the bytes that it reads and writes; None for one without a kernel."""
    if getattr(operator, "namespace", "") in LEFT_OUT or launches_nothing(operator):
        return None
    read, written = list(list_tensors(torch, (args, kwargs))), list(list_tensors(torch, result))
    if not written:
        written = list(list_tensors(torch, list_written(operator, args, kwargs)))
    num_bytes = sum(one.numel() * one.element_size() for one in (*read, *written))
    call: dict[str, Any] = {"operator": str(operator), "bytes": num_bytes}
    if len(read) <= MOST_ARGUMENTS:
        of_result = next((one for one in written if one.is_floating_point()), None)
        call["itemsize"] = of_result.element_size() if of_result is not None else 0
        call["arguments"], call["keywords"] = describe_shapes(torch, args), describe_shapes(torch, kwargs)
        call["result"] = describe_shapes(torch, result)
    return call


def list_written(operator: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operator without a result writes to."""
    schema = getattr(operator, "_schema", None)
    named = list(enumerate(schema.arguments)) if schema is not None else []
    written = [(place, one.name) for place, one in named if one.alias_info is not None and one.alias_info.is_write]
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in written]


def list_tensors(torch: Any, values: Any) -> Iterator[Any]:
    """Yield the tensors among values."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for one in values:
            yield from list_tensors(torch, one)
    elif isinstance(values, dict):
        yield from list_tensors(torch, list(values.values()))


def describe_shapes(torch: Any, values: Any) -> Any:
    """Return values as JSON has them: a tensor by its shape, and nothing of what decides no kernel."""
    if isinstance(values, torch.Tensor):
        return {"shape": list(values.shape)}
    if isinstance(values, (list, tuple)):
        return [describe_shapes(torch, one) for one in values]
    if isinstance(values, dict):
        return [[name, describe_shapes(torch, one)] for name, one in values.items()]
    return values if isinstance(values, (bool, int, str)) else None


def describe_launch(torch: Any, kernel: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the bytes of a compiled kernel: of an argument no more than the kernel has elements."""
    names = list(kernel.fn.arg_names)
    values = [*zip(names, args), *kwargs.items()]
    elements = 1
    for name, value in values:
        if name.endswith("numel") and isinstance(value, int):
            elements *= value
    has_elements = any(name.endswith("numel") for name, _ in values)
    num_bytes = 0
    for name, value in values:
        if isinstance(value, torch.Tensor):
            most = min(value.numel(), elements) if has_elements else value.numel()
            num_bytes += most * value.element_size() * (2 if name.startswith("in_out_ptr") else 1)
    return describe_product(torch, dict(values)) or {"operator": TRITON, "bytes": num_bytes}


def describe_product(torch: Any, values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the product that a compiled kernel is, as the operator that it stands for; None for another kernel.

    Source: the arguments of `mm_template` and `bmm_template` in torch/_inductor/kernel.
    """
    left, right = values.get("arg_A"), values.get("arg_B")
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return None
    shape = [*left.shape[:-1], right.shape[-1]]
    elements = left.numel() + right.numel() + left.numel() // left.shape[-1] * right.shape[-1]
    return {
        "operator": "aten.bmm.default" if left.dim() == 3 else "aten.mm.default",
        "bytes": elements * left.element_size(),
        "itemsize": left.element_size(),
        "arguments": describe_shapes(torch, [left, right]),
        "keywords": [],
        "result": {"shape": shape},
    }


def describe_own_launch(torch: Any, kernel: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the bytes of a kernel of the user's own: of each tensor once, which it reads or writes."""
    tensors = list_tensors(torch, (args, kwargs))
    return {"operator": TRITON, "bytes": sum(one.numel() * one.element_size() for one in tensors)}
