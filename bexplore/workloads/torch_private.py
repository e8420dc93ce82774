"""The private interfaces of torch that building a job uses, and that importing torch loads anyway.

`trace.torch_private` holds those of the compiler. Seen unchanged in torch 2.11, 2.12 and 2.13.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch._guards
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode  # runs Python code in place of each operator
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only  # of nested lists, tuples and mappings

__all__ = [
    "FakeTensor",  # a shape, a type and a device, without values or memory
    "FakeTensorMode",  # makes every new tensor a fake one
    "TorchDispatchMode",
    "current_fake_mode",
    "register_fake_process_group",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "unset_fake_temporarily",  # computes for real inside a fake mode
]


def current_fake_mode() -> Any:
    """Return the mode of the fake tensors that are made now; None where tensors are real."""
    return torch._guards.detect_fake_mode()


def register_fake_process_group() -> None:
    """Make the backend `fake` known to `torch.distributed`: a group whose other ranks are not there.

    Collectives are copies in it: all_gather repeats the own shard, reduce_scatter returns the own chunk, all_reduce and
    broadcast change nothing. Importing the module registers the backend.
    """
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
