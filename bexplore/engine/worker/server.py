"""The worker's loop: receives requests, lets a handler carry each out, and answers. It ends with the explorer."""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from bexplore.engine.protocol import messages
from bexplore.engine.protocol.messages import (
    Answer,
    Done,
    Message,
    Progress,
    Refused,
    Request,
    Whereabouts,
    WhereAreYou,
    receive,
    send,
)
from bexplore.engine.worker.context import Context, Place, Report, failed, load_module, uncollected
from bexplore.engine.worker.own_process import kill_own_group
from bexplore.errors import BexploreError, TraceError
from bexplore.host.records import from_record, to_record
from bexplore.host.torch_interfaces import missing_interfaces
from bexplore.trace.absent_gpu import GpuProperties, stand_in
from bexplore.trace.cache import find_imported_sources

# Files in which a rank waits for others, and the function in which a collective of a backward pass may.
_OF_RANKS = ("/torch/distributed/", "/engine/worker/ranks.py", "/torch/nn/parallel/")
_BACKWARD = "_engine_run_backward"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)  # of `faulthandler`

# What a trace may take of the memory of a device that is here: it computes nothing there. Bytes.
TRACE_DEVICE_BYTES = 256 * 2**20
# Requests whose handlers lie apart from those of probes: these import no more than they need.
_APART = {
    messages.Calibrate: "calibrating",
    messages.TakeMetrics: "program_metrics",
    messages.FindKernels: "recorded_kernels",
    messages.OpenStore: "ranks",
    messages.Join: "ranks",
}


class Frame(NamedTuple):
    """A call that a thread is in."""

    path: str
    line: int
    name: str


def serve(connection: Connection, *, place: Place, preload: Sequence[str] = ()) -> None:
    """Answer requests until the explorer is gone."""
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
                sender.send(find_whereabouts(read_frames(threading.main_thread().ident or 0)))
            else:
                requests.put(request)
        except (EOFError, OSError):
            if _identity(connection) == identity:
                kill_own_group()
            return


def find_whereabouts(frames: Sequence[Frame]) -> Whereabouts:
    """Return what a thread does, by its frames, innermost first."""
    yours = [one for one in frames if not any(part in one.path for part in (*_OF_RANKS, "/torch/", "<"))]
    waits = any(one.name == _BACKWARD or any(part in one.path for part in _OF_RANKS) for one in frames)
    place = f"{Path(yours[0].path).name}:{yours[0].line} in {yours[0].name}" if yours else ""
    return Whereabouts(place=place, waits_for_ranks=waits)


def read_frames(thread: int) -> list[Frame]:
    """Return where a thread is, innermost frame first, at most 100; none for a thread that is not there.

    `faulthandler` reads them in one call. Frame objects of a thread that runs (`sys._current_frames`) are not safe:
    torch.compile evaluates frames itself, and following `f_back` now and then crashes the process.
    """
    file = os.memfd_create("frames")
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    finally:
        os.close(file)
    _, _, rest = text.partition(f"hread 0x{thread:016x} ")  # or "Current thread"
    found = _FRAME.findall(rest.partition("\n\n")[0])
    return [Frame(path, int(line), name) for path, line, name in found]


def _identity(connection: Connection) -> tuple[int, int] | None:
    """Return which file the connection's number names; None for none."""
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Server(Context):
    """Answers requests by the handlers of a few modules, each imported with its first request.

    Torch takes a second of a processor and its compiler two more; a worker that only reports its device needs the one,
    and a worker that stands in for an absent device must do so before anything imports torch.
    """

    def __init__(self, report: Report, place: Place) -> None:
        super().__init__(report, place)
        self._handlers: dict[type, Callable[[Any], Answer]] = {
            messages.DeviceInfo: self._describe_device,
            messages.FindInterfaces: self._find_interfaces,
            messages.Trace: self._trace,
        }

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

    def _describe_device(self, request: messages.DeviceInfo) -> Answer:
        self.report(stage="import")
        return Done(values=load_module("device").device_info(self.own_device(request.device)))

    def _find_interfaces(self, _request: messages.FindInterfaces) -> Answer:
        self.report(stage="import")
        load_module("device")
        return Done(values={"missing": list(missing_interfaces())})

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
        sources = find_imported_sources(began_s)
        return Done(
            values={
                "cost_model": to_record(cost_model),
                "sources": dataclasses.asdict(sources) if sources else None,
            }
        )

    def _handler(self, kind: type) -> Callable[[Any], Answer]:
        if kind not in self._handlers:
            self._handlers |= load_module(_APART.get(kind, "probing")).handlers(self)
        return self._handlers[kind]
