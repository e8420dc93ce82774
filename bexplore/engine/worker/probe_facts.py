"""The measurements of a probe inside a worker, by the field names of an observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bexplore.engine.worker.compiler_account import CompilerAccount
from bexplore.engine.worker.memory_step import StepMemory
from bexplore.engine.worker.timing import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """One size that ran.

    Attributes:
        timed: Its passes.
        memory: The step whose peak was read.
        update_times_s: Seconds of updates; empty for an evaluation.
        first_pass_s: Seconds of the pass that compiled; 0 where nothing was left to compile.
        account: The compiler's work before passes were timed.
        late: The compiler's work while they were.
        num_alloc_retries: Of the caching allocator.
        num_repeated_passes: Those that ran again because the compiler had run in them.
        has_gradients: Whether a pass left any.
    """

    timed: Timed
    memory: StepMemory
    update_times_s: list[float]
    first_pass_s: float
    account: CompilerAccount
    late: CompilerAccount
    num_alloc_retries: int
    num_repeated_passes: int
    has_gradients: bool

    @property
    def num_graphs(self) -> int:
        """Graphs that the compiler made."""
        return self.account.num_graphs + self.late.num_graphs

    def as_record(self, *, is_compiled: bool) -> dict[str, Any]:
        """Return all fields but those that the session knows alone.

        Args:
            is_compiled: Whether the program was meant to be; otherwise the compiler's figures are None.
        """
        peak, account, late = self.memory.peak, self.account, self.late
        return {
            **self.timed.values,
            "update_times_s": self.update_times_s,
            "compile_time_s": self._compile_time_s,
            "peak_memory_bytes": peak.allocated_bytes if peak else None,
            "resident_memory_bytes": self.memory.resident_bytes,
            "num_alloc_retries": self.num_alloc_retries,
            "num_graphs": self.num_graphs if is_compiled else None,
            "num_graph_breaks": len(account.graph_breaks) if is_compiled else None,
            "graph_break_reasons": tuple(map(str, account.graph_breaks)),
            "num_recompiles": account.num_recompiles + late.num_recompiles if is_compiled else None,
            "warnings": self._warnings(),
            "details": {
                "recompile_reasons": account.recompile_reasons + late.recompile_reasons,
                "compiler_s": account.compile_time_s + late.compile_time_s,
                "num_repeated_passes": self.num_repeated_passes,
                **self.timed.details,
            },
        }

    @property
    def _compile_time_s(self) -> float:
        """Seconds of building: the first pass beyond a warm one, or the compiler's account where longer."""
        if not self.account.num_graphs:
            return self.late.compile_time_s
        usual_s = float(np.median(self.timed.pass_times_s))
        return max(self.first_pass_s - usual_s, self.account.compile_time_s) + self.late.compile_time_s

    def _warnings(self) -> list[str]:
        warnings = []
        if self.late.num_graphs:
            warnings.append(
                f"the compiler ran {self.late.num_graphs} times while passes were timed: these were run again"
            )
        if self.num_alloc_retries:
            warnings.append(
                f"the caching allocator ran out and retried {self.num_alloc_retries} times while this size was "
                "measured: throughput near the memory limit suffers from it"
            )
        return warnings
