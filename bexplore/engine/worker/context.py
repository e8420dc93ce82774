"""What the handlers of a worker's requests share: its place among the ranks, its device, how it reports and fails.

Nothing here waits for torch.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection
from typing import Any, NamedTuple

from bexplore.engine.process.launcher import KEY_VARIABLE
from bexplore.engine.protocol.failures import Failure, classify_exception
from bexplore.engine.protocol.messages import Answer, Failed, Hello, send
from bexplore.errors import BexploreError, UserProgramError
from bexplore.host.process_tree import WORKER_MARK
from bexplore.measurement.probe import Outcome

Handlers = Mapping[type, Callable[[Any], Answer]]
Report = Callable[..., None]
# Variables that name a rank, its number on its host and the number of ranks. Sources: torchrun; Slurm's srun; Open MPI.
_PLACES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
)
# How long a rank waits for an explorer that does not listen yet, and how often it calls. Seconds.
CALL_LIMIT_S = 600.0
CALL_PERIOD_S = 0.5


class Place(NamedTuple):
    """Where a rank stands: its number, its number on its host, and how many there are."""

    rank: int
    local_rank: int
    num_ranks: int


ALONE = Place(0, 0, 1)


def read_place(environment: Mapping[str, str]) -> Place:
    """Return the place that a launcher has given to this process; the only rank where none has."""
    for names in _PLACES:
        if all(name in environment for name in names):
            return Place(*(int(environment[name]) for name in names))
    return ALONE


def call(address: str, place: Place) -> Connection:
    """Connect to the explorer, and say who this rank is.

    Raises:
        KeyError: The environment has no key.
        OSError: Nobody listens there, and nobody began to.
        AuthenticationError: The key is another one.
    """
    host, _, port = address.rpartition(":")
    key = os.environ.pop(KEY_VARIABLE)  # the user's code, and what it starts, do not need it
    connection = _connect(host, int(port), key.encode())
    step = ".".join(filter(None, (os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID"))))
    mark = os.environ.get(WORKER_MARK, "")
    send(
        connection,
        Hello(
            rank=place.rank,
            local_rank=place.local_rank,
            num_ranks=place.num_ranks,
            host=socket.gethostname(),
            pid=os.getpid(),
            mark=mark,
            generation=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
            slurm_step=step,
        ),
    )
    return connection


def _connect(host: str, port: int, key: bytes) -> Connection:
    """Connect; where nobody listens yet, wait: ranks that the user starts may be there before the explorer.

    An explorer to which very many connect may end a connection before its handshake: it is called again.
    """
    until_s = time.monotonic() + CALL_LIMIT_S
    while True:
        try:
            return Client((host, port), authkey=key)
        except (ConnectionError, EOFError):
            if time.monotonic() >= until_s:
                raise
            time.sleep(CALL_PERIOD_S)


class Context:
    """One worker, as the handlers of its requests see it."""

    def __init__(self, report: Report, place: Place) -> None:
        self.report = report
        self.place = place
        self.ranks: Any = None  # the group that this rank has joined (`steps.Ranks`); None without one
        self._device_is_full: Callable[[], bool] = lambda: False

    def take_ranks(self, ranks: Any) -> None:
        """Take the group that this rank has joined: probes that follow run with it."""
        self.ranks = ranks

    def take_device(self, name: str, *, limit_bytes: int | None = None) -> Any:
        """Make the job's device the current one before anything else asks torch for a device."""
        worker_device = load_module("device")
        device = worker_device.take(self.own_device(name), limit_bytes)
        self._device_is_full = lambda: worker_device.is_nearly_full(device)
        return device

    def own_device(self, name: str) -> str:
        """Return this rank's device of a kind: of several on a host, the one with its number there."""
        if self.place.num_ranks == 1:
            return name
        return str(load_module("device").find_device_of_rank(name, self.place.local_rank))

    def failure_of(self, error: Exception) -> Failure:
        """Classify what the user's code raised."""
        if not isinstance(error, BexploreError):
            return classify_exception(error, device_is_full=self._device_is_full)
        own = classify_exception(error.__cause__ or error) if isinstance(error, UserProgramError) else None
        if own is None or own.outcome is Outcome.CRASHED:
            raise error
        return own  # the user's program lacked memory, say


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


def load_module(name: str) -> Any:
    """Return a module of this folder, imported with its first use."""
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
