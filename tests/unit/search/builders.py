"""Builders of evidence and of runners for the tests of the search."""

from __future__ import annotations

import math
from collections.abc import Callable

from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.search.evidence import Evidence
from bexplore.search.loop import run_search
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space, default_candidates

GIB = 2**30
# The search runs the training's own program, so that nothing is left to verify.
EXACT = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False)
FEW = Space.from_sizes([1, 2, 4, 8, 16, 32, 64])
TO_16 = Space.from_sizes([1, 2, 4, 8, 16])
MANY = Space.from_sizes(default_candidates(1, 512))


def measured(size: int, samples_per_s: float, **fields) -> Evidence:
    """Quiet evidence of one size, run as the user will compile it."""
    facts = {"log_throughput_se": 0.002, "num_passes": 10, "compilation": Compilation.EXACT} | fields
    return Evidence(micro_batch_size=size, outcome=Outcome.MEASURED, log_throughput=math.log(samples_per_s), **facts)


def saturating(size: int) -> float:
    """Samples/s of a job that saturates near 30 samples."""
    return 1000.0 * size / (size + 30.0)


class CurveRunner:
    """Answers probes from a function of the size; remembers what it was asked."""

    def __init__(self, samples_per_s: Callable[[int], float] = saturating, *, largest: float = math.inf) -> None:
        """Sizes above `largest` run out of memory."""
        self.samples_per_s = samples_per_s
        self.largest = largest
        self.probes: list[Probe] = []

    @property
    def sizes(self) -> list[int]:
        """What it was asked, in order."""
        return [probe.micro_batch_size for probe in self.probes]

    def __call__(self, probe: Probe) -> Observation:
        """Answer."""
        self.probes.append(probe)
        size = probe.micro_batch_size
        if size > self.largest:
            return failed(probe, Outcome.OUT_OF_MEMORY, "peak above the budget", memory_budget_bytes=GIB)
        wobble = (1.0, 1.004, 0.997, 1.001)
        times = tuple(size / self.samples_per_s(size) * wobble[i % 4] for i in range(probe.max_passes))
        peak = None if math.isinf(self.largest) else round(GIB * (0.1 + 0.9 * size / (self.largest + 0.5)))
        budget = None if peak is None else GIB
        return Observation(
            probe=probe,
            outcome=Outcome.MEASURED,
            pass_times_s=times,
            elapsed_s=1.0,
            peak_memory_bytes=peak,
            memory_budget_bytes=budget,
        )


def result_of(
    runner: Callable[[Probe], Observation], space: Space = FEW, settings: SearchSettings = EXACT, **options
) -> Result:
    """What a search ends with."""
    *_, last = run_search(runner, space=space, settings=settings, **options)
    assert isinstance(last, Result)
    return last


def failed(probe: Probe, outcome: Outcome, reason: str, **fields) -> Observation:
    """An answer without times."""
    return Observation(probe=probe, outcome=outcome, reason=reason, elapsed_s=1.0, **fields)


def answer_best_at_8(probe: Probe) -> Observation:
    """Faster up to 8 samples, slower beyond."""
    pass_s = 0.1 + 0.01 * probe.micro_batch_size if probe.micro_batch_size <= 8 else 1.0
    return Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=(pass_s,) * 5, elapsed_s=1.0)
