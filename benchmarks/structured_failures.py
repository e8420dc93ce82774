"""Whether the answer is right where a program fails at some sizes: random programs on simulated machines.

    python -m benchmarks.structured_failures            1,500 programs; writes the result

Each program fails by a rule (groups of k, even sizes, an end, divisors of a queue ...), half of them with a text that
names it; the sizes are every integer, powers of two, or multiples. Some programs are broken at every size.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.machine_facts import machine_facts
from bexplore.errors import BexploreError, UserProgramError
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.search.loop import RunRecord, run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.space import Space
from tests.simulated.failures import TRACEBACK, FailureKind, draw_failure
from tests.simulated.simulator import Family, SimulatedRunner, World, draw_world

RESULTS = Path(__file__).parent / "results" / "structured_failures.md"
NUM_PROGRAMS = 1_500
FAMILIES = (Family.SMOOTH, Family.ROUGH, Family.PLATEAUS, Family.CPU_LIKE, Family.GPU_LIKE)
WITHIN_RIGHT, WITHIN_SCORE = 0.05, 0.02
BROKEN_TEXTS = (
    "NameError: name 'labels' is not defined",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({n}x32 and 64x1)",
    "ValueError: bad input",
    "KeyError: 'tokens'",
    "RuntimeError: Trying to backward through the graph a second time",
    "AssertionError: ",
)
HEAD = """\
# Programs that fail in structured ways

`{command}`: {count} random programs on simulated machines. {machine}

* *Within 5 %*: of the fastest size that runs, among the candidates; where none of them runs, among all sizes between.
* *Score >= 90*: of the runs whose score is at least 90, those within 2 %.
* *Failed*: probes that failed, a run.
* *Broken*: programs that fail at every size, and the probes that it takes to say so.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of one program.

    Attributes:
        seed: Of the program.
        kind: Of its failures.
        regret: Share of the speed of the fastest size that runs which the answer misses; 1 for none.
        score: Of the answer; 0 for none.
        sizes: That were probed, in order.
        num_failed: Probes that crashed.
        told: The rule as the result tells it.
    """

    seed: int
    kind: FailureKind
    regret: float
    score: int
    sizes: tuple[int, ...]
    num_failed: int
    told: str | None


def draw_problem(seed: int) -> tuple[Space, World]:
    """Draw the candidates, and a machine whose program fails at some sizes, of every integer that they span."""
    rng = np.random.default_rng([seed, 82])
    largest = int(2 ** rng.uniform(4.5, 9))
    kind = str(rng.choice(["all", "powers", "multiples"], p=[0.7, 0.2, 0.1]))
    if kind == "powers":
        space = Space.from_sizes(2**power for power in range(int(math.log2(largest)) + 1))
    else:
        space = Space.from_sizes(range(1, largest + 1) if kind == "all" else range(4, largest + 1, 4))
    between = Space.from_sizes(range(space.base, space.sizes[-1] + 1))
    for attempt in range(1000):
        world = draw_world(FAMILIES[seed % len(FAMILIES)], 1000 * seed + attempt, between)
        failure = draw_failure(1000 * seed + attempt, largest=space.sizes[-1])
        world = dataclasses.replace(world, failure=failure)
        if len(_speeds(space, world)) > 1:
            return space, world
    raise AssertionError("no program of which two sizes run")


def _speeds(space: Space, world: World) -> dict[int, float]:
    """Return samples/s of the sizes that run: of the candidates; of all sizes between where none of these runs."""
    every = dict(world.throughputs)
    own = {size: speed for size, speed in every.items() if size in set(space.sizes)}
    return own or every


def solved(seed: int) -> Found:
    """Explore one program."""
    space, world = draw_problem(seed)
    assert world.failure is not None
    runner = SimulatedRunner(world, seed=seed, shared_compile=True)
    observations: list[Observation] = []
    result = None
    try:
        for event in run_search(
            runner,
            space=space,
            variants=(Variant(memory=world.memory),),
            run=RunRecord(clock=lambda: runner.cost_s),
        ):
            if isinstance(event, ProbeFinished):
                observations.append(event.observation)
            elif isinstance(event, Result):
                result = event
    except BexploreError:
        pass
    best = result.recommendation if result else None
    speeds = _speeds(space, world)
    return Found(
        seed=seed,
        kind=world.failure.kind,
        regret=max(1.0 - dict(world.throughputs).get(best.micro_batch_size, 0.0) / max(speeds.values()), 0.0)
        if best
        else 1.0,
        score=best.confidence if best else 0,
        sizes=tuple(item.micro_batch_size for item in observations),
        num_failed=sum(item.outcome is Outcome.CRASHED for item in observations),
        told=result.runs_at if result else None,
    )


def probes_of_broken(text: str) -> int:
    """Return the probes after which a program is called broken that fails at every size."""
    sizes: list[int] = []

    def runner(probe: Probe) -> Observation:
        sizes.append(probe.micro_batch_size)
        reason = text.format(n=probe.micro_batch_size)
        return Observation(probe=probe, outcome=Outcome.CRASHED, reason=reason, traceback_text=TRACEBACK, elapsed_s=1.0)

    try:
        list(run_search(runner, space=Space.from_sizes(range(1, 257))))
    except UserProgramError:
        return len(sizes)
    raise AssertionError("a broken program has an answer")


def found(seeds: Iterable[int], *, num_processes: int = 1) -> Iterator[Found]:
    """Explore the program of each seed."""
    if num_processes == 1:
        yield from map(solved, seeds)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        yield from pool.map(solved, seeds, chunksize=5)


def table(programs: Sequence[Found]) -> str:
    """Return the figures by kind of failure."""
    rows = ["| failures | programs | within 5 % | score >= 90: within 2 % | probes | failed |", f"|{'---|' * 6}"]
    groups = [(kind.value, [one for one in programs if one.kind is kind]) for kind in FailureKind]
    for name, own in [*groups, ("all", list(programs))]:
        if not own:
            continue
        sure = [one.regret <= WITHIN_SCORE for one in own if one.score >= 90]
        share = f"{sum(sure)} of {len(sure)}" + (f" ({np.mean(sure):.1%})" if sure else "")
        cells = [
            name,
            str(len(own)),
            f"{np.mean([one.regret <= WITHIN_RIGHT for one in own]):.1%}",
            share,
            f"{np.mean([len(one.sizes) for one in own]):.1f}",
            f"{np.mean([one.num_failed for one in own]):.1f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    broken = ", ".join(f"`{text}` {probes_of_broken(text)}" for text in BROKEN_TEXTS)
    return "\n".join([*rows, "", f"Broken, probes: {broken}."])


def main() -> None:
    """Explore the programs and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=NUM_PROGRAMS)
    parser.add_argument("--first-seed", type=int, default=7000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--print-only", action="store_true", help="print each program that was answered badly")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.programs)
    programs = list(found(seeds, num_processes=arguments.processes))
    text = table(programs)
    print(text)
    if arguments.print_only:
        for one in programs:
            if one.regret > WITHIN_RIGHT or (one.score >= 90 and one.regret > WITHIN_SCORE):
                print(one)
        return
    command = f"python -m benchmarks.structured_failures --first-seed {arguments.first_seed}"
    facts = ", ".join(f"{name}: {value}" for name, value in machine_facts().items()) + "."
    RESULTS.write_text(HEAD.format(command=command, count=len(programs), machine=facts) + text + "\n")


if __name__ == "__main__":
    main()
