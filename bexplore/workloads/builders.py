"""The one door through which a job is built."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bexplore.errors import UserInputError, suggestion
from bexplore.job import Job, TorchSettings
from bexplore.workloads.decoder import build_decoder
from bexplore.workloads.hf import build_transformers
from bexplore.workloads.imported import build_imported
from bexplore.workloads.samples import seeded
from bexplore.workloads.workload import Workload, check_precision

_BUILDERS: dict[str, Callable[[Job], Workload]] = {
    "decoder": build_decoder,
    "transformers": build_transformers,
    "imported": build_imported,
}


def build(job: Job) -> Workload:
    """Build the job on its device; the same job gives the same weights and the same samples.

    The job's settings of torch are made for the whole process, before code of the user's own is imported, as at the top
    of a training script: every pass of a built job runs with them.

    It may be called under `FakeTensorMode` and with the device `meta`: then nothing is allocated. The global random
    state is left as it was.

    Raises:
        UserInputError: The job asks for something that does not exist; whatever the user's own code raises is not
            caught.
    """
    if job.workload not in _BUILDERS:
        raise UserInputError(f"There is no workload named {job.workload!r}.", hint=suggestion(job.workload, _BUILDERS))
    device = check_device(job.device)
    check_precision(job)
    set_torch(job.torch)
    with seeded(job.seed, device):
        return _BUILDERS[job.workload](job)


def set_torch(settings: TorchSettings) -> None:
    """Make the settings that the job names; what it leaves open stays as it is."""
    if settings.float32_matmul_precision is not None:
        torch.set_float32_matmul_precision(settings.float32_matmul_precision)
    if settings.cudnn_benchmark is not None:
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark


def check_device(name: str) -> torch.device:
    """Read the name of a torch device.

    Raises:
        UserInputError: torch knows no such device.
    """
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserInputError(
            f"torch knows no device named {name!r}.", hint="Use cpu, cuda, cuda:1, or another that torch names."
        ) from error
