"""The worker's loop: receives requests, lets a handler carry each out, and answers. It ends with the explorer."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from bexplore.engine.protocol import messages
from bexplore.engine.protocol.failures import Failure, classify_exception
from bexplore.engine.protocol.messages import (
    Answer,
    Done,
    Failed,
    Message,
    Progress,
    Refused,
    Request,
    Whereabouts,
    WhereAreYou,
    receive,
    send,
)
from bexplore.engine.worker.memory_limit import kill_own_group
from bexplore.engine.worker.place import Place
from bexplore.errors import BexploreError, TraceError, UserProgramError
from bexplore.host.records import from_record, to_record
from bexplore.measurement.probe import Outcome
from bexplore.trace.absent_gpu import stand_in
from bexplore.trace.cache import imported_sources
from bexplore.trace.gpu_properties import GpuProperties

# Files in which a rank waits for others, and the function in which a collective of a backward pass may.
_OF_RANKS = ("/torch/distributed/", "/engine/worker/ranks.py", "/torch/nn/parallel/")
_BACKWARD = "_engine_run_backward"

Handlers = Mapping[type, Callable[[Any], Answer]]
Report = Callable[..., None]

# What a trace may take of the memory of a device that is here: it computes nothing there. Bytes.
TRACE_DEVICE_BYTES = 256 * 2**20
# Requests whose handlers lie apart from those of probes: these import no more than they need.
_APART = {
    messages.DeviceInfo: "device",
    messages.FindInterfaces: "device",
    messages.TakeMetrics: "program_metrics",
    messages.OpenStore: "ranks",
    messages.Join: "ranks",
}


def serve(connection: Connection, *, place: Place, preload: Sequence[str] = ()) -> None:
    """Answer requests until the explorer is gone.

    Args:
        place: Of this rank among all.
        preload: Modules to import before the first request; a progress message reports that they are.
    """
    requests: SimpleQueue[Request] = SimpleQueue()
    sender = Sender(connection)
    threading.Thread(target=listen, args=(connection, requests, sender), daemon=True).start()
    with uncollected():
        for module in preload:
            importlib.import_module(module)
    if preload:
        sender.send(Progress(report={}))
    server = Server(lambda **report: sender.send(Progress(report=report)), place)
    while True:
        sender.send(server.answer(requests.get()))


class Sender:
    """Sends messages of several threads, each whole."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message."""
        with self._lock:
            send(self._connection, message)


def listen(connection: Connection, requests: SimpleQueue[Request], sender: Sender) -> None:
    """Queue what the explorer requests; when it is gone, end this worker and all that it started.

    The user's code may close this end, and its number may then name another file. The explorer is still there then,
    and learns how the worker ends.
    """
    identity = _identity(connection)
    while True:
        try:
            request = receive(connection, (Request,))
            if isinstance(request, WhereAreYou):
                sender.send(whereabouts(sys._current_frames().get(threading.main_thread().ident or 0)))
            else:
                requests.put(request)
        except (EOFError, OSError):
            if _identity(connection) == identity:
                kill_own_group()
            return


def whereabouts(frame: FrameType | None) -> Whereabouts:
    """Return what a thread does, by its innermost frame; None for a thread that is not there."""
    inner, place = frame, ""
    while frame is not None and not place:
        path = frame.f_code.co_filename
        if not any(part in path for part in (*_OF_RANKS, "/torch/", "<")):
            place = f"{Path(path).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    waits = False
    while inner is not None:
        code = inner.f_code
        waits = waits or code.co_name == _BACKWARD or any(part in code.co_filename for part in _OF_RANKS)
        inner = inner.f_back
    return Whereabouts(place=place, waits_for_ranks=waits)


def _identity(connection: Connection) -> tuple[int, int] | None:
    """Return which file the connection's number names; None for none."""
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Server:
    """Answers requests by the handlers of a few modules, each imported with its first request.

    Torch takes a second of a processor and its compiler two more; a worker that only reports its device needs the one,
    and a worker that stands in for an absent device must do so before anything imports torch.

    Args:
        report: Sends a progress message.
        place: Of this rank among all.

    Attributes:
        report: As given.
        place: As given.
        ranks: The group that this rank has joined (`steps.Ranks`); None without one.
    """

    def __init__(self, report: Report, place: Place) -> None:
        self.report = report
        self.place = place
        self.ranks: Any = None
        self._device_is_full: Callable[[], bool] = lambda: False
        self._handlers: dict[type, Callable[[Any], Answer]] = {messages.Trace: self._trace}

    def take_ranks(self, ranks: Any) -> None:
        """Take the group that this rank has joined: probes that follow run with it."""
        self.ranks = ranks

    def take_device(self, name: str, *, limit_bytes: int | None = None) -> Any:
        """Make the job's device the current one before anything else asks torch for a device.

        Args:
            limit_bytes: Of its memory, what this process may take; None for no limit.

        Returns:
            The `torch.device`.
        """
        worker_device = _module("device")
        device = worker_device.take(self.own_device(name), limit_bytes)
        self._device_is_full = lambda: worker_device.is_nearly_full(device)
        return device

    def own_device(self, name: str) -> str:
        """Return this rank's device of a kind: of several on a host, the one with its number there."""
        return str(_module("device").of_rank(name, self.place.local_rank)) if self.place.num_ranks > 1 else name

    def answer(self, request: Request) -> Answer:
        """Carry out a request; a failure of the job is an answer too."""
        try:
            return self._handler(type(request))(request)
        except Exception as error:  # the border of the user's code: everything it raises becomes the probe's outcome
            try:
                failure = self.failure_of(error)
            except BexploreError as refused:
                return Refused.of(refused)
        return failed(failure)

    def failure_of(self, error: Exception) -> Failure:
        """Classify what the user's code raised.

        Raises:
            BexploreError: The request itself cannot be carried out.
        """
        if not isinstance(error, BexploreError):
            return classify_exception(error, device_is_full=self._device_is_full)
        own = classify_exception(error.__cause__ or error) if isinstance(error, UserProgramError) else None
        if own is None or own.outcome is Outcome.CRASHED:
            raise error
        return own  # the user's program lacked memory, say

    def _trace(self, request: messages.Trace) -> Answer:
        """Trace a job, for an absent device where the request has its properties."""
        why_not = request.why_not
        if request.gpu is None:
            self.take_device(request.job.device, limit_bytes=TRACE_DEVICE_BYTES)
        self.report(stage="trace")
        began_s = time.time()
        if request.gpu is not None:
            try:
                stand_in(from_record(GpuProperties, request.gpu))
            except TraceError as error:
                why_not = error.message
        with uncollected():
            from bexplore.trace.tracer import trace_job  # imports torch, which must find the absent device in place

        cost_model = trace_job(request.job, why_cpu=why_not)
        sources = imported_sources(began_s)
        return Done(
            values={
                "cost_model": to_record(cost_model),
                "sources": dataclasses.asdict(sources) if sources else None,
            }
        )

    def _handler(self, kind: type) -> Callable[[Any], Answer]:
        if kind not in self._handlers:
            self._handlers |= _module(_APART.get(kind, "probing")).handlers(self)
        return self._handlers[kind]


@contextmanager
def uncollected() -> Iterator[None]:
    """Import with the garbage collector off, and leave what was imported out of its later runs.

    Torch and its compiler make 380,000 objects that live as long as the process. Collecting among them takes 3.5 s of
    processor time for the imports of a probe instead of 2.6 s, and 0.2 s of each later full run (medians of three).
    """
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if usual:
            gc.enable()


def _module(name: str) -> Any:
    path = f"bexplore.engine.worker.{name}"
    if path not in sys.modules:  # what a job has made must stay collectable
        with uncollected():
            importlib.import_module(path)
    return sys.modules[path]


def failed(failure: Failure, **of_the_worker: Any) -> Failed:
    """Return the answer of a failure; what the worker is good for after it is given by fields of `Failed`."""
    details: dict[str, Any] = {"exception_type": failure.exception_type}
    if failure.ended_by:
        details["ended_by"] = failure.ended_by
    return Failed(
        outcome=failure.outcome,
        reason=failure.reason,
        traceback_text=failure.traceback_text,
        is_sticky=failure.is_sticky,
        details=details | ({"is_in_compiler": True} if failure.is_in_compiler else {}),
        **of_the_worker,
    )
