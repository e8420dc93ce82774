"""Section 3: the shared program of each mode beside the exact one, at sizes whose ratio must be constant."""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict, judged, not_run
from bexplore.actions.probe import probe_once
from bexplore.engine.protocol.messages import SharedMode

SIZES = (2, 8, 32)
PASS_BUDGET_S = 3.0
RATIO_SPREAD = 0.05  # of the ratios of throughput; the tie of the search is 2 %, the noise of a process about as much


def measure_exact(context: Context, job: str) -> Verdict:
    """Each size in a worker of its own, as the user compiles it."""
    rows = {}
    for size in context.sizes(*SIZES):
        config = context.config(job, few_layers=True)
        with tempfile.TemporaryDirectory() as folder:
            seen = probe_once(config, micro_batch_size=size, compilation="exact", model_dir=folder).observation
        rows[size] = {
            "outcome": seen.outcome.value,
            "reason": seen.reason,
            "pass_times_s": list(seen.pass_times_s),
            "samples_per_s": seen.samples_per_s if seen.is_measured else None,
            "compile_time_s": seen.compile_time_s,
        }
        context.note(rows=rows)
    found = ", ".join(f"{size}: {_speed(row)}" for size, row in rows.items())
    return judged(all(row["outcome"] == "measured" for row in rows.values()), found)


def _speed(row: dict[str, Any]) -> str:
    return f"{row['samples_per_s']:.1f}/s" if row["samples_per_s"] else f"{row['outcome']}: {row['reason']}"


def measure_shared(context: Context, job: str, mode: SharedMode, hint: int | None) -> Verdict:
    """One session over all sizes, the middle one first, as a search would meet them.

    Args:
        job: Which of the benchmark's.
        mode: Kind of the shared program.
        hint: Samples that the compiler is told to expect; None tells it nothing.
    """
    exact = context.known.get(f"exact_{job}", {}).get("rows")
    if exact is None:
        return not_run(f"needs exact_{job}")
    _hint_unbacked(hint)
    rows: dict[int, Any] = {}
    sizes = context.sizes(*SIZES)
    session = _session(context, job, mode)
    for size in (*sizes[1:2], *sizes[:1], *sizes[2:]):
        rows[size] = _measured(session, size)
        context.note(rows=rows, mode_used=session.shared_mode)
    ratios = {size: row["samples_per_s"] / exact[str(size)]["samples_per_s"] for size, row in rows.items()}
    num_recompiles = sum(row["num_recompiles"] or 0 for row in rows.values())
    compile_s = sum(row["compile_time_s"] for row in rows.values())
    context.note(ratios=ratios, num_recompiles=num_recompiles, compile_s=compile_s)
    told = ", ".join(f"{size}: {ratio:.3f}" for size, ratio in sorted(ratios.items()))
    found = f"{session.shared_mode}: shared/exact {told}; {num_recompiles} recompiles, {compile_s:.0f} s of compiling"
    return judged(max(ratios.values()) / min(ratios.values()) - 1 <= RATIO_SPREAD, found)


def _hint_unbacked(hint: int | None) -> None:
    """Let every `mark_unbacked` of this process have this hint, whatever its caller wants."""
    import torch._dynamo
    from torch._dynamo import decorators

    original = decorators.mark_unbacked

    def mark(tensor: Any, index: Any, **others: Any) -> None:
        others.pop("hint_override", None)
        original(tensor, index, **others, **({} if hint is None else {"hint_override": hint}))

    decorators.mark_unbacked = torch._dynamo.mark_unbacked = mark


def _session(context: Context, job: str, mode: SharedMode) -> Any:
    from bexplore.engine.protocol.messages import RunProbe
    from bexplore.engine.worker.session import Session
    from bexplore.engine.worker.torch_private import make_limits_loud
    from bexplore.measurement.probe import Compilation, Probe

    config = context.config(job, few_layers=True)
    make_limits_loud()
    return Session(
        RunProbe(
            job=config.job,
            probe=Probe(number=0, micro_batch_size=1, compilation=Compilation.SHARED),
            shared_mode=mode,
            budget_bytes=config.settings.memory_budget_bytes(0),
        ),
        report=lambda **_: None,
    )


def _measured(session: Any, size: int) -> dict[str, Any]:
    from bexplore.engine.worker.measuring import measure
    from bexplore.measurement.probe import Compilation, Probe

    probe = Probe(number=0, micro_batch_size=size, compilation=Compilation.SHARED, max_passes=20)
    facts = measure(session, probe, pass_budget_s=PASS_BUDGET_S)
    names = ("pass_times_s", "compile_time_s", "num_recompiles", "num_graphs", "peak_memory_bytes", "warnings")
    pass_s = statistics.median(facts["pass_times_s"])
    return {name: facts[name] for name in names} | {
        "samples_per_s": size / pass_s,
        "recompile_reasons": list(facts["details"]["recompile_reasons"]),
    }
