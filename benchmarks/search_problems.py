"""The problems of the search benchmark: public sweeps that are replayed, and worlds whose answer is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bexplore.errors import NothingFitsError
from bexplore.measurement.probe import Compilation, Observation, Probe
from bexplore.replay.replay import ReplayOptions, TableRunner
from bexplore.replay.table import Curve, load_table
from bexplore.search.loop import run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryPrior, Space
from tests.simulated.simulator import Family, SimulatedRunner, World, draw_world

CURVES = Path(__file__).parent / "curves"
DEVELOPED_ON = ("milabench_h100", "zeus", "gavel")
NOT_SEEN = ("profet_v100",)
GROUPS = {"developed on": DEVELOPED_ON, "not seen": NOT_SEEN}
STEPS = 10
TOLERANCE = 0.02
# One process runs all sizes, as on a user's machine, so that they can take turns where the machine wanders.
IN_TURNS = "bexplore, one compilation, sizes in turns"


@dataclass(frozen=True, slots=True)
class Problem:
    """One job to find the size for.

    Attributes:
        world: The part of the benchmark that it belongs to.
        family: Of recorded sweeps or of synthetic worlds.
        seed: Of the noise.
        source: A recorded curve or a synthetic world.
        noise: Standard deviation, as a fraction, of a pass and of a run; None for the source's own, 1 % of a curve.
    """

    world: str
    family: str
    seed: int
    source: Curve | World
    noise: float | None = None

    @property
    def space(self) -> Space:
        return Space.from_sizes(self.source.points) if isinstance(self.source, Curve) else self.source.space

    @property
    def memory(self) -> MemoryPrior | None:
        """What a user's trace would say; of a recorded curve nothing is known."""
        return None if isinstance(self.source, Curve) else self.source.memory

    def runner(self, *, shared_compile: bool) -> TableRunner | SimulatedRunner:
        source, noise = self.source, self.noise
        if isinstance(source, Curve):
            options = ReplayOptions(seed=self.seed, shared_compile=shared_compile, steps=STEPS)
            return TableRunner(source, options if noise is None else dataclasses.replace(options, noise=noise))
        world = source if noise is None else dataclasses.replace(source, run_sd=noise, pass_sd=noise)
        return SimulatedRunner(world, seed=self.seed, shared_compile=shared_compile)

    def regret(self, size: int) -> float:
        """Share of the best throughput that is lost at a size; 1 where it does not fit."""
        if isinstance(self.source, Curve) and not self.source.points[size].fits:
            return 1.0
        return self.source.regret(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a method found on a problem.

    Attributes:
        regret: Share of the best throughput that is lost.
        num_probes: Probes, all outcomes.
        num_out_of_memory: Those that did not fit.
        cost_s: What they cost.
        exhaustive_cost_s: What one probe of every size would have cost.
        static_sweep_cost_s: What one probe of every size costs who compiles each size on its own.
        fixed_cost_s: Starts and compiles that any method pays: one of each with a shared compilation, else 0.
        confidence: The final score; None for a method that has none.
        messages: (score, within the tolerance) of every streamed recommendation.
        regrets: (score, share that is missed at most with a score of 90, share that is missed) of those that tell.
        stop_reason: Why it ended.
        tolerance: What counted as a tie.
        relative_error: ln of the relative performance that was told over the true one; NaN where there is none.
        interval_holds: Whether its interval has the true one in it; None where it was told without.
    """

    regret: float
    num_probes: int
    num_out_of_memory: int
    cost_s: float
    exhaustive_cost_s: float
    static_sweep_cost_s: float = 0.0
    fixed_cost_s: float = 0.0
    confidence: int | None = None
    messages: tuple[tuple[int, bool], ...] = ()
    regrets: tuple[tuple[int, float, float], ...] = ()
    stop_reason: str = ""
    tolerance: float = TOLERANCE
    relative_error: float = math.nan
    interval_holds: bool | None = None

    @property
    def is_right(self) -> bool:
        """Whether it is within the tolerance of the best."""
        return self.regret <= self.tolerance


def public_problems(
    num_seeds: int,
    *,
    families: Sequence[str] = (*DEVELOPED_ON, *NOT_SEEN),
    noise: float | None = None,
    first_seed: int = 1000,
) -> Iterator[Problem]:
    for family in families:
        for curve in load_table(CURVES / f"{family}.csv"):
            for seed in range(first_seed, first_seed + num_seeds):
                yield Problem("public", family, seed, curve, noise)


def simulated_problems(family: Family, count: int, *, first_seed: int) -> Iterator[Problem]:
    for seed in range(first_seed, first_seed + count):
        world = draw_world(family, seed)
        if world.fits.any():
            yield Problem(family.value, family.value, seed, world)


def exhaustive_cost_s(problem: Problem, *, shared_compile: bool) -> float:
    """Seconds of one probe of every size under the same charges."""
    runner = problem.runner(shared_compile=shared_compile)
    for number, size in enumerate(problem.space.sizes):
        runner(Probe(number=number, micro_batch_size=size, max_passes=STEPS))
    return runner.cost_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What bexplore told of a problem, event by event.

    Attributes:
        result: How it ended.
        cost_s: What its probes cost.
        observations: Every probe.
        streamed: (number of observations so far, recommendation) of each one that was streamed.
    """

    result: Result
    cost_s: float
    observations: tuple[Observation, ...]
    streamed: tuple[tuple[int, Recommendation], ...]

    @property
    def best(self) -> Recommendation:
        assert self.result.recommendation is not None
        return self.result.recommendation


def explored(
    problem: Problem, *, shared_compile: bool = False, verifies: bool = False, tolerance: float = TOLERANCE
) -> Exploration | None:
    """Run bexplore itself on a problem; None where nothing fits.

    Args:
        problem: What to explore.
        shared_compile: One program serves all sizes; otherwise each is compiled on its own, as the training will be.
        verifies: The winner of a shared compilation is compiled once more, as the training will be.
        tolerance: What counts as a tie.
    """
    runner = problem.runner(shared_compile=shared_compile)
    of_search = Compilation.SHARED if shared_compile else Compilation.EXACT
    settings = SearchSettings(
        tolerance=tolerance,
        search_compilation=of_search,
        user_compilation=Compilation.EXACT if verifies else of_search,
        verify_exact=verifies,
        max_passes=STEPS,
    )
    observations, streamed = list[Observation](), list[tuple[int, Recommendation]]()
    try:
        for event in run_search(
            runner, space=problem.space, settings=settings, variants=(Variant(memory=problem.memory),)
        ):
            if isinstance(event, ProbeFinished):
                observations.append(event.observation)
            elif isinstance(event, Recommendation):
                streamed.append((len(observations), event))
            elif isinstance(event, Result):
                return Exploration(
                    result=event,
                    cost_s=runner.cost_s,
                    observations=tuple(observations),
                    streamed=tuple(streamed),
                )
    except NothingFitsError:
        return None
    raise AssertionError("an exploration ended without a result")


def answered(
    problem: Problem, *, shared_compile: bool = False, verifies: bool = False, tolerance: float = TOLERANCE
) -> Answer | None:
    """What bexplore answers, as `explored` has it; None for a world in which nothing fits."""
    found = explored(problem, shared_compile=shared_compile, verifies=verifies, tolerance=tolerance)
    if found is None:
        return None
    best, first = found.best, found.observations[0]
    streamed = [told for _, told in found.streamed]
    true_gain = _true_gain(problem, best)
    return Answer(
        regret=problem.regret(best.micro_batch_size),
        num_probes=best.num_probes,
        num_out_of_memory=found.result.outcomes.get("out_of_memory", 0),
        cost_s=found.cost_s,
        exhaustive_cost_s=exhaustive_cost_s(problem, shared_compile=shared_compile),
        static_sweep_cost_s=exhaustive_cost_s(problem, shared_compile=False) if shared_compile else 0.0,
        fixed_cost_s=first.start_time_s + first.compile_time_s if shared_compile else 0.0,
        confidence=best.confidence,
        messages=tuple((told.confidence, problem.regret(told.micro_batch_size) <= tolerance) for told in streamed),
        regrets=tuple(
            (told.confidence, told.regret_bound_90, problem.regret(told.micro_batch_size))
            for told in streamed
            if told.regret_bound_90 is not None
        ),
        stop_reason=found.result.stop_reason,
        tolerance=tolerance,
        relative_error=math.log(best.relative_performance / true_gain),
        interval_holds=_holds(best, true_gain),
    )


def _true_gain(problem: Problem, best: Recommendation) -> float:
    """The samples/s of the recommended size over those of the base; NaN where the base does not run."""
    base = 1.0 - problem.regret(best.base_micro_batch_size)
    return (1.0 - problem.regret(best.micro_batch_size)) / base if base > 0.0 else math.nan


def _holds(best: Recommendation, true_gain: float) -> bool | None:
    if best.relative_performance_interval is None or math.isnan(true_gain):
        return None
    low, high = best.relative_performance_interval
    return low <= true_gain <= high
