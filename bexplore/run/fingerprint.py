"""The fingerprint of a run: job, machine and search specification decide whether one run may replace another.

All of it is read without importing torch, so that a finished run is found quickly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import datetime
from typing import Any

from bexplore.config.config import Config, JobVariant
from bexplore.config.schema import EFFORTS, TRAINING_TIME_S
from bexplore.estimate.calibrations import digest, names_this, recall
from bexplore.estimate.efficiencies import digest_table
from bexplore.host.machine import accelerator_name, num_threads, package_version, processor_name
from bexplore.host.secret_values import hidden, hidden_record
from bexplore.job import Mode, Parallelism, digest_code
from bexplore.measurement.probe import Compilation
from bexplore.search.posterior.posterior import ENGINE_VERSION
from bexplore.search.settings import SearchSettings
from bexplore.search.space import RULES_OF_A_BATCH
from bexplore.units import counted

# Seconds from a command's start to its first backward pass, until one was seen. Source: the middle of the frameworks in
# benchmarks/results/command.md.
COMMAND_START_S = 10.0
# Seconds of a probe of a command beside its start, at least. Source: between the shortest and the median of 72 further
# sizes of starts, 0.41 and 0.97 s: benchmarks/results/command_shared_starts.json.
COMMAND_STEPS_S = 0.8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The fingerprint of a run."""

    config: Config  # the user's configuration; its device may still be `auto`, so that the next call finds the same run
    folder_name: str  # name of the model directory, which is part of the study's name

    def fingerprint(self) -> str:
        """Return sixteen hexadecimal digits of the job and of everything that decides its speed."""
        return self.config.job.fingerprint(**self.environment(), **_of_variants(self.config))

    def environment(self) -> dict[str, Any]:
        """Return what decides, beside the job, whether two measurements may be compared."""
        return {
            "torch": package_version("torch"),
            "transformers": package_version("transformers") if self.config.job.workload == "transformers" else "",
            "processor": processor_name(),
            "accelerator": self._name_accelerator(),
            "threads": str(num_threads()),
            "engine": str(ENGINE_VERSION),
            "code": digest_code(self.config.job),
        }

    def _name_accelerator(self) -> str:
        """Return what tells runs of this machine, of an emulated device and of estimates apart."""
        name = self.config.settings.device_name
        if name is None:
            return accelerator_name()
        here = recall() if names_this(name) else None
        model = digest_table() if here is None else digest(here)
        runs = f"emulated {name}" if self.config.is_emulated else ""
        estimates = f"estimated {name}, model {model}" if self.config.is_estimated else ""
        return ", ".join(filter(None, (runs, estimates)))

    def search_specification(self) -> dict[str, Any]:
        """Return what decides the search beside the job; a change of it starts another run.

        `training_time` is part of it, as every setting that ends a search. The number of samples of the file's own
        steps is not, but where it decides the candidates or their ranks: with another batch size a search is resumed.
        """
        settings = dataclasses.asdict(search_settings(self.config))
        del settings["training_samples"]
        return {
            "settings": settings,
            "compares_eager": self.config.settings.compile.enabled == "both",
            "minimum": self.config.minimum,
            "maximum": self.config.maximum,
            "candidates": self.config.candidates,
            "memory_budget": self.config.settings.memory_budget,
            "replica_reserve": self.config.settings.replica_reserve,
            **_of_network(self.config),
            "num_replicas": self.config.num_replicas,
            "storage": self.config.settings.storage and hidden(self.config.settings.storage, by_value=False),
            **_of_ranks(self.config),
            **_of_batch(self.config),
            **_of_variants(self.config),
        }

    def study_name(self) -> str:
        """Return the name of the study, which explorations of one job and specification share across equal hosts."""
        specification = json.dumps(self.search_specification(), sort_keys=True, default=str)
        return f"{self.folder_name}-{self.fingerprint()}-{hashlib.sha256(specification.encode()).hexdigest()[:8]}"

    def meta(self, created_at: datetime) -> dict[str, Any]:
        """Return the content of `meta.json`."""
        return {
            "fingerprint": self.fingerprint(),
            "study": self.study_name(),
            "config": str(self.config.path),
            "typed": self.config.typed,
            "title": describe(self.config),
            "job": hidden_record(self.config.job.as_record(), by_value=False),
            **({"variants": [_as_record(one) for one in self.config.variants]} if self.config.variants else {}),
            "environment": self.environment(),
            "search_specification": self.search_specification(),
            "batch_size": self.config.batch_size,
            "created_at": created_at.isoformat(),
        }


def _of_ranks(config: Config) -> dict[str, Any]:
    """Return who starts the ranks of a job of several, which decides its times."""
    is_distributed = _parallelism(config).is_distributed
    return {"launcher": hidden(config.settings.launcher or "none", by_value=False)} if is_distributed else {}


def _of_batch(config: Config) -> dict[str, Any]:
    """Return the samples of a replica's step where another number of them is another search.

    They are the candidates' rule or, of a command, their bound. And where only the last pass of a step reduces
    gradients, its cost is spread over the passes of a step, and sizes are ranked for that number of passes.
    """
    samples, parallelism = config.replica_batch_size, _parallelism(config)
    bounds_command = config.command is not None and (config.maximum is None or (samples or 0) < config.maximum)
    ranks = parallelism.is_distributed and config.job.mode is Mode.TRAIN and parallelism.synchronizes_last
    if config.candidates in RULES_OF_A_BATCH or bounds_command or ranks:
        return {"replica_batch_size": samples}
    return {}


def _parallelism(config: Config) -> Parallelism:
    return config.job.training_parallelism if config.is_only_estimated else config.job.parallelism


def _of_network(config: Config) -> dict[str, Any]:
    """Return the network by which communication is estimated; nothing where none is told."""
    stated = config.settings.network_bandwidth
    return {} if stated is None else {"network_bandwidth": stated}


def _as_record(variant: JobVariant) -> dict[str, Any]:
    record = {"name": variant.name, "settings": dict(variant.values), "job": variant.job.as_record()}
    return dict(hidden_record(record, by_value=False))


def _of_variants(config: Config) -> dict[str, Any]:
    """Return the variants from which the search may choose; nothing for a job with one."""
    named = {variant.name: variant.job.fingerprint() for variant in config.variants}
    return {"variants": named, "chooses_variants": config.settings.settings == "auto"} if named else {}


def search_settings(config: Config, *, num_variants: int | None = None) -> SearchSettings:
    """Return the search settings of a configuration.

    Args:
        num_variants: Variants of the search; None for all that the configuration has.
    """
    explore = config.settings
    compiled = any(job.compile.enabled for job in (config.job, *(variant.job for variant in config.variants)))
    # Every search ends with its answer in a process of its own, also without a compiler. On a CPU glibc gives the top
    # of its heap back to the kernel when more than a threshold is free, which grows with the largest block that was
    # freed: a training of small passes faults its pages in again at each, and a process that has run larger sizes keeps
    # them. Measured: 12 to 16 % of a pass (benchmarks/results/plan_steps.md). Source: `systrim` and `munmap_chunk` in
    # malloc/malloc.c. Elsewhere what an allocator holds of other sizes changes what fits.
    own = Compilation.EXACT if compiled or config.command is not None else Compilation.EAGER
    is_shared = config.command is None or config.sizes_per_start > 1
    costs: dict[str, Any] = {} if compiled else {"compile_time_s": 0.0}
    if config.command is not None:  # a start compiles what it compiles: `start_time_s` of its first probe holds both
        costs = {"compile_time_s": 0.0, "start_time_s": COMMAND_START_S, "least_passes_s": COMMAND_STEPS_S}
    settings = SearchSettings(
        **costs,
        tolerance=explore.tolerance,
        target_confidence=int(explore.target_confidence),
        max_probes=explore.max_probes,
        time_budget_s=explore.time_budget_s,
        training_share=EFFORTS[explore.effort].training_share,
        training_time_s=explore.training_time_s or TRAINING_TIME_S,
        training_samples=config.training_samples,
        seed=explore.seed,
        search_compilation=Compilation.SHARED if is_shared else own,
        user_compilation=own,
        verify_exact=is_shared,
        repeats=explore.device_name is None,
        max_passes=explore.passes_per_probe,
        probe_time_limit_s=explore.probe_time_limit_s,
    )
    num_variants = len(config.variants) if num_variants is None else num_variants
    limits: dict[str, Any] = {name: getattr(settings, name) for name in config.own_limits}
    return dataclasses.replace(settings.of_variants(num_variants), **limits)


def describe(config: Config) -> str:
    """Return a job in a few words."""
    job = config.job
    if config.command is not None:
        return config.command.shown
    names = (job.model.get(key) for key in ("model_type", "model", "step"))  # of transformers, or an import path
    words = [job.workload if job.workload == "decoder" else next((str(name) for name in names if name), job.workload)]
    if job.workload == "decoder":
        words.append(f"{job.model.get('num_layers')} layers of width {job.model.get('hidden_size')}")
    if job.sequence_length:
        words.append(f"{job.sequence_length} tokens")
    optimizer = "optimizers of its own" if "step" in job.model else job.optimizer
    words += [job.precision.value, optimizer if job.mode is Mode.TRAIN else "evaluation"]
    is_distributed = job.parallelism.is_distributed
    words.append(str(job.parallelism) if is_distributed else counted(config.num_replicas, "replica"))
    return ", ".join(words)
