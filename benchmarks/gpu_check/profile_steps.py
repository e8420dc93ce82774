"""Section 6: the profile of a step on a GPU: kernels, a busy share, a snapshot of the memory."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.actions.probe import probe_once
from bexplore.diagnosis.profiled import find_profile_bottlenecks


def profile_gpt(context: Context) -> Verdict:
    """Profile two steps of GPT, as the user compiles them."""
    config, (size,) = context.config("gpt", few_layers=True), context.sizes(8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json.gz")
        probed = probe_once(config, micro_batch_size=size, compilation="exact", model_dir=folder, trace_path=path)
        profile = probed.profile
        if profile is None:
            return judged(False, f"{probed.observation.outcome}: {probed.observation.reason}")
        has_files = path.exists() and profile.memory_path is not None and Path(profile.memory_path).exists()
    context.note(
        profile=dataclasses.asdict(profile), bottlenecks=[one.finding for one in find_profile_bottlenecks(profile)]
    )
    is_of_device = context.on_cpu or (profile.is_on_device and 0.0 < (profile.busy_share or 0.0) <= 1.0)
    busy = "" if profile.busy_share is None else f", busy for {profile.busy_share:.0%}"
    longest = profile.top[0].name[:60] if profile.top else "none"
    return judged(has_files and is_of_device and bool(profile.top), f"longest: {longest}{busy}")
