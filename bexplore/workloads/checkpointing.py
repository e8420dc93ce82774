"""Activation checkpointing of blocks, the same for every kind of workload.

A block keeps its inputs, and its forward pass runs again in the backward pass; `selective` also keeps what is dear to
compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from bexplore.job import Job, Mode
from bexplore.workloads.blocks import blocks_of

_SETTING = "explore.checkpointed_modules"
# Fused attention of any device; torch's registry lacks that of the CPU.
_ATTENTION = "_scaled_dot_product_"
_COLLECTIVES = "_c10d_functional"


def checkpoint_blocks(job: Job, loss_module: nn.Module) -> None:
    """Recompute the blocks of a model as the job says, in training.

    Raises:
        UserInputError: The model has no repeated blocks, or none of the names that are given.
    """
    if job.activation_checkpointing == "none" or job.mode is not Mode.TRAIN:
        return
    is_selective = job.activation_checkpointing == "selective"
    for block in blocks_of(loss_module, job.checkpointed_modules, setting=_SETTING):
        block.forward = _recomputed(block.forward, is_selective=is_selective)  # hooks stay outside: those of FSDP2 must


def _recomputed(forward: Callable[..., Any], *, is_selective: bool) -> Callable[..., Any]:
    @functools.wraps(forward)
    def recomputed(*arguments: Any, **named: Any) -> Any:
        call = functools.partial(forward, **named)  # `checkpoint` has arguments of its own, such as `debug`
        if is_selective:
            return checkpoint(call, *arguments, use_reentrant=False, context_fn=_KEEP_DEAR_RESULTS)
        return checkpoint(call, *arguments, use_reentrant=False)

    return recomputed


def _policy(_context: Any, operator: Any, *_arguments: Any, **_named: Any) -> CheckpointPolicy:
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
