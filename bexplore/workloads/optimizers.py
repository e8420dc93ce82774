"""Make any `torch.optim` class by its name, with its arguments checked."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from bexplore.errors import UserInputError, check_keys, require, suggestion
from bexplore.workloads.placement import whole

_REFUSED = {
    "LBFGS": "it evaluates the loss several times within one update, so a pass and an update cannot be told apart",
    "SparseAdam": "it takes sparse gradients only, and accumulated gradients are dense",
}


def build_optimizer(
    name: str, arguments: Mapping[str, Any], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Make the optimizer of the parameters that require gradients.

    Args:
        name: Name of a class of `torch.optim`, such as `AdamW`.
        arguments: Its keyword arguments; `fused`, `foreach` and `capturable` are left to the user.
        parameters: All parameters of the model; frozen ones are left out.
    """
    optimizer_class = _find_class(name)
    _check_argument_names(optimizer_class, arguments)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    require(
        bool(trainable),
        "The model has no parameter that requires a gradient, so there is nothing to train.",
        "Leave some parameters unfrozen, or explore evaluation instead of training.",
    )
    try:
        return optimizer_class(_group_parameters(trainable), **arguments)
    except (TypeError, ValueError, RuntimeError) as error:  # how torch.optim refuses a value
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UserInputError(
            f"torch.optim.{name}({given}) was refused: {error}", hint="Correct the optimizer's arguments."
        ) from error


def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    """Scale all gradients of an optimizer so that their global norm is at most a bound."""
    groups = [[one for one in group["params"] if one.grad is not None] for group in optimizer.param_groups]
    if len(groups) == 1:
        torch.nn.utils.clip_grad_norm_(groups[0], max_norm)
        return
    norms = [whole(torch.nn.utils.get_total_norm([one.grad for one in group])) for group in groups if group]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, total)


def _group_parameters(parameters: list[nn.Parameter]) -> Any:
    """Return the parameters, in groups where ranks share only some of them: no kernel takes both kinds at once."""
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return parameters if len(kinds) < 2 else [{"params": group} for group in kinds.values()]


def list_optimizer_names() -> list[str]:
    """Return names of the optimizers that can be used, sorted."""
    return sorted(
        name
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
        and name not in _REFUSED
    )


def name_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
    """Return the import names of the classes of optimizers, each once."""
    return list(dict.fromkeys(map(_name, optimizers)))


def find_unfused(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Return the optimizers that torch has a fused kernel for, and that were made without it."""
    return [optimizer for optimizer in optimizers if optimizer.defaults.get("fused", True) in (None, False)]


def _name(optimizer: torch.optim.Optimizer) -> str:
    kind = type(optimizer)
    is_torchs = getattr(torch.optim, kind.__name__, None) is kind
    return f"torch.optim.{kind.__name__}" if is_torchs else f"{kind.__module__}.{kind.__qualname__}"


def _find_class(name: str) -> type[torch.optim.Optimizer]:
    require(
        name not in _REFUSED,
        f"The optimizer {name} cannot be explored: {_REFUSED.get(name)}.",
        "Choose another, such as AdamW, or bring a whole step of your own.",
    )
    known = list_optimizer_names()
    require(name in known, f"torch.optim has no optimizer named {name!r}.", suggestion(name, known))
    return getattr(torch.optim, name)


def _check_argument_names(optimizer_class: type[torch.optim.Optimizer], arguments: Mapping[str, Any]) -> None:
    accepted = list(inspect.signature(optimizer_class).parameters)[1:]  # the first is the parameters themselves
    check_keys(arguments, accepted, f"torch.optim.{optimizer_class.__name__}")
