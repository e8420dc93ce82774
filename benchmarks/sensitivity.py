"""Half and double of each tuned constant of the search: `python -m benchmarks.sensitivity`, ten minutes on one core.

Every module-level constant of `bexplore.search` and `bexplore.measurement` whose comment cites `sensitivity.md` is
halved and doubled, one at a time, and the same problems are searched: recorded sweeps that the search was developed on,
and simulated jobs on seeds of their own, some on a host that drifts, some with CPU contention, some whose resident or
reserved memory must fit. Constants whose comment cites `sensitivity.md, variants` are varied in joint searches over the
variants of simulated jobs instead. A share above one half moves half and twice its distance to 1 instead; a ratio goes
to its square root and its square; the weights of a grid are flattened and sharpened.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib
import json
import math
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

import bexplore.measurement
import bexplore.search
from benchmarks.search import facts_of
from benchmarks.search_problems import DEVELOPED_ON, TOLERANCE, Problem, explored, public_problems, simulated_problems
from benchmarks.settings_search import joint_run
from bexplore.measurement.probe import Observation, Probe
from bexplore.search.posterior.prior import Hyper
from bexplore.search.space import MemoryAccount
from bexplore.testing.simulator import Family, World, with_caching_allocator

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 9_000_000
NUM_WORLDS, QUICK_WORLDS = 2, 1  # of each group
JOBS_OF_VARIANTS, QUICK_JOBS_OF_VARIANTS = 24, 2
CURVE_STEP, QUICK_CURVE_STEP = 6, 20  # every so many recorded sweeps
ALONE = (Family.SMOOTH, Family.ROUGH, Family.CLIFFS)  # each size compiled by itself
TOGETHER = (Family.CPU_LIKE, Family.GPU_LIKE, Family.DRIFTING_HOST, Family.BURSTS)  # one compilation for all
CONTENDED_SHARE, MOST_CONTENTION = 0.3, 0.5  # of the probes; of the processors
RESIDENT_GROWTHS, RESIDENT_SD = (1.2, 1.6), 0.03
RATIOS = ("LADDER_STEP", "GAP_RATIO", "SHORT_GAP_RATIO", "RESIDENT_GROWTH")
WEIGHTED = {
    "SMOOTH": 1,
    "CLIFF_SDS": 0,
    "ROUGH_SDS": 0,
    "PROBE_NOISE_RATIOS": 0,
    "MIN_ROUNDS": 1,
}  # column of the varied value
WEIGHTS = ("SHARPNESS_WEIGHTS",)
FACTORS = {"half": 0.5, "double": 2.0}
CITED = re.compile(r"sensitivity\.md(, variants)?")


@dataclass(frozen=True, slots=True)
class Constant:
    """A tuned constant: its module, its name, its value, and whether it is one of joint searches."""

    module: str
    name: str
    value: Any
    is_of_variants: bool = False


@dataclass(frozen=True, slots=True)
class ContendedProblem(Problem):
    """A problem on a host whose processors other processes use in some probes, and which reports it."""

    def runner(self, *, shared_compile: bool) -> Callable[[Probe], Observation]:
        return Contended(Problem.runner(self, shared_compile=shared_compile), self.seed)


class Contended:
    """Slows some probes of a runner down; the rest of the runner is its own."""

    def __init__(self, runner: Any, seed: int) -> None:
        self.runner = runner
        self.rng = np.random.default_rng([seed, 81])

    @property
    def cost_s(self) -> float:
        return self.runner.cost_s

    def __call__(self, probe: Probe) -> Observation:
        observation = self.runner(probe)
        if self.rng.random() >= CONTENDED_SHARE:
            return observation
        share = self.rng.uniform(0.0, MOST_CONTENTION)
        slower = tuple(seconds / (1.0 - self.rng.uniform(0.0, share)) for seconds in observation.pass_times_s)
        return dataclasses.replace(
            observation, pass_times_s=slower, background_cpu_share=share, scheduler_wait_fraction=share
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few problems; no results are kept")
    parser.add_argument("--only", nargs="+", default=[], help="vary these; take all else from the results")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    problems = list(_problems(quick=options.quick))
    constants = [constant for constant in tuned() if not options.only or constant.name in options.only]
    count = QUICK_JOBS_OF_VARIANTS if options.quick else JOBS_OF_VARIANTS
    report = report_of(problems, constants, range(FIRST_SEED, FIRST_SEED + count))
    facts = facts_of(arguments, module="sensitivity") | {"wall_time_s": round(time.monotonic() - began)}
    if options.only:
        known = json.loads((RESULTS / "sensitivity.json").read_text())
        report["rows"] = joined(known["rows"], report["rows"])
        report["as_is"] = known["as_is"] | report["as_is"]
        also = ", ".join(str(facts[name]) for name in ("command", "date", "revision"))
        facts = known["facts"] | {"also": [*known["facts"].get("also", []), also]}
    report["facts"] = facts
    text = markdown(report)
    if not options.quick:
        (RESULTS / "sensitivity.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "sensitivity.md").write_text(text)
    sys.stdout.write(text)
    return 0


def joined(known: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Known rows of constants that still are, with those of these rows instead of their own, by module and name."""
    found = {(row["module"], row["constant"], row["variant"]): row for row in (*known, *rows)}
    order = [(constant.module, constant.name, variant) for constant in tuned() for variant in FACTORS]
    return [found[key] for key in order if key in found]


def tuned() -> Iterator[Constant]:
    """Every constant whose comment cites this benchmark."""
    for package in (bexplore.measurement, bexplore.search):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.ispkg:
                module = importlib.import_module(info.name)
                for name, is_of_variants in cited(Path(str(module.__file__)).read_text()):
                    yield Constant(info.name.removeprefix("bexplore."), name, getattr(module, name), is_of_variants)


def cited(source: str) -> Iterator[tuple[str, bool]]:
    """Module-level constants whose comment, beside or above, cites this benchmark, and whether for joint searches."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(item, ast.Constant) for item in ast.walk(node.value)):
            names = [item.id for item in ast.walk(node.targets[0]) if isinstance(item, ast.Name) and item.id.isupper()]
            citation = CITED.search(comment_of(lines, node))
            if citation:
                yield from ((name, citation[1] is not None) for name in names)


def comment_of(lines: Sequence[str], node: ast.Assign) -> str:
    """The comment beside an assignment if it names a source, else the one above its block of assignments."""
    beside = "\n".join(line.partition("#")[2] for line in lines[node.lineno - 1 : node.end_lineno])
    if "Source" in beside:
        return beside
    above, end = [], node.lineno - 1
    while end > 0 and lines[end - 1].strip() and not lines[end - 1].startswith("#"):
        end -= 1
    while end > 0 and lines[end - 1].startswith("#"):
        end -= 1
        above.append(lines[end])
    return "\n".join(reversed(above))


def varied(constant: Constant, factor: float) -> Any:
    """The constant at half or double; see the module."""
    value, name = constant.value, constant.name
    if name in RATIOS:
        return value**factor
    if name in WEIGHTS:
        return _normalised([weight**factor for weight in value])
    if name in WEIGHTED:
        column = WEIGHTED[name]
        return tuple((*row[:column], row[column] * factor, *row[column + 1 :]) for row in value)
    if isinstance(value, np.ndarray):
        return np.maximum(value * factor, 2).astype(value.dtype) if value.dtype.kind == "i" else _thinned(value, factor)
    if isinstance(value, tuple):
        return tuple(_scaled(item, factor) for item in value)
    return _scaled(value, factor)


def _scaled(value: float, factor: float) -> float:
    if isinstance(value, int):
        return max(1, round(value * factor))
    return 1.0 - (1.0 - value) / factor if 0.5 < value < 1.0 else value * factor


def _thinned(values: np.ndarray, factor: float) -> np.ndarray:
    return np.linspace(values[0], values[-1], max(2, round(len(values) * factor)))


def _normalised(weights: Sequence[float]) -> tuple[float, ...]:
    return tuple(weight / math.fsum(weights) for weight in weights)


@contextmanager
def patched(constant: Constant, value: Any) -> Iterator[None]:
    """The search with another value of a constant, in each module that has it."""
    modules = [module for name, module in sys.modules.items() if name.startswith("bexplore.") and module is not None]
    places = [module for module in modules if getattr(module, constant.name, None) is constant.value]
    try:
        for module in places:
            setattr(module, constant.name, value)
        _clear_caches()
        yield
    finally:
        for module in places:
            setattr(module, constant.name, constant.value)
        _clear_caches()


def _clear_caches() -> None:
    Hyper._relative_grid.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("bexplore.search.posterior"):
            for item in vars(module).values():
                getattr(item, "cache_clear", lambda: None)()


def _problems(*, quick: bool) -> Iterator[tuple[Problem, bool]]:
    """Problems, and whether one compilation serves all sizes."""
    count = QUICK_WORLDS if quick else NUM_WORLDS
    recorded = list(public_problems(1, families=DEVELOPED_ON, first_seed=FIRST_SEED))
    yield from ((problem, False) for problem in recorded[:: QUICK_CURVE_STEP if quick else CURVE_STEP])
    for family in ALONE:
        yield from ((problem, False) for problem in simulated_problems(family, count, first_seed=FIRST_SEED))
    for family in TOGETHER:
        yield from ((problem, True) for problem in simulated_problems(family, count, first_seed=FIRST_SEED))
    for problem in simulated_problems(Family.CPU_LIKE, 2 * count, first_seed=FIRST_SEED + 1000):
        assert isinstance(problem.source, World)
        yield ContendedProblem("contended", problem.family, problem.seed, problem.source), True
        yield dataclasses.replace(problem, source=resident(problem.source, problem.seed)), True
        yield dataclasses.replace(problem, source=with_caching_allocator(problem.source, problem.seed)), True


def resident(world: World, seed: int) -> World:
    """The same world, where the resident memory of the process must fit."""
    rng = np.random.default_rng([seed, 82])
    growth = rng.uniform(*RESIDENT_GROWTHS)
    noise = np.exp(RESIDENT_SD * rng.standard_normal(len(world.peak_bytes)))
    held = (world.peak_bytes[0] + growth * (world.peak_bytes - world.peak_bytes[0])) * noise
    held = np.maximum.accumulate(held)
    memory = world.memory and dataclasses.replace(world.memory, judged_by=MemoryAccount.RESIDENT)
    return dataclasses.replace(world, reserved_bytes=held, lowest_limit_bytes=held, memory=memory)


def report_of(
    problems: Sequence[tuple[Problem, bool]], constants: Sequence[Constant], jobs: Sequence[int]
) -> dict[str, Any]:
    """What the search does as it is, and with each constant at half and double.

    Args:
        jobs: Seeds of the jobs of several variants.
    """
    problems = [(problem, shares) for problem, shares in problems if _fits(problem)]
    ask: dict[bool, Callable[[], list[Answer | None]]] = {
        False: lambda: _answers(problems),
        True: lambda: [_joint_answer(seed) for seed in jobs],
    }
    as_is = {kind: ask[kind]() for kind in {constant.is_of_variants for constant in constants}}
    rows = []
    for number, constant in enumerate(constants):
        known = as_is[constant.is_of_variants]
        for which, factor in FACTORS.items():
            value = varied(constant, factor)
            with patched(constant, value):
                found = ask[constant.is_of_variants]()
            changed = sum(_key(new) != _key(old) for new, old in zip(found, known, strict=True)) / len(known)
            row = {"module": constant.module, "constant": constant.name, "variant": which, "value": _plain(value)}
            row["is_of_variants"] = constant.is_of_variants
            rows.append(row | {"in_use": _plain(constant.value), "changed": changed} | _summary(found))
        sys.stderr.write(f"{number + 1}/{len(constants)} {constant.module}.{constant.name}\n")
    return {"rows": rows, "as_is": {_KINDS[kind]: _as_it_is(answers) for kind, answers in as_is.items()}}


_KINDS = {False: "problems", True: "jobs of variants"}


def _as_it_is(answers: Sequence[Answer | None]) -> dict[str, float]:
    return _summary(answers) | {"number": len(answers)}


def _fits(problem: Problem) -> bool:
    return not isinstance(problem.source, World) or bool(problem.source.fits.any())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found: its regret, its probes, and (score, within 2 %) of each streamed recommendation."""

    regret: float
    num_probes: int
    messages: tuple[tuple[int, bool], ...]


def _answers(problems: Sequence[tuple[Problem, bool]]) -> list[Answer | None]:
    return [_answer(problem, shares) for problem, shares in problems]


def _answer(problem: Problem, shares: bool) -> Answer | None:
    """The search's answer; None where it found nothing that fits, or failed with such a constant."""
    try:
        found = explored(problem, shared_compile=shares, verifies=shares)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        return None
    if found is None:
        return None
    messages = ((best.confidence, problem.regret(best.micro_batch_size) <= TOLERANCE) for _, best in found.streamed)
    return Answer(problem.regret(found.best.micro_batch_size), found.best.num_probes, tuple(messages))


def _joint_answer(seed: int) -> Answer | None:
    """The answer of a joint search over the variants of a job; None where nothing of it fits."""
    found = joint_run(seed)
    if not found:
        return None
    messages = tuple((score, regret <= TOLERANCE) for score, regret in found["messages"])
    return Answer(found["regret"], found["num_probes"], messages)


def _key(answer: Answer | None) -> tuple[float, int] | None:
    return answer and (answer.regret, answer.num_probes)


def _summary(answers: Sequence[Answer | None]) -> dict[str, float]:
    found = [answer for answer in answers if answer is not None]
    return {
        "within": sum(answer.regret <= TOLERANCE for answer in found) / len(answers),
        "probes": math.fsum(answer.num_probes for answer in found) / max(len(found), 1),
        "error": calibration_error(found),
    }


def calibration_error(answers: Sequence[Answer]) -> float:
    """Mean distance of score and share that is right, 0 to 1, over bands of ten."""
    messages = np.array([message for answer in answers for message in answer.messages], dtype=float).reshape(-1, 2)
    bands = [messages[messages[:, 0] // 10 == band] for band in range(10)]
    return math.fsum(abs(band[:, 0].mean() / 100 - band[:, 1].mean()) * len(band) for band in bands if len(band)) / max(
        len(messages), 1
    )


def _plain(value: Any) -> Any:
    rounded = functools.partial(np.round, decimals=4)
    if isinstance(value, np.ndarray):
        return rounded(value).tolist()
    return [_plain(item) for item in value] if isinstance(value, tuple) else float(f"{value:.4g}")


def markdown(report: dict[str, Any]) -> str:
    """One row for each constant."""
    facts = report["facts"]
    lines = ["# Half and double of each tuned constant of the search", ""]
    lines += [f"`{facts['command']}`, {facts['date']}, {facts['revision']}, {facts['wall_time_s']} s on one core.", ""]
    for also in facts.get("also", []):
        lines += [f"Also `{also}`.", ""]
    for kind, as_is in report["as_is"].items():
        lines.append(
            f"{as_is['number']} {kind}. As it is: {100 * as_is['within']:.1f} % of the answers within 2 % of the best, "
            f"{as_is['probes']:.2f} probes, calibration error {as_is['error']:.3f}."
        )
    lines += [
        "",
        "Each cell: share within 2 %, probes, calibration error; in brackets the share of the problems, or of the jobs "
        "of variants (constants with a *), whose answer or number of probes changed.",
        "",
        "| module | constant | in use | half | double |",
        "|---|---|---|---|---|",
    ]
    for half, double in zip(report["rows"][::2], report["rows"][1::2], strict=True):
        in_use = json.dumps(half["in_use"])
        shown = in_use if len(in_use) < 60 else f"{in_use[:56]} ..."
        name = half["constant"] + ("*" if half.get("is_of_variants") else "")
        lines.append(f"| {half['module']} | {name} | {shown} | {_cell(half)} | {_cell(double)} |")
    return "\n".join([*lines, ""])


def _cell(row: dict[str, Any]) -> str:
    return f"{100 * row['within']:.1f} %, {row['probes']:.2f}, {row['error']:.3f} ({100 * row['changed']:.0f} %)"


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.exit(main())
