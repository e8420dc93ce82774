"""What a user would pick instead: the rules and samplers that the search is held against, on the same problems."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable

import optuna

from benchmarks.search_problems import STEPS, Answer, Problem, exhaustive_cost_s
from bexplore.measurement.probe import Probe

TRIALS = 16
DEEPSPEED_SIZES = 3


class Bench:
    """Runs sizes for a rule, once each, and remembers what was found; None is out of memory."""

    def __init__(self, problem: Problem) -> None:
        self.sizes = problem.space.sizes
        self.found: dict[int, float | None] = {}
        self.num_probes = 0
        self._runner = problem.runner(shared_compile=False)

    @property
    def cost_s(self) -> float:
        return self._runner.cost_s

    def run(self, size: int) -> float | None:
        """Samples/s of a new measurement."""
        probe = Probe(number=self.num_probes, micro_batch_size=size, max_passes=STEPS)
        observation = self._runner(probe)
        self.num_probes += 1
        self.found[size] = observation.samples_per_s if observation.is_measured else None
        return self.found[size]

    def once(self, size: int) -> float | None:
        return self.found[size] if size in self.found else self.run(size)

    def fastest(self) -> int:
        measured = {size: value for size, value in self.found.items() if value is not None}
        return max(measured, key=lambda size: measured[size])

    def largest(self) -> int:
        return max(size for size, value in self.found.items() if value is not None)


def _double(bench: Bench) -> tuple[int, int]:
    """Indices of the largest size that fits and of the first that does not (one past the end if all fit)."""
    index = 0
    bench.run(bench.sizes[0])
    while True:
        wanted = 2 * bench.sizes[index]
        following = next((i for i in range(index + 1, len(bench.sizes)) if bench.sizes[i] >= wanted), None)
        if following is None:
            return index, len(bench.sizes)
        if bench.run(bench.sizes[following]) is None:
            return index, following
        index = following


def _bisect(bench: Bench, low: int, high: int) -> int:
    """The largest index that fits, given one that does and one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        if bench.once(bench.sizes[middle]) is None:
            high = middle
        else:
            low = middle
    return low


def doubling(bench: Bench) -> int:
    """Double until it no longer fits; the fastest of these."""
    _double(bench)
    return bench.fastest()


def doubling_and_largest(bench: Bench) -> int:
    """Double until it no longer fits, then bisect for the largest that fits; the fastest of all."""
    low, high = _double(bench)
    _bisect(bench, low, high)
    return bench.fastest()


def bisection(bench: Bench) -> int:
    """Bisect for the largest that fits, and take it."""
    if bench.run(bench.sizes[-1]) is not None:
        return bench.largest()
    bench.run(bench.sizes[0])
    _bisect(bench, 0, len(bench.sizes) - 1)
    return bench.largest()


def deepspeed_like(bench: Bench) -> int:
    """Find the largest that fits, then a few sizes at equal distances below it; the fastest of these.

    After the autotuner of DeepSpeed: `num_tuning_micro_batch_sizes` is 3 there.
    """
    low, high = _double(bench)
    top = _bisect(bench, low, high)
    largest = bench.sizes[top]
    for part in range(1, DEEPSPEED_SIZES):
        wanted = largest * part / DEEPSPEED_SIZES
        bench.once(min(bench.sizes[: top + 1], key=lambda size: abs(size - wanted)))
    return bench.fastest()


def exhaustive(bench: Bench) -> int:
    """Every size once; the fastest."""
    for size in bench.sizes:
        bench.run(size)
    return bench.fastest()


def _with_sampler(bench: Bench, sampler: optuna.samplers.BaseSampler) -> int:
    """Sixteen trials of a plain Optuna sampler over the logarithm of the size; out of memory is a failed trial."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    sizes = bench.sizes
    study.enqueue_trial({"log_size": math.log(sizes[0])})
    for _ in range(TRIALS):
        trial = study.ask()
        wanted = trial.suggest_float("log_size", math.log(sizes[0]), math.log(sizes[-1]))
        value = bench.run(min(sizes, key=lambda size: abs(math.log(size) - wanted)))
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)
    return bench.fastest()


def optuna_tpe(bench: Bench) -> int:
    """Optuna's TPESampler, 16 trials."""
    return _with_sampler(bench, optuna.samplers.TPESampler(seed=0))


def optuna_gp(bench: Bench) -> int:
    """Optuna's GPSampler, 16 trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _with_sampler(bench, optuna.samplers.GPSampler(seed=0))


BASELINES: dict[str, Callable[[Bench], int]] = {
    "doubling": doubling,
    "doubling + largest that fits": doubling_and_largest,
    "bisection for the largest": bisection,
    "DeepSpeed-like": deepspeed_like,
    "exhaustive": exhaustive,
    "Optuna TPE": optuna_tpe,
}
if importlib.util.find_spec("scipy") is not None:  # GPSampler imports it; bexplore itself does not
    BASELINES["Optuna GPSampler"] = optuna_gp


def answer_of(name: str, problem: Problem) -> Answer | None:
    """What a baseline finds; None where not even the smallest size fits."""
    bench = Bench(problem)
    if problem.regret(problem.space.base) >= 1.0:
        return None
    size = BASELINES[name](bench)
    return Answer(
        regret=problem.regret(size),
        num_probes=bench.num_probes,
        num_out_of_memory=sum(value is None for value in bench.found.values()),
        cost_s=bench.cost_s,
        exhaustive_cost_s=exhaustive_cost_s(problem, shared_compile=False),
    )
