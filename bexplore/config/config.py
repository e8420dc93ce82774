"""`Config`: a training job's file, read and checked; no later room reads YAML."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bexplore.config.code_keys import IMPORT_KEYS, OWN_LAUNCHERS
from bexplore.config.command import Command
from bexplore.config.document.reader import KeyPath, Position
from bexplore.config.schema import ExploreSettings
from bexplore.config.variants import JobVariant
from bexplore.errors import UserInputError
from bexplore.host.secret_values import MASK, hidden, hidden_words
from bexplore.job import Job, Mode, Precision, device_kind
from bexplore.job.batching import Divisibility, divide_among_replicas

__all__ = ["Config", "ExploreSettings", "JobVariant", "RequestKind", "SizeRequest"]


MICRO_BATCH_TOKENS = "micro_batch_tokens"


class RequestKind(StrEnum):
    """The kinds of values of `micro_batch_size`."""

    EXPLORE = "explore"  # the fastest size, regardless of divisibility
    AUTO = "auto"  # a good one, quickly, among the divisors of the replica batch
    FIXED = "fixed"  # this one; nothing to explore
    NONE = "none"  # no micro-batching; nothing to explore


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """The user's `micro_batch_size`."""

    kind: RequestKind
    minimum: int | None = None  # smallest size to try; None for no bound
    maximum: int | None = None  # largest size to try; None for no bound
    value: int | None = None  # size of a fixed request; else None
    path: KeyPath = ()  # of the key, which may be absent: keys and list indices from the top of the file
    position: Position | None = None  # of the key in the file; None where it is absent

    @property
    def is_in_tokens(self) -> bool:
        """True where a micro-batch is as many samples as have a number of tokens: `micro_batch_tokens`."""
        return self.path[-1:] == (MICRO_BATCH_TOKENS,)

    @property
    def is_search(self) -> bool:
        """True where sizes are to be explored: not for a fixed size, nor for none."""
        return self.kind in (RequestKind.EXPLORE, RequestKind.AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A training job's file, read and checked.

    Attributes:
        path: The file.
        layout: Family and layout of the file.
        mode: Train or eval: the side that is explored.
        request: The user's `micro_batch_size`.
        batch_size: The user's global batch size; None where the file gives none.
        batch_size_path: Path of the batch size, which may be absent; empty where it is what a command makes of a size.
        has_replica_batch_size: Whether the batch size of one replica is fixed, and `batch_size` follows from the
            replicas, which the first start shows: see `with_replicas`.
        max_steps: Optimizer steps of the training; None where the file gives none.
        num_replicas: Data-parallel replicas.
        model_dir: Folder of the user's own results; the run log is named after it.
        job: One replica's program. Its device may be `auto`: see `on_device`.
        settings: The `explore:` section.
        command: The user's own training command; None where bexplore builds the job.
        recognised: Family of the file and the keys that show it, for people; empty where no family is needed.
        num_replicas_started: The replicas, where the command's launcher alone tells them; else None.
        warnings: Lines that qualify the result.
        options: Options of the command line that another command needs to find the same job.
        variants: The job with each combination of `explore.settings`, that of the file itself first; empty without any.
        own_limits: Limits of the search that the file itself sets, and not `explore.effort`: `max_probes`,
            `target_confidence`.
    """

    path: Path
    layout: str
    mode: Mode
    request: SizeRequest
    batch_size: int | None
    num_replicas: int
    model_dir: str
    job: Job
    settings: ExploreSettings
    batch_size_path: KeyPath = ()
    has_replica_batch_size: bool = False
    max_steps: int | None = None
    command: Command | None = None
    recognised: str = ""
    num_replicas_started: int | None = None
    warnings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variants: tuple[JobVariant, ...] = ()
    own_limits: tuple[str, ...] = ()

    @property
    def typed(self) -> str:
        """The file, its options and the command behind it, quoted for a shell; secrets are masked."""
        file = [str(self.path)] if self.command is None or self.command.file else []
        command = ["--", *self.command.argv] if self.command and self.command.is_typed else []
        return " ".join(map(_quoted, hidden_words([*file, *self.options, *command])))

    @property
    def starts(self) -> tuple[str, ...]:
        """What the file makes this program start and import, a line each, for people; empty where nothing."""
        if self.command is not None:
            return (f"starts `{self.command.shown}`",)
        lines, launcher = [], self.settings.launcher
        paths = [str(self.job.model[key]) for key in IMPORT_KEYS if self.job.model.get(key)]
        if self.job.workload == "imported" and paths:
            lines.append(f"imports {', '.join(paths)}, looked up in {self.job.import_root or 'the import path'} first")
        if launcher is not None and launcher not in OWN_LAUNCHERS:
            lines.append(f"starts `{hidden(launcher)}`")
        return tuple(lines)

    @property
    def minimum(self) -> int:
        """The smallest micro-batch size to try: the larger of the file's bounds."""
        return max(-(-(self.request.minimum or 1) // self.size_unit), self.settings.min or 1)

    @property
    def maximum(self) -> int | None:
        """The largest micro-batch size to try: the smaller of the file's bounds; None for no bound."""
        of_request = None if self.request.maximum is None else max(1, self.request.maximum // self.size_unit)
        bounds = [bound for bound in (of_request, self.settings.max) if bound is not None]
        return min(bounds, default=None)

    @property
    def size_unit(self) -> int:
        """The number in the file for a size of 1: 1 sample, or the longest sample's tokens for `micro_batch_tokens`."""
        lengths = self.job.lengths
        return lengths.longest if self.request.is_in_tokens and lengths is not None else 1

    @property
    def is_estimated(self) -> bool:
        """Whether an exploration estimates speed: on a named device, unless it is emulated for its memory alone."""
        return self.settings.device_name is not None and not self.settings.emulate

    @property
    def is_emulated(self) -> bool:
        """Whether an exploration runs on an emulated device: a command, a job of a launcher, or one that asks."""
        runs = self.command is not None or self.settings.emulate or self.settings.launcher not in (None, "none")
        return self.settings.device_name is not None and runs

    @property
    def is_only_estimated(self) -> bool:
        """Whether an exploration estimates speed and memory, and runs nothing."""
        return self.is_estimated and not self.is_emulated

    @property
    def sizes_per_start(self) -> int:
        """Sizes that one start of a command may serve: where kernels are recorded, its own alone."""
        return 1 if self.is_estimated else self.settings.sizes_per_start

    @property
    def fixed_size(self) -> int | None:
        """The size of a fixed request; else None."""
        return None if self.request.value is None else max(1, self.request.value // self.size_unit)

    @property
    def candidates(self) -> str | tuple[int, ...]:
        """The rule or list of sizes to try: `auto` takes divisors, and ignores `explore.candidates`."""
        return "divisors" if self.request.kind is RequestKind.AUTO else self.settings.candidates

    @property
    def divisibility(self) -> Divisibility:
        """The rule for global batch sizes."""
        return Divisibility(self.settings.divisibility)

    @property
    def replica_batch_size(self) -> int | None:
        """The samples of a replica in a step; None where `batch_size` is unknown or has no whole share."""
        if self.batch_size is None:
            return None
        try:
            return divide_among_replicas(self.batch_size, self.num_replicas, self.divisibility)
        except UserInputError:
            return None

    @property
    def num_ranks_here(self) -> int:
        """The ranks that share the memory of this host; torchrun starts all of a job's ranks on it."""
        return self.job.parallelism.num_ranks if self.command is None and self.settings.launcher == "torchrun" else 1

    def with_variant(self, variant: JobVariant) -> Config:
        """Return the job with the settings of a variant, and nothing further to choose from."""
        return dataclasses.replace(self, job=variant.job, variants=())

    @property
    def training_samples(self) -> int | None:
        """The samples of one replica in the whole training, from which its duration follows.

        None where `training_time` is set, or where the file lacks its steps or its batch size.
        """
        if self.settings.training_time_s is not None or self.max_steps is None or self.batch_size is None:
            return None
        return max(1, round(self.max_steps * self.batch_size / self.num_replicas))

    def with_replicas(self, num_replicas: int) -> Config:
        """Return the job with the replicas that a start has shown; the batch of one replica stays, where it is fixed.

        Raises:
            UserInputError: The global batch size is fixed, and was taken to be that of another number of replicas.
        """
        if num_replicas == self.num_replicas:
            return self
        if self.batch_size is not None and not self.has_replica_batch_size:
            raise UserInputError(
                f"the command started {num_replicas} replicas, on which the global batch size depends",
                hint=f"give `replicas={num_replicas}`",
            )
        of_replica = self.batch_size and self.batch_size // self.num_replicas
        return dataclasses.replace(self, num_replicas=num_replicas, batch_size=of_replica and of_replica * num_replicas)

    def on_device(self, device: str) -> Config:
        """Return the job on a torch device; float16 becomes bfloat16 where gradients cannot be scaled."""
        warnings = self.warnings
        jobs = (self.job, *(variant.job for variant in self.variants))
        if any(job.precision is Precision.AUTOCAST_FLOAT16 and not _scales(device) for job in jobs):
            notice = f"{self.path}: float16 needs gradient scaling, which only CUDA has; bfloat16 is used on {device}"
            warnings = (*warnings, notice)
        variants = (dataclasses.replace(one, job=_on_device(one.job, device)) for one in self.variants)
        job = _on_device(self.job, device)
        return dataclasses.replace(self, job=job, variants=tuple(variants), warnings=warnings)


def _quoted(word: str) -> str:
    return word if word == MASK else shlex.quote(word)


def _on_device(job: Job, device: str) -> Job:
    precision = job.precision
    if precision is Precision.AUTOCAST_FLOAT16 and not _scales(device):
        precision = Precision.AUTOCAST_BFLOAT16
    return dataclasses.replace(job, device=device, precision=precision)


def _scales(device: str) -> bool:
    return device_kind(device) == "cuda"
