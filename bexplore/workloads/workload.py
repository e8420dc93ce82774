"""A built job: its optimizer, any of `torch.optim` by name, and the two halves of a training step around its loss."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bexplore.errors import UserInputError, check_keys, require, suggestion
from bexplore.job import Job, Mode, Precision
from bexplore.job.job import NAMES_OF_POSITIONS
from bexplore.workloads.modules import ParallelModel, TensorPlan, checkpoint_blocks, place, whole

Batch = Any  # a pytree of tensors whose dimension 0 is the sample, but for `batch_dimensions` of the workload

# A new scaler starts at 2^16, overflows, and skips updates until it has come down. That would cost only the first
# updates, but those are measured. It grows after 2000 updates, which no probe takes.
_INITIAL_SCALE = 2.0**8

_AUTOCAST_DTYPES = {
    Precision.AUTOCAST_BFLOAT16: torch.bfloat16,
    Precision.AUTOCAST_FLOAT16: torch.float16,
}

_REFUSED = {
    "LBFGS": "it evaluates the loss several times within one update, so a pass and an update cannot be told apart",
    "SparseAdam": "it takes sparse gradients only, and accumulated gradients are dense",
}


def build_optimizer(
    name: str, arguments: Mapping[str, Any], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Make the optimizer of the parameters that require gradients."""
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


def find_num_positions(workload: Workload) -> int | None:
    """Return the tokens of the longest row that the live model has positions for; None where it does not tell.

    Asked are its attributes, its configurations and its tables of positions (`nn.Embedding`); fewer than the samples
    that run are of something else.
    """
    lengths = workload.job.lengths
    roots = [*workload.compiled_modules, *([workload.loss_module] if workload.loss_module is not None else [])]
    found: list[Any] = []
    for name, module in (pair for root in roots for pair in root.named_modules()):
        for owner in (module, getattr(module, "config", None)):
            found += [getattr(owner, known, None) for known in NAMES_OF_POSITIONS]
        if isinstance(module, nn.Embedding) and "pos" in name.rpartition(".")[2].lower():
            found.append(module.num_embeddings)
    fitting = [one for one in found if isinstance(one, int) and one >= (lengths.longest if lengths else 1)]
    return min(fitting, default=None)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Live modules, a maker of batches, and the two halves of a training step."""

    job: Job  # the built job
    # `loss_module(*batch)` gives the scalar loss, model and loss in one module, so that one compilation covers both;
    # None for a step of the user's own.
    loss_module: nn.Module | None
    compiled_modules: list[nn.Module]  # modules to compile in place (`nn.Module.compile`) before the first pass
    # Micro_batch_size -> batch on the job's device; deterministic, sample i does not depend on the size.
    make_batch: Callable[[int], Batch]
    # (batch, loss_scale, synchronize) -> detached loss; adds to `.grad` in training, forward only in evaluation. Where
    # replicas share the work, `synchronize` (True by default) reduces the gradients.
    forward_backward: Callable[..., torch.Tensor]
    update: Callable[[], None]  # clips, steps the optimizers and clears the gradients; does nothing in evaluation
    # Optimizers that `update` steps; empty in evaluation.
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    # Dimension of the sample for each tensor leaf of a batch; None for a tensor without. It is None where the structure
    # of a batch depends on its size (a list of samples).
    batch_dimensions: list[int | None] | None = None
    samples_are_seen: bool = True  # whether `make_batch` checks the number of samples of a batch
    # (micro_batch_size, number) -> a batch of the user's own code with the random numbers of a number from 1 on; None
    # for synthetic samples.
    make_other_batch: Callable[[int, int], Batch] | None = None
    # (micro_batch_size, length) -> a batch whose rows have a length, those of `make_batch` have the longest; None where
    # all have one length.
    make_batch_of_length: Callable[[int, int], Batch] | None = None
    bucket_bytes: int = 0  # bytes of gradient buckets, which no tensor of the modules shows
    # What a step of the user's own holds beside weights: attribute and tensor; weights and states may be among them
    find_lasting: Callable[[], Iterable[tuple[str, torch.Tensor]]] = tuple
    # Whether `compiled_modules` are the blocks of a model, and what is between them runs eagerly.
    is_compiled_by_block: bool = False


def check_precision(job: Job) -> None:
    """Refuse a precision that the device lacks, or that the ranks cannot share."""
    require(
        job.precision is not Precision.AUTOCAST_FLOAT16 or torch.device(job.device).type == "cuda",
        f"Precision {job.precision.value} needs a CUDA device, and the device is {job.device!r}.",
        f"Use {Precision.AUTOCAST_BFLOAT16.value}, which every device has, or a CUDA device.",
    )
    require(
        job.precision is not Precision.AUTOCAST_FLOAT16 or job.parallelism.tensor_parallel_degree == 1,
        f"Precision {job.precision.value} scales gradients, which torch cannot where ranks share some matrices only.",
        f"Use {Precision.AUTOCAST_BFLOAT16.value}, or explore.parallelism.tensor_parallel_degree: 1.",
    )


Conversion = Callable[[nn.Module], contextlib.AbstractContextManager[object]]
_conversion: ContextVar[Conversion] = ContextVar("conversion", default=lambda loss_module: contextlib.nullcontext())


@contextlib.contextmanager
def convert_modules(conversion: Conversion) -> Iterator[None]:
    """Let `assemble` pass each loss module through a context, in which it is shared and gets its optimizer.

    A trace so makes fake tensors of a model that must be built of real ones.
    """
    token = _conversion.set(conversion)
    try:
        yield
    finally:
        _conversion.reset(token)


def assemble(
    job: Job,
    loss_module: nn.Module,
    make_batch: Callable[[int], Batch],
    *,
    batch_dimensions: list[int | None] | None = None,
    make_batch_of_length: Callable[[int, int], Batch] | None = None,
    tensor_plan: TensorPlan | None = None,
) -> Workload:
    """Make the workload of a loss module, whose parameters are on the job's device.

    Args:
        loss_module: `loss_module(*batch)` gives the scalar loss.
        make_batch: micro_batch_size -> a tuple of the loss module's arguments, on the job's device.
        batch_dimensions: Dimension of the sample for each tensor leaf of a batch.
        make_batch_of_length: (micro_batch_size, length) -> a batch; taken if the lengths of the job's samples vary.
        tensor_plan: How ranks share its linear layers, a `parallel.TensorPlan`; None if unknown.
    """
    with _conversion.get()(loss_module):
        if job.precision is Precision.BFLOAT16:
            place(loss_module, torch.device(job.device), torch.bfloat16)
        loss_module.train(job.mode is Mode.TRAIN)
        checkpoint_blocks(job, loss_module)
        shared = ParallelModel(loss_module=loss_module, compiled_modules=[loss_module])
        if job.parallelism.is_distributed:
            from bexplore.workloads.parallel import parallelize  # a second of imports, which one device does without

            shared = parallelize(job, loss_module, tensor_plan)
        optimizer = None
        if job.mode is Mode.TRAIN:
            optimizer = build_optimizer(job.optimizer, job.optimizer_arguments, loss_module.parameters())
        halves = _Halves(job, shared.loss_module, optimizer, shared.synchronize)
    return Workload(
        job=job,
        loss_module=loss_module,
        compiled_modules=shared.compiled_modules,
        make_batch=make_batch,
        forward_backward=halves.forward_backward,
        update=halves.update,
        optimizers=[] if optimizer is None else [optimizer],
        batch_dimensions=batch_dimensions,
        make_batch_of_length=None if job.lengths is None else make_batch_of_length,
        bucket_bytes=0 if optimizer is None else shared.bucket_bytes,
        is_compiled_by_block=shared.is_compiled_by_block,
    )


class _Halves:
    """Forward and backward, and the update, with a gradient scaler that both use."""

    def __init__(
        self,
        job: Job,
        loss_module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        synchronize: Callable[[bool], contextlib.AbstractContextManager[object]],
    ) -> None:
        self._loss_module = loss_module
        self._optimizer = optimizer
        self._synchronize = synchronize
        self._device_type = torch.device(job.device).type
        self._autocast_dtype = _AUTOCAST_DTYPES.get(job.precision)
        self._max_gradient_norm = job.max_gradient_norm
        scales = job.precision is Precision.AUTOCAST_FLOAT16 and optimizer is not None
        self._scaler = torch.amp.GradScaler(self._device_type, init_scale=_INITIAL_SCALE) if scales else None

    def forward_backward(self, batch: Batch, loss_scale: float = 1.0, *, synchronize: bool = True) -> torch.Tensor:
        """Add `loss_scale` times the gradients to `.grad` (not in evaluation), and return the detached loss."""
        with self._synchronize(synchronize):
            # no_grad rather than inference_mode: both compile to the same program, and the batch stays an ordinary
            # tensor
            with torch.set_grad_enabled(self._optimizer is not None), self._autocast():
                loss = self._loss_module(*batch)
            if self._optimizer is not None:
                scaled_loss = loss * loss_scale
                if self._scaler is not None:
                    scaled_loss = self._scaler.scale(scaled_loss)
                scaled_loss.backward()
        return loss.detach()

    def update(self) -> None:
        if self._optimizer is None:
            return
        if self._max_gradient_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            clip_gradients(self._optimizer, self._max_gradient_norm)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self._autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device_type, dtype=self._autocast_dtype)
