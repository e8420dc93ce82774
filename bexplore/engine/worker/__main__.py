"""The worker process: builds the job once, answers probes until its compilation is no longer valid, and may die.

Started as `python -m bexplore.engine.worker FD [MODULE...]` with one end of a socket pair; it ends with the explorer,
whatever happens to either.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bexplore.engine.protocol.channel import receive, send
from bexplore.engine.worker.memory_limit import die_with_parent, kill_own_group, volunteer_for_the_oom_killer
from bexplore.errors import BexploreError, UserProgramError

TRACE_DEVICE_BYTES = 256 * 2**20  # of a device that is here, where a trace needs it


def main(file_descriptor: int, modules: Sequence[str] = ()) -> None:
    """Serve requests from the explorer until it closes the connection.

    Args:
        file_descriptor: Of this end of the socket pair.
        modules: Imported before the first request, which is said when it is done.
    """
    die_with_parent()
    volunteer_for_the_oom_killer()
    connection = Connection(file_descriptor)
    requests: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    if modules:
        for module in modules:
            importlib.import_module(module)
        send(connection, {"kind": "progress"})
    server = _Server(connection)
    while True:
        request = requests.get()
        send(connection, {"kind": "answer"} | server.answer(request))


def _listen(connection: Connection, requests: SimpleQueue[dict[str, Any]]) -> None:
    """Queue what the explorer asks; when it is gone, end this worker and all that it started."""
    while True:
        try:
            requests.put(receive(connection))
        except (EOFError, OSError):
            kill_own_group()


def _refused(error: BexploreError) -> dict[str, Any]:
    return {
        "refused": error.message,
        "hint": error.hint,
        "exit_code": int(error.exit_code),
        "traceback_text": getattr(error, "traceback_text", ""),
    }


class _Server:
    """Answers the kinds of request: each is a method of the same name behind an underscore."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: Any = None
        self._device: Any = None  # of the job, once one was named

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request; a failure of the job is an answer too."""
        from bexplore.engine.protocol.failures import (
            classify_exception,
        )

        try:
            self._take_device(request)
            return getattr(self, f"_{request['kind']}")(request)
        except BexploreError as error:
            own = classify_exception(error.__cause__ or error) if isinstance(error, UserProgramError) else None
            if own is None or own.outcome == "crashed":
                return _refused(error)
            failure = own  # the user's program lacked memory, say
        except Exception as error:  # the border of the user's code: everything it raises becomes the probe's outcome
            failure = classify_exception(error, device_is_full=self._device_is_full)
        # Outside the `except`, so that a second failure is not shown as one "during handling of" the first.
        shared_mode = {"shared_mode": self._session.shared_mode} if self._session is not None else {}
        failure = self._diagnose(failure, request)
        is_reusable = failure.is_clean and request["kind"] == "probe" and self._try_recover()
        room = {"has_headroom": self._session.has_headroom} if is_reusable else {}
        return (
            shared_mode
            | room
            | {
                "is_reusable": is_reusable,
                "is_sticky": failure.is_sticky,
                "outcome": failure.outcome,
                "reason": failure.reason,
                "traceback_text": failure.traceback_text,
                "details": {"exception_type": failure.exception_type}
                | ({"is_in_compiler": True} if failure.is_in_compiler else {}),
            }
        )

    def _take_device(self, request: dict[str, Any]) -> None:
        """Make the job's device the current one before anything else asks torch for a device.

        Not a device that is only stood in for: its trace has to be the first to import torch.
        """
        if "job" not in request or request.get("gpu") is not None:
            return
        import torch

        from bexplore.engine.worker.device import make_current

        self._device = torch.device(request["job"]["device"])
        make_current(self._device)

    def _device_is_full(self) -> bool:
        from bexplore.engine.worker.device import is_nearly_full

        return self._device is not None and is_nearly_full(self._device)

    def _try_recover(self) -> bool:
        """Whether the session is as good as before a step that was refused memory; there is none if it was building."""
        try:
            return self._session is not None and self._session.try_recover()
        except Exception:  # of a device that is in no state to be asked: the refusal is what is told
            return False

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        from bexplore.engine.worker.device import device_info

        self._report(stage="import")
        return device_info(request["device"])

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        from bexplore.job import Job
        from bexplore.trace.fake_build import build_fake

        self._report(stage="build")
        build_fake(Job.from_dict(request["job"]))
        return {"outcome": "measured"}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        start_time_s = self._open_session(request)
        self._session.prepare(request["probe"]["micro_batch_size"])
        known = {"shared_mode": self._session.shared_mode, "start_time_s": start_time_s}
        return {"outcome": "measured"} | known

    def _probe(self, request: dict[str, Any]) -> dict[str, Any]:
        from bexplore.engine.worker.session import NotFiniteError
        from bexplore.engine.worker.steps import CompiledEachPassError
        from bexplore.measurement.probe import Outcome, Probe

        start_time_s = self._open_session(request)
        probe = Probe.from_dict(request["probe"])
        try:
            facts = self._session.measure(probe, pass_budget_s=request["pass_budget_s"])
        except NotFiniteError as error:
            return {"outcome": Outcome.NOT_FINITE, "reason": str(error), "start_time_s": start_time_s}
        except CompiledEachPassError as error:
            reason = " ".join([str(error), *self._session.watch.take().recompile_reasons[:1]])
            found = {"outcome": Outcome.COMPILE_FAILED, "reason": reason, "start_time_s": start_time_s}
            return found | {"details": {"recompiles_each_pass": True}}
        known = {"shared_mode": self._session.shared_mode, "start_time_s": start_time_s}
        return {"outcome": Outcome.MEASURED, "has_headroom": self._session.has_headroom} | known | facts

    def _open_session(self, request: dict[str, Any]) -> float:
        """Build the job unless it is there already; return the seconds that this took."""
        from bexplore.engine.protocol.shared_mode import SharedMode
        from bexplore.engine.worker.compilation import make_limits_loud
        from bexplore.engine.worker.session import Session
        from bexplore.job import Job
        from bexplore.measurement.probe import Compilation

        if self._session is not None:
            return 0.0
        started = time.perf_counter()
        self._await_memory(request["free_memory_bytes"])
        make_limits_loud()
        self._session = Session(
            Job.from_dict(request["job"]),
            compilation=Compilation(request["probe"]["compilation"]),
            shared_mode=SharedMode(request["shared_mode"]),
            budget_bytes=request["budget_bytes"],
            report=self._report,
            depth=request["depth"],
            artifacts_dir=Path(request["artifacts_dir"]) if request["artifacts_dir"] else None,
        )
        return time.perf_counter() - started

    def _await_memory(self, expected_bytes: int | None) -> None:
        """Begin only when the device's memory is free again that the worker before this one held."""
        from bexplore.engine.worker.device import await_memory

        free_bytes = await_memory(self._device, expected_bytes)
        if free_bytes is not None:
            self._report(free_memory_bytes=free_bytes)

    def _trace(self, request: dict[str, Any]) -> dict[str, Any]:
        import dataclasses

        from bexplore.job import Job
        from bexplore.trace.cache import imported_sources

        self._report(stage="trace")
        began_s = time.time()
        why_not = request["why_not"] if request["gpu"] is None else self._stand_in(request["gpu"])
        self._bound_trace()
        from bexplore.trace.tracer import trace_job

        cost_model = trace_job(Job.from_dict(request["job"]), why_cpu=why_not)
        sources = imported_sources(began_s)
        return {
            "outcome": "measured",
            "cost_model": cost_model.as_dict(),
            "sources": dataclasses.asdict(sources) if sources else None,
        }

    def _stand_in(self, properties: dict[str, Any]) -> str:
        """Make this process see a GPU that is not there, before anything imports torch; the reason where it cannot."""
        from bexplore.errors import TraceError
        from bexplore.trace.absent_gpu import stand_in
        from bexplore.trace.gpu_properties import GpuProperties

        try:
            stand_in(GpuProperties.from_dict(properties))
        except TraceError as error:
            return error.message
        return ""

    def _bound_trace(self) -> None:
        """Leave the memory of a device that is really there to others: a trace computes nothing on it."""
        if self._device is not None:
            from bexplore.engine.worker.device import bound_memory

            bound_memory(self._device, TRACE_DEVICE_BYTES)

    def _program_metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        from bexplore.engine.worker.device import device_info
        from bexplore.engine.worker.program_metrics import program_metrics
        from bexplore.job import Job

        self._report(stage="trace")
        machine = device_info(request["device"])
        return {
            "outcome": "measured",
            "facts": program_metrics(Job.from_dict(request["job"])).as_dict(),
            "machine": machine,
        }

    def _time_passes(self, request: dict[str, Any]) -> dict[str, Any]:
        self._report(stage="passes")
        size, num_passes = request["micro_batch_size"], request["num_passes"]
        times = self._session.time_passes(size, num_passes, turn=request["turn"])
        return {"outcome": "measured"} | times

    def _compare_eager(self, request: dict[str, Any]) -> dict[str, Any]:
        compared = self._session.compare_eager(
            request["micro_batch_size"],
            budget_s=request["budget_s"],
            tolerance=request["tolerance"],
            asked=request["asked"],
        )
        return {"outcome": "measured"} | compared

    def _loaded_from(self, request: dict[str, Any]) -> dict[str, Any]:
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        inside = sorted(file for file in files if file and file.startswith(request["folder"]))
        return {"outcome": "measured", "files": inside}

    def _loader(self, request: dict[str, Any]) -> dict[str, Any]:
        import dataclasses

        from bexplore.job import Job
        from bexplore.workloads.input_pipeline import time_loader

        self._report(stage="loader")
        speed = time_loader(Job.from_dict(request["job"]), request["micro_batch_size"])
        return {"outcome": "measured"} | dataclasses.asdict(speed)

    def _gradient_equivalence(self, request: dict[str, Any]) -> dict[str, Any]:
        import dataclasses

        from bexplore.engine.worker.gradient_check import compare_gradients
        from bexplore.job import Job
        from bexplore.workloads import build

        self._session = None  # of the probe before, if there was one
        self._report(stage="gradients")
        comparison = compare_gradients(
            build(Job.from_dict(request["job"])),
            base_micro_batch_size=request["base_micro_batch_size"],
            micro_batch_size=request["micro_batch_size"],
        )
        return {"outcome": "measured"} | dataclasses.asdict(comparison)

    def _diagnose(self, failure: Any, request: dict[str, Any]) -> Any:
        """Tell a bug of the user's from one of the compiler's by running the same size without the compiler.

        Dynamo reports errors of the user's own code (a shape error met with fake tensors, say) under its own types, and
        compiled code that is wrong fails with the types of the user's code. After a sticky failure any pass would fail
        here, so that the explorer asks a new process for it.
        """
        import dataclasses

        from bexplore.engine.protocol.failures import classify_exception
        from bexplore.measurement.probe import Compilation, Outcome

        runs_a_step = request["kind"] in ("prepare", "probe")
        is_compiled = runs_a_step and request["probe"]["compilation"] != Compilation.EAGER
        if not is_compiled or failure.is_sticky or failure.outcome not in (Outcome.COMPILE_FAILED, Outcome.CRASHED):
            return failure
        self._session = None
        try:
            self._eager_check(request)
        except Exception as error:  # the user's own code again
            own = classify_exception(error)
            return own if own.outcome is Outcome.CRASHED else failure
        reason = f"{failure.reason} (the same step runs without torch.compile)"
        return dataclasses.replace(failure, outcome=Outcome.COMPILE_FAILED, reason=reason)

    def _eager_check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a pass and an update without the compiler, and wait for their end: errors of a device come late."""
        from bexplore.engine.worker.steps import synchronize
        from bexplore.job import Job
        from bexplore.workloads import build

        self._report(stage="eager check")
        workload = build(Job.from_dict(request["job"]))
        workload.forward_backward(workload.make_batch(request["probe"]["micro_batch_size"]))
        workload.update()
        synchronize(self._device)
        return {"outcome": "measured"}

    def _compile_check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile one small program for a device with the default backend, and run it."""
        import torch

        from bexplore.engine.worker.device import make_current
        from bexplore.engine.worker.steps import synchronize

        self._report(stage="compile")
        device = torch.device(request["device"])
        make_current(device)
        numbers = torch.arange(1024.0, device=device)
        largest = float(torch.compile(lambda x: (x * 2.0 + 1.0).amax())(numbers))
        synchronize(device)
        return {"outcome": "measured", "is_right": largest == 2047.0}

    def _report(self, **message: Any) -> None:
        send(self._connection, {"kind": "progress"} | message)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
