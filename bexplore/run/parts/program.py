"""The program that ran the recommended size: its compilation beside the search's, and beside no compilation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bexplore.engine.protocol.answers import EagerComparison, EagerVerdict
from bexplore.measurement.probe import Compilation
from bexplore.run.facts import Facts
from bexplore.run.parts.row import Row, View
from bexplore.search.result import samples_are_seen
from bexplore.units import counted, format_bytes, format_seconds

# ln of the speeds of two starts of one size, or of a step's seconds over the predicted ones, beyond which they are not
# the same. Source: benchmarks/results/command_shared_starts.json: 95 % of 90 pairs of separate starts are less apart.
STARTS_APART = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPart:
    """The program that ran the recommended size."""

    compilation: str | None = None  # program that ran it
    # Throughput as the training runs over that in the search, at the sizes that ran both; of a command, whose starts
    # differ by chance, at the recommended size alone.
    exact_over_shared: float | None = None
    optimizers: tuple[str, ...] | None = None  # classes of the optimizers that an update steps
    samples_are_seen: bool | None = None  # whether the number of samples of its batch was checked
    eager: EagerComparison | None = None  # the recommended size without torch.compile
    artifacts_dir: str | None = None  # compiler cache of the recommended size, which a training may start from

    @classmethod
    def find(cls, facts: Facts) -> ProgramPart:
        """Return the program of the observation that verifies the size."""
        searched, ran = facts.searched, facts.ran
        is_of_command = facts.config.command is not None
        known = cls(exact_over_shared=_compare_starts(facts) if is_of_command else searched.exact_over_shared)
        if facts.best is None:
            return known
        return replace(
            known,
            compilation=ran.probe.compilation.value if ran else None,
            optimizers=ran.details.get("optimizers") if ran else None,
            samples_are_seen=samples_are_seen([ran] if ran else []),
        )

    def rows(self, view: View) -> Iterator[Row]:
        """Yield the speed as the training runs over that in the search, and whether torch.compile is worth it."""
        ratio = self.exact_over_shared
        if ratio is not None:
            yield self._own_program(ratio, view)
        eager = eager_words(self.eager, view.tolerance)
        if eager:
            yield Row("eager", eager)

    def _own_program(self, ratio: float, view: View) -> Row:
        times = f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.1g}x"  # a busy machine can make it 0.004
        if view.is_of_command:
            beside = "of its speed in the search"
            if abs(math.log(ratio)) > STARTS_APART:
                beside += f"; two starts on a quiet machine are rarely more than {STARTS_APART:.0%} apart"
            return Row("own start", f"run in a start of its own, as your training will: {times} {beside}")
        if self.compilation == Compilation.EAGER:
            beside = "of its speed beside other sizes"
            return Row("own process", f"run in a process of its own, as your training will: {times} {beside}")
        shared = "of the search's shared compilation"
        return Row("compiled", f"run exactly as your training will compile it: {times} {shared}")


def _compare_starts(facts: Facts) -> float | None:
    """Return the measured speed of the recommended size as its training runs it over that in the search."""
    size = None if facts.best is None else facts.best.micro_batch_size
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for one in facts.observations:
        if one.is_measured and one.micro_batch_size == size and not one.is_after_search:
            speeds[one.probe.compilation is Compilation.SHARED].append(one.samples_per_s)
    shared, own = speeds[True], speeds[False]
    return statistics.median(own) / statistics.median(shared) if shared and own else None


def eager_words(eager: EagerComparison | None, tolerance: float) -> str | None:
    """Return whether torch.compile is worth it; None where that was not compared."""
    if eager is None:
        return None
    if eager.problem or eager.verdict is None:
        return f"without torch.compile this size does not run: {eager.problem}"
    peak = eager.peak_memory_bytes
    memory = f", peak {format_bytes(peak)}" if peak is not None else ""
    timed = format_seconds(min(eager.compiled_timed_s, eager.eager_timed_s))
    return (
        f"without torch.compile this size runs at {eager.over_compiled:.2f}x the speed (95% interval {eager.low:.2f} "
        f"to {eager.high:.2f}; {counted(eager.num_pairs, 'round')}, {timed}, of each{memory}): "
        f"{_eager_advice(eager, tolerance)}"
    )


def _eager_advice(eager: EagerComparison, tolerance: float) -> str:
    return {
        EagerVerdict.FASTER: "do not compile, or explore again with explore.compile: false",
        EagerVerdict.SLOWER: "keep torch.compile",
        EagerVerdict.SAME: f"within {100 * tolerance:g}% that is as fast, so that compiling gains nothing",
        EagerVerdict.UNSURE: "too uncertain to decide whether compiling pays",
    }[eager.verdict or EagerVerdict.UNSURE]
