"""The private interfaces of torch that building a job uses, and that importing torch loads anyway.

`trace.torch_private` holds those of the compiler, `host.torch_interfaces` lists all.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch._guards
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode  # runs Python code in place of each operator
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only  # of nested lists, tuples and mappings

__all__ = [
    "CompilableMode",
    "FakeTensor",  # a shape, a type and a device, without values or memory
    "FakeTensorMode",  # makes every new tensor a fake one
    "TorchDispatchMode",
    "current_fake_mode",
    "make_chunks_on_demand",
    "register_fake_process_group",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "unset_fake_temporarily",  # computes for real inside a fake mode
]


class CompilableMode(TorchDispatchMode):
    """A mode under which torch.compile works as without it, and its own work is not seen."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let torch.compile work under this mode."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work under this mode."""
        return True


def current_fake_mode() -> Any:
    """Return the mode of the fake tensors that are made now; None where tensors are real."""
    return torch._guards.detect_fake_mode()


def register_fake_process_group() -> None:
    """Make the backend `fake` known to `torch.distributed`: a group whose other ranks are not there.

    Collectives are copies in it: all_gather repeats the own shard, reduce_scatter returns the own chunk, all_reduce and
    broadcast change nothing. Importing the module registers the backend.
    """
    importlib.import_module("torch.testing._internal.distributed.fake_pg")


@contextlib.contextmanager
def make_chunks_on_demand() -> Iterator[None]:
    """Let `fully_shard` make, of the chunks of a parameter, those alone that it reads: its own and the first.

    It makes the chunk of every rank, twice a parameter; on fake tensors that is half of the time of a build for 64
    ranks. Source: `_init_sharded_param` in torch/distributed/fsdp/_fully_shard/_fsdp_param.py, torch 2.13.
    """
    sharding = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    if not hasattr(sharding, "_chunk_with_empty"):  # of another torch: slower, and nothing else
        yield
        return
    with mock.patch.object(sharding, "_chunk_with_empty", _Chunks):
        yield


class _Chunks:
    """The chunks of a tensor, as `torch.chunk` cuts them, and empty ones for ranks without any."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._num_chunks, self._dim = tensor, num_chunks, dim

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._num_chunks:
            raise IndexError(index)
        size = self._tensor.size(self._dim)
        length = -(-size // self._num_chunks)
        start = index * length
        if index and start >= size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(length, size - start))
