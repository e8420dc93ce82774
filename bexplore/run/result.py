"""`RunResult`: the answer of a run, as its `result` event and its `result.json` hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bexplore.engine.eager_comparison import EagerComparison
from bexplore.errors import UserInputError
from bexplore.measurement.probe import Outcome
from bexplore.run.bottleneck import Bottleneck
from bexplore.run.lengths_result import LengthsResult
from bexplore.run.parallel_result import ParallelResult
from bexplore.run.settings_result import FrontPoint
from bexplore.search.posterior.posterior import CredibleBand
from bexplore.search.recommendation import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidBatchSize:
    """A global batch size that is valid with the recommended size.

    Attributes:
        global_batch_size: Samples of one optimizer step over all replicas.
        accumulation_steps: Micro-batches of one replica in one optimizer step.
        num_tokens: Tokens of one optimizer step; None where the sequence length is unknown.
        step_time_s: Seconds of an optimizer step, its passes and an update, with the communication of replicas where
            all ranks ran; None if unknown.
        is_measured: Whether a real step of this batch was timed, and `step_time_s` is what it took.
    """

    global_batch_size: int
    accumulation_steps: int
    num_tokens: int | None = None
    step_time_s: float | None = None
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepsBatchSize:
    """The fastest size with which the user's own global batch size is valid; on an emulated device the largest.

    There its speeds and its score are None.

    Attributes:
        micro_batch_size: Samples of one replica in one pass.
        accumulation_steps: Passes of one replica in an optimizer step of that batch.
        samples_per_s: Of one replica, of the pass, as in `speeds`.
        relative_performance: Its samples/s over those of the base.
        confidence: P(it is within the indifference zone of the fastest that keeps the batch size) in percent, 0 to 98.
        over_recommended: Its samples/s over those of `free_micro_batch_size`.
        free_micro_batch_size: The size that is recommended whatever the batch size.
        compilation: Program that it ran; None where another explorer of the study ran it.
        step_time_s: Seconds of an optimizer step of that batch, as in `ValidBatchSize`; None as for `compilation`.
    """

    micro_batch_size: int
    accumulation_steps: int
    samples_per_s: float | None
    relative_performance: float | None
    confidence: int | None
    over_recommended: float | None
    free_micro_batch_size: int
    compilation: str | None = None
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failed probes whose reasons differ in numbers at most.

    Attributes:
        outcome: How they ended.
        reason: The reason of the first.
        traceback_text: The traceback of the first; empty for none.
        micro_batch_sizes: All their sizes, ascending.
    """

    outcome: str
    reason: str
    traceback_text: str = ""
    micro_batch_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run. None means unknown or not applicable, never 0.

    On an emulated device `micro_batch_size` is the largest size that ran, and all speeds and scores are None.

    Attributes:
        micro_batch_size: The size to use; None where an interruption came before the first measurement.
        relative_performance: Its samples/s over those of the base.
        relative_performance_interval: The 95 % interval of `relative_performance`; None for the base itself.
        confidence: P(it is within the indifference zone of the fastest that fits) in percent, 0 to 98.
        samples_per_s: Of one replica, of the pass, as in `speeds`.
        total_samples_per_s: Of all replicas; None where one of several ran alone.
        pass_time_s: Seconds of a pass.
        update_time_s: Seconds of an update, as its share of the last probe of the size shows; None in evaluation, and
            where none was timed.
        speeds: The one estimate of each size that ran, from which all numbers of its speed follow: posterior mean and
            95 % interval of samples/s, at the machine's speed at the end.
        regret_bound_90: Share of the fastest size's speed that it misses at most, with a score of 90.
        left_to_gain: Share of the fastest size's speed that it is expected to miss, 0 to 1.
        num_probes: All probes, whatever their outcome.
        elapsed_s: Seconds from the start of the exploration.
        global_batch_sizes: Valid global batch sizes around the user's own.
        base_micro_batch_size: The smallest size that ran; None where none did.
        stop_reason: A `StopReason`, or the text of `should_stop`.
        training_time_s: Seconds of the training that a further probe could speed up.
        next_probe_s: Seconds of the further probe that would save most.
        next_probe_saves: Share of `training_time_s` that it is expected to save.
        smallest_within_tolerance: The smallest size that ran within the indifference zone of the best.
        memory_saved_bytes: Peak memory that this smallest size saves.
        exact_over_shared: Throughput as the training runs over that in the search, at the sizes that ran both.
        peak_memory_bytes: Peak of the live tensors at the recommended size.
        predicted_peak_memory_bytes: The same by the trace; None without a trace.
        resident_memory_bytes: Memory that the process or the allocator held for these tensors.
        memory_headroom_bytes: Memory budget less the larger of peak and resident memory.
        outcomes: Number of probes by outcome.
        runs_at: The sizes at which the program runs, where a rule explains its failures; None for no such rule.
        failures: Probes that did not run, grouped by reason.
        batch_size: The user's own global batch size, where it is valid.
        replica_batch_size: One replica's share of it; None also where it has no whole share.
        num_replicas: Data-parallel replicas that a training command showed; None where the file gives them.
        divisibility: The rule by which sizes must divide it.
        keep_batch_size: Whether it must be kept.
        training_samples: Samples of one replica in the training, where the training time comes from the file's steps.
        batch_message: Whether `batch_size` is valid with the size, and which ones near it are; empty if none was given.
        keeps_batch_size: The fastest size that keeps `batch_size`; the recommended one if that keeps it.
        gradient_equivalence: The gradient check's answer: `message` and numbers.
        loader: The timing of the user's data loader: `samples_per_s`, `num_workers`, `problem` (empty for none).
        bottlenecks: Limits other than the size, the most important first.
        eager: The recommended size without torch.compile.
        artifacts_dir: Compiler cache of the recommended size, which a training may start from.
        compilation: Program that ran the recommended size.
        optimizers: Classes of the optimizers that an update steps.
        samples_are_seen: Whether the number of samples of its batch was checked.
        parallel: Its ranks; None for a job of one device.
        lengths: The lengths of its samples; None where all are as long.
        variant: Number of the recommended variant in the search; 0 for the file's own settings.
        base_variant: Number of the variant whose smallest size is the base.
        settings: What to set, by key of `explore.settings`; empty for a job with one variant.
        settings_over_file: Samples/s over those of the file's own settings at their best size; None where none of
            these runs, and for a job with one variant.
        settings_over_file_interval: 95 % interval of it; None also for the file's own settings.
        operations_over_file: Operations of a pass over those of the file's own settings, by the trace.
        changes_training: What the settings train otherwise than the file's own, in words.
        pareto_front: Sizes with settings that no other beats in both memory and speed, in ascending order of memory.
        warnings: Facts to know before the numbers are used.
        device_info: torch's description of the device: `device`, `device_name`, `capability`, memory and more.
        throughput_band: The final posterior of throughput.
        run_dir: The run directory.
    """

    micro_batch_size: int | None = None
    relative_performance: float | None = None
    relative_performance_interval: tuple[float, float] | None = None
    confidence: int | None = None
    samples_per_s: float | None = None
    total_samples_per_s: float | None = None
    pass_time_s: float | None = None
    update_time_s: float | None = None
    speeds: tuple[Speed, ...] = ()
    regret_bound_90: float | None = None
    left_to_gain: float | None = None
    num_probes: int | None = None
    elapsed_s: float | None = None
    global_batch_sizes: tuple[ValidBatchSize, ...] = ()
    base_micro_batch_size: int | None = None
    stop_reason: str = ""
    training_time_s: float | None = None
    next_probe_s: float | None = None
    next_probe_saves: float | None = None
    smallest_within_tolerance: int | None = None
    memory_saved_bytes: int | None = None
    exact_over_shared: float | None = None
    peak_memory_bytes: int | None = None
    predicted_peak_memory_bytes: int | None = None
    resident_memory_bytes: int | None = None
    memory_headroom_bytes: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    runs_at: str | None = None
    failures: tuple[FailureGroup, ...] = ()
    batch_size: int | None = None
    replica_batch_size: int | None = None
    num_replicas: int | None = None
    divisibility: str | None = None
    keep_batch_size: bool | None = None
    training_samples: int | None = None
    batch_message: str = ""
    keeps_batch_size: KeepsBatchSize | None = None
    gradient_equivalence: Mapping[str, Any] | None = None
    loader: Mapping[str, Any] | None = None
    bottlenecks: tuple[Bottleneck, ...] = ()
    eager: EagerComparison | None = None
    artifacts_dir: str | None = None
    compilation: str | None = None
    optimizers: tuple[str, ...] | None = None
    samples_are_seen: bool | None = None
    parallel: ParallelResult | None = None
    lengths: LengthsResult | None = None
    variant: int = 0
    base_variant: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_over_file: float | None = None
    settings_over_file_interval: tuple[float, float] | None = None
    operations_over_file: float | None = None
    changes_training: tuple[str, ...] = ()
    pareto_front: tuple[FrontPoint, ...] = ()
    warnings: tuple[str, ...] = ()
    device_info: Mapping[str, Any] = field(default_factory=dict)
    throughput_band: CredibleBand | None = None
    run_dir: str = ""

    @property
    def is_emulated(self) -> bool:
        """Whether the device was emulated: the size is the largest that fits, and no speed is known."""
        return bool(self.device_info.get("is_emulated"))

    @property
    def smallest_out_of_memory(self) -> int | None:
        """The smallest size beyond the answer for which memory did not suffice; None where none was tried."""
        groups = (one.micro_batch_sizes for one in self.failures if one.outcome == Outcome.OUT_OF_MEMORY)
        return min((size for sizes in groups for size in sizes if size > (self.micro_batch_size or 0)), default=None)

    def as_record(self) -> dict[str, Any]:
        """Return the `result` event."""
        return {"event": "result"} | dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RunResult:
        """Rebuild a result from its event, or from the fields that a `recommendation` event shares with it.

        Raises:
            UserInputError: A field has another type.
        """
        try:
            return _READER.validate_python(record)
        except ValidationError as error:
            raise UserInputError(
                f"the result of a run cannot be read: {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}",
                hint="restore result.json, or start over with `fresh=True`",
            ) from error


_READER = TypeAdapter(RunResult)
