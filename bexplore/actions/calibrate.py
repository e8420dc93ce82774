"""Measures what kernels take on this machine's processor, and keeps the table in the user's cache."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bexplore.engine.process.limits import Limits, Progress
from bexplore.engine.program_client import ask_once
from bexplore.engine.protocol.messages import Calibrate, Failed, Refused
from bexplore.errors import EngineError
from bexplore.estimate.calibrations import keep
from bexplore.estimate.kernels import HALF_BYTES, SINGLE_BYTES, MatrixProduct, Work
from bexplore.estimate.processor import Calibration, estimate_kernel, stream_seconds
from bexplore.host.records import from_record
from bexplore.units import counted, format_bytes

SECONDS_OF_EACH = 0.02  # of each kernel: some 700 take a quarter of a minute so, the others are longer than that
LIMIT_S = 600.0  # of a stage, on a machine that other programs use
BUSY_SD = 0.6  # of ln of a pass: an idle machine of two cores had 0.31, one that others used 1.7
IN_CACHE_BYTES, IN_MEMORY_BYTES = 2**20, 2**26  # of the sums that are shown


def calibrate(*, seconds_of_each: float = SECONDS_OF_EACH, on_progress: Progress = lambda report: None) -> Calibration:
    """Measure this machine's processor with the threads that jobs use; return what was found, which is kept.

    Raises:
        EngineError: It could not be measured, or not be kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = Calibrate(device="cpu", seconds_of_each=seconds_of_each)
        limits = Limits(stage_s=LIMIT_S)
        answer = ask_once(request, Path(folder) / "worker.log", limits=limits, on_progress=on_progress)
    if isinstance(answer, Refused):
        raise answer.error()
    if isinstance(answer, Failed):
        raise EngineError(
            f"the processor could not be measured: {answer.reason}", hint="bexplore doctor shows what torch finds here"
        )
    found = from_record(Calibration, answer.values["calibration"])
    keep(found)
    return found


def describe_calibration(found: Calibration) -> tuple[str, ...]:
    """Return lines that tell what was measured, and how wrong it is."""
    product = MatrixProduct(rows=1000, columns=1000, inner=1000, itemsize=SINGLE_BYTES)
    half = replace(product, itemsize=HALF_BYTES)
    speeds = [one.flops / estimate_kernel(found, one)[0] / 1e9 for one in (product, half)]
    memory = [stream_seconds(found.streams[Work.POINTWISE.value], size) for size in (IN_CACHE_BYTES, IN_MEMORY_BYTES)]
    inside, outside = (size / s / 1e9 for size, s in zip((IN_CACHE_BYTES, IN_MEMORY_BYTES), memory, strict=True))
    spreads = {kind: rates.spread.kernel for kind, rates in found.products.items()}
    spreads |= {kind: rates.spread.kernel for kind, rates in found.streams.items()}
    busy = f"others used the processor, and passes are known to within {found.program_sd:.0%}: end them, and repeat it"
    return (
        f"calibrated {found.name}, {counted(found.num_threads, 'thread')}, torch {found.torch_version}",
        f"matrix products of 1,000 x 1,000 x 1,000: {speeds[0]:.0f} GFLOP/s in float32, {speeds[1]:.0f} in bfloat16",
        f"sums of {format_bytes(IN_CACHE_BYTES)}: {inside:.0f} GB/s, of {format_bytes(IN_MEMORY_BYTES)}: {outside:.0f}",
        f"an operator beside its kernel: {found.eager.kernel_s * 1e6:.1f} us eager, "
        f"{found.compiled.kernel_s * 1e6:.1f} us compiled; a compiled pass {found.compiled.pass_s * 1e6:.0f} us more",
        f"kernels that were left out are within {', '.join(f'{sd:.0%} ({kind})' for kind, sd in spreads.items())}",
        f"passes of a small decoder that were left out: within {found.program_sd:.0%} (root mean square of ln)",
        *((busy,) if found.program_sd > BUSY_SD else ()),
    )
