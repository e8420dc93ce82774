"""A plan request: amount of training, batch sizes, devices, deadline, price.

Messages of this room name a field in backquotes, as `tokens` or `tokens=300e9`; the command line shows its option.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bexplore.errors import UserInputError, require

MOST_DEVICES = 10**6  # as many as a degree of `explore.parallelism` may have
_MOST_EPOCHS = 10**6  # beyond, the number is a slip
_MOST_THINGS = 10**18  # as `parse_count` takes


class _Limits(NamedTuple):
    """The numbers that a field may have: above 0, and at most `most`."""

    example: str
    most: float = math.inf
    is_whole: bool = False


_LIMITS_OF_WORK = {
    "tokens": _Limits("300e9", _MOST_THINGS),
    "samples": _Limits("1.2e6", _MOST_THINGS),
    "steps": _Limits("10000", _MOST_THINGS, is_whole=True),
    "dataset_size": _Limits("10000", _MOST_THINGS, is_whole=True),
    "epochs": _Limits("3", _MOST_EPOCHS),
}
_LIMITS_OF_REQUEST = {
    "until_s": _Limits("2592000"),
    "price_per_device_hour": _Limits("2.5"),
    "tensor_parallel_degree": _Limits("8", MOST_DEVICES, is_whole=True),
    "pipeline_stages": _Limits("4", MOST_DEVICES, is_whole=True),
    "effective_time": _Limits("0.9", 1),
    "overlap": _Limits("0.8", 1),
    "mfu": _Limits("0.4", 1),
    "hfu": _Limits("0.5", 1),
}

# Field that may count tokens -> an example, and one of the same in samples.
_EXAMPLES = {
    "tokens": ("tokens=300e9", "samples=1.2e6"),
    "batch_sizes": ("batch_sizes=4M tokens", "batch_sizes=512"),
    "rate": ("rate=24000 tokens/s", "rate=31.5 samples/s"),
}


def show_example(field: str, tokens_per_sample: float | None) -> str:
    """Return an example of a field: in tokens, or in samples where those of the job are no sequences."""
    in_tokens, in_samples = _EXAMPLES[field]
    return f"`{in_samples if tokens_per_sample is None else in_tokens}`"


def _check_fields(owner: Any, limits: Mapping[str, _Limits]) -> None:
    for field, limit in limits.items():
        _check_number(getattr(owner, field), field, limit)


def _check_number(value: Any, field: str, limits: _Limits) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    at_most = "" if math.isinf(limits.most) else f" and at most {limits.most:,}"
    require(
        is_number and 0 < value <= limits.most,
        f"`{field}` must be a number above 0{at_most}, not {value!r}",
        f"type `{field}={limits.example}`",
    )
    if limits.is_whole and value != int(value):
        near = " or ".join(str(number) for number in (math.floor(value), math.ceil(value)) if number)
        raise UserInputError(f"`{field}` must be a whole number, not {value!r}", hint=f"type `{field}={near}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A number of samples, or of tokens."""

    number: float
    is_tokens: bool = False

    def in_samples(self, tokens_per_sample: float | None, field: str) -> float:
        """Return it in samples; `field` names it where the samples have no tokens."""
        if not self.is_tokens:
            return self.number
        if tokens_per_sample is None:
            raise UserInputError(
                f"`{field}` counts tokens, and no sequence length is known of this job",
                hint=f"type {show_example(field, None)}",
            )
        return self.number / tokens_per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices of a plan."""

    number: int  # of all nodes
    num_nodes: int | None = None  # nodes that hold them; None where that was not said

    def __str__(self) -> str:
        return str(self.number) if self.num_nodes is None else f"{self.num_nodes}x{self.number // self.num_nodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is trained. At most one of the first four is given; none of them means that of the file."""

    tokens: float | None = None  # in all
    samples: float | None = None  # in all
    steps: int | None = None  # optimizer steps
    epochs: float | None = None  # times over the data set
    dataset_size: int | None = None  # samples of the data set; belongs to `epochs`

    def __post_init__(self) -> None:
        _check_fields(self, _LIMITS_OF_WORK)
        given = [name for name in ("tokens", "samples", "steps", "epochs") if getattr(self, name) is not None]
        if len(given) > 1:
            names = " and ".join(f"`{name}`" for name in given)
            raise UserInputError(
                f"{names} each say how much is trained, and cannot be mixed", hint=f"keep one, such as `{given[0]}`"
            )
        require(
            (self.epochs is None) == (self.dataset_size is None),
            "`epochs` and `dataset_size` belong together: one needs the other",
            "type `epochs=3` and `dataset_size=10000`",
        )

    @property
    def is_given(self) -> bool:
        """Whether any amount was given."""
        return any(value is not None for value in (self.tokens, self.samples, self.steps, self.epochs))

    def num_steps(self, batch_size: int, tokens_per_sample: float | None) -> int:
        """Return the optimizer steps with a global batch size; of an epoch, the last batch counts whole."""
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            assert self.dataset_size is not None  # checked when it was made
            return max(1, math.ceil(self.epochs * math.ceil(self.dataset_size / batch_size)))
        samples = self.samples
        if samples is None:
            samples = Amount(number=self.tokens or 0.0, is_tokens=True).in_samples(tokens_per_sample, "tokens")
        return max(1, math.ceil(samples / batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A plan request. None and empty mean: as in the file."""

    work: Work = Work()  # how much is trained
    batch_sizes: tuple[Amount, ...] = ()  # global batch sizes, a plan for each
    devices: tuple[Devices, ...] = ()  # a plan for each; empty for those of the file, or for the fewest in time
    until_s: float | None = None  # seconds that the training may take; None for no limit
    price_per_device_hour: float | None = None  # in any currency; None leaves the price unknown
    tensor_parallel_degree: int | None = None  # devices that share each layer's matrices; None for that of the file
    pipeline_stages: int = 1  # devices that share the layers
    # Share of the time that trains, 0 to 1; the rest goes to restarts, evaluation and checkpoints.
    effective_time: float = 1.0
    # Share of the computation that hides collectives; None: all of it on an accelerator, none on a CPU.
    overlap: float | None = None
    mfu: float | None = None  # model-flops utilization of a whole step, 0 to 1; for plans from a trace
    hfu: float | None = None  # hardware-flops utilization of a whole step, recomputation counted, likewise
    rate: Amount | None = None  # samples or tokens per second of one device in a whole step; for plans from a trace

    def __post_init__(self) -> None:
        no_overlap = {"overlap"} if self.overlap == 0 else set()
        _check_fields(self, {name: limits for name, limits in _LIMITS_OF_REQUEST.items() if name not in no_overlap})
        for batch in self.batch_sizes:
            _check_number(batch.number, "batch_sizes", _Limits("512", _MOST_THINGS, is_whole=not batch.is_tokens))
        if self.rate is not None:
            _check_number(self.rate.number, "rate", _Limits("24000 tokens/s"))

    @property
    def speeds(self) -> list[str]:
        """Fields that give the speed of whole steps, update and communication included."""
        return [name for name in ("mfu", "hfu", "rate") if getattr(self, name) is not None]
