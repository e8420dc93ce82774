"""Both forms of the `optimizer` section, as a class of `torch.optim` and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.dialects.cerebras.layout import Layout
from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, quote, show
from bexplore.config.sections.values import as_number, is_number
from bexplore.errors import close_match

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


def read_max_gradient_norm(problems: Problems, layout: Layout) -> dict[str, Any]:
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
