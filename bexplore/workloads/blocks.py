"""The repeated blocks of a model: those that are recomputed, sharded or compiled each by itself.

A block that is recomputed keeps its inputs, and its forward pass runs again in the backward pass; `selective` also
keeps what is dear to compute.
"""

from __future__ import annotations

import fnmatch
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from bexplore.errors import require
from bexplore.job import Job, Mode

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
    """Recompute the blocks of a model as the job says, in training."""
    if job.activation_checkpointing == "none" or job.mode is not Mode.TRAIN:
        return
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
