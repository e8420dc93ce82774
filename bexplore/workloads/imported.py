"""Models, batches and losses of the user's own, by import path; `imported_step` has whole steps.

Exceptions of the user's code are not caught, so their tracebacks are the user's own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import UserInputError, check_keys, require
from bexplore.job import Job, Precision
from bexplore.workloads.import_path import UserCallable, check_call, check_calls, load_callables
from bexplore.workloads.imported_step import build_step
from bexplore.workloads.placement import creation_device, place
from bexplore.workloads.user_batch import UserBatches
from bexplore.workloads.workload import Batch, Workload, assemble

_PATHS = ("model", "batch", "loss", "loader", "samples_of")


def build_imported(job: Job) -> Workload:
    """Build the model, batches and loss that the import paths of `job.model` name.

    Either a whole step (see `imported_step`), or these keys:

    * `model`: returns a `torch.nn.Module`.
    * `batch`: called with the micro-batch size, returns a batch: a tensor, a mapping (the model's keyword arguments),
      or a tuple or list.
    * `loss`, optional: called with (output, targets) where the batch is a pair (inputs, targets), else with
      (output, batch); or a `torch.nn.Module` class of such a loss. Without it the model's own loss is taken: its
      output if that is a scalar, its `loss`, or the only scalar of a tuple; and where the batch is a pair of which the
      model takes only the first, the cross entropy of its output and the second.
    * `loader`, optional: called with the micro-batch size, returns an iterable of batches, such as a DataLoader. The
      step never reads it: `input_pipeline` times it apart.
    * `samples_of`, optional: called with a batch, returns its number of samples, where its tensors do not show that.
    * `arguments`, optional: keyword arguments; each callable gets those that its signature names.

    Random numbers of torch are seeded before the model is made and before each batch.

    Raises:
        UserInputError: A path, or the object that it names, cannot be used.
    """
    if "step" in job.model:
        return build_step(job)
    check_keys(job.model, (*_PATHS, "arguments"), "An imported model")
    paths = {name: job.model[name] for name in _PATHS if job.model.get(name) is not None}
    for name in ("model", "batch"):
        require(name in paths, f"An imported model needs `{name}`.", "Give `model` and `batch`, or `step`.")
    callables = load_callables(paths, job.model.get("arguments") or {}, import_root=job.import_root)
    device = torch.device(job.device)
    with creation_device(device):
        loss_module = ImportedLoss(_make_model(callables["model"]), _make_loss(callables.get("loss")))
    place(loss_module, device)
    check_calls(callables)
    dtype = torch.bfloat16 if job.precision is Precision.BFLOAT16 else None
    batches = UserBatches.of(callables["batch"], callables.get("samples_of"), seed=job.seed, device=device, dtype=dtype)
    workload = assemble(
        job, loss_module, lambda size: (batches.make(size),), batch_dimensions=batches.layout.dimensions
    )
    workload.samples_are_seen = batches.layout.is_seen
    workload.make_other_batch = lambda size, number: (batches.make_other(size, number),)
    return workload


class ImportedLoss(nn.Module):
    """A user's model and loss as one module, so that one compilation covers both."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        """Decide once, from signatures, how the model is called."""
        super().__init__()
        self.model = model
        self.loss = loss
        self._takes_pairs = loss is None and _takes(model.forward, 2)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return scalar loss of a batch in any of the forms of `build_imported`."""
        if isinstance(batch, Mapping):
            return self._loss(self.model(**batch), batch)
        if not isinstance(batch, (tuple, list)):
            return self._loss(self.model(batch), batch)
        if len(batch) == 2 and not self._takes_pairs:
            return self._loss(_call(self.model, batch[0]), batch[1])
        return self._loss(self.model(*batch), batch)

    def _loss(self, output: Any, targets: Any) -> torch.Tensor:
        if self.loss is not None:
            return _scalar(self.loss(output, targets))
        found = _own_loss(output)
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


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def _own_loss(output: Any) -> torch.Tensor | None:
    """Return the loss that the model computed itself, if it did."""
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
    """Return cross entropy over the last dimension, in float32; targets are class indices of any leading shape."""
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
