"""Requests to a worker and its answers: one JSON object each, length-framed, over a socket pair.

JSON and not pickle: a worker runs the user's code, and what it sends is read by a process that must not be harmed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any

from bexplore.engine.protocol.failures import find_host_error, last_line
from bexplore.errors import BexploreError, EngineError, ExitCode, UserInputError, UserProgramError
from bexplore.host.json_files import parse_json
from bexplore.host.records import from_record, to_record
from bexplore.job import Job
from bexplore.measurement.probe import Outcome, Probe

# From this torch on, Inductor splits reductions by the hint of an unbacked size. Source: torch/_inductor/ir.py,
# `num_splits`, 2.11 `symbolic_hint` (which ignores the hint) against 2.12 `all_unbacked_explicitly_hinted`.
_SPLITS_BY_HINT = (2, 12)


class SharedMode(StrEnum):
    """How the number of samples is made symbolic.

    | mode | programs of a search |
    |---|---|
    | nested, unbacked | one: a number without a hint leaves nothing to specialise on |
    | dynamic | two: one for a single sample, whose length the compiler takes to be fixed, and one for all others |
    | static | one for each size |

    The dynamic one chooses kernels on an accelerator as for the largest size that may fit, where they depend on the
    number of samples: see `choose_kernels_for_largest`. Beyond that size it compiles again, where indices of 32 bits
    end; without a trace that tells the size, wherever other kernels would be chosen.
    """

    NESTED = "nested"  # unbacked, and repeated blocks are compiled once, as a region inside the whole
    UNBACKED = "unbacked"
    DYNAMIC = "dynamic"
    STATIC = "static"

    @property
    def serves_every_size(self) -> bool:
        """Whether one compilation is enough."""
        return self in (SharedMode.NESTED, SharedMode.UNBACKED)


# The order in which modes are tried. On a CPU one compilation for all sizes is worth most: its kernels are loops whose
# code depends on no size. On CUDA only a backed number has the kernels of the exact program, at the price of two
# compilations (benchmarks/results/shared_kernels.md). With an unbacked one, hint or not, indices have 64 bits,
# reductions over rows are not fused with those over columns (`MixOrderReduction.can_fuse` in
# torch/_inductor/scheduler.py) and attention does not take cuDNN's kernel, which has a largest batch
# (`check_cudnn_tensor_shapes` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
_ON_CPU = (SharedMode.NESTED, SharedMode.UNBACKED, SharedMode.DYNAMIC, SharedMode.STATIC)
_ON_CUDA = (SharedMode.DYNAMIC, SharedMode.UNBACKED, SharedMode.STATIC)
_BACKED = (SharedMode.DYNAMIC, SharedMode.STATIC)


def shared_modes(device_type: str, torch_version: str, *, has_convolutions: bool = False) -> tuple[SharedMode, ...]:
    """Give the modes to try on a device, best first.

    The compiler cannot choose kernels of convolutions that it sees for an unbacked number of samples.
    """
    if has_convolutions:
        return _BACKED
    if device_type == "cpu":
        return _ON_CPU
    return _ON_CUDA if _major_minor(torch_version) >= _SPLITS_BY_HINT else _BACKED


def mode_after(mode: SharedMode, modes: tuple[SharedMode, ...]) -> SharedMode | None:
    """Give what to try where a mode does not compile; None after the last."""
    later = modes[modes.index(mode) + 1 :]
    return later[0] if later else None


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


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
    """Open the store in which ranks find each other, on the first rank; answered by its `port`."""

    is_one_host: bool  # whether all ranks are on one host; the store then listens on loopback alone
    timeout_s: float  # how long a rank may take to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Request):
    """Join the process group of all ranks."""

    address: str  # host and port of the store
    port: int
    is_one_host: bool
    timeout_s: float  # how long a collective may take


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
class Calibrate(Request):
    """Time kernels and small programs on a device; answered by `calibration`."""

    device: str
    seconds_of_each: float  # of each kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFake(Request):
    """Build a job on fake tensors."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(Request):
    """Trace a job; answered by `cost_model` and `sources`."""

    job: Job
    gpu: dict[str, Any] | None = None  # properties of an absent device to stand in for; None for the job's own device
    why_not: str = ""  # why the program of the job's own device cannot be traced; empty where it can


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeMetrics(Request):
    """Take the exact facts of a job's program; answered by `metrics` and, of the device, `device_info`."""

    job: Job
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindKernels(Request):
    """Find the kernels of calls that were seen in a training; answered by `kernels`, a list for each call."""

    calls: list[dict[str, Any]]  # as the observer describes them


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest(Request):
    """A probe, and what its worker must be built from."""

    job: Job
    probe: Probe
    shared_mode: SharedMode  # kind of the shared program to begin with
    budget_bytes: int | None = None  # memory budget of the job's tensors; None for no limit
    pass_budget_s: float = 4.0  # seconds of timed passes after which the probe stops
    free_memory_bytes: int | None = None  # free on the device before any worker; None to wait for no memory
    artifacts_dir: str | None = None  # keeps what the compiler makes; None for the compiler's usual cache
    # Samples of one replica in a step, which decides what the reduction of gradients costs a pass; None where that is
    # not known.
    replica_batch_size: int | None = None
    largest_size: int | None = None  # samples of the largest size that may fit; None where that is not known


class Prepare(ProbeRequest):
    """Compile for a probe, which runs later."""


class RunProbe(ProbeRequest):
    """Run a probe; answered by fields of `Observation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureMemory(ProbeRequest):
    """Measure a step at a few small sizes, for a job that cannot be traced; answered by `cost_model` and `sources`."""

    sizes: tuple[int, ...]  # ascending; the first is the probe's


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
    """Time compiled and eager passes of the size that was measured last: see `Session.compare_eager`."""

    micro_batch_size: int
    budget_s: float  # seconds of passes, those that warm up included, after which it is enough
    tolerance: float  # a share of speed that counts as none


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSteps(Request):
    """Profile steps of the size that was measured last; answered by the fields of `Profile`."""

    micro_batch_size: int
    trace_path: str  # the Chrome trace to write; a rank after the first adds its number to the name


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
    """The first message of a rank that a launcher has started."""

    rank: int  # among all ranks, from 0
    local_rank: int  # among those of its host
    num_ranks: int  # that the launcher has started
    host: str
    pid: int  # on that host
    mark: str = ""  # of the group that it belongs to; empty where the user starts the launcher
    generation: int = 0  # how often its launcher has started it before
    slurm_step: str = ""  # job and step that `scancel` takes; empty outside of Slurm


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts(Message):
    """What a worker's main thread does."""

    place: str  # innermost line outside of torch, such as `model.py:33 in forward`; empty for none
    waits_for_ranks: bool  # whether it is inside a collective, or where one may be waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """What a worker reports while it works, such as `stage` or `pass_time_s`."""

    report: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Message):
    """A request that succeeded."""

    values: dict[str, Any] = field(default_factory=dict)  # what was requested
    start_time_s: float = 0.0  # seconds to build the job; 0 where it was built before
    shared_mode: SharedMode | None = None  # kind of shared program of the worker; None where it has built none
    has_headroom: bool | None = None  # as of `Worker`; None for as before


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Message):
    """A request at which the job failed, or whose worker ended."""

    outcome: Outcome  # never `measured`
    reason: str  # one line for people
    traceback_text: str = ""  # whole traceback, or the last output of a worker that ended; empty where there is none
    details: dict[str, Any] = field(default_factory=dict)  # extra values of the observation
    start_time_s: float = 0.0  # this and the next two as of `Done`
    shared_mode: SharedMode | None = None
    has_headroom: bool | None = None
    is_reusable: bool = False  # whether the worker is as good as before
    is_sticky: bool = False  # whether the device may fail at whatever this worker requests of it next
    has_ended: bool = False  # whether the worker ended, or was given up, without an answer

    def check_host(self) -> None:
        """Check that the host is not to blame."""
        text = last_line(self.traceback_text) if self.has_ended else f"{self.traceback_text}\n{self.reason}"
        error = None if self.outcome is Outcome.OUT_OF_MEMORY else find_host_error(text)
        if error is not None:
            raise error


def lost(outcome: Outcome, reason: str, last_output: str = "", *, ended_by: str = "") -> Failed:
    """Return the answer of a worker that ended, by a signal or by itself, or was given up, without one."""
    details = {"ended_by": ended_by} if ended_by else {}
    return Failed(outcome=outcome, reason=reason, traceback_text=last_output, details=details, has_ended=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """A request that is wrong, or an engine that cannot carry it out."""

    message: str
    hint: str
    exit_code: int
    traceback_text: str = ""  # of the user's own code; empty where the error is not the user's code

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
    """Send one message."""
    record = {"kind": type(message).__name__} | to_record(message)
    connection.send_bytes(json.dumps(record, default=str).encode())


def receive(connection: Connection, kinds: tuple[type[Message], ...]) -> Any:
    """Wait for one message of some kinds; a ValueError where what came is not one of ours."""
    values = parse_json(connection.recv_bytes(MAX_MESSAGE_BYTES))
    try:
        kind = _KINDS[values.pop("kind")]
        if not issubclass(kind, kinds):
            raise ValueError(f"unexpected {kind.__name__}")
        return from_record(kind, values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
