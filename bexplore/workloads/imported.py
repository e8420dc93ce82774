"""Models, batches, losses and whole training steps of the user's own, by import path.

Exceptions of the user's code are not caught, so their tracebacks are the user's own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.config.training_step import MODULES, methods
from bexplore.errors import UserInputError, check_keys, require
from bexplore.job import Job, Mode, Precision
from bexplore.workloads.batches import UserBatches
from bexplore.workloads.import_path import UserCallable, check_call, check_calls, load_callables
from bexplore.workloads.lasting import fill_histories, find_lasting
from bexplore.workloads.modules import creation_device, place
from bexplore.workloads.torch_private import tree_leaves
from bexplore.workloads.workload import Batch, Workload, assemble

_PATHS = ("model", "batch", "loss", "loader", "samples_of")
_STEP_PATHS = ("step", "batch", "loader", "samples_of")


def build_imported(job: Job) -> Workload:
    """Build the model, batches and loss that the import paths of `job.model` name.

    Either a whole step (see `_build_step`), or these keys:

    * `model`: returns a `torch.nn.Module`.
    * `batch`: called with the micro-batch size, returns a batch: a tensor, a mapping (the model's keyword arguments, or
      its only argument), or a tuple or list.
    * `loss`, optional: called with (output, targets) where the batch is a pair (inputs, targets), else with
      (output, batch); or a `torch.nn.Module` class of such a loss. Without it the model's own loss is taken: its
      output if that is a scalar, its `loss`, or the only scalar of a tuple; and where the batch is a pair of which the
      model takes only the first, the cross entropy of its output and the second.
    * `loader`, optional: called with the micro-batch size, returns an iterable of batches, such as a DataLoader. The
      step never reads it: `loader` times it apart.
    * `samples_of`, optional: called with a batch, returns its number of samples, where its tensors do not show that.
    * `arguments`, optional: keyword arguments; each callable gets those that its signature names.

    Where the lengths of the job's samples vary, `batch` takes the length of the batch as a keyword argument.

    Random numbers of torch are seeded before the model is made and before each batch.
    """
    if "step" in job.model:
        return _build_step(job)
    check_keys(job.model, (*_PATHS, "arguments"), "An imported model")
    paths = {name: job.model[name] for name in _PATHS if job.model.get(name) is not None}
    for name in ("model", "batch"):
        require(name in paths, f"An imported model needs `{name}`.", "Give `model` and `batch`, or `step`.")
    callables = load_callables(paths, job.model.get("arguments") or {}, import_root=job.import_root)
    make_batch = _make_longest(job, callables["batch"])
    device = torch.device(job.device)
    with creation_device(device):
        loss_module = ImportedLoss(_make_model(callables["model"]), _make_loss(callables.get("loss")))
    place(loss_module, device)
    check_calls(callables | {"batch": make_batch})
    dtype = torch.bfloat16 if job.precision is Precision.BFLOAT16 else None
    batches = UserBatches.of(make_batch, callables.get("samples_of"), seed=job.seed, device=device, dtype=dtype)
    workload = assemble(
        job,
        loss_module,
        lambda size: (batches.make(size),),
        batch_dimensions=batches.layout.dimensions,
        make_batch_of_length=lambda size, length: (_make_of_length(job, batches, size, length),),
    )
    return dataclasses.replace(
        workload,
        samples_are_seen=batches.layout.is_seen,
        make_other_batch=lambda size, number: (batches.make_other(size, number),),
    )


def _make_longest(job: Job, function: Callable[..., Batch]) -> UserCallable:
    own = function if isinstance(function, UserCallable) else UserCallable(path="make_batch", function=function)
    if job.lengths is None:
        return own
    name = job.lengths.argument
    parameters = inspect.signature(own.function).parameters
    require(
        name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()),
        f"explore.lengths needs batches of a given length, and {own.path} takes no argument {name!r}.",
        f"Let it take {name}, the tokens of a row; or name the argument that does: explore.lengths.argument.",
    )
    return dataclasses.replace(own, arguments={**own.arguments, name: job.lengths.longest})


def _make_of_length(job: Job, batches: UserBatches, micro_batch_size: int, length: int) -> Batch:
    longest = batches.function
    assert job.lengths is not None and isinstance(longest, UserCallable)
    function = dataclasses.replace(longest, arguments={**longest.arguments, job.lengths.argument: length})
    return dataclasses.replace(batches, function=function).make(micro_batch_size)


class ImportedLoss(nn.Module):
    """A user's model and loss as one module, so that one compilation covers both."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._takes_pairs = loss is None and _takes(model.forward, 2)
        self._only_argument = _find_only_argument(model.forward)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return scalar loss of a batch in any of the forms of `build_imported`."""
        if isinstance(batch, (tuple, list)) and len(batch) == 2 and not self._takes_pairs:
            return self._loss(self._call(batch[0]), batch[1])
        return self._loss(self._call(batch), batch)

    def _call(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping) and (self._only_argument is None or self._only_argument in inputs):
            return self.model(**inputs)
        if isinstance(inputs, (tuple, list)):
            return self.model(*inputs)
        return self.model(inputs)

    def _loss(self, output: Any, targets: Any) -> torch.Tensor:
        if self.loss is not None:
            return _scalar(self.loss(output, targets))
        found = _find_loss(output)
        if found is not None:
            return found
        if isinstance(output, torch.Tensor) and isinstance(targets, torch.Tensor):
            return _cross_entropy(output, targets)
        raise _no_loss(output)


def _make_model(factory: UserCallable) -> nn.Module:
    check_call(factory, setting="model")
    model = factory()
    require(
        isinstance(model, nn.Module),
        f"explore.workload.model is {factory.path!r}, which returned {type(model).__name__}, not a torch.nn.Module.",
        "Name a function or class that returns the module; a module itself is not called.",
    )
    return model


def _make_loss(loss: UserCallable | None) -> Callable[..., Any] | None:
    if loss is None:
        return None
    if inspect.isclass(loss.function):
        check_call(loss, setting="loss")
        made: Callable[..., Any] = loss()
        return made
    check_call(loss, "output", "targets", setting="loss")
    return functools.partial(loss.function, **loss.arguments)  # the compiler traces through a partial


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _find_only_argument(function: Callable[..., Any]) -> str | None:
    """Return the name of the argument of a function that takes exactly one; None for any other function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a scripted module has no signature
        return None
    is_one = len(parameters) == 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return parameters[0].name if is_one else None


def _find_loss(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output if output.dim() == 0 else None
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if isinstance(getattr(output, "loss", None), torch.Tensor):
        return output.loss
    if isinstance(output, (tuple, list)):
        scalars = [part for part in output if isinstance(part, torch.Tensor) and part.dim() == 0]
        return scalars[0] if len(scalars) == 1 else None
    return None


def _cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy over the last dimension, in float32; targets are class indices of any leading shape."""
    if targets.is_floating_point() or output.shape[:-1] != targets.shape:
        raise _no_loss(output)
    return F.cross_entropy(output.flatten(0, -2).float(), targets.flatten())


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise _no_loss(loss)
    return loss


def _no_loss(output: Any) -> UserInputError:
    shape = f" of shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else ""
    return UserInputError(
        f"No scalar loss was found in {type(output).__name__}{shape}.",
        hint="Name a function loss(output, targets) -> scalar tensor in explore.workload.loss.",
    )


def _build_step(job: Job) -> Workload:
    """Build `{"step", "batch", "loader", "samples_of", "arguments"}` of `job.model`.

    `step` is a path that returns a `TrainingStep`; on several ranks it is given `mesh`, the `DeviceMesh` of
    `explore.parallelism`, and shares its work itself. `batch`, optional, is a path that makes the batches instead of
    the step's own `make_batch`; `loader` and `samples_of` are as in `build_imported`. Each callable gets those of
    `arguments` that its signature names. The step itself has precision, recomputation, optimizers and clipping.
    """
    check_keys(job.model, (*_STEP_PATHS, "arguments"), "An imported step")
    _check_step_settings(job)
    paths = {name: job.model[name] for name in _STEP_PATHS if job.model.get(name) is not None}
    arguments = dict(job.model.get("arguments") or {})
    if job.parallelism.is_distributed:
        arguments |= _mesh(job)
    callables = load_callables(paths, arguments, import_root=job.import_root)
    check_call(callables["step"], setting="step")
    device = torch.device(job.device)
    with creation_device(device):
        step = callables["step"]()
    _check_members(step, job)
    modules = _list_members(step.modules, nn.Module, "modules")
    for module in modules:
        place(module, device)
    check_calls(callables)
    make_batch = _make_longest(job, callables.get("batch") or step.make_batch)
    batches = UserBatches.of(make_batch, callables.get("samples_of"), seed=job.seed, device=device)
    training = job.mode is Mode.TRAIN
    optimizers = _list_optimizers(step) if training else []
    fill_histories(optimizers)
    return Workload(
        job=job,
        loss_module=None,
        compiled_modules=modules,
        make_batch=batches.make,
        forward_backward=_training_pass(step) if training else _evaluation_pass(step),
        update=step.update if training else _do_nothing,
        optimizers=optimizers,
        batch_dimensions=batches.layout.dimensions,
        samples_are_seen=batches.layout.is_seen,
        make_other_batch=batches.make_other,
        make_batch_of_length=None if job.lengths is None else functools.partial(_make_of_length, job, batches),
        find_lasting=lambda: ((name, one) for name, one in find_lasting(step) if one.device.type == device.type),
    )


def _list_optimizers(step: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers that a step names, else those among its attributes."""
    if hasattr(step, "optimizers"):
        return _list_members(step.optimizers, torch.optim.Optimizer, "optimizers")
    held = (leaf for leaf in tree_leaves(getattr(step, "__dict__", {})) if isinstance(leaf, torch.optim.Optimizer))
    return list(dict.fromkeys(held))


def _mesh(job: Job) -> dict[str, Any]:
    from bexplore.workloads.parallel import make_mesh  # a second of imports, which one device does without

    return {"mesh": make_mesh(job)}


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
    require(
        job.activation_checkpointing == "none",
        f"activation_checkpointing is {job.activation_checkpointing}, but the step of your own recomputes by itself.",
        "Remove activation_checkpointing, and use torch.utils.checkpoint inside the step.",
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
        f"Give it {written}. All of it: help(bexplore.TrainingStep), and bexplore init --example own_step.",
    )
    for name, signature in needed.items():
        names = [word for word in ("micro_batch_size", "batch") if f"{word}:" in signature]
        member = UserCallable(path=f"{type(step).__name__}.{name}", function=getattr(step, name), arguments={})
        check_call(member, *names, setting=f"step's {name}")


def _list_members(members: Any, kind: type, name: str) -> list[Any]:
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
    taken = inspect.signature(step.forward_backward).parameters

    def forward_backward(batch: Batch, loss_scale: float = 1.0, *, synchronize: bool = True) -> torch.Tensor:
        given = {"loss_scale": loss_scale, "synchronize": synchronize}
        loss = step.forward_backward(batch, **{name: value for name, value in given.items() if name in taken})
        return _detach(loss, "forward_backward")

    return forward_backward


def _evaluation_pass(step: Any) -> Callable[..., torch.Tensor]:
    def forward_backward(batch: Batch, loss_scale: float = 1.0, *, synchronize: bool = True) -> torch.Tensor:
        del loss_scale, synchronize  # nothing is differentiated
        with torch.no_grad():
            return _detach(step.evaluate(batch), "evaluate")

    return forward_backward


def _detach(loss: Any, method: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UserInputError(
            f"The step's {method} returned {type(loss).__name__}, not a scalar tensor.",
            hint=f"Return the loss from {method}; of several, their sum.",
        )
    return loss.detach()


def _do_nothing() -> None:
    """Update nothing, in evaluation."""
