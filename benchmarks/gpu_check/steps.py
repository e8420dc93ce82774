"""The list: what is looked at on a GPU, in this order, what is expected of it, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu_check import (
    allocator_steps,
    device_steps,
    engine_step,
    exploration_steps,
    failure_steps,
    memory_steps,
    mode_steps,
    profile_steps,
    shared_steps,
    timing_steps,
)
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict
from bexplore.engine.protocol.messages import SharedMode

HINT = 8  # samples; of the middle size


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the table.

    Attributes:
        section: Number of the part of the list.
        name: For the command line and the state.
        expected: What is expected, with the number of the finding that says otherwise.
        usual_s: Seconds that it usually takes on a GPU; it does not begin with less time left.
        limit_s: Seconds after which it is ended.
        run: Looks, in a process of its own.
    """

    section: int
    name: str
    expected: str
    usual_s: float
    limit_s: float
    run: Callable[[Context], Verdict]


def _all() -> Iterator[Step]:
    yield from _device()
    yield from _memory()
    yield from _shared()
    yield from _modes()
    yield from _failures()
    yield from _explorations()
    yield Step(
        section=7,
        name="allocator_events",
        expected="the events of two steps at three sizes, less than 1 MB",
        usual_s=60,
        limit_s=180,
        run=allocator_steps.record_events,
    )
    yield Step(
        section=8,
        name="engine_benchmark",
        expected="explore, floor, sweep and truth of one job, as many as there is time for",
        usual_s=480,
        limit_s=510,
        run=engine_step.run_benchmark,
    )


def _device() -> Iterator[Step]:
    yield Step(
        section=1,
        name="device",
        expected="total_memory within 1 % of devices.py (finding 20)",
        usual_s=20,
        limit_s=90,
        run=device_steps.look_at_device,
    )
    yield Step(
        section=1,
        name="doctor",
        expected="exit 0, every line ok (27)",
        usual_s=20,
        limit_s=120,
        run=device_steps.ask_doctor,
    )
    yield Step(
        section=1,
        name="probe_quickstart",
        expected="cuda, cuda:0 and auto are measured (1)",
        usual_s=90,
        limit_s=240,
        run=device_steps.probe_quickstart,
    )


def _memory() -> Iterator[Step]:
    for job in ("gpt", "bert", "llama_hf", "vit"):
        yield Step(
            section=2,
            name=f"trace_{job}",
            expected="predicted/allocated 1.00 +- 0.02; the trace takes <= 256 MiB and a context (2, 3, 14, 17-19)",
            usual_s=100,
            limit_s=300,
            run=partial(memory_steps.trace_and_probe, job=job),
        )


def _shared() -> Iterator[Step]:
    modes = (
        (SharedMode.DYNAMIC, None),
        (SharedMode.NESTED, HINT),
        (SharedMode.NESTED, None),
        (SharedMode.UNBACKED, HINT),
        (SharedMode.UNBACKED, None),
    )
    for job in ("gpt", "bert"):
        yield Step(
            section=3,
            name=f"exact_{job}",
            expected="measured at 2, 8 and 32",
            usual_s=70,
            limit_s=240,
            run=partial(shared_steps.measure_exact, job=job),
        )
        for mode, hint in modes:
            yield Step(
                section=3,
                name=f"{mode}_{'hinted_' if hint else ''}{job}",
                expected="shared/exact throughput constant in the size, +- 5 % (4, 5, 23)",
                usual_s=40,
                limit_s=150,
                run=partial(shared_steps.measure_shared, job=job, mode=mode, hint=hint),
            )


def _modes() -> Iterator[Step]:
    yield Step(
        section=4,
        name="float16",
        expected="predicted/allocated 1.00 +- 0.02, so the optimizer's states are there (9, 10)",
        usual_s=70,
        limit_s=240,
        run=partial(
            memory_steps.trace_and_probe,
            job="gpt",
            overrides=("explore.precision=autocast_float16",),
            wanted_sizes=(mode_steps.SIZE,),
        ),
    )
    for mode, finding, usual_s, limit_s in (("reduce-overhead", "7, 8", 120, 360), ("max-autotune", "6, 7", 240, 500)):
        yield Step(
            section=4,
            name=mode.replace("-", "_"),
            expected=f"exact and shared are measured; gradients of accumulated passes are the eager ones ({finding})",
            usual_s=usual_s,
            limit_s=limit_s,
            run=partial(mode_steps.run_mode, mode=mode),
        )


def _failures() -> Iterator[Step]:
    for name, planted, expected in (
        ("out_of_memory", failure_steps.MEMORY, "out_of_memory at each place, nothing held afterwards (6, 13)"),
        ("library_errors", failure_steps.LIBRARIES, "a library without memory is out_of_memory (13)"),
        ("sticky_errors", failure_steps.STICKY, "an error that poisons the process is crashed (12)"),
    ):
        yield Step(
            section=5,
            name=name,
            expected=expected,
            usual_s=60,
            limit_s=400,
            run=partial(failure_steps.plant, names=planted),
        )
    yield Step(
        section=5,
        name="device_assert",
        expected="the wrong size crashed, as such; sizes after it are measured (12)",
        usual_s=90,
        limit_s=240,
        run=failure_steps.probe_asserting,
    )
    yield Step(
        section=5,
        name="timing",
        expected="bexplore's pass within 3 % of passes back to back, at every size (22)",
        usual_s=90,
        limit_s=300,
        run=timing_steps.compare_timing,
    )
    yield Step(
        section=5,
        name="clocks",
        expected="nvidia-smi answers while passes run; its words kept (21)",
        usual_s=40,
        limit_s=120,
        run=timing_steps.watch_clocks,
    )


def _explorations() -> Iterator[Step]:
    yield Step(
        section=6,
        name="explore_gpt",
        expected="an answer, no probe crashed",
        usual_s=200,
        limit_s=500,
        run=exploration_steps.explore,
    )
    yield Step(
        section=6,
        name="explore_gpt_8gib",
        expected="the same under 8 GiB",
        usual_s=180,
        limit_s=500,
        run=_explore_capped,
    )
    yield Step(
        section=6,
        name="plain_loop_8gib",
        expected="the trace's largest size lies between the last power of two that runs and the first that does not",
        usual_s=150,
        limit_s=400,
        run=exploration_steps.double,
    )
    yield Step(
        section=6,
        name="profile_gpt",
        expected="kernels of the device, a busy share, a trace and a snapshot of the memory",
        usual_s=60,
        limit_s=240,
        run=profile_steps.profile_gpt,
    )


def _explore_capped(context: Context) -> Verdict:
    return exploration_steps.explore(context, f"explore.memory_budget={exploration_steps.BUDGET}")


STEPS: tuple[Step, ...] = tuple(_all())
