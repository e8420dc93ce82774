"""What the user asked for, checked: `Config`, and the `explore:` section with every default (pydantic's only door).

A dialect of `bexplore.dialects` reads a file of one family and ends here; nothing behind this module looks at YAML.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from bexplore.batching import Divisibility, replica_batch_size_of
from bexplore.document import Position, Problems, dotted_path, quoted
from bexplore.errors import BexploreError, UserInputError
from bexplore.job import Job, Mode, Precision
from bexplore.units import parse_bytes, parse_seconds

MAX_SAMPLES = 10**9  # of a batch or a micro-batch; beyond, the number is a slip
_SMALLEST_BUDGET_BYTES = 1024**2  # below, a unit was forgotten
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CODE_KEYS = ("model", "batch", "loss", "step")  # of `explore.workload`; each names code of the user


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
    path: tuple[str | int, ...] = ()
    position: Position | None = None

    @property
    def is_search(self) -> bool:
        """Whether there is anything to explore."""
        return self.kind in (RequestKind.EXPLORE, RequestKind.AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much an exploration may cost, by one word.

    Attributes:
        max_probes: Probes at most.
        passes_per_probe: Timed passes of one probe at most.
        target_confidence: The exploration ends at this confidence, out of 100.
    """

    max_probes: int
    passes_per_probe: int
    target_confidence: float


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(max_probes=8, passes_per_probe=5, target_confidence=75.0),
    "normal": Effort(max_probes=16, passes_per_probe=10, target_confidence=90.0),
    "thorough": Effort(max_probes=40, passes_per_probe=30, target_confidence=97.0),
}


def _memory(value: Any) -> Any:
    """`auto`, a fraction of the device's memory, or a size."""
    if value == "auto":
        return value
    if isinstance(value, float | int) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?\s*%", value):
        share = float(value.rstrip("% ")) / 100
        if 0 < share <= 1:
            return share
    num_bytes = _told_as_value_error(parse_bytes, value)
    if num_bytes < _SMALLEST_BUDGET_BYTES:
        raise ValueError(f"{num_bytes} bytes hold no training; write a unit, such as 12GiB, or a fraction up to 1")
    return num_bytes


def _size(value: Any) -> Any:
    """`auto`, 0, or a size."""
    return value if value == "auto" or (value == 0 and value is not False) else _told_as_value_error(parse_bytes, value)


def _duration(value: Any) -> Any:
    """Null, or seconds."""
    return None if value is None else _told_as_value_error(parse_seconds, value)


def _candidates(value: Any) -> Any:
    """A rule by name, or the sizes themselves."""
    words = ("all", "powers_of_two", "divisors", "even")
    if value in words:
        return value
    is_size = [isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= MAX_SAMPLES for v in _as_list(value)]
    if not is_size or not all(is_size):
        raise ValueError(f"must be one of {', '.join(words)}, or a list of positive integers, not {quoted(value)}")
    return tuple(sorted(set(value)))


def _compile(value: Any) -> Any:
    """True and false are short for `enabled`."""
    return {"enabled": value} if isinstance(value, bool) else value


def _import_path(value: Any) -> Any:
    if not isinstance(value, str) or not _IMPORT_PATH.fullmatch(value):
        raise ValueError(f'must be an import path such as "my_model:build", not {quoted(value)}')
    return value


def _told_as_value_error(parse: Any, value: Any) -> Any:
    """Call a parser of ours; its message in the form that pydantic collects."""
    try:
        return parse(value)
    except BexploreError as error:
        raise ValueError(f"{error.message}; {error.hint}") from None


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else []


_SIZE_SCHEMA = {"type": ["string", "number"], "examples": ["auto", "12GiB", "1.5 GB"]}
_DURATION_SCHEMA = {"type": ["string", "number", "null"], "examples": ["10min", "90s", 600]}
_IMPORT_SCHEMA = {"type": "string", "pattern": f"^{_IMPORT_PATH.pattern}$"}
_CANDIDATES_SCHEMA = {
    "anyOf": [
        {"enum": ["all", "powers_of_two", "divisors", "even"]},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    ]
}
ImportPath = Annotated[str, BeforeValidator(_import_path), WithJsonSchema(_IMPORT_SCHEMA)]
Samples = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Tokens = Annotated[int, Field(ge=1, le=10**8)]


class _Section(BaseModel):
    """Strict, closed and frozen: a text is no number, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CompileOptions(_Section):
    """How the user's own training calls torch.compile; true and false are short for `enabled`."""

    enabled: bool = Field(True, description="Whether the training is compiled; false explores it eagerly.")
    backend: str = Field("inductor", description="Backend of torch.compile.")
    mode: str | None = Field(None, description="Mode of torch.compile, such as reduce-overhead; null: its default.")
    fullgraph: bool = Field(False, description="Whether a graph break is an error.")
    dynamic: bool | None = Field(False, description="As in torch.compile; false: each size has its own static program.")
    options: dict[str, Any] | None = Field(None, description="Options of the backend; excludes mode.")

    @model_validator(mode="after")
    def _mode_excludes_options(self) -> CompileOptions:
        if self.mode is not None and self.options is not None:
            raise ValueError("mode and options exclude each other, in torch.compile too; keep one")
        return self


class OptimizerOptions(_Section):
    """The optimizer of a workload that the file's own `optimizer` section does not describe."""

    name: str = Field("AdamW", description="Class of torch.optim.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments.")
    max_gradient_norm: float | None = Field(None, gt=0, description="Clip the global gradient norm to this; null: not.")


class TransformersOptions(_Section):
    """A model of the transformers package, made from its configuration; nothing is downloaded."""

    task: Literal["causal_lm", "masked_lm", "seq2seq_lm", "image_classification"] = Field(
        description="What is trained: causal_lm, masked_lm, seq2seq_lm or image_classification."
    )
    model_type: str = Field(description="As in transformers, such as bert, t5, vit.")
    config: dict[str, Any] = Field(default_factory=dict, description="Values of its configuration class.")
    sequence_length: Tokens | None = Field(None, description="Tokens a sample; null: what the model allows.")
    target_length: Tokens | None = Field(None, description="Tokens of the target of seq2seq_lm; null: as the source.")
    image_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None, description="Pixels of the side of a square image; null: that of the configuration."
    )


class WorkloadOptions(_Section):
    """What is trained, where the file itself does not describe it: one of transformers, model, step."""

    transformers: TransformersOptions | None = Field(None, description="A model of the transformers package.")
    model: ImportPath | None = Field(None, description="Import path of a callable that returns a torch.nn.Module.")
    batch: ImportPath | None = Field(None, description="Import path: (micro_batch_size, ...) -> a batch of that size.")
    loss: ImportPath | None = Field(None, description="Import path: (outputs, batch) -> scalar loss; with model.")
    step: ImportPath | None = Field(None, description="Import path of a whole step of the user's own.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the user's callables.")
    optimizer: OptimizerOptions | None = Field(None, description="Optimizer; null: the file's own, else AdamW.")
    sequence_length: Tokens | None = Field(None, description="Tokens a sample, to count tokens; null: unknown.")

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadOptions:
        given = [name for name in ("transformers", "model", "step") if getattr(self, name) is not None]
        if len(given) != 1:
            what = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of transformers, model, step; given: {what}")
        if self.model is not None and self.batch is None:
            raise ValueError("model needs batch: the import path of a callable that makes a batch of a given size")
        if self.model is None and (self.loss is not None or (self.batch is not None and self.step is None)):
            raise ValueError("batch and loss go with model")
        return self


class ExploreSettings(_Section):
    """The optional top-level section `explore:`. Every key has a default; `--set explore.KEY=VALUE` overrides one."""

    effort: Literal["quick", "normal", "thorough"] = Field(
        "normal", description="How much to spend: sets max_probes, passes_per_probe and target_confidence."
    )
    max_probes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        EFFORTS["normal"].max_probes, description="Probes at most (sizes compiled and run, repeats included)."
    )
    passes_per_probe: Annotated[int, Field(ge=2, le=10_000)] = Field(
        EFFORTS["normal"].passes_per_probe, description="Timed passes of one probe at most."
    )
    target_confidence: Annotated[float, Field(gt=0, lt=100)] = Field(
        EFFORTS["normal"].target_confidence, description="Stop at this confidence score, out of 100; below 100."
    )
    tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.02, description="A size counts as best when its throughput is within this fraction of the best."
    )
    time_budget: Annotated[float | None, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)] = Field(
        None, description='Seconds, or text such as "10min", that the search may take; null: no limit.'
    )
    probe_time_limit: Annotated[float | None, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)] = Field(
        1800.0, description="Seconds, or text, after which one probe is given up as timed_out; null: no limit."
    )
    device: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        "auto", description="A torch device such as cpu, cuda, cuda:1; auto: the accelerator if there is one, else cpu."
    )
    memory_budget: Annotated[str | float | int, BeforeValidator(_memory), WithJsonSchema(_SIZE_SCHEMA)] = Field(
        "auto", description='Memory of one replica: a size ("12GiB"), a fraction of the device (0.8), or auto.'
    )
    replica_reserve: Annotated[str | int, BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)] = Field(
        "auto", description="Memory kept free for gradient buckets and collectives of several replicas: a size or auto."
    )
    min: Samples | None = Field(None, description="Smallest micro-batch size to try, samples; null: 1.")
    max: Samples | None = Field(None, description="Largest micro-batch size to try, samples; null: what fits.")
    candidates: Annotated[str | tuple[int, ...], BeforeValidator(_candidates), WithJsonSchema(_CANDIDATES_SCHEMA)] = (
        Field("all", description="Which sizes: all, powers_of_two, divisors or even (of the replica batch), or a list.")
    )
    divisibility: Literal["strict", "even"] = Field(
        "strict", description="When a global batch size is valid: whole micro-batches only, or equal parts (even)."
    )
    precision: Literal["float32", "bfloat16", "autocast_bfloat16", "autocast_float16"] | None = Field(
        None, description="Number formats; null: as the model's own section says, else float32."
    )
    compile: Annotated[CompileOptions, BeforeValidator(_compile)] = Field(
        default_factory=CompileOptions, description="How the training is compiled; true or false for short."
    )
    storage: str | None = Field(
        None, description="URL of the Optuna storage (sqlite:///..., postgresql://...); null: in the run directory."
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        0, description="Of the weights, the samples and the search; the same seed asks the same next probe."
    )
    workload: WorkloadOptions | None = Field(
        None, description="What is trained, where the file does not describe it; null: the file's model section."
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_effort(cls, values: Any) -> Any:
        """The word sets what is not given."""
        if not isinstance(values, dict) or not isinstance(values.get("effort", "normal"), str):
            return values
        effort = EFFORTS.get(values.get("effort", "normal"))
        return values if effort is None else dataclasses.asdict(effort) | values

    @model_validator(mode="after")
    def _bounds_in_order(self) -> ExploreSettings:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    @property
    def time_budget_s(self) -> float | None:
        """Seconds that the search may take; None for no limit."""
        return self.time_budget

    @property
    def probe_time_limit_s(self) -> float | None:
        """Seconds after which one probe is given up; None for no limit."""
        return self.probe_time_limit

    @property
    def replica_reserve_bytes(self) -> int | None:
        """Bytes kept free for several replicas; None for `auto`."""
        return None if self.replica_reserve == "auto" else int(self.replica_reserve)

    def memory_budget_bytes(self, device_memory_bytes: int) -> int | None:
        """Bytes of the budget that the user gave; None for `auto`.

        Args:
            device_memory_bytes: Memory of the device, of which a fraction is taken.
        """
        if self.memory_budget == "auto":
            return None
        if isinstance(self.memory_budget, float):
            return int(self.memory_budget * device_memory_bytes)
        return int(self.memory_budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A training job's file, read and checked.

    Attributes:
        path: The file.
        layout: Which family and layout it is written in.
        mode: Train or eval: the side that is explored.
        request: The user's `micro_batch_size`.
        batch_size: The user's global batch size; None where the file gives none.
        num_replicas: Data-parallel replicas.
        model_dir: Folder of the user's own results; the run log is named after it.
        job: One replica's program. Its device may still be `auto`: see `on_device`.
        explore: The `explore:` section.
        warnings: Lines that a reader must know before believing the result.
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
    warnings: tuple[str, ...] = ()

    @property
    def minimum(self) -> int:
        """Smallest micro-batch size to try: the larger of the file's bounds."""
        return max(self.request.minimum or 1, self.explore.min or 1)

    @property
    def maximum(self) -> int | None:
        """Largest micro-batch size to try: the smaller of the file's bounds; None for no bound."""
        bounds = [bound for bound in (self.request.maximum, self.explore.max) if bound is not None]
        return min(bounds, default=None)

    @property
    def candidates(self) -> str | tuple[int, ...]:
        """Which sizes are tried: `auto` is limited to divisors whatever `explore.candidates` says."""
        return "divisors" if self.request.kind is RequestKind.AUTO else self.explore.candidates

    @property
    def divisibility(self) -> Divisibility:
        """The rule for global batch sizes."""
        return Divisibility(self.explore.divisibility)

    @property
    def replica_batch_size(self) -> int | None:
        """Samples of one replica in one optimizer step; None where `batch_size` is unknown or has no whole share."""
        if self.batch_size is None:
            return None
        try:
            return replica_batch_size_of(self.batch_size, self.num_replicas, self.divisibility)
        except UserInputError:
            return None

    def on_device(self, device: str) -> Config:
        """The same job on a torch device; float16 becomes bfloat16 where the device cannot scale gradients."""
        precision, warnings = self.job.precision, self.warnings
        is_cuda = device.partition(":")[0] == "cuda"
        if precision is Precision.AUTOCAST_FLOAT16 and not is_cuda:
            precision = Precision.AUTOCAST_BFLOAT16
            notice = f"{self.path}: float16 needs gradient scaling, which only CUDA has; bfloat16 is used on {device}"
            warnings = (*warnings, notice)
        job = dataclasses.replace(self.job, device=device, precision=precision)
        return dataclasses.replace(self, job=job, warnings=warnings)


def read_settings(
    section: Any, problems: Problems, *, allow_code: bool = True, effort: str = "normal"
) -> ExploreSettings:
    """Check the `explore:` section; every mistake goes to `problems`, and the defaults stand in for it.

    Args:
        section: Its value; None where there is none.
        problems: Receives the mistakes.
        allow_code: False refuses import paths.
        effort: The word where the section has none.
    """
    if section is not None and not isinstance(section, dict):
        problems.error(("explore",), f"explore must be a mapping of settings, not {quoted(section)}")
    values = {"effort": effort} | section if isinstance(section, dict) else {"effort": effort}
    workload = values.get("workload")
    if isinstance(workload, dict) and not allow_code:
        for key in (key for key in CODE_KEYS if workload.get(key) is not None):
            problems.error(
                ("explore", "workload", key),
                f"explore.workload.{key} imports code, {quoted(workload[key])}, and --no-code refuses that",
                "leave out --no-code if you trust the file",
            )
    try:
        return ExploreSettings.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _translate(detail, problems)
        return ExploreSettings.model_validate({"effort": effort})


def json_schema() -> dict[str, Any]:
    """A JSON Schema of the file, for editors: our own section in full, of the others the keys that are read."""
    explore = ExploreSettings.model_json_schema()
    definitions = explore.pop("$defs", {})
    micro = {"$ref": "#/$defs/MicroBatchSize"}
    positive = {"type": "integer", "minimum": 1}
    data = {"type": "object", "properties": {"batch_size": positive, "micro_batch_size": micro}}
    flags = {"type": "object", "properties": {"csx.performance.micro_batch_size": micro}}
    callback = {
        "type": "object",
        "properties": {f"{n}Flags": flags for n in ("ScopedTrain", "ScopedValidate", "Global")},
    }
    definitions["MicroBatchSize"] = _micro_batch_size_schema(positive)
    init = {"type": "object", "properties": {"callbacks": {"type": ["array", "null"], "items": callback}}}
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
                "properties": {"num_csx": positive, "use_cs_grad_accum": {"type": "boolean"}},
            },
            "trainer": {"type": ["object", "array"], "properties": trainer},
        },
        "$defs": definitions,
    }


def close_match(word: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The known word that a slip of the keyboard meant; None where nothing is near."""
    near = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=cutoff)
    return near[0] if near else None


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
        "description": "explore: search; auto: search quickly among divisors; a number: use it; null: no micro-batching.",
        "anyOf": [positive, words, explore],
    }


_NUMBER_RULES = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_KIND_RULES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}


def _translate(detail: Any, problems: Problems) -> None:
    """One complaint of pydantic in our words, at its line."""
    path = ("explore", *(part for part in detail["loc"]))
    name, value, context = dotted_path(path), detail["input"], detail.get("ctx", {})
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _known_keys(path[1:-1])
        near = close_match(str(path[-1]), known)
        hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(known)}"
        problems.error(path, f'unknown key "{path[-1]}" in {dotted_path(path[:-1])}', hint)
    elif kind == "missing":
        problems.error(path, f"{name} is missing")
    elif kind == "literal_error":
        near = close_match(str(value), [word.strip("' ") for word in re.split(", | or ", context["expected"])])
        hint = f"did you mean {near}?" if near else ""
        problems.error(path, f"{name} must be {context['expected'].replace(chr(39), '')}, not {quoted(value)}", hint)
    elif kind in _NUMBER_RULES:
        bound = next(context[key] for key in ("gt", "ge", "lt", "le") if key in context)
        problems.error(path, f"{name} must be {_NUMBER_RULES[kind]} {bound:g}, not {quoted(value)}")
    elif kind in _KIND_RULES:
        problems.error(path, f"{name} must be {_KIND_RULES[kind]}, not {quoted(value)}")
    elif kind == "value_error":
        problems.error(path, f"{name}: {context['error']}")
    else:
        problems.error(path, f"{name}: {detail['msg']}, not {quoted(value)}")


def _known_keys(path: Sequence[str | int]) -> list[str]:
    """The keys of the section at a path below `explore`."""
    sections: dict[tuple[str | int, ...], type[BaseModel]] = {
        (): ExploreSettings,
        ("compile",): CompileOptions,
        ("workload",): WorkloadOptions,
        ("workload", "transformers"): TransformersOptions,
        ("workload", "optimizer"): OptimizerOptions,
    }
    return list(sections[tuple(path)].model_fields)
