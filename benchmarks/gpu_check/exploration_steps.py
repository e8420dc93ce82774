"""Section 6: whole explorations, and what a plain loop over powers of two finds under the same memory."""

from __future__ import annotations

import gc
from typing import Any

from benchmarks.gpu_check.commands import bexplore
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict, judged, not_run
from bexplore.config.config import Config

BUDGET = "8GiB"
STEPS = 3
SURVIVED_STEPS = 20
MOST_ON_CPU = 4
PROBE_FIELDS = (
    "micro_batch_size",
    "compilation",
    "purpose",
    "outcome",
    "reason",
    "samples_per_s",
    "peak_memory_bytes",
    "predicted_peak_memory_bytes",
    "compile_time_s",
    "elapsed_s",
    "num_recompiles",
    "warnings",
)


def explore(context: Context, *overrides: str) -> Verdict:
    """`bexplore explore` to its end; the result event is kept whole, of each probe the fields that matter."""
    on_cpu = ["explore.max=4", "explore.effort=quick"] if context.is_tiny else []
    ran = bexplore(["explore", *context.arguments("gpt", *overrides, *on_cpu), "--json", "--fresh"])
    probes = [{name: probe[name] for name in PROBE_FIELDS} for probe in ran.of("probe")]
    result: dict[str, Any] = next(iter(ran.of("result")), {})
    context.note(code=ran.code, errors=ran.errors, trace=ran.of("trace"), probes=probes, result=result)
    if not result:
        return judged(False, f"exit {ran.code}, no result: {ran.errors[-300:]}")
    bad = [f"{probe['micro_batch_size']} {probe['outcome']}" for probe in probes if probe["outcome"] != "measured"]
    found = (
        f"{result['micro_batch_size']} samples, score {result['confidence']}, {len(probes)} probes, "
        f"{result['elapsed_s']:.0f} s" + (f"; {', '.join(bad)}" if bad else "")
    )
    return judged(ran.code == 0 and not any("crashed" in one or "compile_failed" in one for one in bad), found)


def double(context: Context) -> Verdict:
    """Powers of two under the budget until memory ends; then the explorer's answer for many steps."""
    explored = context.known.get("explore_gpt_8gib", {})
    if not explored.get("result"):
        return not_run("needs explore_gpt_8gib")
    config = context.config("gpt", f"explore.memory_budget={BUDGET}")
    size, largest, refusal = 1, 0, ""
    while not refusal and not (context.is_tiny and size > MOST_ON_CPU):
        refusal = _refusal(config, size, STEPS)
        context.note(**{f"size_{size}": refusal or "ran"})
        largest, size = (largest, size) if refusal else (size, size * 2)
    answer = int(explored["result"]["micro_batch_size"])
    lost = _refusal(config, answer, SURVIVED_STEPS)
    predicted = next((trace["max_micro_batch_size"] for trace in explored["trace"]), None)
    measured = max((p["micro_batch_size"] for p in explored["probes"] if p["outcome"] == "measured"), default=0)
    context.note(largest=largest, refused=size if refusal else None, predicted=predicted, largest_measured=measured)
    is_right = not lost and (predicted is None or not refusal or largest <= predicted < size)
    ended = f"{size} does not" if refusal else f"{size} was not tried"
    found = f"plain loop: {largest} runs, {ended}; the trace foresees {predicted}, the largest probe {measured}"
    return judged(is_right, f"{found}; the answer {answer} " + (lost or f"runs {SURVIVED_STEPS} steps"))


def _refusal(config: Config, size: int, num_steps: int) -> str:
    """Why a plain loop of compiled steps ends under the budget; empty where it does not."""
    import torch
    import torch._dynamo

    from benchmarks.engine_rivals import capped
    from bexplore.workloads import build

    torch._dynamo.reset()  # past eight sizes of one program it would run them eagerly
    workload = build(config.job)
    for module in workload.compiled_modules:
        module.compile(backend=config.job.compile.backend, dynamic=False)
    reason = ""
    with capped(config, workload):
        try:
            batch = workload.make_batch(size)
            for _ in range(num_steps):
                workload.forward_backward(batch)
                workload.update()
        except RuntimeError as error:  # out of memory, which is the question
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    del workload
    gc.collect()
    if config.job.device != "cpu":
        torch.cuda.empty_cache()
    return reason
