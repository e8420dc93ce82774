"""What a plan is wanted for: so much training, with such batches, on so many devices, until then, at that price."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bexplore.errors import UserInputError
from bexplore.units import parse_count

_BATCH = re.compile(r"\s*(.*?)\s*(?:(tok|token|tokens)|(samples?))?\s*", re.IGNORECASE)
_RATE = re.compile(r"\s*(.+?)\s*(?:(samples?)|(tok|token|tokens))?\s*/\s*s(?:ec|econd)?\s*", re.IGNORECASE)
_DEVICES = re.compile(r"\s*(?:(\d{1,7})\s*[xX]\s*)?(\d{1,7})\s*")
_MOST_DEVICES = 10**6  # as many as a degree of `explore.parallelism` may have


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
        """Check that the amounts do not contradict each other.

        Raises:
            UserInputError: They do.
        """
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

    @property
    def speeds(self) -> list[str]:
        """Options that give the speed of whole steps, update and communication included."""
        given = {"--mfu": self.mfu, "--hfu": self.hfu, "--throughput": self.rate}
        return [name for name, value in given.items() if value is not None]


def parse_batch_sizes(text: str) -> tuple[Amount, ...]:
    """Read global batch sizes, samples or tokens: `512`, `512,1024`, `4M tokens`.

    Raises:
        UserInputError: Not such a list.
    """
    return tuple(_batch(part) for part in _split(text, "--batch-size", "512,1024 or '4M tokens'"))


def parse_devices(text: str) -> tuple[Devices, ...]:
    """Read numbers of devices, or nodes times devices: `8,64`, `4x8`.

    Raises:
        UserInputError: Not such a list.
    """
    return tuple(_devices(part) for part in _split(text, "--devices", "8,64 or 4x8"))


def parse_rate(text: str) -> Amount:
    """Read samples or tokens per second: `31.5 samples/s`, `24k tokens/s`.

    Raises:
        UserInputError: Not such a rate.
    """
    hint = "type --throughput '24000 tokens/s' or '31.5 samples/s', of one device"
    match = _RATE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise UserInputError(f'"{text}" is not a number of samples or tokens per second', hint=hint)
    return Amount(number=_rate_number(match[1], hint), is_tokens=match[3] is not None)


def _rate_number(text: str, hint: str) -> float:
    """Return a rate, which unlike a count may be a fraction."""
    try:
        number = float(text)
    except ValueError:
        return float(parse_count(text))
    if not (math.isfinite(number) and number > 0):
        raise UserInputError(f'a rate must be above 0, not "{text}"', hint=hint)
    return number


def _batch(text: str) -> Amount:
    match = _BATCH.fullmatch(text)
    assert match is not None  # every text matches; the number is checked below
    return Amount(number=parse_count(match[1]), is_tokens=match[2] is not None)


def _devices(text: str) -> Devices:
    match = _DEVICES.fullmatch(text)
    nodes, each = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if match is None or not 1 <= nodes * each <= _MOST_DEVICES:
        raise UserInputError(
            f'--devices must be numbers of devices from 1 to {_MOST_DEVICES:,}, or nodes x devices, not "{text}"',
            hint="type --devices 8,64 or --devices 4x8",
        )
    return Devices(number=nodes * each, num_nodes=nodes if match[1] else None)


def _split(text: str, option: str, example: str) -> Sequence[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserInputError(f"{option} is empty", hint=f"type {option} {example}")
    return parts
