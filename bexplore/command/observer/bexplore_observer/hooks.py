"""Puts the observer's hooks into torch and Python, and hides their frames from dynamo."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .exchange import clock
from .objects import watch_freezing

if TYPE_CHECKING:
    from .steps import Observer

F = TypeVar("F", bound=Callable[..., Any])


def attach(observer: Observer) -> None:
    """Put all hooks in place."""
    torch = observer.torch
    hide_package_from_dynamo(torch)
    os.register_at_fork(after_in_child=observer.reset)
    _watch_backward(observer)
    _watch_loader(observer)
    for kind in (torch.no_grad, torch.inference_mode):
        _watch_gradients(observer, kind)
    _watch_saving(observer)
    watch_freezing(torch)
    _watch_handlers(observer)
    if observer.kernels is not None:
        observer.kernels.attach()
    from torch.optim import optimizer

    optimizer.register_optimizer_step_pre_hook(observer.before_update)
    optimizer.register_optimizer_step_post_hook(observer.after_update)
    _watch_resuming(observer, optimizer.Optimizer)
    observer.errors.chain_excepthook()
    _watch_processes(observer)
    import atexit

    atexit.register(observer.record_end)


def _watch_processes(observer: Observer) -> None:
    """Note what ends a process that the program has started: multiprocessing prints it, and calls no excepthook.

    Daemons are left out: a loader tells the errors of its workers itself.
    """
    from multiprocessing.process import BaseProcess

    inner = BaseProcess.run

    @functools.wraps(inner)
    def run(process: Any) -> None:
        try:
            inner(process)
        except Exception as error:
            if not process.daemon:
                observer.errors.note(error, "process")
            raise

    BaseProcess.run = run  # type: ignore[assignment, method-assign]


def _watch_backward(observer: Observer) -> None:
    torch = observer.torch
    inner = torch.autograd.backward

    @functools.wraps(inner)
    def backward(*args: Any, **kwargs: Any) -> Any:
        # Nested calls are reentrant checkpointing; those of other threads belong to a pass that is counted.
        if observer.in_backward or (observer.is_done and observer.thread != threading.get_ident()):
            return inner(*args, **kwargs)
        observer.before_backward()
        observer.in_backward = True
        try:
            result = inner(*args, **kwargs)
        except BaseException as error:
            observer.in_backward = False
            observer.errors.note(error, "backward")
            raise
        observer.in_backward = False
        observer.after_backward()
        return result

    torch.autograd.backward = skip(torch, backward)


def _watch_loader(observer: Observer) -> None:
    """Count what the iterators of loaders return; batches of another size than the probe's are dropped."""
    from torch.utils.data import dataloader

    torch = observer.torch
    base: Any = dataloader._BaseDataLoaderIter
    has_gradients = torch.is_grad_enabled
    of_torch, next_index = base.__next__, base._next_index
    inner = of_torch

    @functools.wraps(of_torch)
    def __next__(iterator: Any) -> Any:
        key = observer.loaders.find_key(iterator, has_gradients())
        observer.loaders.note_use(key)
        if key != observer.loaders.fetches.reading:
            observer.loaders.fetches.turn_to(key, observer.total_passes)
        began_s = clock()
        try:
            batch = inner(iterator)
        except StopIteration:
            observer.loaders.end_epoch(iterator)
            if not observer.total_passes:
                observer.loaders.note_end_of_epoch(iterator)
            raise
        read_s = clock() - began_s
        observer.loaders.note_batch(batch, key)
        if key[1] and observer.thread in (None, threading.get_ident()):
            observer.loaders.ahead.note(iterator, observer.number_of_step(), read_s)
        return batch

    @functools.wraps(of_torch)
    def next_of_lists(iterator: Any) -> Any:
        batch = of_torch(iterator)
        while observer.loaders.is_stale(iterator):
            batch = of_torch(iterator)
        return batch

    @functools.wraps(next_index)
    def _next_index(iterator: Any) -> Any:
        return observer.loaders.lists.take_next(iterator, next_index)

    def stop_reading_lists() -> None:
        nonlocal inner
        base._next_index, inner = next_index, of_torch

    observer.loaders.stop_reading_lists = stop_reading_lists  # type: ignore[method-assign]
    base.__next__, base._next_index = skip(torch, __next__), skip(torch, _next_index)
    inner = skip(torch, next_of_lists)


def _watch_gradients(observer: Observer, kind: Any) -> None:
    """Note where gradients are switched off, as for the forward passes of an evaluation."""
    enter, leave = kind.__enter__, kind.__exit__
    began_s: list[float] = []

    @functools.wraps(enter)
    def __enter__(context: Any) -> Any:
        observer.loaders.fetches.turn.is_off = observer.loaders.fetches.is_off = True
        began_s.append(clock())
        if observer.kernels is not None:
            observer.kernels.num_without_gradients += 1
        return enter(context)

    @functools.wraps(leave)
    def __exit__(context: Any, *error: Any) -> Any:
        if began_s:
            times_s = began_s.pop(), clock()
            if observer.kernels is not None:
                observer.kernels.num_without_gradients = max(observer.kernels.num_without_gradients - 1, 0)
            if not observer.in_update:
                observer.without_gradients.extend(times_s)
        return leave(context, *error)

    kind.__enter__, kind.__exit__ = skip(observer.torch, __enter__), skip(observer.torch, __exit__)


def _watch_saving(observer: Observer) -> None:
    """Note when the training writes a checkpoint: no step ends meanwhile, and processors may be idle.

    A file that was there before the exploration is not written over.
    """
    torch = observer.torch
    inner = torch.save

    @functools.wraps(inner)
    def save(*args: Any, **kwargs: Any) -> Any:
        if observer.files.keeps(args[1] if len(args) > 1 else kwargs.get("f"), observer.settings):
            observer.exchange.num_signs += 1
            return None
        began_s = clock()
        observer.num_saving += 1
        try:
            return inner(*args, **kwargs)
        finally:
            observer.num_saving -= 1
            observer.without_gradients.extend((began_s, clock()))
            observer.exchange.num_signs += 1

    torch.save = torch.serialization.save = skip(torch, save)


def _watch_resuming(observer: Observer, kind: Any) -> None:
    """Note that an optimizer takes over states before the first step: the training resumes."""
    inner = kind.load_state_dict

    @functools.wraps(inner)
    def load_state_dict(optimizer: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.first_backward_at_s is None:
            observer.is_resumed |= bool(isinstance(state_dict, dict) and state_dict.get("state"))
        return inner(optimizer, state_dict, *args, **kwargs)

    kind.load_state_dict = load_state_dict


def _watch_handlers(observer: Observer) -> None:
    """Note a refusal of memory that the program catches: it collects garbage, empties the cache or exits."""
    import gc

    cuda = observer.torch.cuda
    empty, leave = cuda.empty_cache, sys.exit

    @functools.wraps(empty)
    def empty_cache() -> Any:
        observer.note_handled()
        return empty()

    @functools.wraps(leave)
    def exit_noted(*args: Any) -> None:
        observer.note_handled()
        leave(*args)

    sys.exit = exit_noted  # type: ignore[assignment]
    cuda.empty_cache = cuda.memory.empty_cache = empty_cache
    gc.callbacks.append(lambda phase, info: observer.note_handled() if phase == "start" else None)


def hide_package_from_dynamo(torch: Any) -> None:
    """Let dynamo compile no frame of this package; unlike its decorator, that costs nothing at each call.

    What such a frame calls is compiled as it would be without it.
    """
    package = __name__.rpartition(".")[0]
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(f"{package}.")]
    own = [one for module in modules for one in vars(module).values() if _is_of(one, package)]
    members = [one for kind in own if isinstance(kind, type) for one in vars(kind).values()]
    for one in (*own, *members):
        function: Any = one.fget if isinstance(one, property) else one
        if hasattr(function, "__code__"):
            skip(torch, function)


def _is_of(one: Any, package: str) -> bool:
    return str(getattr(one, "__module__", "")).startswith(package)


def skip(torch: Any, function: F) -> F:
    """Let dynamo compile no frame of a function; return the function."""
    code = getattr(function, "__code__", None)
    try:
        frames = torch._C._dynamo.eval_frame
        if hasattr(frames, "skip_code"):  # torch 2.6 and older
            frames.skip_code(code)
        else:
            action = frames._FrameAction
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    except (AttributeError, TypeError):  # a torch without dynamo, or one that names it otherwise
        pass
    return function
