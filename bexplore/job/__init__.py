"""The program of a training: everything that decides what runs, in values that cross process borders."""

from bexplore.job.job import (
    CompileSettings,
    Job,
    Mode,
    Parallelism,
    Precision,
    TorchSettings,
    device_kind,
    digest_code,
)

__all__ = [
    "CompileSettings",
    "Job",
    "Mode",
    "Parallelism",
    "Precision",
    "TorchSettings",
    "device_kind",
    "digest_code",
]
