"""Programs to train: `build` turns a `Job` into a `Workload` of live torch modules."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bexplore.errors import UserInputError, suggestion
from bexplore.job import Job, TorchSettings
from bexplore.workloads.batches import seed_torch
from bexplore.workloads.decoder import build_decoder
from bexplore.workloads.hf import build_transformers
from bexplore.workloads.imported import build_imported
from bexplore.workloads.workload import Batch, Workload, check_precision

__all__ = ["Batch", "Workload", "build"]

_BUILDERS: dict[str, Callable[[Job], Workload]] = {
    "decoder": build_decoder,
    "transformers": build_transformers,
    "imported": build_imported,
}


def build(job: Job) -> Workload:
    """Build the job on its device; the same job gives the same weights and the same samples.

    The job's settings of torch apply to the whole process, from before the user's own code is imported, as at the top
    of a training script. The global random state is left as it was, and errors of the user's own code are not caught.
    Under `FakeTensorMode`, and with the device `meta`, nothing is allocated.
    """
    if job.workload not in _BUILDERS:
        raise UserInputError(f"There is no workload named {job.workload!r}.", hint=suggestion(job.workload, _BUILDERS))
    device = _check_device(job.device)
    check_precision(job)
    _set_torch(job.torch)
    with seed_torch(job.seed, device):
        return _BUILDERS[job.workload](job)


def _set_torch(settings: TorchSettings) -> None:
    if settings.float32_matmul_precision is not None:
        torch.set_float32_matmul_precision(settings.float32_matmul_precision)
    if settings.cudnn_benchmark is not None:
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark


def _check_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserInputError(
            f"torch has no device named {name!r}.", hint="Use cpu, cuda, cuda:1, or another device of torch."
        ) from error
