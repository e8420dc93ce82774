"""The two layouts of the Cerebras ModelZoo: `train_input` and other sections (2.0 to 2.3), and `trainer` (from 2.3).

Source: the parameter files and the configuration classes of the public ModelZoo, releases 2.0 to 2.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.config import Config, RequestKind, SizeRequest
from bexplore.config.dialects.cerebras import decoders, encoders
from bexplore.config.dialects.cerebras.layout import (
    STEP_KEYS,
    FileLayout,
    check_accumulation_flag,
    check_batch,
    check_bounds,
    check_tokens,
    choose_side,
    notice_unbuilt,
    notice_unread,
    read_request,
    sections_layout,
    trainer_layout,
)
from bexplore.config.dialects.cerebras.section import Architecture, Section
from bexplore.config.document import (
    Problems,
    as_number,
    dotted_path,
    is_number,
    notice_near_misses,
    read_flag,
    read_positive,
)
from bexplore.config.document.reader import KeyPath, quote, show
from bexplore.config.schema import ExploreSettings, read_settings
from bexplore.config.variants import find_variants, read_axes
from bexplore.config.workload import make_described_job, make_workload_job, read_parallelism, with_lengths
from bexplore.errors import close_match
from bexplore.job import Job, Mode, Parallelism, Precision

SECTIONS = ("train_input", "eval_input", "model", "optimizer", "runconfig", "trainer")

# In the order in which keys are looked for: an earlier model may have the keys of a later one.
_ARCHITECTURES = (*encoders.IMAGE_ENCODERS, *decoders.ARCHITECTURES, *encoders.TEXT_ENCODERS)
_LIMITS = ("max_probes", "target_confidence")  # of the search, which `explore.effort` sets otherwise
_MOST_STEPS = 2**31 - 1  # what their runtime counts to

# Arguments of their Trainer and of its methods.
_TRAINER_SECTIONS = {
    "init": {"model", "backend", "optimizer", "schedulers", "precision", "loop", "callbacks", "model_dir", "logging"},
    "fit": {"train_dataloader", "val_dataloader"},
    "validate": {"val_dataloader"},
}
__all__ = ["SECTIONS", "find_layout", "is_modelzoo", "load"]


def is_modelzoo(values: Mapping[str, Any]) -> bool:
    """Return whether a file is in one of the two layouts: many programs call a section of theirs `trainer`."""
    trainer = values.get("trainer")
    first = trainer[0] if isinstance(trainer, list) and trainer else trainer
    first = first.get("trainer", first) if isinstance(first, Mapping) else {}
    is_trainer = isinstance(first, Mapping) and any(
        isinstance(first.get(section), Mapping) and not keys.isdisjoint(first[section])
        for section, keys in _TRAINER_SECTIONS.items()
    )
    return is_trainer or not {"train_input", "eval_input"}.isdisjoint(values)


def find_layout(problems: Problems) -> FileLayout | None:
    """Return where the file keeps what is read; None where it is in neither layout."""
    values = problems.document.values
    if not is_modelzoo(values):
        return None
    if values.get("trainer") is not None:
        return trainer_layout(problems)
    return sections_layout(problems) if {"train_input", "eval_input"}.intersection(values) else None


def load(layout: FileLayout, problems: Problems, *, allow_code: bool, mode: Mode | None) -> Config:
    """Return the Config of a file, or raise one error with every mistake."""
    document = problems.document
    for path, position in document.positions.items():
        if position.tag and isinstance(document.get(path), Mapping | list):
            problems.error(path, f"{dotted_path(path)} has the tag {position.tag}", "remove it: the values are plain")
    for path, known in layout.near_misses.items():
        notice_near_misses(problems, path, known)
    notice_unread(problems, layout)
    notice_unbuilt(problems, layout)
    requests = {side: read_request(problems, path) for side, path in layout.micro.items()}
    side = choose_side(problems, requests, mode)
    request = requests.get(side, SizeRequest(kind=RequestKind.NONE))
    if request.kind is RequestKind.AUTO and request.position is None:
        problems.warn(layout.data[side], "micro_batch_size is absent, which means auto; type explore to try every size")
    effort = "quick" if request.kind is RequestKind.AUTO else "normal"
    axes = read_axes(problems)
    settings = read_settings(document.values.get("explore"), problems, allow_code=allow_code, effort=effort)
    batch_path: KeyPath = (*layout.data.get(side, ()), "batch_size")
    _refuse_keys_of_commands(problems, layout, batch_path)
    parallelism = read_parallelism(problems, settings, layout.num_csx)
    num_replicas = read_positive(problems, layout.num_csx) or parallelism.num_replicas
    global_batch_size = read_positive(problems, batch_path)
    if request.is_in_tokens:
        check_tokens(problems, request, batch_path, settings)
        global_batch_size = None
    else:
        check_accumulation_flag(problems, request, global_batch_size, num_replicas)
        check_batch(problems, request, batch_path, global_batch_size, num_replicas, settings)
    check_bounds(problems, request, settings)

    in_tokens = request.is_in_tokens

    def job_of(changed: Problems) -> Job:
        own = read_settings(changed.document.values.get("explore"), changed, allow_code=allow_code, effort=effort)
        return with_lengths(changed, own, _job(layout, changed, side, own, num_replicas, parallelism), in_tokens)

    job = with_lengths(problems, settings, _job(layout, problems, side, settings, num_replicas, parallelism), in_tokens)
    variants = find_variants(problems, settings, axes, job, job_of)
    max_steps = _read_max_steps(problems, layout.loop) if side is Mode.TRAIN else None
    problems.raise_if_any()
    model_dir = document.get(layout.model_dir)
    return Config(
        path=document.path,
        layout=layout.name,
        mode=side,
        request=request,
        batch_size=global_batch_size,
        batch_size_path=batch_path,
        max_steps=max_steps,
        num_replicas=num_replicas,
        model_dir=model_dir if isinstance(model_dir, str) and model_dir.strip() else "model_dir",
        job=job,
        settings=settings,
        warnings=tuple(problems.warnings),
        variants=variants,
        own_limits=tuple(name for name in _LIMITS if document.has(("explore", name))),
    )


def _refuse_keys_of_commands(problems: Problems, layout: FileLayout, batch_path: KeyPath) -> None:
    """Note each number that only a command reads: ignored, it would seem to bound the search."""
    batch_key, replicas_key = dotted_path(batch_path), dotted_path(layout.num_csx)
    instead = {
        "global_batch_size": f"write {batch_key}",
        "replica_batch_size": f"write {batch_key}, that of all replicas, and {replicas_key}",
        "replicas": f"write {replicas_key}",
        "processes": f"write {replicas_key}, and explore.launcher for ranks that run",
        "sizes_per_start": "remove it: each size of a job runs by itself",
    }
    for key, hint in instead.items():
        path: KeyPath = ("explore", key)
        if problems.document.get(path) is not None:
            problems.error(path, f"{dotted_path(path)} is for explore.command, and this file describes a job", hint)


def _job(
    layout: FileLayout,
    problems: Problems,
    side: Mode,
    settings: ExploreSettings,
    num_replicas: int,
    parallelism: Parallelism,
) -> Job:
    document = problems.document
    precision = Precision(settings.precision) if settings.precision is not None else _precision(layout, problems)
    common: dict[str, Any] = {
        "mode": side,
        "precision": precision,
        "device": settings.device,
        "num_replicas": num_replicas,
        "parallelism": parallelism,
        "seed": settings.seed,
        "import_root": str(document.path.resolve().parent),
    }
    common |= read_optimizer(problems, layout.optimizer) | read_max_gradient_norm(problems, layout)
    if settings.workload is not None:
        return make_workload_job(settings, settings.workload, common, problems)
    if document.has(("explore", "workload")) and document.get(("explore", "workload")) is not None:
        return Job(workload="imported")  # its mistakes have been noted
    model = document.get(layout.model)
    if not isinstance(model, dict) or not model:
        if not model:
            hint = "write a model section, or explore.workload; bexplore init --example lists examples of both"
            problems.error((), "no model section describes what is trained", hint)
        return Job(workload="decoder")
    return make_described_job(settings, common, _described(layout, problems, layout.data.get(side, ())))


def _described(layout: FileLayout, problems: Problems, data_path: KeyPath) -> dict[str, Any]:
    model = Section(problems, layout.model)
    architecture = _architecture(model.values)
    read = decoders.read_decoder if architecture is None else architecture.read
    return read(model, Section(problems, data_path))


def _architecture(values: Mapping[str, Any]) -> Architecture | None:
    """Return the model of a section: by its name, else by keys that only one has; None for a plain decoder."""
    if decoders.MIXTURE.shown_by(values):
        return decoders.MIXTURE
    name = values.get("name")
    if name is None:
        return next((one for one in _ARCHITECTURES if one.shown_by(values)), None)
    return next((one for one in _ARCHITECTURES if str(name).lower() in one.names), None)


def _precision(layout: FileLayout, problems: Problems) -> Precision:
    """Return the number formats of the precision section, else of the model section; else float32."""
    document = problems.document
    if isinstance(document.get(layout.precision), dict):
        section = layout.precision
        enabled, default = read_flag(problems, (*section, "enabled"), True), "bfloat16"
    else:
        section = layout.model
        enabled = read_flag(problems, (*section, "mixed_precision"), False)
        default = "bfloat16" if read_flag(problems, (*section, "use_bfloat16"), False) else "float16"
    path = (*section, "fp16_type")
    half = document.get(path, default)
    if not enabled:
        return Precision.FLOAT32
    if half == "cbfloat16":
        problems.warn(path, "cbfloat16 exists on one maker's hardware only; explored as bfloat16 under autocast")
    elif half not in ("float16", "bfloat16"):
        problems.error(path, f"fp16_type must be float16, bfloat16 or cbfloat16, not {quote(half)}")
    return Precision.AUTOCAST_FLOAT16 if half == "float16" else Precision.AUTOCAST_BFLOAT16


def _read_max_steps(problems: Problems, loop: KeyPath) -> int | None:
    """Return the steps of a training from its beginning; None if the file does not give a number.

    `num_steps` goes before the others; of `max_steps` and of `num_epochs` with `steps_per_epoch`, what ends it first.
    A wrong number is a warning: it decides nothing but how long a search is worth its while.
    """
    num_steps, max_steps, num_epochs, steps_per_epoch = (_read_count(problems, (*loop, key)) for key in STEP_KEYS)
    if num_steps is not None:
        return num_steps
    of_epochs = None if num_epochs is None or steps_per_epoch is None else num_epochs * steps_per_epoch
    return min((steps for steps in (max_steps, of_epochs) if steps is not None), default=None)


def _read_count(problems: Problems, path: KeyPath) -> int | None:
    written = problems.document.get(path)
    value = as_number(written)
    if written is None:
        return None
    if is_number(value) and value == int(value) and 1 <= value <= _MOST_STEPS:
        return int(value)
    problems.warn(
        path,
        f"{path[-1]} must be a whole number from 1 to {_MOST_STEPS}, not {quote(written)}; it is ignored; "
        "set the length of the training by explore.training_time, such as 10h",
    )
    return None


_LEARNING_RATE = 1e-4  # instead of a schedule, on which no time depends
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {  # of torch.optim, by class: those that the family's sections may hold
    "AdamW": ("betas", "eps", "weight_decay", "amsgrad"),
    "Adam": ("betas", "eps", "weight_decay", "amsgrad"),
    "SGD": ("momentum", "dampening", "weight_decay", "nesterov"),
    "Adafactor": ("weight_decay",),
    "RMSprop": ("alpha", "eps", "weight_decay", "momentum", "centered"),
    "Adagrad": ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "Adadelta": ("rho", "eps", "weight_decay"),
    "Adamax": ("betas", "eps", "weight_decay"),
    "NAdam": ("betas", "eps", "weight_decay", "momentum_decay"),
    "RAdam": ("betas", "eps", "weight_decay"),
    "ASGD": ("lambd", "alpha", "t0", "weight_decay"),
    "Rprop": ("etas", "step_sizes"),
    "Muon": ("momentum", "weight_decay", "nesterov"),
}
_BY_LOWER_CASE = {name.lower(): name for name in _ARGUMENTS}
_NEAREST: Mapping[str, tuple[str, str]] = {  # not in torch.optim: the class with as many states a parameter
    "lamb": ("AdamW", "two states a parameter as well"),
    "lion": ("SGD", "with momentum: one state a parameter as well"),
}
_ALIASES = {"weight_decay": "weight_decay_rate"}
_PAIRS = frozenset(("betas", "etas", "step_sizes"))
_FLAGS = frozenset(("amsgrad", "nesterov", "centered"))


def read_optimizer(problems: Problems, path: KeyPath) -> dict[str, Any]:
    """Return the fields of `Job` of `{optimizer_type: AdamW, ...}` or `{AdamW: {...}}`; none where it is empty.

    Learning-rate schedules, loss scales and other settings outside of the optimizer are not read.
    """
    section = problems.document.get(path)
    if not isinstance(section, dict) or not section:
        return {}
    written, here = _written_name(section, path)
    if written is None:
        problems.warn(path, "no optimizer_type and no optimizer by name; AdamW is taken")
        return {}
    name = _class_name(problems, written, here)
    values = problems.document.get(here)
    values = values if isinstance(values, dict) else {}
    rate = as_number(values.get("learning_rate", values.get("lr")))
    arguments: dict[str, Any] = {"lr": float(rate) if is_number(rate) and rate > 0 else _LEARNING_RATE}
    for argument in _ARGUMENTS[name]:
        key = argument if argument in values else _ALIASES.get(argument, argument)
        value = as_number(values.get(key))
        if argument == "eps" and isinstance(value, list):
            continue  # the two of another Adafactor
        if value is not None and _is_right(problems, (*here, key), argument, value):
            arguments[argument] = value
    if written.lower() == "lion":
        arguments.setdefault("momentum", 0.9)
    return {"optimizer": name, "optimizer_arguments": arguments}


def read_max_gradient_norm(problems: Problems, layout: FileLayout) -> dict[str, Any]:
    """Return the field of `Job` of clipping, from the optimizer section or the precision section."""
    for section in (layout.optimizer, layout.precision):
        path = (*section, "max_gradient_norm")
        norm = as_number(problems.document.get(path))
        if norm is None:
            continue
        if not is_number(norm):
            problems.error(path, f"max_gradient_norm must be a number, not {quote(norm)}")
        elif norm > 0:
            return {"max_gradient_norm": float(norm)}
    return {}


def _written_name(section: Mapping[str, Any], path: KeyPath) -> tuple[str | None, KeyPath]:
    if section.get("optimizer_type") is not None:
        return str(section["optimizer_type"]), path
    for name, values in section.items():
        if name.lower() in _BY_LOWER_CASE or name.lower() in _NEAREST:
            return name, (*path, name)
        if isinstance(values, dict) and len(section) == 1:
            return name, (*path, name)
    return None, path


def _class_name(problems: Problems, written: str, path: KeyPath) -> str:
    lowered = written.lower()
    if lowered in _NEAREST:
        name, why = _NEAREST[lowered]
        problems.warn(path, f"torch.optim has no {show(written)}; {name} is run instead ({why})")
        return name
    if lowered not in _BY_LOWER_CASE:
        near = close_match(lowered, list(_BY_LOWER_CASE))
        known = f"did you mean {_BY_LOWER_CASE[near]}?" if near else f"known here: {', '.join(_ARGUMENTS)}"
        problems.error(path, f"the optimizer {quote(written)} is not one of torch.optim", known)
    return _BY_LOWER_CASE.get(lowered, "AdamW")


def _is_right(problems: Problems, path: KeyPath, argument: str, value: Any) -> bool:
    if argument in _PAIRS:
        kind, is_right = "two numbers", isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    elif argument in _FLAGS:
        kind, is_right = "true or false", isinstance(value, bool)
    else:
        kind, is_right = "a number", is_number(value)
    if not is_right:
        problems.error(path, f"{path[-1]} must be {kind}, not {quote(value)}")
    return is_right
