"""The program of a training: everything that decides what runs, in values that cross process borders."""

from bexplore.job.job import (
    CompileSettings,
    Job,
    Mode,
    Parallelism,
    Precision,
    TorchSettings,
    code_digests,
    device_kind,
)

__all__ = [
    "CompileSettings",
    "Job",
    "Mode",
    "Parallelism",
    "Precision",
    "TorchSettings",
    "code_digests",
    "device_kind",
]
