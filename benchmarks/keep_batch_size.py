"""Whether the second answer keeps the user's batch size and is the fastest that does: random jobs, simulated machines.

    python -m benchmarks.keep_batch_size            25 jobs of each family of machines; writes the result

A job is a file as a user would write it: a model of the user's own, of transformers or of the file itself, a global
batch and replicas. Its own rules say which sizes are tried and which keep the batch; a simulated machine answers.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.exploration.exploration import keeping_sizes
from bexplore.exploration.finish import keeps_batch_size
from bexplore.job.batching import is_valid_global_batch_size
from bexplore.measurement.probe import Compilation, Observation, Purpose
from bexplore.run.fingerprint import search_settings
from bexplore.run.result import KeepsBatchSize
from bexplore.search.loop import RunRecord, explore
from bexplore.search.posterior.joint import Variant
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.space import Space, candidate_sizes
from bexplore.testing.simulator import Family, SimulatedRunner, draw_world

HEAD = """\
# The second answer: the fastest size that keeps the user's batch size

`python -m benchmarks.keep_batch_size` (seeds {seeds}): random jobs on simulated machines of each family.

* *Within the tolerance*: no size that keeps the batch size and fits is faster by more than 2 %.
* *Of its own*: the second answer is another size than the recommended one.
* *Extra probes*: beside those of the search, a job.

"""
RESULTS = Path(__file__).parent / "results" / "keep_batch_size.md"
NUM_JOBS = 25
OWN_MODEL = {"model": "shop.net:make_model", "batch": "shop.net:make_batch"}
WORKLOADS: tuple[dict[str, Any], ...] = (
    OWN_MODEL,
    OWN_MODEL | {"loss": "shop.net:loss", "loader": "shop.net:make_loader"},
    {"step": "shop.gan:make_step"},
    {"transformers": {"task": "causal_lm", "model_type": "llama", "config": {"num_hidden_layers": 4}}},
    {"transformers": {"task": "masked_lm", "model_type": "bert", "sequence_length": 128}},
    {"transformers": {"task": "seq2seq_lm", "model_type": "t5", "sequence_length": 64}},
    {"transformers": {"task": "image_classification", "model_type": "vit", "image_size": 64}},
)
GPT2 = {"name": "gpt2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2}
ROUND_BATCHES = (24, 48, 60, 96, 100, 120, 144, 192, 200, 250, 300, 360, 480, 500, 768, 1000, 1200, 1536, 2000, 5000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of one job.

    Attributes:
        config: The job.
        family: Of the machine.
        result: How its exploration ended.
        second: The second answer as `--json` tells it; None where there is none.
        observations: Every probe.
        regret: Share of the speed of the fastest size that keeps the batch size which the second answer misses; NaN
            where there is none.
    """

    config: Config
    family: Family
    result: Result
    second: KeepsBatchSize | None
    observations: tuple[Observation, ...]
    regret: float

    @property
    def is_valid(self) -> bool:
        """Whether the user's batch size is valid with the second answer."""
        config, second = self.config, self.second
        return second is not None and is_valid_global_batch_size(
            config.batch_size or 0, second.micro_batch_size, config.num_replicas, config.divisibility
        )

    @property
    def ran_exactly(self) -> bool:
        """Whether it was run as the training will run it."""
        return self.second is not None and any(
            item.is_measured
            and item.micro_batch_size == self.second.micro_batch_size
            and item.probe.compilation is Compilation.EXACT
            for item in self.observations
        )

    @property
    def is_best(self) -> bool:
        """Whether nothing that keeps the batch size is faster by more than the tolerance."""
        return self.regret <= self.config.explore.tolerance

    @property
    def num_extra_probes(self) -> int:
        """Probes beside those of the search."""
        return sum(item.probe.purpose is Purpose.KEEP_BATCH_SIZE for item in self.observations)


def draw_job(seed: int) -> dict[str, Any]:
    """The file of a random job."""
    rng = np.random.default_rng([seed, 23])
    replicas = int(rng.choice([1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 16]))
    kind = rng.choice(["power", "round", "any"])
    if kind == "power":
        share = 2 ** int(rng.integers(3, 14))
    elif kind == "round":
        share = int(rng.choice(ROUND_BATCHES))
    else:
        share = int(math.exp(rng.uniform(math.log(6), math.log(8000))))
    batch_size, divisibility = share * replicas, "strict"
    if rng.random() < 0.15:
        divisibility, batch_size = "even", batch_size + int(rng.integers(0, replicas))
    candidates: Any = str(rng.choice(["all", "powers_of_two", "list"], p=[0.75, 0.15, 0.1]))
    largest = int(2 ** rng.uniform(4, 13))
    if candidates == "list":
        wanted = np.exp(rng.uniform(0, math.log(largest), 12)).astype(int)
        candidates = sorted({1, 2, 4, 8, *wanted.tolist()})
    job: dict[str, Any] = {
        "train_input": {"batch_size": batch_size, "micro_batch_size": "explore"},
        "runconfig": {"num_csx": replicas},
        "explore": {"max": largest, "candidates": candidates, "divisibility": divisibility, "seed": seed},
    }
    which = int(rng.integers(0, len(WORKLOADS) + 1))
    if which == len(WORKLOADS):
        return job | {"model": GPT2 | {"max_position_embeddings": 16}}
    job["explore"]["workload"] = dict(WORKLOADS[which])
    return job


def load(job: dict[str, Any]) -> Config:
    """The configuration that a file with these values is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(yaml.safe_dump(job))
        return load_config(path)


def explored(config: Config, seed: int, family: Family) -> Found:
    """Explore a job on a simulated machine."""
    candidates = candidate_sizes(config.candidates, minimum=config.minimum, maximum=config.maximum or 4096)
    keeping = keeping_sizes(config, candidates)
    sizes = keeping.sizes if keeping else ()
    world = draw_world(family, seed, Space.from_sizes([*candidates, *sizes]))
    runner = SimulatedRunner(world, seed=seed, shared_compile=True)
    observations, result = [], None
    events = explore(
        runner,
        space=Space.from_sizes(candidates),
        settings=search_settings(config),
        variants=(Variant(memory=world.memory),),
        keeping=keeping,
        run=RunRecord(clock=lambda: runner.cost_s),
    )
    for event in events:
        if isinstance(event, ProbeFinished):
            observations.append(event.observation)
        elif isinstance(event, Result):
            result = event
    assert result is not None
    second = keeps_batch_size(config, result.second_answer, observations)
    fits = {size: speed for size, speed in world.throughputs.items() if size in sizes}
    return Found(
        config=config,
        family=family,
        result=result,
        second=second,
        observations=tuple(observations),
        regret=1.0 - fits.get(second.micro_batch_size, 0.0) / max(fits.values()) if second and fits else math.nan,
    )


def _find(item: tuple[int, Family]) -> Found:
    seed, family = item
    return explored(load(draw_job(seed)), seed, family)


def found(families: Iterable[Family], seeds: Iterable[int], *, num_processes: int = 1) -> Iterator[Found]:
    """Explore a job of each seed on a machine of each family."""
    items = [(seed, family) for family in families for seed in seeds]
    if num_processes == 1:
        yield from map(_find, items)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        yield from pool.map(_find, items, chunksize=5)


def table(jobs: Sequence[Found]) -> str:
    """The figures of some jobs, by family of machines."""
    head = "family | jobs | valid | run exactly | within the tolerance | mean score | of its own | extra probes"
    rows = [f"| {head} |", f"|{'---|' * 8}"]
    by_family = {family.value: [job for job in jobs if job.family is family] for family in Family}
    for name, own in (by_family | {"all": list(jobs)}).items():
        if not own:
            continue
        told = [job.second for job in own if job.second]
        own_size = [second for second in told if second.micro_batch_size != second.free_micro_batch_size]
        cells = [
            name,
            str(len(own)),
            _share(job.is_valid for job in own),
            _share(job.ran_exactly for job in own),
            _share(job.is_best for job in own),
            f"{np.mean([second.confidence for second in told]):.1f}",
            _share(second in own_size for second in told),
            f"{np.mean([job.num_extra_probes for job in own]):.2f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _share(flags: Iterable[bool]) -> str:
    return f"{100 * np.mean(list(flags)):.1f} %"


def main() -> None:
    """Explore the jobs and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=NUM_JOBS, help="of each family of machines")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=3000)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.jobs)
    jobs = list(found(Family, seeds, num_processes=arguments.processes))
    text = table(jobs)
    print(text)
    RESULTS.write_text(HEAD.format(seeds=seeds) + text + "\n")


if __name__ == "__main__":
    main()
