"""Build a job on fake tensors; from real ones where its program reads values while it is built."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from bexplore.errors import BexploreError, UserProgramError
from bexplore.job import Job
from bexplore.workloads import Workload, build, torch_private
from bexplore.workloads.workload import convert_modules


class FakeTensors(torch_private.FakeTensorMode):
    """A mode that stays one where a model copies its modules; a copied tensor copies its mode."""

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensors:
        return self


def build_fake(job: Job) -> tuple[Workload, FakeTensors]:
    """Build a job without device memory.

    Code that needs values (`tolist` of drop rates, NumPy) runs on the CPU with real tensors instead. In a CPU job all
    tensors are real, and take the memory of the weights until they are replaced. In a job of another device those on
    the CPU are real, as the weights of a user's own model are until they are moved.
    """
    # A mesh is real, and operators of tensors that ranks share read it.
    fake_mode = FakeTensors(allow_non_fake_inputs=job.parallelism.is_distributed)
    try:
        with fake_mode:
            workload = build(job)
            workload.make_batch(1)
        return workload, fake_mode
    except BexploreError:
        raise
    except Exception:  # user code fails in any way without values; a real bug fails again
        is_on_host = torch.device(job.device).type == "cpu"  # any other memory is for the probes
    if not is_on_host:
        return _build_with_real_host(job)
    return _build_shared(job) if job.parallelism.is_distributed else _replace_real(_build_real(job))


def _build_shared(job: Job) -> tuple[Workload, FakeTensors]:
    """Build the model of real tensors, and let ranks share it when its tensors are fake."""
    fake_mode = FakeTensors(allow_non_fake_inputs=True)

    @contextlib.contextmanager
    def fake(loss_module: nn.Module) -> Iterator[None]:
        _replace_tensors([loss_module], fake_mode)
        with fake_mode:
            yield

    with convert_modules(fake):
        workload = _build_real(job)
    return _make_batches_fake(workload, fake_mode), fake_mode


def _build_real(job: Job) -> Workload:
    try:
        return build(job)
    except BexploreError:
        raise
    except Exception as error:  # with real tensors too: a bug of the user's own code
        raise UserProgramError(
            f"your program fails while it is built: {type(error).__name__}: {error}",
            traceback_text="".join(traceback.format_exception(error)),
        ) from error


def _build_with_real_host(job: Job) -> tuple[Workload, FakeTensors]:
    fake_mode = FakeTensors(allow_non_fake_inputs=True)
    with fake_mode, _RealOnHost():
        workload = build(job)
        workload.make_batch(1)
    return workload, fake_mode


class _RealOnHost(torch_private.TorchDispatchMode):
    """A mode, above one of fake tensors, that computes with real values what is made on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in torch_private.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        goes_to = torch.device(kwargs.get("device") or "cpu")
        if goes_to.type == "cpu" and not any(isinstance(tensor, torch_private.FakeTensor) for tensor in tensors):
            with torch_private.unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _replace_real(workload: Workload) -> tuple[Workload, FakeTensors]:
    fake_mode = FakeTensors(allow_non_fake_inputs=True)  # tensors that are neither parameters nor buffers
    faked = _replace_tensors(workload.compiled_modules, fake_mode)
    for optimizer in workload.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [faked(parameter) for parameter in group["params"]]
    return _make_batches_fake(workload, fake_mode), fake_mode


def _make_batches_fake(workload: Workload, fake_mode: FakeTensors) -> Workload:
    make_real_batch = workload.make_batch

    def make_batch(micro_batch_size: int) -> Any:
        with torch_private.unset_fake_temporarily():
            batch = make_real_batch(micro_batch_size)
        return torch_private.tree_map_only(torch.Tensor, fake_mode.from_tensor, batch)

    return dataclasses.replace(workload, make_batch=make_batch)


def _replace_tensors(modules: Iterable[nn.Module], fake_mode: FakeTensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """Make the parameters and buffers of modules fake; return what gives the fake tensor of a real one."""
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by identity, so that tied weights stay tied

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        return replaced.setdefault(id(tensor), (tensor, _make_fake(tensor, fake_mode)))[1]

    for module in modules:
        for owner in module.modules():
            tables: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers)
            for own in tables:
                own.update({name: faked(tensor) for name, tensor in own.items() if tensor is not None})
    return faked


def _make_fake(tensor: torch.Tensor, fake_mode: FakeTensors) -> torch.Tensor:
    fake = fake_mode.from_tensor(tensor.detach())
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
