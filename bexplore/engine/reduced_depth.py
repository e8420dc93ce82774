"""Probes of a deep model at two reduced depths, extrapolated to the full depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bexplore.engine.runner import EngineRunner
from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, busiest
from bexplore.units import format_bytes

DETAILS_OF_THE_PROGRAM = ("samples_are_seen", "optimizers", "unfused_optimizers")  # details that no depth changes
# An extrapolated peak this far above the budget, as a share of it, is refused without having been run; nearer ones are
# left to the probe that verifies the answer at full depth.
REFUSED_ABOVE = 0.03


class ReducedDepthRunner:
    """A `Runner` that runs the search's reduced probes at two depths, and hands every other probe to the engine's own.

    Where a model does not run at reduced depth, the probe is run at full depth instead, with a warning.
    """

    def __init__(self, whole: EngineRunner, depths: Depths) -> None:
        self._whole = whole
        self._depths = depths
        self._shallow: tuple[EngineRunner, ...] = ()
        self._problem = ""

    def __call__(self, probe: Probe) -> Observation:
        """Run one size.

        Raises:
            UserInputError: The job cannot be built from what the configuration says.
        """
        if probe.compilation is not Compilation.REDUCED:
            self.close()
            return self._whole(probe)
        spent_s = 0.0
        if not self._problem:
            found = self._at_both_depths(probe)
            failed = next((item for item in found if not item.is_measured), None)
            if failed is None:
                return full_depth_of(probe, found, self._depths)
            if failed.outcome is Outcome.OUT_OF_MEMORY:  # what does not fit in part does not fit as a whole
                return dataclasses.replace(failed, probe=probe, elapsed_s=sum(item.elapsed_s for item in found))
            self._problem = failed.reason
            spent_s = sum(item.elapsed_s for item in found)
        self.close()
        return self._instead(probe, spent_s)

    def close(self) -> None:
        """End the workers that hold the shallow models."""
        for runner in self._shallow:
            runner.close()
        self._shallow = ()

    def __enter__(self) -> ReducedDepthRunner:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _at_both_depths(self, probe: Probe) -> list[Observation]:
        """Run the size at each depth; the second is left out where the first failed."""
        if not self._shallow:
            self._whole.rest()
            depths = (self._depths.low, self._depths.high)
            self._shallow = tuple(self._whole.at_depth(depth, self._depths.whole) for depth in depths)
        found: list[Observation] = []
        for runner in self._shallow:
            found.append(runner(probe.of_shallow_model))
            if not found[-1].is_measured:
                break
        return found

    def _instead(self, probe: Probe, spent_s: float) -> Observation:
        observation = self._whole(dataclasses.replace(probe, compilation=Compilation.SHARED))
        warning = f"run at full depth, since the model does not run with fewer blocks: {self._problem}"
        return dataclasses.replace(
            observation,
            elapsed_s=observation.elapsed_s + spent_s,
            warnings=(*observation.warnings, warning),
            needs_full_depth=True,
        )


def full_depth_of(probe: Probe, found: Sequence[Observation], depths: Depths) -> Observation:
    """Extrapolate two measurements at reduced depth to the full depth."""
    low, high = found
    peak = _extrapolated(depths, low.peak_memory_bytes, high.peak_memory_bytes)
    budget = high.memory_budget_bytes
    is_refused = peak is not None and budget is not None and peak > (1.0 + REFUSED_ABOVE) * budget
    names = f"{depths.low} and {depths.high} of {depths.whole} blocks"
    return Observation(
        probe=probe,
        outcome=Outcome.OUT_OF_MEMORY if is_refused else Outcome.MEASURED,
        reason=_refusal(peak, budget, names) if is_refused else "",
        pass_times_s=_extrapolated_times(depths, low.pass_times_s, high.pass_times_s),
        update_times_s=_extrapolated_times(depths, low.update_times_s, high.update_times_s),
        start_time_s=low.start_time_s + high.start_time_s,
        compile_time_s=low.compile_time_s + high.compile_time_s,
        elapsed_s=low.elapsed_s + high.elapsed_s,
        started_at_s=low.started_at_s,
        worker=high.worker,
        peak_memory_bytes=peak,
        memory_budget_bytes=budget,
        ran_eagerly=low.ran_eagerly or high.ran_eagerly,
        num_graphs=_sum(low.num_graphs, high.num_graphs),
        num_graph_breaks=high.num_graph_breaks,
        graph_break_reasons=high.graph_break_reasons,
        num_recompiles=_sum(low.num_recompiles, high.num_recompiles),
        **busiest(found),
        warnings=tuple(dict.fromkeys((*low.warnings, *high.warnings))),
        details={
            "num_blocks": depths.whole,
            "pass_times_s_by_depth": {str(depths.low): low.pass_times_s, str(depths.high): high.pass_times_s},
        }
        | {name: high.details[name] for name in DETAILS_OF_THE_PROGRAM if name in high.details},
    )


def _refusal(peak: int | None, budget: int | None, names: str) -> str:
    return (
        f"extrapolated from {names}, its peak is {format_bytes(peak or 0)}; the budget is {format_bytes(budget or 0)}"
    )


def _extrapolated_times(depths: Depths, low: Sequence[float], high: Sequence[float]) -> tuple[float, ...]:
    """Extrapolate each pair; a deep model is never quicker than the shallow one."""
    pairs = zip(low, high, strict=False)
    return tuple(max(depths.extrapolate(at_low, at_high), at_high) for at_low, at_high in pairs)


def _extrapolated(depths: Depths, low: int | None, high: int | None) -> int | None:
    return None if low is None or high is None else round(depths.extrapolate(low, high))


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
