"""Handlers of requests that run the job: probes, and what is compared or timed beside them."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bexplore.engine.protocol.failures import Failure, classify_exception
from bexplore.engine.protocol.messages import (
    Answer,
    BuildFake,
    CheckCompiler,
    CheckEagerly,
    CompareEager,
    CompareGradients,
    Done,
    Failed,
    ListLoaded,
    MeasureMemory,
    Prepare,
    ProbeRequest,
    ProfileSteps,
    ReadLengths,
    RunProbe,
    TimeLoader,
    TimePasses,
)
from bexplore.engine.worker.context import Context, Handlers, failed
from bexplore.engine.worker.device import await_memory, take
from bexplore.engine.worker.measuring import NotFiniteError, measure
from bexplore.engine.worker.session import Session
from bexplore.engine.worker.step_checks import compare_gradients
from bexplore.engine.worker.steps import CompiledEachPassError, synchronize
from bexplore.engine.worker.torch_private import make_limits_loud
from bexplore.host.records import to_record
from bexplore.job import Job
from bexplore.measurement.probe import Compilation, Outcome
from bexplore.trace.cache import find_imported_sources
from bexplore.trace.fake_build import build_fake
from bexplore.workloads import build
from bexplore.workloads.loader import read_lengths, time_loader


def handlers(context: Context) -> Handlers:
    """Return the handlers, which share one session."""
    probing = _Probing(context)
    return {
        Prepare: probing.prepare,
        RunProbe: probing.run_probe,
        MeasureMemory: probing.measure_memory,
        CheckEagerly: probing.check_eagerly,
        TimePasses: probing.time_passes,
        CompareEager: probing.compare_eager,
        ProfileSteps: probing.profile,
        CompareGradients: probing.compare_gradients,
        TimeLoader: probing.time_loader,
        ReadLengths: probing.read_lengths,
        ListLoaded: probing.list_loaded,
        BuildFake: probing.build_fake,
        CheckCompiler: probing.check_compiler,
    }


class _Probing:
    """Answers of one worker; its session is built with the first probe."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._report = context.report
        self._session: Session | None = None

    def prepare(self, request: Prepare) -> Answer:
        return self._answer(request, self._prepare)

    def run_probe(self, request: RunProbe) -> Answer:
        return self._answer(request, self._run)

    def measure_memory(self, request: MeasureMemory) -> Answer:
        return self._answer(request, self._measure_memory)

    def _answer(self, request: ProbeRequest, run: Callable[[ProbeRequest], Answer]) -> Answer:
        try:
            return run(request)
        except Exception as error:  # the border of the user's code
            failure = self._context.failure_of(error)
        # Outside the `except`, so that a second failure is not shown as one "during handling of" the first.
        shared_mode = self._session.shared_mode if self._session is not None else None
        failure = self._diagnose(failure, request)
        is_reusable = failure.is_clean and isinstance(request, RunProbe) and self._try_recover()
        has_headroom = self._session.has_headroom if is_reusable and self._session is not None else None
        return failed(failure, shared_mode=shared_mode, is_reusable=is_reusable, has_headroom=has_headroom)

    def _prepare(self, request: ProbeRequest) -> Done:
        session, start_time_s = self._open(request)
        session.prepare(request.probe.micro_batch_size)
        return Done(shared_mode=session.shared_mode, start_time_s=start_time_s)

    def _run(self, request: ProbeRequest) -> Answer:
        session, start_time_s = self._open(request)
        try:
            values = measure(session, request.probe, pass_budget_s=request.pass_budget_s)
        except NotFiniteError as error:
            return Failed(outcome=Outcome.NOT_FINITE, reason=str(error), start_time_s=start_time_s)
        except CompiledEachPassError as error:
            reason = " ".join([str(error), *session.watch.take().recompile_reasons[:1]])
            details = {"recompiles_each_pass": True}
            return Failed(outcome=Outcome.COMPILE_FAILED, reason=reason, details=details, start_time_s=start_time_s)
        return Done(
            values=values,
            start_time_s=start_time_s,
            shared_mode=session.shared_mode,
            has_headroom=session.has_headroom,
        )

    def _measure_memory(self, request: Any) -> Answer:
        from bexplore.engine.worker.measured_memory import measure_untraced  # imports the tracer, which no probe needs

        session, start_time_s = self._open(request)
        began_s = time.time()
        cost_model = measure_untraced(session, request.sizes)
        sources = find_imported_sources(began_s)
        details = {"cost_model": to_record(cost_model), "sources": sources and dataclasses.asdict(sources)}
        return Done(values={"details": details}, start_time_s=start_time_s, shared_mode=session.shared_mode)

    def _open(self, request: ProbeRequest) -> tuple[Session, float]:
        """Build the job unless it is there already; return it and the seconds that this took."""
        device = self._context.take_device(request.job.device)
        if self._session is not None:
            return self._session, 0.0
        began = time.perf_counter()
        free_bytes = await_memory(device, request.free_memory_bytes)
        if free_bytes is not None:
            self._report(free_memory_bytes=free_bytes)
        make_limits_loud()
        self._session = Session(
            dataclasses.replace(request, job=self._own(request.job)), report=self._report, ranks=self._context.ranks
        )
        return self._session, time.perf_counter() - began

    def _own(self, job: Job) -> Job:
        return dataclasses.replace(job, device=self._context.own_device(job.device))

    def _try_recover(self) -> bool:
        """Return whether the session is as good as before a refusal; there is none if the job was being built."""
        try:
            return self._session is not None and self._session.try_recover()
        except Exception:  # of a device in a broken state: the refusal is what is reported
            return False

    def _diagnose(self, failure: Failure, request: ProbeRequest) -> Failure:
        """Tell a bug of the user's from one of the compiler's by running the same size without the compiler.

        Dynamo reports errors of the user's own code (a shape error met with fake tensors, say) under its own types, and
        compiled code that is wrong fails with the types of the user's code. After a sticky failure any pass would fail
        here, so that the explorer requests it of a new process. One rank of several would wait for the others.
        """
        is_compiled = request.probe.compilation is not Compilation.EAGER and self._context.ranks is None
        if not is_compiled or failure.is_sticky or failure.outcome not in (Outcome.COMPILE_FAILED, Outcome.CRASHED):
            return failure
        self._session = None
        try:
            self.check_eagerly(request)
        except Exception as error:  # the user's own code again
            own = classify_exception(error)
            return own if own.outcome is Outcome.CRASHED else failure
        reason = f"{failure.reason} (the same step runs without torch.compile)"
        return dataclasses.replace(failure, outcome=Outcome.COMPILE_FAILED, reason=reason)

    def check_eagerly(self, request: ProbeRequest) -> Done:
        """Run a pass and an update without the compiler, and wait for their end: errors of a device come late."""
        device = self._context.take_device(request.job.device)
        self._report(stage="eager check")
        workload = build(request.job)
        workload.forward_backward(workload.make_batch(request.probe.micro_batch_size))
        workload.update()
        synchronize(device)
        return Done()

    def time_passes(self, request: TimePasses) -> Done:
        self._report(stage="passes")
        assert self._session is not None
        return Done(
            values=self._session.time_passes(
                request.micro_batch_size, request.num_passes, round_number=request.round_number
            )
        )

    def compare_eager(self, request: CompareEager) -> Done:
        assert self._session is not None
        return Done(values=self._session.compare_eager(request))

    def profile(self, request: ProfileSteps) -> Done:
        assert self._session is not None
        path = Path(request.trace_path)
        if self._context.place.rank:
            path = path.with_name(f"rank{self._context.place.rank}_{path.name}")
        return Done(values=dataclasses.asdict(self._session.profile(request.micro_batch_size, path)))

    def compare_gradients(self, request: CompareGradients) -> Done:
        self._session = None  # of the probe before, if there was one
        self._context.take_device(request.job.device)
        self._report(stage="gradients")
        comparison = compare_gradients(
            build(request.job),
            base_micro_batch_size=request.base_micro_batch_size,
            micro_batch_size=request.micro_batch_size,
        )
        return Done(values=dataclasses.asdict(comparison))

    def time_loader(self, request: TimeLoader) -> Done:
        self._context.take_device(request.job.device)
        self._report(stage="loader")
        return Done(values=dataclasses.asdict(time_loader(request.job, request.micro_batch_size)))

    def read_lengths(self, request: ReadLengths) -> Done:
        def report(number: int) -> None:
            self._report(stage=f"lengths of {number} samples")

        return Done(values={"lengths": read_lengths(request.job, request.num_samples, report)})

    def list_loaded(self, request: ListLoaded) -> Done:
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        return Done(values={"files": sorted(file for file in files if file and file.startswith(request.folder))})

    def build_fake(self, request: BuildFake) -> Done:
        self._report(stage="build")
        build_fake(request.job)
        return Done()

    def check_compiler(self, request: CheckCompiler) -> Done:
        """Compile one small program for a device with the default backend, and run it."""
        self._report(stage="compile")
        device = take(request.device)
        numbers = torch.arange(1024.0, device=device)
        largest = float(torch.compile(lambda x: (x * 2.0 + 1.0).amax())(numbers))
        synchronize(device)
        return Done(values={"is_right": largest == 2047.0})
