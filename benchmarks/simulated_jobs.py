"""Random jobs, as users would write them, explored on simulated machines."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.exploration.base import find_sizes_that_keep
from bexplore.job.batching import is_valid_global_batch_size
from bexplore.measurement.probe import Compilation, Observation
from bexplore.run.fingerprint import search_settings
from bexplore.run.parts.batch import KeepsBatchSize, find_size_that_keeps
from bexplore.search.loop import RunRecord, run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.space import Space, candidate_sizes
from tests.simulated.simulator import Family, SimulatedRunner, draw_world

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
        return self.regret <= self.config.settings.tolerance


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
    keeping = find_sizes_that_keep(config, candidates)
    sizes = keeping.sizes if keeping else ()
    world = draw_world(family, seed, Space.from_sizes([*candidates, *sizes]))
    runner = SimulatedRunner(world, seed=seed, shared_compile=True)
    observations, result = [], None
    events = run_search(
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
    second = find_size_that_keeps(config, result.second_answer, observations)
    fits = {size: speed for size, speed in world.throughputs.items() if size in sizes}
    return Found(
        config=config,
        family=family,
        result=result,
        second=second,
        observations=tuple(observations),
        regret=1.0 - fits.get(second.micro_batch_size, 0.0) / max(fits.values()) if second and fits else math.nan,
    )


def found(families: Iterable[Family], seeds: Iterable[int]) -> Iterator[Found]:
    """Explore a job of each seed on a machine of each family."""
    for family in families:
        for seed in seeds:
            yield explored(load(draw_job(seed)), seed, family)
