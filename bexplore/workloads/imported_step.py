"""Whole training steps of the user's own: several losses, frozen parts, clipping, several optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from bexplore.config.training_step import MODULES, methods
from bexplore.errors import UserInputError, check_keys, require
from bexplore.job import Job, Mode, Precision
from bexplore.workloads.import_path import UserCallable, check_call, check_calls, load_callables
from bexplore.workloads.placement import creation_device, place
from bexplore.workloads.user_batch import UserBatches
from bexplore.workloads.workload import Batch, Workload

_PATHS = ("batch", "loader", "samples_of")


def build_step(job: Job) -> Workload:
    """Build `{"step", "batch", "loader", "samples_of", "arguments"}` of `job.model`.

    `step` is a path that returns a `TrainingStep`. `batch`, optional, is a path that makes the batches instead of the
    step's own `make_batch`; `loader` and `samples_of` are as in `build_imported`. Each callable gets those of
    `arguments` that its signature names. The step itself has precision, optimizers and clipping.

    Raises:
        UserInputError: The path, or its object, cannot be used; or the job sets precision or clipping.
    """
    check_keys(job.model, ("step", *_PATHS, "arguments"), "An imported step")
    _check_step_settings(job)
    paths = {name: job.model[name] for name in ("step", *_PATHS) if job.model.get(name) is not None}
    callables = load_callables(paths, job.model.get("arguments") or {}, import_root=job.import_root)
    check_call(callables["step"], setting="step")
    device = torch.device(job.device)
    with creation_device(device):
        step = callables["step"]()
    _check_members(step, job)
    modules = _listed(step.modules, nn.Module, "modules")
    for module in modules:
        place(module, device)
    check_calls(callables)
    function = callables.get("batch") or step.make_batch
    batches = UserBatches.of(function, callables.get("samples_of"), seed=job.seed, device=device)
    training = job.mode is Mode.TRAIN
    return Workload(
        job=job,
        loss_module=None,
        compiled_modules=modules,
        make_batch=batches.make,
        forward_backward=_training_pass(step) if training else _evaluation_pass(step),
        update=step.update if training else _do_nothing,
        optimizers=_listed(getattr(step, "optimizers", ()), torch.optim.Optimizer, "optimizers") if training else [],
        batch_dimensions=batches.layout.dimensions,
        samples_are_seen=batches.layout.is_seen,
        make_other_batch=batches.make_other,
    )


def _check_step_settings(job: Job) -> None:
    require(
        job.precision is Precision.FLOAT32,
        f"precision is {job.precision.value}, but the step of your own decides its precision.",
        "Leave precision at float32, and use torch.autocast inside the step.",
    )
    require(
        job.max_gradient_norm is None,
        f"max_gradient_norm is {job.max_gradient_norm}, but the step of your own clips by itself.",
        "Remove max_gradient_norm, and clip in the step's update.",
    )


def _check_members(step: Any, job: Job) -> None:
    needed = methods(is_training=job.mode is Mode.TRAIN)
    if job.model.get("batch"):
        needed.pop("make_batch")
    missing = [name for name in ("modules", *needed) if not hasattr(step, name)]
    written = "; ".join(needed.get(name, MODULES) for name in missing)
    require(
        not missing,
        f"step is {job.model['step']!r}, which returned {type(step).__name__} without {', '.join(missing)}.",
        f"Give it {written}. All of it: help(bexplore.TrainingStep), and configs/own_step.py.",
    )
    for name, signature in needed.items():
        names = [word for word in ("micro_batch_size", "batch") if f"{word}:" in signature]
        member = UserCallable(path=f"{type(step).__name__}.{name}", function=getattr(step, name), arguments={})
        check_call(member, *names, setting=f"step's {name}")


def _listed(members: Any, kind: type, name: str) -> list[Any]:
    if isinstance(members, kind) and not isinstance(members, nn.ModuleList):
        return [members]
    listed = list(members.values() if isinstance(members, (Mapping, nn.ModuleDict)) else members)
    wrong = next((member for member in listed if not isinstance(member, kind)), None)
    require(
        wrong is None,
        f"The step's {name} hold {type(wrong).__name__}, which is not a {kind.__module__}.{kind.__name__}.",
        f"Make {name} an iterable or a mapping of them.",
    )
    return listed


def _training_pass(step: Any) -> Callable[..., torch.Tensor]:
    takes_scale = "loss_scale" in inspect.signature(step.forward_backward).parameters

    def forward_backward(batch: Batch, loss_scale: float = 1.0) -> torch.Tensor:
        loss = step.forward_backward(batch, loss_scale=loss_scale) if takes_scale else step.forward_backward(batch)
        return _detached(loss, "forward_backward")

    return forward_backward


def _evaluation_pass(step: Any) -> Callable[..., torch.Tensor]:
    def forward_backward(batch: Batch, loss_scale: float = 1.0) -> torch.Tensor:
        del loss_scale  # nothing is differentiated
        with torch.no_grad():
            return _detached(step.evaluate(batch), "evaluate")

    return forward_backward


def _detached(loss: Any, method: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UserInputError(
            f"The step's {method} returned {type(loss).__name__}, not a scalar tensor.",
            hint=f"Return the loss from {method}; of several, their sum.",
        )
    return loss.detach()


def _do_nothing() -> None:
    """Update nothing, in evaluation."""
