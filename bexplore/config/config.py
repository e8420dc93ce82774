"""What the user asked for, checked: `Config`.

A dialect of `bexplore.config.load` reads a file of one family and ends here; nothing behind this module looks at YAML.
"""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bexplore.batching import Divisibility, replica_batch_size_of
from bexplore.config.document.reader import KeyPath, Position
from bexplore.config.schema import ExploreSettings
from bexplore.errors import UserInputError
from bexplore.job import Job, Mode, Precision

__all__ = ["Config", "ExploreSettings", "Request", "RequestKind", "json_schema"]


class RequestKind(StrEnum):
    """What `micro_batch_size` asks for."""

    EXPLORE = "explore"  # the fastest size, regardless of divisibility
    AUTO = "auto"  # a good one, quickly, among the divisors of the replica batch
    FIXED = "fixed"  # this one; nothing to explore
    NONE = "none"  # no micro-batching; nothing to explore


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's `micro_batch_size`.

    Attributes:
        kind: What it asks for.
        minimum: Smallest size wanted; None for no bound.
        maximum: Largest size wanted; None for no bound.
        value: The size of a fixed request; else None.
        path: Where the key stands or would stand: keys and list indices from the top of the file.
        position: Its lines in the file; None where the key is absent.
    """

    kind: RequestKind
    minimum: int | None = None
    maximum: int | None = None
    value: int | None = None
    path: KeyPath = ()
    position: Position | None = None

    @property
    def is_search(self) -> bool:
        """Return whether there is anything to explore."""
        return self.kind in (RequestKind.EXPLORE, RequestKind.AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A training job's file, read and checked.

    Attributes:
        path: The file.
        layout: Which family and layout it is written in.
        mode: Train or eval: the side that is explored.
        request: The user's `micro_batch_size`.
        batch_size: The user's global batch size; None where the file gives none.
        batch_size_path: Where that stands or would stand, as in `Request`.
        max_steps: Optimizer steps of the training, by the file; None where it gives none.
        num_replicas: Data-parallel replicas.
        model_dir: Folder of the user's own results; the run log is named after it.
        job: One replica's program. Its device may still be `auto`: see `on_device`.
        explore: The `explore:` section.
        warnings: Lines that a reader must know before believing the result.
        options: Of the command line, those that another command needs to find the same job.
    """

    path: Path
    layout: str
    mode: Mode
    request: Request
    batch_size: int | None
    num_replicas: int
    model_dir: str
    job: Job
    explore: ExploreSettings
    batch_size_path: KeyPath = ()
    max_steps: int | None = None
    warnings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def typed(self) -> str:
        """Return the file and its options, as a shell wants them."""
        return shlex.join([str(self.path), *self.options])

    @property
    def minimum(self) -> int:
        """Return the smallest micro-batch size to try: the larger of the file's bounds."""
        return max(self.request.minimum or 1, self.explore.min or 1)

    @property
    def maximum(self) -> int | None:
        """Return the largest micro-batch size to try: the smaller of the file's bounds; None for no bound."""
        bounds = [bound for bound in (self.request.maximum, self.explore.max) if bound is not None]
        return min(bounds, default=None)

    @property
    def candidates(self) -> str | tuple[int, ...]:
        """Return which sizes are tried: `auto` is limited to divisors whatever `explore.candidates` says."""
        return "divisors" if self.request.kind is RequestKind.AUTO else self.explore.candidates

    @property
    def divisibility(self) -> Divisibility:
        """Return the rule for global batch sizes."""
        return Divisibility(self.explore.divisibility)

    @property
    def replica_batch_size(self) -> int | None:
        """Return the samples of a replica in a step; None where `batch_size` is unknown or has no whole share."""
        if self.batch_size is None:
            return None
        try:
            return replica_batch_size_of(self.batch_size, self.num_replicas, self.divisibility)
        except UserInputError:
            return None

    @property
    def training_samples(self) -> int | None:
        """Return the samples of one replica in the whole training, which tell how long it takes.

        None where the user says how long, or where the file lacks its steps or its batch size.
        """
        if self.explore.training_time_s is not None or self.max_steps is None or self.batch_size is None:
            return None
        return max(1, round(self.max_steps * self.batch_size / self.num_replicas))

    def on_device(self, device: str) -> Config:
        """Return the job on a torch device; float16 becomes bfloat16 where gradients cannot be scaled."""
        precision, warnings = self.job.precision, self.warnings
        is_cuda = device.partition(":")[0] == "cuda"
        if precision is Precision.AUTOCAST_FLOAT16 and not is_cuda:
            precision = Precision.AUTOCAST_BFLOAT16
            notice = f"{self.path}: float16 needs gradient scaling, which only CUDA has; bfloat16 is used on {device}"
            warnings = (*warnings, notice)
        job = dataclasses.replace(self.job, device=device, precision=precision)
        return dataclasses.replace(self, job=job, warnings=warnings)


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema of the file for editors: `explore` in full, of other sections the keys that are read."""
    explore = ExploreSettings.model_json_schema()
    definitions = explore.pop("$defs", {})
    micro = {"$ref": "#/$defs/MicroBatchSize"}
    positive = {"type": "integer", "minimum": 1}
    optional = {"type": ["integer", "null"], "description": "Of the training; says how long it takes."}
    data = {"type": "object", "properties": {"batch_size": positive, "micro_batch_size": micro}}
    flags = {"type": "object", "properties": {"csx.performance.micro_batch_size": micro}}
    callback = {
        "type": "object",
        "properties": {f"{n}Flags": flags for n in ("ScopedTrain", "ScopedValidate", "Global")},
    }
    definitions["MicroBatchSize"] = _micro_batch_size_schema(positive)
    steps = dict.fromkeys(("num_steps", "max_steps", "num_epochs", "steps_per_epoch"), optional)
    loop = {"type": ["object", "null"], "properties": steps}
    callbacks = {"type": ["array", "null"], "items": callback}
    init = {"type": "object", "properties": {"callbacks": callbacks, "loop": loop}}
    loader = {"type": "object", "properties": {"batch_size": positive}}
    trainer = {"init": init, "fit": {"type": "object", "properties": {"train_dataloader": loader}}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bexplore configuration",
        "type": "object",
        "properties": {
            "explore": explore,
            "train_input": data,
            "eval_input": data,
            "runconfig": {
                "type": "object",
                "properties": {"num_csx": positive, "use_cs_grad_accum": {"type": "boolean"}, **steps},
            },
            "trainer": {"type": ["object", "array"], "properties": trainer},
        },
        "$defs": definitions,
    }


def _micro_batch_size_schema(positive: dict[str, Any]) -> dict[str, Any]:
    bounds = {"type": "object", "properties": {"min": positive, "max": positive}, "additionalProperties": False}
    explore = {
        "type": "object",
        "properties": {"explore": bounds},
        "required": ["explore"],
        "additionalProperties": False,
    }
    words = {"enum": ["explore", "auto", "none", "None", "disable", None]}
    return {
        "description": "explore: search; auto: search quickly among divisors; a number: use it; null: none.",
        "anyOf": [positive, words, explore],
    }
