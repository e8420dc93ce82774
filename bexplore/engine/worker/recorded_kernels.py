"""Answers which kernels the operators of a training are that the observer has seen."""

from __future__ import annotations

from bexplore.engine.protocol.messages import Done, FindKernels
from bexplore.engine.worker.context import Context, Handlers
from bexplore.host.records import to_record
from bexplore.trace.recorded import find_recorded_kernels


def handlers(context: Context) -> Handlers:
    """Return the handler of `FindKernels`."""

    def answer(request: FindKernels) -> Done:
        kernels = [[to_record(kernel) for kernel in find_recorded_kernels(call)] for call in request.calls]
        return Done(values={"kernels": kernels})

    return {FindKernels: answer}
