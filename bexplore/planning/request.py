"""What a plan is wanted for: so much training, with such batches, on so many devices, until then, at that price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bexplore.errors import UserInputError

MOST_DEVICES = 10**6  # as many as a degree of `explore.parallelism` may have
_MOST_EPOCHS = 10**6  # beyond, the number is a slip
_MOST_THINGS = 10**18  # as `parse_count` takes


def check_above_0(value: Any, option: str, example: str, most: float = math.inf, *, is_whole: bool = False) -> None:
    """Check a number that is above 0 and at most so much; None is not checked.

    Raises:
        UserInputError: It is not, or is no whole number.
    """
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 < value <= most:
        limit = "" if math.isinf(most) else f" and at most {most:,}"
        raise UserInputError(
            f"{option} must be a number above 0{limit}, not {value!r}", hint=f"type {option} {example}"
        )
    if is_whole and value != int(value):
        near = " or ".join(str(number) for number in (math.floor(value), math.ceil(value)) if number)
        raise UserInputError(f"{option} must be a whole number, not {value!r}", hint=f"type {option} {near}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A number of samples or of tokens.

    Attributes:
        number: Of them.
        is_tokens: Whether tokens are counted.
    """

    number: float
    is_tokens: bool = False

    def in_samples(self, tokens_per_sample: float | None, name: str) -> float:
        """Return it in samples.

        Raises:
            UserInputError: Tokens are counted, and the samples have none.
        """
        if not self.is_tokens:
            return self.number
        if tokens_per_sample is None:
            raise UserInputError(
                f"{name} counts tokens, and samples of this job have none: no sequence length is known",
                hint=f"give {name} in samples",
            )
        return self.number / tokens_per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices of a plan.

    Attributes:
        number: Of all nodes.
        num_nodes: Nodes that hold them; None where that was not said.
    """

    number: int
    num_nodes: int | None = None

    def __str__(self) -> str:
        return str(self.number) if self.num_nodes is None else f"{self.num_nodes}x{self.number // self.num_nodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is trained. At most one of the first four is given; none of them means that of the file.

    Attributes:
        tokens: In all.
        samples: In all.
        steps: Optimizer steps.
        epochs: Times over the data set.
        dataset_size: Samples of the data set; belongs to `epochs`.
    """

    tokens: float | None = None
    samples: float | None = None
    steps: int | None = None
    epochs: float | None = None
    dataset_size: int | None = None

    def __post_init__(self) -> None:
        """Check that the amounts are possible, and do not contradict each other.

        Raises:
            UserInputError: They are not, or do.
        """
        for name in ("tokens", "samples"):
            check_above_0(getattr(self, name), f"--{name}", "300B", _MOST_THINGS)
        for name, option in (("steps", "--steps"), ("dataset_size", "--dataset-size")):
            check_above_0(getattr(self, name), option, "10000", _MOST_THINGS, is_whole=True)
        check_above_0(self.epochs, "--epochs", "3", _MOST_EPOCHS)
        names = [name for name in ("tokens", "samples", "steps", "epochs") if getattr(self, name) is not None]
        if len(names) > 1:
            given = " and ".join(f"--{name}" for name in names)
            raise UserInputError(
                f"{given} each say how much is trained, and cannot be mixed", hint=f"keep one, such as --{names[0]}"
            )
        if (self.epochs is None) != (self.dataset_size is None):
            there, missing = ("epochs", "dataset-size") if self.dataset_size is None else ("dataset-size", "epochs")
            raise UserInputError(f"--{there} needs --{missing} beside it", hint=f"type --{there} and --{missing}")

    @property
    def is_given(self) -> bool:
        """Whether any amount was given."""
        return any(value is not None for value in (self.tokens, self.samples, self.steps, self.epochs))

    def num_steps(self, batch_size: int, tokens_per_sample: float | None) -> int:
        """Return the optimizer steps with a global batch size; of an epoch, the last batch counts whole.

        Raises:
            UserInputError: Tokens are given, and samples have none.
        """
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            assert self.dataset_size is not None  # checked when it was made
            return max(1, math.ceil(self.epochs * math.ceil(self.dataset_size / batch_size)))
        amount = (
            Amount(number=self.samples)
            if self.samples is not None
            else Amount(number=self.tokens or 0.0, is_tokens=True)
        )
        return max(1, math.ceil(amount.in_samples(tokens_per_sample, "--tokens") / batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is wanted for. None and empty mean: as in the file.

    Attributes:
        work: How much is trained.
        batch_sizes: Global batch sizes, a plan for each.
        devices: Numbers of devices, a plan for each; empty for those of the file, or for the fewest in time.
        until_s: Seconds that the training may take; None for no limit.
        price_per_device_hour: In any currency; None leaves the price unknown.
        tensor_parallel_degree: Devices that share each layer's matrices; None for that of the file.
        pipeline_stages: Devices that share the layers.
        effective_time: Share of the time that trains, 0 to 1; the rest goes to restarts, evaluation and checkpoints.
        overlap: Share of the computation that hides collectives; None: all of it on an accelerator, none on a CPU.
        mfu: Model-flops utilization of a whole step, 0 to 1; for plans from a trace.
        hfu: Hardware-flops utilization of a whole step, recomputation counted, likewise.
        rate: Samples or tokens per second of one device in a whole step; for plans from a trace.
    """

    work: Work = Work()
    batch_sizes: tuple[Amount, ...] = ()
    devices: tuple[Devices, ...] = ()
    until_s: float | None = None
    price_per_device_hour: float | None = None
    tensor_parallel_degree: int | None = None
    pipeline_stages: int = 1
    effective_time: float = 1.0
    overlap: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    rate: Amount | None = None

    def __post_init__(self) -> None:
        """Check that what is wanted is possible at all.

        Raises:
            UserInputError: It is not.
        """
        for one in self.batch_sizes:
            check_above_0(one.number, "--batch-size", "512", _MOST_THINGS, is_whole=not one.is_tokens)
        check_above_0(self.until_s, "--until", "30d")
        check_above_0(self.price_per_device_hour, "--price-per-device-hour", "2.5")
        check_above_0(self.tensor_parallel_degree, "--tensor-parallel", "8", MOST_DEVICES, is_whole=True)
        check_above_0(self.pipeline_stages, "--pipeline-stages", "4", MOST_DEVICES, is_whole=True)
        check_above_0(self.effective_time, "--effective-time", "0.9", 1)
        check_above_0(self.mfu, "--mfu", "0.4", 1)
        check_above_0(self.hfu, "--hfu", "0.5", 1)
        if self.overlap != 0:
            check_above_0(self.overlap, "--overlap", "0.8", 1)
        if self.rate is not None:
            check_above_0(self.rate.number, "--throughput", "'24000 tokens/s'")

    @property
    def speeds(self) -> list[str]:
        """Options that give the speed of whole steps, update and communication included."""
        given = {"--mfu": self.mfu, "--hfu": self.hfu, "--throughput": self.rate}
        return [name for name, value in given.items() if value is not None]
