"""Paths of the keys that are read, in each of the two layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.config import MICRO_BATCH_TOKENS
from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, name_kind
from bexplore.config.sections.values import require_mapping
from bexplore.job import Mode

FLAG = "csx.performance.micro_batch_size"
_SCOPES = {Mode.TRAIN: ("ScopedTrainFlags", "GlobalFlags"), Mode.EVAL: ("ScopedValidateFlags", "GlobalFlags")}
_DATALOADERS: Mapping[Mode, tuple[KeyPath, ...]] = {
    Mode.TRAIN: (("fit", "train_dataloader"),),
    Mode.EVAL: (("validate", "val_dataloader"), ("fit", "val_dataloader"), ("validate_all", "val_dataloaders")),
}
_DATA_KEYS = ("micro_batch_size", "micro_batch_tokens", "batch_size", "max_sequence_length")
STEP_KEYS = ("num_steps", "max_steps", "num_epochs", "steps_per_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths of the keys that are read, most of which may be absent.

    Attributes:
        name: Name for people.
        micro: Path of `micro_batch_size`, for each side in the file.
        data: Path of the data section, for each side in the file.
        model: Path of the model section.
        optimizer: Path of the optimizer section.
        precision: Path of the precision section.
        num_csx: Path of the number of replicas.
        model_dir: Path of the folder of results.
        loop: Path of the section with the number of training steps.
        unbuilt: Paths of sections that change the program and are not built in.
        near_misses: Paths of sections, each with the keys whose misspellings are reported.
    """

    name: str
    micro: Mapping[Mode, KeyPath]
    data: Mapping[Mode, KeyPath]
    model: KeyPath
    optimizer: KeyPath
    precision: KeyPath
    num_csx: KeyPath
    model_dir: KeyPath
    loop: KeyPath
    unbuilt: tuple[KeyPath, ...]
    near_misses: Mapping[KeyPath, tuple[str, ...]]


def sections_layout(problems: Problems) -> Layout:
    """Return the layout with `train_input`, `eval_input`, `model`, `optimizer` and `runconfig`."""
    names = {Mode.TRAIN: "train_input", Mode.EVAL: "eval_input"}
    for name in (*names.values(), "model", "optimizer", "runconfig"):
        require_mapping(problems, (name,))
    data = {side: (name,) for side, name in names.items() if isinstance(problems.document.get((name,)), dict)}
    if not data and not problems.found:
        problems.error((), "train_input and eval_input are both empty", "write batch_size and micro_batch_size there")
    return Layout(
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


def trainer_layout(problems: Problems) -> Layout:
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
    return Layout(
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
    """Return the key of the size in a data section: samples, or tokens where these stand there alone."""
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
