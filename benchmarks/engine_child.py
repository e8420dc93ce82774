"""What the engine's benchmark runs in processes of its own: `python -m benchmarks.engine_child ACTION CONFIG ...`.

One JSON object a line on stdout. The truth does not go through the engine that it judges: it builds the job, compiles
it as the user would, and times passes and updates itself.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engine_jobs import load
from bexplore.config.config import Config
from bexplore.job import Job

WARM_UP_STEPS = 2
SURVIVAL_STEPS = 100
WARM_UP_BELOW_S = 1.0  # a pass shorter than this is repeated once untimed after a pause


def main(arguments: list[str]) -> None:
    action, config, *others = arguments
    loaded = load(Path(config))
    ACTIONS[action](loaded, *others)


def say(**record: Any) -> None:
    print(json.dumps(record), flush=True)


def floor(config: Config, size: str) -> None:
    """The least that a first recommendation can cost: import, build, one cold compile with its probe, and the trace."""
    from bexplore.engine.protocol.messages import RunProbe, SharedMode
    from bexplore.engine.worker.measuring import measure
    from bexplore.engine.worker.session import Session
    from bexplore.measurement.probe import Compilation, Probe
    from bexplore.trace.tracer import trace_job

    began_s = time.perf_counter()
    session = Session(
        RunProbe(
            job=config.job,
            probe=Probe(number=0, micro_batch_size=1, compilation=Compilation.EXACT),
            shared_mode=SharedMode.STATIC,
            budget_bytes=config.settings.memory_budget_bytes(0),
        ),
        report=lambda **_: None,
    )
    say(
        built_s=time.perf_counter() - began_s
    )  # its arrival, less the start of the process, is the import and the build
    began_s = time.perf_counter()
    probe = Probe(
        number=0,
        micro_batch_size=int(size),
        compilation=Compilation.EXACT,
        max_passes=config.settings.passes_per_probe,
    )
    facts = measure(session, probe, pass_budget_s=4.0)
    probe_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    trace_job(config.job)
    say(
        probe_s=probe_s,
        compile_s=facts["compile_time_s"],
        pass_times_s=facts["pass_times_s"],
        trace_s=time.perf_counter() - began_s,
    )


def truth(config: Config, size: str) -> None:
    """One size, compiled statically; then passes and updates as they are asked for, a line each, until stdin ends."""
    step = _Step(config.job, int(size), compiled=True)
    began_s = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        step.run()
    warm_up_s, pass_s = time.perf_counter() - began_s, step.timed_pass()
    step.rest()  # before the next size starts: on a GPU all of them share its memory
    say(ready=True, warm_up_s=warm_up_s, pass_s=pass_s)
    for line in sys.stdin:
        wanted = json.loads(line)
        if step.pass_s < WARM_UP_BELOW_S:
            step.timed_pass()
        times_s = [step.timed_pass() for _ in range(wanted["passes"])]
        update_s = step.timed_update()
        step.rest()
        say(pass_times_s=times_s, update_times_s=[update_s])


def first_step(config: Config, size: str) -> None:
    """Seconds of the pass that compiles, with whatever is in the compile cache."""
    say(first_pass_s=_Step(config.job, int(size), compiled=True).timed_pass())


def survive(config: Config, size: str, compiled: str) -> None:
    """Whether a size survives 100 whole steps of two passes and an update under the cap of memory."""
    from benchmarks.engine_rivals import capped

    step = _Step(config.job, int(size), compiled=compiled == "compiled")
    done, reason, began_s = 0, "", time.perf_counter()
    try:
        with capped(config, step.workload):
            for _ in range(SURVIVAL_STEPS):
                step.run()
                done += 1
    except RuntimeError as error:  # out of memory, which is the question
        reason = str(error).splitlines()[0][:200]
    say(steps=done, survived=done == SURVIVAL_STEPS, reason=reason, steps_s=time.perf_counter() - began_s)


class _Step:
    """A job at one size, timed from outside."""

    def __init__(self, job: Job, size: int, *, compiled: bool) -> None:
        import torch

        from bexplore.workloads import build

        self._torch, self._device = torch, torch.device(job.device)
        self.workload = build(job)
        if compiled:
            for module in self.workload.compiled_modules:
                module.compile(backend=job.compile.backend, fullgraph=job.compile.fullgraph, dynamic=False)
        self._batch = self.workload.make_batch(size)
        self.pass_s = math.inf

    def run(self) -> None:
        """One optimizer step: two accumulation passes and the update."""
        for _ in range(2):
            self.workload.forward_backward(self._batch, 0.5)
        self.workload.update()

    def timed_pass(self) -> float:
        self.pass_s = self._timed(lambda: self.workload.forward_backward(self._batch))
        return self.pass_s

    def timed_update(self) -> float:
        """The gradients of the passes before it are there."""
        return self._timed(self.workload.update)

    def rest(self) -> None:
        """Leave to the other sizes what memory is not alive."""
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()
        else:
            ctypes.CDLL(None).malloc_trim(0)

    def _timed(self, run: Callable[[], Any]) -> float:
        self._synchronize()
        began_s = time.perf_counter()
        run()
        self._synchronize()
        return time.perf_counter() - began_s

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()


ACTIONS: dict[str, Callable[..., None]] = {
    "floor": floor,
    "truth": truth,
    "first_step": first_step,
    "survive": survive,
}


if __name__ == "__main__":
    main(sys.argv[1:])
