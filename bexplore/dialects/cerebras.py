"""The two layouts of the Cerebras ModelZoo: `train_input` and its neighbours (2.0 to 2.3), and `trainer` (from 2.3).

Source: the parameter files and the configuration classes of the public ModelZoo, releases 2.0 to 2.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bexplore import batching
from bexplore.config import MAX_SAMPLES, Config, ExploreSettings, Request, RequestKind, close_match, read_settings
from bexplore.dialects import cerebras_model
from bexplore.dialects.workload import workload_job
from bexplore.document import Problems, kind_of, quoted
from bexplore.errors import UserInputError
from bexplore.job import Job, Mode, Precision

SECTIONS = ("train_input", "eval_input")
OTHER_SECTIONS = ("model", "optimizer", "runconfig")
FLAG = "csx.performance.micro_batch_size"
_SCOPES = {Mode.TRAIN: ("ScopedTrainFlags", "GlobalFlags"), Mode.EVAL: ("ScopedValidateFlags", "GlobalFlags")}
_NO_MICRO_BATCHING = ("none", "None", "disable")  # in YAML the first two are texts, and the documentation writes them
_FORMS = "a positive integer, explore, auto, {explore: {min: N, max: M}} or null"
_NEAR_MISS = 0.85  # similarity from which a key is taken for a slip of another; below, real foreign keys are caught

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a layout keeps what is read.

    Attributes:
        name: For people.
        micro: For each side that the file has, the path of `micro_batch_size`.
        data: For each side that the file has, the path of its data section.
        model: Path of the model section.
        optimizer: Path of the optimizer section.
        num_csx: Path of the number of replicas.
        precision: Path of the precision section; None where the model section holds it.
        model_dir: Path of the folder of results.
    """

    name: str
    micro: Mapping[Mode, KeyPath]
    data: Mapping[Mode, KeyPath]
    model: KeyPath
    optimizer: KeyPath
    num_csx: KeyPath
    precision: KeyPath | None
    model_dir: KeyPath
    near_misses: Mapping[KeyPath, tuple[str, ...]] = field(default_factory=dict)


def load_sections(problems: Problems, *, allow_code: bool, mode: Mode | None) -> Config:
    """Read the layout with `train_input`, `eval_input`, `model`, `optimizer` and `runconfig`."""
    document = problems.document
    data = {
        side: (section,)
        for side, section in zip((Mode.TRAIN, Mode.EVAL), SECTIONS, strict=True)
        if document.values.get(section) is not None or f"{section}" in document.values
    }
    for path in [*data.values(), *((section,) for section in OTHER_SECTIONS)]:
        _require_mapping(problems, path)
    layout = Layout(
        name="cerebras, sections",
        micro={side: (*path, "micro_batch_size") for side, path in data.items()},
        data=data,
        model=("model",),
        optimizer=("optimizer",),
        num_csx=("runconfig", "num_csx"),
        precision=None,
        model_dir=("runconfig", "model_dir"),
        near_misses={
            **{path: ("micro_batch_size", "batch_size", "max_sequence_length") for path in data.values()},
            ("runconfig",): ("num_csx", "use_cs_grad_accum", "model_dir"),
            ("optimizer",): ("optimizer_type", "max_gradient_norm"),
        },
    )
    return _load(layout, problems, allow_code=allow_code, mode=mode)


def load_trainer(problems: Problems, *, allow_code: bool, mode: Mode | None) -> Config:
    """Read the layout with one `trainer` section."""
    document = problems.document
    root: KeyPath = ("trainer",)
    if isinstance(document.values["trainer"], list):
        root = ("trainer", 0, "trainer") if document.has(("trainer", 0, "trainer")) else ("trainer", 0)
        if len(document.values["trainer"]) > 1:
            count = len(document.values["trainer"])
            problems.warn(("trainer", 1), f"the file has {count} trainers; the first is explored")
    init: KeyPath = (*root, "init")
    for path in (root, init, (*init, "model"), (*init, "optimizer"), (*init, "precision"), (*init, "backend")):
        _require_mapping(problems, path)
    data = _dataloaders(problems, root)
    callbacks: KeyPath = (*init, "callbacks")
    layout = Layout(
        name="cerebras, trainer",
        micro={side: _flag_path(problems, callbacks, side, path) for side, path in data.items()},
        data=data,
        model=(*init, "model"),
        optimizer=(*init, "optimizer"),
        num_csx=(*init, "backend", "cluster_config", "num_csx"),
        precision=(*init, "precision"),
        model_dir=(*init, "model_dir"),
        near_misses={
            **{path: ("batch_size",) for path in data.values()},
            (*init, "backend"): ("cluster_config",),
            (*init, "backend", "cluster_config"): ("num_csx",),
            **_callback_near_misses(document.get(callbacks), callbacks),
        },
    )
    return _load(layout, problems, allow_code=allow_code, mode=mode)


def _load(layout: Layout, problems: Problems, *, allow_code: bool, mode: Mode | None) -> Config:
    """From where things stand to a Config, or to one error with every mistake."""
    document = problems.document
    if not layout.data:
        problems.error((), "nothing to train on: neither a training nor an evaluation data section is there")
    for path, known in layout.near_misses.items():
        _notice_near_misses(problems, path, known)
    _notice_unread(layout, problems)
    requests = {side: _read_request(problems, path) for side, path in layout.micro.items()}
    side = _choose_side(requests, mode, problems)
    request = requests.get(side, Request(kind=RequestKind.AUTO))
    settings = read_settings(
        document.values.get("explore"),
        problems,
        allow_code=allow_code,
        effort="quick" if request.kind is RequestKind.AUTO else "normal",
    )
    num_replicas = _positive(problems, layout.num_csx, default=1) or 1
    batch_path: KeyPath = (*layout.data.get(side, ()), "batch_size")
    global_batch_size = _positive(problems, batch_path)
    _check_accumulation_flag(problems, request, global_batch_size, num_replicas)
    request = _check_batch(problems, request, batch_path, global_batch_size, num_replicas, settings)
    _check_bounds(problems, request, settings)
    job = _job(layout, problems, side, settings, num_replicas)
    problems.raise_if_any()
    model_dir = document.get(layout.model_dir)
    return Config(
        path=document.path,
        layout=layout.name,
        mode=side,
        request=request,
        batch_size=global_batch_size,
        num_replicas=num_replicas,
        model_dir=model_dir if isinstance(model_dir, str) and model_dir.strip() else "model_dir",
        job=job,
        explore=settings,
        warnings=tuple(problems.warnings),
    )


def _job(layout: Layout, problems: Problems, side: Mode, settings: ExploreSettings, num_replicas: int) -> Job:
    """One replica's program, from the model section or from `explore.workload`."""
    document = problems.document
    model, data = document.get(layout.model), document.get(layout.data.get(side, ()))
    precision = _precision(layout, problems)
    if settings.precision is not None:
        precision = Precision(settings.precision)
    optimizer = cerebras_model.read_optimizer(problems, layout.optimizer, layout.precision)
    common: dict[str, Any] = {
        "mode": side,
        "precision": precision,
        "device": settings.device,
        "num_replicas": num_replicas,
        "seed": settings.seed,
        "import_root": str(document.path.resolve().parent),
    } | optimizer
    if settings.workload is not None:
        return workload_job(settings, common)
    if not isinstance(model, dict):
        if not isinstance(problems.document.get(("explore", "workload")), dict):  # else: its own mistakes are listed
            problems.error(
                (), "no model section says what is trained", "write a model section, or explore.workload; see configs/"
            )
        return Job(workload="decoder")
    data_path = layout.data.get(side, ())
    built = cerebras_model.read_decoder(problems, layout.model, data_path, data if isinstance(data, dict) else {})
    return workload_job(settings, common, decoder=built)


def _precision(layout: Layout, problems: Problems) -> Precision:
    """Number formats by the precision section, else by the model section; float32 where neither speaks."""
    get = problems.document.get
    section = get(layout.precision) if layout.precision is not None else None
    if isinstance(section, dict):
        section = section.get("MixedPrecision", section)
        path: KeyPath = (*(layout.precision or ()), "fp16_type")
        enabled, half = section.get("enabled", True), section.get("fp16_type", "bfloat16")
    else:
        path = (*layout.model, "fp16_type")
        enabled = get((*layout.model, "mixed_precision"), False)
        half = get(path, "bfloat16" if get((*layout.model, "use_bfloat16")) is True else "float16")
    if cerebras_model.as_flag(enabled) is not True:
        return Precision.FLOAT32
    if half == "float16":
        return Precision.AUTOCAST_FLOAT16
    if half == "cbfloat16":
        problems.warn(path, "cbfloat16 exists on one maker's hardware only; explored as bfloat16 under autocast")
    elif half != "bfloat16":
        problems.error(path, f"fp16_type must be float16, bfloat16 or cbfloat16, not {quoted(half)}")
    return Precision.AUTOCAST_BFLOAT16


def _read_request(problems: Problems, path: KeyPath) -> Request:
    """Every form of `micro_batch_size`; an absent one is `auto`, the family's own default."""
    document = problems.document
    position = document.positions.get(path)
    if not document.has(path):
        return Request(kind=RequestKind.AUTO, path=path)
    value = document.get(path)
    if value is None or (isinstance(value, str) and value in _NO_MICRO_BATCHING):
        return Request(kind=RequestKind.NONE, path=path, position=position)
    if value in ("explore", "auto"):
        return Request(kind=RequestKind(value), path=path, position=position)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SAMPLES:
        return Request(kind=RequestKind.FIXED, value=value, path=path, position=position)
    if isinstance(value, dict) and set(value) == {"explore"}:
        minimum, maximum = _read_bounds(problems, (*path, "explore"))
        return Request(kind=RequestKind.EXPLORE, minimum=minimum, maximum=maximum, path=path, position=position)
    problems.error(path, f"micro_batch_size must be {_FORMS}, not {quoted(value)}", _form_hint(value))
    return Request(kind=RequestKind.EXPLORE, path=path, position=position)


def _form_hint(value: Any) -> str:
    """What was probably meant by a micro_batch_size that is none of the forms."""
    if isinstance(value, str):
        if value.strip().isdecimal() and int(value) > 0:
            return f"type {int(value)} without quotes"
        near = close_match(value.strip().lower(), ["explore", "auto", "none", "disable"])
        return f"did you mean {near}?" if near else "type explore"
    if isinstance(value, float) and value.is_integer() and 1 <= value <= MAX_SAMPLES:
        return f"type {int(value)}"
    if isinstance(value, dict):
        return "type {explore: {min: 1, max: 64}}; either bound may be left out"
    return "type explore, or 1 or more"


def _read_bounds(problems: Problems, path: KeyPath) -> tuple[int | None, int | None]:
    """`{min: N, max: M}`, either of which may be missing."""
    bounds = problems.document.get(path)
    if bounds is None:
        return None, None
    if not isinstance(bounds, dict):
        problems.error(path, f"explore must be {{min: N, max: M}}, not {quoted(bounds)}")
        return None, None
    for key in bounds:
        if key not in ("min", "max"):
            near = close_match(key, ["min", "max"], cutoff=0.4)
            hint = f'did you mean "{near}"?' if near else "known here: min, max"
            problems.error((*path, key), f"unknown key {quoted(key)} under explore", hint)
    minimum, maximum = _positive(problems, (*path, "min")), _positive(problems, (*path, "max"))
    if minimum is not None and maximum is not None and minimum > maximum:
        problems.error((*path, "min"), f"min {minimum} is above max {maximum}", f"type min: {maximum} or less")
    return minimum, maximum


def _choose_side(requests: Mapping[Mode, Request], mode: Mode | None, problems: Problems) -> Mode:
    """The side that is explored: the one asked for by name, else the one whose request is the strongest."""
    if mode is not None:
        if mode not in requests and requests:
            problems.error((), f"there is no {mode} data section to explore", f"use {next(iter(requests))}")
        return mode
    if not requests:
        return Mode.TRAIN
    searches = [side for side, request in requests.items() if request.kind is RequestKind.EXPLORE]
    if len(searches) > 1:
        problems.warn(requests[Mode.EVAL].path, "training and evaluation both ask for explore; training is explored")
    searches += [side for side, r in requests.items() if r.kind is RequestKind.AUTO and r.position is not None]
    return next(iter(searches or requests))


def _check_accumulation_flag(
    problems: Problems, request: Request, global_batch_size: int | None, num_replicas: int
) -> None:
    """`use_cs_grad_accum` is accepted where it agrees with the request, and refused where it contradicts it."""
    path = ("runconfig", "use_cs_grad_accum")
    written = problems.document.get(path)
    if written is None:
        return
    flag = cerebras_model.as_flag(written)
    if flag is None:
        problems.error(path, f"use_cs_grad_accum must be true or false, not {quoted(written)}")
    elif flag and request.kind is RequestKind.NONE and request.position is not None:
        problems.error(path, "use_cs_grad_accum is true, but micro_batch_size asks for no accumulation", "remove one")
    elif not flag and request.kind is RequestKind.AUTO and request.position is not None:
        problems.error(
            path, "use_cs_grad_accum is false, but micro_batch_size: auto splits the batch", "remove use_cs_grad_accum"
        )
    elif not flag and request.kind is RequestKind.EXPLORE:
        problems.warn(path, "use_cs_grad_accum is false: set it to true, or remove it, to accumulate with the result")
    elif not flag and request.value is not None and global_batch_size not in (None, request.value * num_replicas):
        problems.error(
            path,
            f"use_cs_grad_accum is false, but micro_batch_size {request.value} on {num_replicas} replicas needs "
            f"accumulation to reach batch_size {global_batch_size}",
            "remove use_cs_grad_accum, or micro_batch_size",
        )


def _check_batch(
    problems: Problems,
    request: Request,
    path: KeyPath,
    global_batch_size: int | None,
    num_replicas: int,
    settings: ExploreSettings,
) -> Request:
    """The batch arithmetic; for `explore` the batch is only a starting point, so there it is a warning."""
    rule = batching.Divisibility(settings.divisibility)
    if global_batch_size is None:
        is_auto = request.kind is RequestKind.AUTO
        if is_auto and not problems.document.has(path):
            what = (
                "micro_batch_size: auto"
                if request.position is not None
                else "an absent micro_batch_size means auto, which"
            )
            problems.error(path, f"{what} needs batch_size, whose divisors it tries", "type micro_batch_size: explore")
        return request
    try:
        if request.value is None:
            batching.replica_batch_size_of(global_batch_size, num_replicas, rule)
            return request
        split = batching.split(global_batch_size, num_replicas, request.value, rule)
    except UserInputError as error:
        if request.kind is RequestKind.EXPLORE:
            problems.warn(path, f"{error.message}; it does not matter for the search, only afterwards")
        else:
            problems.error(path if request.value is None else request.path, error.message, error.hint)
        return request
    if split.micro_batch_size != request.value:
        problems.warn(
            request.path,
            f"micro_batch_size {request.value} does not cut {split.replica_batch_size} samples evenly; "
            f"{split.micro_batch_size} does, in {split.accumulation_steps} micro-batches",
        )
    return request


def _check_bounds(problems: Problems, request: Request, settings: ExploreSettings) -> None:
    """The bounds of the request and those of `explore:` must leave something."""
    if not request.is_search:
        return
    low = max(request.minimum or 1, settings.min or 1)
    high = min(request.maximum or MAX_SAMPLES, settings.max or MAX_SAMPLES)
    own_order = (request.minimum or 1) <= (request.maximum or MAX_SAMPLES)
    if low > high and own_order:
        problems.error(
            request.path, f"micro_batch_size and explore.min, explore.max leave nothing: from {low} to {high}"
        )


def _positive(problems: Problems, path: KeyPath, default: int | None = None) -> int | None:
    """A positive integer; the default where the key is absent or null, and where it is wrong, which is noted."""
    value = problems.document.get(path)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SAMPLES:
        return value
    hint = "type 1 or more"
    if isinstance(value, int) and not isinstance(value, bool) and value > MAX_SAMPLES:
        hint = f"no sensible value is above {MAX_SAMPLES}"
    problems.error(path, f"{path[-1]} must be a positive integer, not {quoted(value)}", hint)
    return default


def _require_mapping(problems: Problems, path: KeyPath) -> None:
    """A section that is there must be a mapping."""
    value = problems.document.get(path, {})
    if not isinstance(value, dict) and not (value is None and path[-1] not in SECTIONS):
        problems.error(path, f"{path[-1]} must be a mapping, not {kind_of(value)}")


def _dataloaders(problems: Problems, root: KeyPath) -> dict[Mode, KeyPath]:
    """Where the trainer layout keeps the data of each side."""
    document = problems.document
    places: dict[Mode, tuple[KeyPath, ...]] = {
        Mode.TRAIN: (("fit", "train_dataloader"),),
        Mode.EVAL: (("validate", "val_dataloader"), ("fit", "val_dataloader"), ("validate_all", "val_dataloaders")),
    }
    found: dict[Mode, KeyPath] = {}
    for side, tails in places.items():
        for tail in tails:
            path: KeyPath = (*root, *tail)
            if isinstance(document.get(path), list):
                path = (*path, 0)
            if isinstance(document.get(path), dict):
                found[side] = path
                break
    return found


def _flag_path(problems: Problems, callbacks: KeyPath, side: Mode, data: KeyPath) -> KeyPath:
    """Where the trainer layout keeps `micro_batch_size` of a side; where it would stand if it is absent."""
    document = problems.document
    listed = document.get(callbacks)
    if listed is not None and not isinstance(listed, list):
        problems.error(callbacks, f"callbacks must be a list, not {kind_of(listed)}")
        listed = []
    for scope in _SCOPES[side]:
        for index in range(len(listed or [])):
            path: KeyPath = (*callbacks, index, scope, FLAG)
            if document.has(path):
                return path
    beside: KeyPath = (*data, "micro_batch_size")
    if document.has(beside):
        problems.warn(
            beside, f"in this layout micro_batch_size is the flag {FLAG} of {_SCOPES[side][0]}; read all the same"
        )
        return beside
    return (*callbacks, len(listed or []), _SCOPES[side][0], FLAG)


def _callback_near_misses(listed: Any, callbacks: KeyPath) -> dict[KeyPath, tuple[str, ...]]:
    """Which slips to look for in the callbacks and in their flags."""
    scopes = tuple(dict.fromkeys(scope for names in _SCOPES.values() for scope in names))
    wanted: dict[KeyPath, tuple[str, ...]] = {}
    for index, callback in enumerate(listed if isinstance(listed, list) else []):
        wanted[(*callbacks, index)] = scopes
        for name in callback if isinstance(callback, dict) else []:
            if name in scopes:
                wanted[(*callbacks, index, name)] = (FLAG,)
    return wanted


def _notice_near_misses(problems: Problems, path: KeyPath, known: tuple[str, ...]) -> None:
    """Warn of keys that nobody reads and that look like a slip of one that is read."""
    section = problems.document.get(path)
    if not isinstance(section, dict):
        return
    for key in section:
        near = close_match(key, known, cutoff=_NEAR_MISS)
        if key not in known and near is not None and near not in section:
            problems.warn((*path, key), f"{quoted(key)} is not read; did you mean {quoted(near)}?")


def _notice_unread(layout: Layout, problems: Problems) -> None:
    """Warn of a `micro_batch_size` that stands where nobody reads it."""
    read = set(layout.micro.values())
    validation = {"val_dataloader", "val_dataloaders"}
    for path in list(problems.document.positions):
        if path[-1] in ("micro_batch_size", FLAG) and path not in read and problems.document.has(path):
            if path[0] == "explore" or validation.intersection(map(str, path)) or "GlobalFlags" in path:
                continue
            problems.warn(
                path,
                f"{quoted(path[-1])} is not read here; it belongs at {_dotted(next(iter(read), ('train_input',)))}",
            )


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)
