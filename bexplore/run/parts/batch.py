"""The global batch sizes that are valid with the recommended size, and the size that keeps the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bexplore.job.batching import GlobalBatchSize, near_value_message, split, valid_global_batch_sizes
from bexplore.measurement.probe import Observation
from bexplore.run.facts import Facts, estimated, step_time_s, verified_by
from bexplore.search.result import SecondAnswer
from bexplore.units import counted

if TYPE_CHECKING:  # the schema imports pydantic, which reading a result need not
    from bexplore.config.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidBatchSize:
    """A global batch size that is valid with the recommended size."""

    global_batch_size: int  # samples of one optimizer step over all replicas
    accumulation_steps: int  # micro-batches of one replica in one optimizer step
    num_tokens: int | None = None  # tokens of one optimizer step; None where the sequence length is unknown
    # Seconds of an optimizer step, its passes and an update, with the communication of replicas where all ranks ran;
    # None if unknown.
    step_time_s: float | None = None
    is_measured: bool = False  # whether a real step of this batch was timed, and `step_time_s` is what it took


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepsBatchSize:
    """The fastest size with which the user's own global batch size is valid; on an emulated device the largest.

    There its speeds and its score are None.
    """

    micro_batch_size: int  # samples of one replica in one pass
    accumulation_steps: int  # passes of one replica in an optimizer step of that batch
    samples_per_s: float | None  # of one replica, of the pass, as in `speeds`
    relative_performance: float | None  # its samples/s over those of the base
    # P(it is within the indifference zone of the fastest that keeps the batch size) in percent, 0 to 98.
    confidence: int | None
    over_recommended: float | None  # its samples/s over those of `free_micro_batch_size`
    free_micro_batch_size: int  # the size that is recommended whatever the batch size
    compilation: str | None = None  # program that it ran; None where another explorer of the study ran it
    # Seconds of an optimizer step of that batch, as in `ValidBatchSize`; None as for `compilation`.
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """The global batch sizes of the recommended size."""

    global_batch_sizes: tuple[ValidBatchSize, ...] = ()  # valid global batch sizes around the user's own
    batch_size: int | None = None  # the user's own global batch size, where it is valid
    is_made_of_size: bool = False  # whether `batch_size` is what a command makes of the size, and was given nowhere
    replica_batch_size: int | None = None  # one replica's share of it; None also where it has no whole share
    # Data-parallel replicas that a training command showed; None where the file gives them.
    num_replicas: int | None = None
    divisibility: str | None = None  # the rule by which sizes must divide it
    keep_batch_size: bool | None = None  # whether it must be kept
    # Whether `batch_size` is valid with the size, and which ones near it are; empty if none was given.
    batch_message: str = ""
    passes_per_step: int | None = None  # of a command that does not take its accumulation; None where it may be chosen
    # The fastest size that keeps `batch_size`; the recommended one if that keeps it.
    keeps_batch_size: KeepsBatchSize | None = None

    @classmethod
    def find(cls, facts: Facts) -> BatchPart:
        """List the batch sizes that are valid with the recommended size, with the seconds of a step of each."""
        if facts.best is None:
            return cls()
        config, size, ran = facts.config, facts.best.micro_batch_size, facts.ran
        replicas, own = config.num_replicas, config.batch_size
        real_step_s = {own: facts.verified_step_time_s} if facts.verified_step_time_s is not None else {}
        return cls(
            global_batch_sizes=tuple(
                ValidBatchSize(
                    global_batch_size=one.global_batch_size,
                    accumulation_steps=one.accumulation_steps,
                    num_tokens=one.num_tokens,
                    step_time_s=real_step_s.get(one.global_batch_size) or step_time_s(ran, one.accumulation_steps),
                    is_measured=one.global_batch_size in real_step_s,
                )
                for one in global_batch_sizes(config, size, _count_passes(ran))
            ),
            batch_size=own,
            is_made_of_size=config.command is not None and own is not None and not config.batch_size_path,
            replica_batch_size=config.replica_batch_size,
            num_replicas=None if config.command is None else replicas,
            divisibility=config.divisibility.value,
            keep_batch_size=config.settings.keep_batch_size,
            batch_message=_tell_own_batch(config, size, _count_passes(ran)),
            passes_per_step=_find_own_steps(config, _count_passes(ran)),
            keeps_batch_size=find_size_that_keeps(config, facts.searched.second_answer, facts.own),
        )

    @property
    def of_user(self) -> ValidBatchSize | None:
        """The valid size that is the user's own; None where it is not valid, or none was given."""
        return next((one for one in self.global_batch_sizes if one.global_batch_size == self.batch_size), None)

    @property
    def nearest(self) -> ValidBatchSize | None:
        """The valid size that is the nearest to the user's own; the smallest without one, and None without any."""
        own = self.batch_size or 0
        return min(self.global_batch_sizes, key=lambda one: abs(one.global_batch_size - own), default=None)


def global_batch_sizes(
    config: Config, micro_batch_size: int, passes_per_step: int | None = None
) -> tuple[GlobalBatchSize, ...]:
    """Return the global batch sizes that are valid with a micro-batch size, around the configuration's own.

    Of a command that does not take its accumulation it is the one batch that the command makes of the size.

    Args:
        passes_per_step: Of one rank, as observed; None for unknown.
    """
    steps = _find_own_steps(config, passes_per_step)
    fixed = None if steps is None else micro_batch_size * config.num_replicas * steps
    listed = valid_global_batch_sizes(
        micro_batch_size,
        config.num_replicas,
        config.batch_size if fixed is None else fixed,
        config.divisibility,
        tokens_per_sample=config.job.tokens_per_sample,
    )
    return listed if fixed is None else tuple(one for one in listed if one.global_batch_size == fixed)


def _find_own_steps(config: Config, passes_per_step: int | None) -> int | None:
    """Return the micro-batches of a step of a command that does not take them; None where they may be chosen."""
    command = config.command
    if command is None or command.sets_accumulation:
        return None
    return command.accumulation or passes_per_step or 1


def _tell_own_batch(config: Config, micro_batch_size: int, passes_per_step: int | None) -> str:
    """Return whether the user's global batch size is valid with a size, and if not, what is; empty without one."""
    own, replicas, steps = config.batch_size, config.num_replicas, _find_own_steps(config, passes_per_step)
    if own is None:
        return ""
    if steps is None or own == micro_batch_size * replicas * steps:
        return near_value_message(own, micro_batch_size, replicas, config.divisibility)
    made = f"a step has {counted(steps, 'pass')} on {counted(replicas, 'replica')}"
    return f"batch_size {own} is not what the command makes of micro_batch_size {micro_batch_size}: {made}"


def _count_passes(ran: Observation | None) -> int | None:
    """Return the passes of a step that a start of a command showed; None for unknown."""
    passes = None if ran is None else ran.details.get("micro_batches_per_step")
    return round(passes) if passes else None


def batch_size_request(config: Config) -> dict[str, Any]:
    """Return the fields of the result that depend on the configuration's batch size and steps alone."""
    return {
        "batch_size": config.batch_size,
        "replica_batch_size": config.replica_batch_size,
        "divisibility": config.divisibility.value,
        "keep_batch_size": config.settings.keep_batch_size,
        "training_samples": config.training_samples,
    }


def find_size_that_keeps(
    config: Config, second: SecondAnswer | None, observations: Sequence[Observation]
) -> KeepsBatchSize | None:
    """Return the fastest size that keeps the user's global batch size; None where there is none."""
    if second is None or config.batch_size is None:
        return None
    best = second.recommendation
    cut = split(config.batch_size, config.num_replicas, best.micro_batch_size, config.divisibility)
    found = verified_by(observations, best.micro_batch_size)
    if _find_own_steps(config, _count_passes(found)) not in (None, cut.accumulation_steps):
        return None  # the command makes another batch of that size
    ran = None if found is None else estimated(found, best.speeds)
    return KeepsBatchSize(
        micro_batch_size=best.micro_batch_size,
        accumulation_steps=cut.accumulation_steps,
        samples_per_s=best.samples_per_s,
        relative_performance=best.relative_performance,
        confidence=best.confidence,
        over_recommended=second.over_recommended,
        free_micro_batch_size=second.free_micro_batch_size,
        compilation=ran.probe.compilation.value if ran else None,
        step_time_s=step_time_s(ran, cut.accumulation_steps),
    )
