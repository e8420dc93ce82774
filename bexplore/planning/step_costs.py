"""What one optimizer step of a job costs at each micro-batch size, as it was measured, or as a trace predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bexplore.job import Job, Parallelism, Precision
from bexplore.job.batching import Divisibility


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """One forward and backward pass of a size, on each of the ranks that were timed.

    Attributes:
        seconds: Of a pass that reduces no gradients, with what of other communication it holds.
        last_s: Of the last pass of a step, which reduces them; `seconds` where passes do not differ.
        is_exact: Whether it ran as the training runs it; else in the search's program, and scaled by the ratio of both
            at the size that was verified.
    """

    seconds: float
    last_s: float
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSettings:
    """The job with another precision, checkpointing or compilation.

    Attributes:
        settings: The values, by key.
        micro_batch_size: The size at which it is fastest.
        time_share: Seconds of a sample over those of the plan's settings.
        is_measured: Whether it ran; else it was predicted.
        changes_training: What it trains otherwise, in words.
    """

    settings: Mapping[str, Any]
    micro_batch_size: int
    time_share: float
    is_measured: bool
    changes_training: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What is known of the optimizer steps of a job. None means unknown, never 0.

    Attributes:
        title: The job in words.
        origin: Where the figures are from, in words.
        passes: By micro-batch size; empty where only the speed of whole steps is known.
        update_s: Seconds of an optimizer update; None in evaluation, and where no pass is known either.
        parallelism: How the ranks that were timed share the work.
        holds_communication: Whether the passes hold that of these ranks.
        num_replicas: Replicas of the file's own numbers.
        model_flops: Operations of a sample without recomputation, forward and backward.
        hardware_flops: The same with recomputation.
        num_parameters: Of the whole model.
        gradient_bytes: One copy of the gradients of one rank; None in evaluation.
        num_blocks: Identical blocks of the model; 0 if unknown.
        sizes: Micro-batch sizes that fit, where passes are not known: from 1 to this.
        device_name: Of the device; empty if unknown.
        is_on_cpu: Whether it is the CPU, whose cores also do the communication.
        peak_flops_per_s: Published peak of the device in bfloat16; None where it is in no table.
        tokens_per_sample: Mean tokens of a sample; None where samples are not sequences.
        micro_batch_size: The file's own, or the recommended one; None for none.
        batch_size: The file's own global batch size.
        max_steps: The file's own optimizer steps.
        divisibility: Rule by which sizes must divide the batch.
        other_settings: What other settings change: see `OtherSettings`.
        notes: Lines that qualify all plans.
    """

    title: str
    origin: str
    passes: Mapping[int, PassCost] = field(default_factory=dict)
    update_s: float | None = None
    parallelism: Parallelism = field(default_factory=Parallelism)
    holds_communication: bool = False
    num_replicas: int = 1
    model_flops: float | None = None
    hardware_flops: float | None = None
    num_parameters: int | None = None
    gradient_bytes: float | None = None
    num_blocks: int = 0
    sizes: int = 0
    device_name: str = ""
    is_on_cpu: bool = False
    peak_flops_per_s: float | None = None
    tokens_per_sample: float | None = None
    micro_batch_size: int | None = None
    batch_size: int | None = None
    max_steps: int | None = None
    divisibility: Divisibility = Divisibility.STRICT
    other_settings: tuple[OtherSettings, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether passes ran."""
        return bool(self.passes)


def peak_of(job: Job, bfloat16_flops_per_s: float | None) -> float | None:
    """Return the published peak of a job's arithmetic; None for float32, as the figures are those of 16 bits."""
    return None if job.precision is Precision.FLOAT32 else bfloat16_flops_per_s
