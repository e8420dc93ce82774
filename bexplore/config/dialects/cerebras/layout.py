"""Where each of the two layouts keeps its keys; `micro_batch_size` in every form, and the batch that must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.config import MICRO_BATCH_TOKENS, RequestKind, SizeRequest
from bexplore.config.document import Problems, as_flag, dotted_path, is_integer, read_bounds, require_mapping
from bexplore.config.document.reader import KeyPath, name_kind, quote
from bexplore.config.schema import ExploreSettings
from bexplore.errors import UserInputError, close_match
from bexplore.job import Mode, batching
from bexplore.job.batching import MAX_SAMPLES

FLAG = "csx.performance.micro_batch_size"
_SCOPES = {Mode.TRAIN: ("ScopedTrainFlags", "GlobalFlags"), Mode.EVAL: ("ScopedValidateFlags", "GlobalFlags")}
_DATALOADERS: Mapping[Mode, tuple[KeyPath, ...]] = {
    Mode.TRAIN: (("fit", "train_dataloader"),),
    Mode.EVAL: (("validate", "val_dataloader"), ("fit", "val_dataloader"), ("validate_all", "val_dataloaders")),
}
_DATA_KEYS = ("micro_batch_size", "micro_batch_tokens", "batch_size", "max_sequence_length")
STEP_KEYS = ("num_steps", "max_steps", "num_epochs", "steps_per_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """Paths of the keys that are read, most of which may be absent; `micro` and `data` for each side in the file."""

    name: str
    micro: Mapping[Mode, KeyPath]
    data: Mapping[Mode, KeyPath]
    model: KeyPath
    optimizer: KeyPath
    precision: KeyPath
    num_csx: KeyPath  # the replicas
    model_dir: KeyPath  # the folder of results
    loop: KeyPath  # the section with the number of training steps
    unbuilt: tuple[KeyPath, ...]  # sections that change the program and are not built in
    near_misses: Mapping[KeyPath, tuple[str, ...]]  # sections, each with the keys whose misspellings are reported


def sections_layout(problems: Problems) -> FileLayout:
    """Return the layout with `train_input`, `eval_input`, `model`, `optimizer` and `runconfig`."""
    names = {Mode.TRAIN: "train_input", Mode.EVAL: "eval_input"}
    for name in (*names.values(), "model", "optimizer", "runconfig"):
        require_mapping(problems, (name,))
    data = {side: (name,) for side, name in names.items() if isinstance(problems.document.get((name,)), dict)}
    if not data and not problems.found:
        problems.error((), "train_input and eval_input are both empty", "write batch_size and micro_batch_size there")
    return FileLayout(
        name="cerebras sections",
        micro={side: (*path, _size_key(problems, path)) for side, path in data.items()},
        data=data,
        model=("model",),
        optimizer=("optimizer",),
        precision=("precision",),
        num_csx=("runconfig", "num_csx"),
        model_dir=("runconfig", "model_dir"),
        loop=("runconfig",),
        unbuilt=(("sparsity",), ("model", "sparsity"), ("optimizer", "sparsity")),
        near_misses={
            **{path: _DATA_KEYS for path in data.values()},
            ("runconfig",): ("num_csx", "use_cs_grad_accum", "model_dir", *STEP_KEYS[:2]),
            ("optimizer",): ("optimizer_type", "max_gradient_norm"),
        },
    )


def trainer_layout(problems: Problems) -> FileLayout:
    """Return the layout with one `trainer` section; of a list of trainers, the first."""
    root = _first_trainer(problems)
    init: KeyPath = (*root, "init")
    backend: KeyPath = (*init, "backend")
    sections = [(*init, name) for name in ("model", "optimizer", "precision", "backend")]
    for path in (root, init, *sections, (*backend, "cluster_config"), (*root, "fit"), (*root, "validate")):
        require_mapping(problems, path)
    found = {side: _dataloader(problems, root, side) for side in Mode}
    data = {side: path for side, path in found.items() if path is not None}
    if not data and not problems.found:
        problems.error(root, "the trainer has neither fit.train_dataloader nor validate.val_dataloader")
    callbacks: KeyPath = (*init, "callbacks")
    listed = problems.document.get(callbacks)
    if listed is not None and not isinstance(listed, list):
        problems.error(callbacks, f"callbacks must be a list, not {name_kind(listed)}")
    return FileLayout(
        name="cerebras trainer",
        micro={side: _flag_path(problems, callbacks, side, path) for side, path in data.items()},
        data=data,
        model=(*init, "model"),
        optimizer=(*init, "optimizer"),
        precision=(*init, "precision"),
        num_csx=(*backend, "cluster_config", "num_csx"),
        model_dir=(*init, "model_dir"),
        loop=(*init, "loop"),
        unbuilt=tuple((*section, "sparsity") for section in (root, init, (*init, "model"), (*init, "optimizer"))),
        near_misses={
            **{path: _DATA_KEYS for path in data.values()},
            init: ("model", "optimizer", "precision", "backend", "callbacks", "model_dir"),
            backend: ("cluster_config",),
            (*init, "loop"): STEP_KEYS[:2],
            (*backend, "cluster_config"): ("num_csx",),
            (*init, "precision"): ("enabled", "fp16_type", "max_gradient_norm"),
            **_callback_near_misses(listed, callbacks),
        },
    )


def _first_trainer(problems: Problems) -> KeyPath:
    document = problems.document
    trainers = document.values["trainer"]
    if not isinstance(trainers, list):
        return ("trainer",)
    if len(trainers) > 1:
        problems.warn(("trainer", 1), f"the file has {len(trainers)} trainers; the first is explored")
    return ("trainer", 0, "trainer") if document.has(("trainer", 0, "trainer")) else ("trainer", 0)


def _dataloader(problems: Problems, root: KeyPath, side: Mode) -> KeyPath | None:
    for tail in _DATALOADERS[side]:
        path: KeyPath = (*root, *tail)
        if isinstance(problems.document.get(path), list):
            path = (*path, 0)
        if isinstance(problems.document.get(path), dict):
            return path
    return None


def _flag_path(problems: Problems, callbacks: KeyPath, side: Mode, data: KeyPath) -> KeyPath:
    """Return where `micro_batch_size` of a side stands, or would stand if it is absent."""
    document = problems.document
    listed = document.get(callbacks)
    count = len(listed) if isinstance(listed, list) else 0
    for scope in _SCOPES[side]:
        for index in range(count):
            path: KeyPath = (*callbacks, index, scope, FLAG)
            if document.has(path):
                return path
            unindented: KeyPath = (*callbacks, index, FLAG)  # as one page of the documentation has it
            if document.has(unindented) and document.has((*callbacks, index, scope)):
                problems.warn(unindented, f"{FLAG} should be indented below {scope}; read all the same")
                return unindented
    if _size_key(problems, data) == MICRO_BATCH_TOKENS:
        return (*data, MICRO_BATCH_TOKENS)
    beside: KeyPath = (*data, "micro_batch_size")
    if document.has(beside):
        where = _SCOPES[side][0]
        problems.warn(beside, f"in this layout micro_batch_size is the flag {FLAG} of {where}; read all the same")
        return beside
    scope = _SCOPES[side][0]
    present = (index for index in range(count) if document.has((*callbacks, index, scope)))  # with other flags, or none
    return (*callbacks, next(present, count), scope, FLAG)


def _size_key(problems: Problems, data: KeyPath) -> str:
    document = problems.document
    sizes: KeyPath = (*data, "micro_batch_size")
    tokens: KeyPath = (*data, MICRO_BATCH_TOKENS)
    if document.has(tokens) and document.has(sizes):
        problems.error(tokens, "micro_batch_tokens and micro_batch_size exclude each other", "keep one of them")
    return MICRO_BATCH_TOKENS if document.has(tokens) else "micro_batch_size"


def _callback_near_misses(listed: Any, callbacks: KeyPath) -> dict[KeyPath, tuple[str, ...]]:
    scopes = tuple(dict.fromkeys(scope for names in _SCOPES.values() for scope in names))
    checked: dict[KeyPath, tuple[str, ...]] = {}
    for index, callback in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(callback, dict):
            continue
        if len(callback) == 1 and not set(callback).intersection(scopes):
            checked[(*callbacks, index)] = scopes
        checked |= {(*callbacks, index, name): (FLAG,) for name in callback if name in scopes}
    return checked


_NO_MICRO_BATCHING = ("none", "None", "disable")  # the documentation writes the first two, which are texts in YAML
_FORMS = "a positive integer, explore, auto, {explore: {min: N, max: M}} or null"


def read_request(problems: Problems, path: KeyPath) -> SizeRequest:
    """Read every form of `micro_batch_size`; an absent one is `auto`, the family's own default."""
    document = problems.document
    position = document.position(path) if document.has(path) else None
    if position is None:
        return SizeRequest(kind=RequestKind.AUTO, path=path)
    value = document.get(path)
    if value is None or (isinstance(value, str) and value in _NO_MICRO_BATCHING):
        return SizeRequest(kind=RequestKind.NONE, path=path, position=position)
    if isinstance(value, str) and value in ("explore", "auto"):
        return SizeRequest(kind=RequestKind(value), path=path, position=position)
    if is_integer(value) and 1 <= value <= MAX_SAMPLES:
        return SizeRequest(kind=RequestKind.FIXED, value=value, path=path, position=position)
    minimum, maximum = None, None
    if isinstance(value, dict) and set(value) == {"explore"}:
        minimum, maximum = read_bounds(problems, (*path, "explore"))
    else:
        problems.error(path, f"{path[-1]} must be {_FORMS}, not {quote(value)}", _form_hint(value))
    return SizeRequest(kind=RequestKind.EXPLORE, minimum=minimum, maximum=maximum, path=path, position=position)


def _form_hint(value: Any) -> str:
    if isinstance(value, str):
        bare = value.strip()
        if bare.isdecimal() and len(bare) < 10 and int(bare) > 0:
            return f"type {int(bare)} without quotes"
        near = close_match(bare.lower(), ["explore", "auto", "none", "disable"])
        return f"did you mean {near}?" if near else "type explore"
    if isinstance(value, float) and value.is_integer() and 1 <= value <= MAX_SAMPLES:
        return f"type {int(value)}"
    if isinstance(value, dict):
        return "type {explore: {min: 1, max: 64}}; either bound may be left out"
    if is_integer(value) and value > MAX_SAMPLES:
        return f"no sensible value is above {MAX_SAMPLES}; type explore"
    return "type explore, or a number from 1 up"


def choose_side(problems: Problems, requests: Mapping[Mode, SizeRequest], mode: Mode | None) -> Mode:
    """Choose the side to explore: the named one, else the one whose request is the strongest."""
    if mode is not None:
        if mode not in requests:
            other = f"leave the mode out to use {next(iter(requests))}" if requests else ""
            problems.error((), f"the file has no data section for {mode}", other)
        return mode
    explored = [side for side, request in requests.items() if request.kind is RequestKind.EXPLORE]
    if len(explored) > 1:
        problems.warn(requests[Mode.EVAL].path, "both training and evaluation have explore; training is explored")
    automatic = [side for side, request in requests.items() if request.kind is RequestKind.AUTO and request.position]
    return next(iter([*explored, *automatic, *requests]), Mode.TRAIN)


def check_accumulation_flag(
    problems: Problems, request: SizeRequest, global_batch_size: int | None, num_replicas: int
) -> None:
    """Accept `use_cs_grad_accum` where it agrees with the request, and note it where it contradicts it."""
    path = ("runconfig", "use_cs_grad_accum")
    written = problems.document.get(path)
    flag = as_flag(written)
    if written is None or request.position is None:
        return
    if flag is None:
        problems.error(path, f"use_cs_grad_accum must be true or false, not {quote(written)}")
    elif not flag and request.kind is RequestKind.EXPLORE:
        problems.warn(path, "use_cs_grad_accum is false: set it to true, or remove it, to accumulate with the result")
    elif flag and request.kind is RequestKind.NONE:
        problems.error(
            path, "use_cs_grad_accum is true, but micro_batch_size means no accumulation", "remove one of the two"
        )
    elif not flag and request.kind is RequestKind.AUTO:
        but = "micro_batch_size: auto splits the batch"
        problems.error(path, f"use_cs_grad_accum is false, but {but}", "remove use_cs_grad_accum")
    elif not flag and request.value is not None and global_batch_size not in (None, request.value * num_replicas):
        but = f"{num_replicas} x micro_batch_size {request.value} makes batch_size {global_batch_size} only with"
        problems.error(path, f"use_cs_grad_accum is false, but {but} accumulation", "remove use_cs_grad_accum")


def check_batch(
    problems: Problems,
    request: SizeRequest,
    path: KeyPath,
    global_batch_size: int | None,
    num_replicas: int,
    settings: ExploreSettings,
) -> None:
    """Check the batch arithmetic; for `explore`, which may choose another batch, a mistake is a warning."""
    if global_batch_size is None:
        if problems.document.get(path) is None:
            _check_missing_batch(problems, request, path, settings)
        return
    rule = batching.Divisibility(settings.divisibility)
    try:
        if request.value is None:
            batching.divide_among_replicas(global_batch_size, num_replicas, rule)
            return
        split = batching.split(global_batch_size, num_replicas, request.value, rule)
    except UserInputError as error:
        needs_share = settings.keep_batch_size or settings.candidates in ("divisors", "even")
        if request.kind is RequestKind.EXPLORE and not needs_share:
            problems.warn(path, f"{error.message}; it does not matter for the search, only for the training afterwards")
        else:
            problems.error(path if request.value is None else request.path, error.message, error.hint)
        return
    if split.micro_batch_size != request.value:
        problems.warn(
            request.path,
            f"micro_batch_size {request.value} does not cut {split.replica_batch_size} samples evenly; "
            f"{split.micro_batch_size} does, in {split.accumulation_steps} micro-batches",
        )


def check_tokens(problems: Problems, request: SizeRequest, batch_path: KeyPath, settings: ExploreSettings) -> None:
    """Check what goes with `micro_batch_tokens`: the lengths of samples, and no number of samples in a batch."""
    if settings.lengths is None:
        problems.error(
            request.path,
            "micro_batch_tokens needs the lengths of samples",
            "give them: explore.lengths",
        )
    options = settings.lengths
    padding = options.padding if options is not None and "padding" in options.model_fields_set else None
    if padding not in (None, "sorted", "packed"):
        problems.error(
            ("explore", "lengths", "padding"),
            f"batches of a number of tokens are of samples sorted by length, and padding is {padding}",
            "type sorted or packed, or leave it out",
        )
    if request.kind is RequestKind.AUTO:
        problems.error(request.path, "auto tries divisors of a batch of samples, not of tokens", "type explore")
    if problems.document.get(batch_path) is not None:
        problems.warn(
            batch_path, "batch_size counts samples, and a micro-batch of a number of tokens has no fixed number of them"
        )


def _check_missing_batch(problems: Problems, request: SizeRequest, path: KeyPath, settings: ExploreSettings) -> None:
    explores = request.kind is RequestKind.EXPLORE
    if request.kind is RequestKind.AUTO:
        what = "auto needs" if request.position is not None else "an absent micro_batch_size means auto, which needs"
        rule = f"micro_batch_size: {what} batch_size, whose divisors it tries"
    elif explores and settings.keep_batch_size:
        rule = "explore.keep_batch_size needs batch_size, which is to be kept"
    elif explores and settings.candidates in ("divisors", "even"):
        rule = f"explore.candidates: {settings.candidates} needs batch_size, which is cut"
    else:
        return
    problems.error(path, rule, "type batch_size: 64, for example")


def check_bounds(problems: Problems, request: SizeRequest, settings: ExploreSettings) -> None:
    """Check that the bounds of the request and those of `explore:` overlap."""
    low = max(request.minimum or 1, settings.min or 1)
    high = min(request.maximum or MAX_SAMPLES, settings.max or MAX_SAMPLES)
    if request.is_search and low > high:
        problems.error(
            request.path, f"with explore.min and explore.max nothing is left to try: from {low} to {high}", "widen one"
        )


def notice_unread(problems: Problems, layout: FileLayout) -> None:
    """Warn of a `micro_batch_size` in a place where it is not read."""
    read = set(layout.micro.values())
    for path in list(problems.document.positions):
        is_named = path[-1] in ("micro_batch_size", FLAG) and path not in read and problems.document.has(path)
        is_expected = (
            path[0] == "explore" or "GlobalFlags" in path or any(str(part).startswith("val_") for part in path)
        )
        if is_named and not is_expected:
            place = dotted_path(next(iter(read), ("train_input", "micro_batch_size")))
            problems.warn(path, f"{quote(path[-1])} is not read here, but at {place}")


def notice_unbuilt(problems: Problems, layout: FileLayout) -> None:
    """Warn of sections that would change the program and are not built in."""
    for path in layout.unbuilt:
        if problems.document.get(path):
            problems.warn(path, f"{path[-1]} is not built in: the dense program is measured")
