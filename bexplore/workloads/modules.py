"""Modules of a model: made and moved, with real tensors and the fake ones of a trace; its repeated blocks.

A block that is recomputed keeps its inputs, and its forward pass runs again in the backward pass; `selective` also
keeps what is dear to compute.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from bexplore.errors import require
from bexplore.job import Job, Mode
from bexplore.workloads.torch_private import current_fake_mode

# Path of a linear layer, `*` for any name -> `colwise` (its outputs are shared) or `rowwise` (its inputs are).
TensorPlan = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A loss module, whose work ranks may share."""

    loss_module: nn.Module  # what a pass calls
    compiled_modules: list[nn.Module]  # what the training compiles, each in place
    # Context around a pass; given False, the pass does not reduce gradients over the replicas. It is `nullcontext`
    # where gradients are synchronized elsewhere, or not at all.
    synchronize: Callable[[bool], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    bucket_bytes: int = 0  # bytes of gradient buckets, which no tensor of the model shows
    is_compiled_by_block: bool = False  # whether blocks are compiled one by one, and what is between them is not


def is_fake() -> bool:
    """Return whether tensors made now are fake: shapes without values or memory."""
    return current_fake_mode() is not None


@contextlib.contextmanager
def creation_device(device: torch.device) -> Iterator[None]:
    """Make the user's modules on the devices in their code, or, with fake tensors, on the job's device at once.

    Real modules are moved afterwards, as in a training script: code written for the CPU (NumPy, `item`) may run while
    they are made. So are those of a fake mode that takes real tensors of the CPU for such code.
    """
    fake_mode = current_fake_mode()
    if fake_mode is None:
        yield
        return
    with contextlib.nullcontext() if fake_mode.allow_non_fake_inputs else device, _converting_in_place():
        yield


@contextlib.contextmanager
def _converting_in_place() -> Iterator[None]:
    """Let the user's own `module.to(...)` and its like work on fake tensors, which torch cannot swap."""
    original = nn.Module._apply
    converted: dict[tuple[int, int], tuple[Any, ...]] = {}  # by identity, so that tied weights stay tied

    def convert(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        key = id(tensor), id(function)
        if key not in converted:
            result = function(tensor.detach())
            same = (result.dtype, result.device, result.stride()) == (tensor.dtype, tensor.device, tensor.stride())
            if not same and isinstance(tensor, nn.Parameter):
                result = nn.Parameter(result, tensor.requires_grad)
            converted[key] = (tensor if same else result, tensor, function)  # kept, so that no identity is reused
        return converted[key][0]

    def apply(self: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        for child in self.children() if recurse else ():
            child._apply(function)
        tables: tuple[dict[str, Any], ...] = (self._parameters, self._buffers)
        for own in tables:
            own.update({name: convert(tensor, function) for name, tensor in own.items() if tensor is not None})
        return self

    nn.Module._apply = apply  # type: ignore[method-assign]  # replaced for a while, which has no type
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]  # and put back


def place(module: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
    """Move a module in place, also with fake tensors, which `module.to` cannot swap."""
    if not is_fake():
        return module.to(device=device, dtype=dtype)
    placed: dict[int, torch.Tensor] = {}  # by identity, so that tied weights stay tied
    for owner in module.modules():
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                setattr(owner, name, placed.setdefault(id(tensor), _move(tensor, device, dtype)))
    return module


def _move(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    moved = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
    if moved.dtype == tensor.dtype and moved.device == tensor.device:
        return tensor
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's own part of a tensor that ranks share; any other tensor as it is."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)  # `to_local` makes a view, 0.2 ms of fake tensors
    return part


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor that ranks share; any other tensor as it is."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


_SETTING = "explore.checkpointed_modules"
# Fused attention of any device; torch's registry lacks that of the CPU.
_ATTENTION = "_scaled_dot_product_"
_COLLECTIVES = "_c10d_functional"


def find_blocks(module: nn.Module, patterns: tuple[str, ...] = (), *, setting: str) -> list[nn.Module]:
    """Return the repeated blocks of a model, or those that the user names, in order.

    Args:
        patterns: Paths, `*` for any name; empty to take the members of the outermost lists whose class is there twice.
        setting: Key that takes the patterns, for errors.
    """
    if patterns:
        return [block for pattern in patterns for block in _find_named(module, pattern, setting)]
    found: dict[str, nn.Module] = {}
    for name, container in module.named_modules():
        is_inside = any(f"{name}.".startswith(f"{block}.") for block in found)
        if isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) and not is_inside:
            prefix = f"{name}." if name else ""
            found |= {f"{prefix}{child}": block for child, block in _find_repeated(container)}
    require(
        bool(found),
        "The model has no list of repeated blocks.",
        f"Name its blocks in {setting}, such as model.layers.*.",
    )
    return list(found.values())


def matches_path(name: str, pattern: str) -> bool:
    """Return whether the path of a module fits a pattern, name by name."""
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatch.fnmatchcase, names, patterns))


def _find_repeated(container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children whose class, none of torch's own layers, is there twice."""
    children = [(name, child) for name, child in container.named_children() if any(True for _ in child.parameters())]
    counts = Counter(type(child) for _, child in children)
    for name, child in children:
        is_layer = type(child).__module__.startswith("torch.nn.modules") and not isinstance(child, nn.Sequential)
        if counts[type(child)] > 1 and not is_layer:
            yield name, child


def _find_named(module: nn.Module, pattern: str, setting: str) -> list[nn.Module]:
    own = {name: child for name, child in module.named_modules() if name}
    found = [
        child
        for name, child in own.items()
        if any(
            matches_path(part, pattern) for part in (name, name.partition(".")[2])
        )  # the loss module wraps the model
    ]
    require(
        bool(found),
        f"{setting} has {pattern!r}, which fits no module.",
        f"Modules have names such as {', '.join(list(own)[:4])}.",
    )
    return found


def checkpoint_blocks(job: Job, loss_module: nn.Module) -> None:
    """Recompute the blocks of a model as the job says, in training.

    A model of transformers that keeps keys and values for the next token would keep them twice, when its block runs
    again: it keeps none, as under its own checkpointing.
    """
    if job.activation_checkpointing == "none" or job.mode is not Mode.TRAIN:
        return
    for module in loss_module.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            config.use_cache = False
    is_selective = job.activation_checkpointing == "selective"
    for block in find_blocks(loss_module, job.checkpointed_modules, setting=_SETTING):
        block.forward = _recompute(block.forward, is_selective=is_selective)  # hooks stay outside: those of FSDP2 must


def _recompute(forward: Callable[..., Any], *, is_selective: bool) -> Callable[..., Any]:
    @functools.wraps(forward)
    def recomputed(*arguments: Any, **named: Any) -> Any:
        call = functools.partial(forward, **named)  # `checkpoint` has arguments of its own, such as `debug`
        if is_selective:
            return checkpoint(call, *arguments, use_reentrant=False, context_fn=_KEEP_DEAR_RESULTS)
        return checkpoint(call, *arguments, use_reentrant=False)

    return recomputed


def _policy(_context: Any, operator: Any, *_arguments: Any, **_find_named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_dear(operator) else CheckpointPolicy.PREFER_RECOMPUTE


_KEEP_DEAR_RESULTS = functools.partial(create_selective_checkpoint_contexts, _policy)


def is_dear(operator: Any) -> bool:
    """Return whether selective checkpointing keeps the results of an operator.

    They are what `torch.utils.flop_counter` counts (matrix products, convolutions, attention), and collectives. Source:
    `default_activation_checkpoint_policy` in torchtitan/distributed/activation_checkpoint.py.
    """
    packet = getattr(operator, "overloadpacket", operator)
    if packet in flop_registry or getattr(operator, "namespace", "") == _COLLECTIVES:
        return True
    return str(packet).startswith(f"aten.{_ATTENTION}")
