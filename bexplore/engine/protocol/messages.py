"""Requests to a worker and its answers: one JSON object each, length-framed, over a socket pair.

JSON and not pickle: a worker runs the user's code, and what it sends is read by a process that must not be harmed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bexplore.engine.protocol.failures import full_disk, last_line
from bexplore.engine.protocol.shared_mode import SharedMode
from bexplore.errors import BexploreError, EngineError, ExitCode, UserInputError, UserProgramError
from bexplore.host.json_files import parse_json
from bexplore.host.records import from_record, to_record
from bexplore.job import Job
from bexplore.measurement.probe import Outcome, Probe

MAX_MESSAGE_BYTES = 16 * 2**20
_KINDS: dict[str, type] = {}


class Message:
    """One message; its fields travel as JSON, and the name of its class as `kind`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls


class Request(Message):
    """What a worker is to do."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStore(Request):
    """Open the store in which ranks find each other, on the first rank; answered by its `port`.

    Attributes:
        is_one_host: Whether all ranks are on one host; the store then listens on loopback alone.
        timeout_s: How long a rank may take to come.
    """

    is_one_host: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Request):
    """Join the process group of all ranks.

    Attributes:
        address: Host of the store.
        port: Port of the store.
        is_one_host: Whether all ranks are on one host.
        timeout_s: How long a collective may take.
    """

    address: str
    port: int
    is_one_host: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereAreYou(Request):
    """Report what the worker's main thread does; answered at once, by `Whereabouts`, while another request runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo(Request):
    """Report what torch finds of a device; answered by the values of `engine.worker.device.device_info`."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindInterfaces(Request):
    """Look for torch's private interfaces; answered by `missing`: what is lost, and the name that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCompiler(Request):
    """Compile one small program for a device and run it; answered by `is_right`."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFake(Request):
    """Build a job on fake tensors."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(Request):
    """Trace a job; answered by `cost_model` and `sources`.

    Attributes:
        job: What to trace.
        gpu: Properties of an absent device to stand in for; None for the job's own device.
        why_not: Why the program of the job's own device cannot be traced; empty where it can.
    """

    job: Job
    gpu: dict[str, Any] | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeMetrics(Request):
    """Take the exact facts of a job's program; answered by `metrics` and, of the device, `device_info`."""

    job: Job
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest(Request):
    """A probe, and what its worker must be built from.

    Attributes:
        job: What to run.
        probe: Which size, and how.
        shared_mode: Kind of the shared program to begin with.
        budget_bytes: Memory budget of the job's tensors; None for no limit.
        pass_budget_s: Seconds of timed passes after which the probe stops.
        free_memory_bytes: Free on the device before any worker; None to wait for no memory.
        artifacts_dir: Keeps what the compiler makes; None for the compiler's usual cache.
        replica_batch_size: Samples of one replica in a step, which decides what the reduction of gradients costs a
            pass; None where that is not known.
        largest_size: Samples of the largest size that may fit; None where that is not known.
    """

    job: Job
    probe: Probe
    shared_mode: SharedMode
    budget_bytes: int | None = None
    pass_budget_s: float = 4.0
    free_memory_bytes: int | None = None
    artifacts_dir: str | None = None
    replica_batch_size: int | None = None
    largest_size: int | None = None


class Prepare(ProbeRequest):
    """Compile for a probe, which runs later."""


class RunProbe(ProbeRequest):
    """Run a probe; answered by fields of `Observation`."""


class CheckEagerly(ProbeRequest):
    """Run one step of the probe's size without the compiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePasses(Request):
    """Time passes of a size that was measured before: see `Session.time_passes`."""

    micro_batch_size: int
    num_passes: int
    round_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareEager(Request):
    """Time compiled and eager passes of the size that was measured last: see `Session.compare_eager`.

    Attributes:
        micro_batch_size: The size.
        budget_s: Seconds of passes, those that warm up included, after which it is enough.
        tolerance: A share of speed that counts as none.
    """

    micro_batch_size: int
    budget_s: float
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSteps(Request):
    """Profile steps of the size that was measured last; answered by the fields of `Profile`.

    Attributes:
        micro_batch_size: The size.
        trace_path: The Chrome trace to write; a rank after the first adds its number to the name.
    """

    micro_batch_size: int
    trace_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareGradients(Request):
    """Compare the gradients of one replica batch at two splits; answered by the fields of `GradientEquivalence`."""

    job: Job
    base_micro_batch_size: int
    micro_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLoader(Request):
    """Time the user's own data loader; answered by the fields of `LoaderSpeed`."""

    job: Job
    micro_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLengths(Request):
    """Read the lengths of samples from the user's own data loader; answered by `lengths`."""

    job: Job
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLoaded(Request):
    """List the files under a folder from which modules were imported; answered by `files`."""

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """The first message of a rank that a launcher has started.

    Attributes:
        rank: Among all ranks, from 0.
        local_rank: Among those of its host.
        num_ranks: That the launcher has started.
        host: Name of its host.
        pid: Its process there.
        mark: Of the group that it belongs to; empty where the user starts the launcher.
        generation: How often its launcher has started it before.
        slurm_step: Job and step that `scancel` takes; empty outside of Slurm.
    """

    rank: int
    local_rank: int
    num_ranks: int
    host: str
    pid: int
    mark: str = ""
    generation: int = 0
    slurm_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts(Message):
    """What a worker's main thread does.

    Attributes:
        place: Innermost line outside of torch, such as `model.py:33 in forward`; empty for none.
        waits_for_ranks: Whether it is inside a collective, or where one may be waited for.
    """

    place: str
    waits_for_ranks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """What a worker reports while it works, such as `stage` or `pass_time_s`."""

    report: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Message):
    """A request that succeeded.

    Attributes:
        values: What was requested.
        start_time_s: Seconds to build the job; 0 where it was built before.
        shared_mode: Kind of shared program of the worker; None where it has built none.
        has_headroom: As of `Worker`; None for as before.
    """

    values: dict[str, Any] = field(default_factory=dict)
    start_time_s: float = 0.0
    shared_mode: SharedMode | None = None
    has_headroom: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Message):
    """A request at which the job failed, or whose worker ended.

    Attributes:
        outcome: Never `measured`.
        reason: One line for people.
        traceback_text: Whole traceback, or the last output of a worker that ended; empty where there is none.
        details: Extra values of the observation.
        start_time_s: As of `Done`.
        shared_mode: As of `Done`.
        has_headroom: As of `Done`.
        is_reusable: Whether the worker is as good as before.
        is_sticky: Whether the device may fail at whatever this worker requests of it next.
        has_ended: Whether the worker ended, or was given up, without an answer.
    """

    outcome: Outcome
    reason: str
    traceback_text: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    start_time_s: float = 0.0
    shared_mode: SharedMode | None = None
    has_headroom: bool | None = None
    is_reusable: bool = False
    is_sticky: bool = False
    has_ended: bool = False

    def check_host(self) -> None:
        """Check that the host is not to blame.

        Raises:
            EngineError: A disk was full.
        """
        text = last_line(self.traceback_text) if self.has_ended else f"{self.traceback_text}\n{self.reason}"
        error = None if self.outcome is Outcome.OUT_OF_MEMORY else full_disk(text)
        if error is not None:
            raise error


def lost(outcome: Outcome, reason: str, last_output: str = "", *, ended_by: str = "") -> Failed:
    """Return the answer of a worker that ended, by a signal or by itself, or was given up, without one."""
    details = {"ended_by": ended_by} if ended_by else {}
    return Failed(outcome=outcome, reason=reason, traceback_text=last_output, details=details, has_ended=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """A request that is wrong, or an engine that cannot carry it out.

    Attributes:
        message: What is wrong.
        hint: What to do about it.
        exit_code: Of the error.
        traceback_text: Of the user's own code; empty where the error is not the user's code.
    """

    message: str
    hint: str
    exit_code: int
    traceback_text: str = ""

    @classmethod
    def of(cls, error: BexploreError) -> Refused:
        """Take the fields of an error."""
        return cls(
            message=error.message,
            hint=error.hint,
            exit_code=int(error.exit_code),
            traceback_text=getattr(error, "traceback_text", ""),
        )

    def error(self) -> BexploreError:
        """Return the error that the worker raised, as one of this process."""
        if self.traceback_text:
            return UserProgramError(self.message, hint=self.hint, traceback_text=self.traceback_text)
        kind = UserInputError if self.exit_code == ExitCode.USER_INPUT else EngineError
        return kind(self.message, hint=self.hint)


Answer = Done | Failed | Refused
FROM_WORKER = (Progress, Done, Failed, Refused, Whereabouts)


def send(connection: Connection, message: Message) -> None:
    """Send one message.

    Raises:
        OSError: The other side is gone.
    """
    record = {"kind": type(message).__name__} | to_record(message)
    connection.send_bytes(json.dumps(record, default=str).encode())


def receive(connection: Connection, kinds: tuple[type[Message], ...]) -> Any:
    """Wait for one message of some kinds.

    Raises:
        EOFError, OSError: The other side is gone.
        ValueError: What came is not a message of ours.
    """
    values = parse_json(connection.recv_bytes(MAX_MESSAGE_BYTES))
    try:
        kind = _KINDS[values.pop("kind")]
        if not issubclass(kind, kinds):
            raise ValueError(f"unexpected {kind.__name__}")
        return from_record(kind, values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
