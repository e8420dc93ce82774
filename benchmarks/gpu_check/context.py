"""What a step is given: the device, the jobs in the size that suits it, earlier facts, and a place for its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine_jobs import CUDA_JOBS, tiny_overrides
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.host.accelerators import is_emulated

Facts = dict[str, Any]

JOBS = Path(__file__).parent.parent / "jobs"
# Layers of the jobs whose ratios are compared, not their peaks: the ratio is that of a block, the compile a third.
FEW_LAYERS = 4

_HF_LAYERS = "explore.workload.transformers.config.num_hidden_layers"
_LAYERS = {"gpt": "model.num_hidden_layers", "bert": _HF_LAYERS, "llama_hf": _HF_LAYERS, "vit": _HF_LAYERS}


class Context:
    """One step's surroundings.

    Args:
        on_cpu: Tiny jobs on the CPU, to exercise the step.
        notes: File that receives the facts, a line each, so that they outlive the step's process.
        known: Facts of earlier steps by the step's name.
        recording: File for the allocator's events.
    """

    def __init__(self, *, on_cpu: bool, notes: Path, known: Mapping[str, Facts], recording: Path) -> None:
        self.on_cpu = on_cpu
        self.is_tiny = on_cpu or is_emulated()  # where nothing is measured, a step only ends
        self.device = "cpu" if on_cpu else "cuda:0"
        self.known = known
        self.recording = recording
        self._notes = notes

    def note(self, **facts: Any) -> None:
        """Keep facts; a later one of the same name replaces the earlier."""
        with self._notes.open("a") as file:
            file.write(json.dumps({"facts": facts}, default=str) + "\n")

    def sizes(self, *sizes: int) -> tuple[int, ...]:
        """Micro-batch sizes; of tiny jobs none above 4."""
        return tuple(sorted({min(size, 4) for size in sizes})) if self.is_tiny else sizes

    def arguments(self, job: str, *overrides: str, few_layers: bool = False) -> list[str]:
        """A job as the command line takes it: its file and `--set`s."""
        texts = [*self._overrides(job, few_layers), *overrides]
        return [str(CUDA_JOBS[f"cuda_{job}"].config), *(part for text in texts for part in ("--set", text))]

    def config(self, job: str, *overrides: str, few_layers: bool = False) -> Config:
        """A job, checked, on the device of this run."""
        path = CUDA_JOBS[f"cuda_{job}"].config
        return load_config(path, overrides=[*self._overrides(job, few_layers), *overrides]).on_device(self.device)

    def _overrides(self, job: str, few_layers: bool) -> list[str]:
        if self.is_tiny:
            return tiny_overrides(f"cuda_{job}", self.device)
        return [f"explore.device={self.device}", *([f"{_LAYERS[job]}={FEW_LAYERS}"] if few_layers else [])]
