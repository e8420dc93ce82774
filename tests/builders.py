"""Builders with defaults, shared by the tests, and the places of their files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from bexplore.estimate.efficiencies import Spread
from bexplore.estimate.kernels import Work
from bexplore.estimate.processor import Calibration, Launches, Rates, StreamRates
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.trace.cost_model import NOTHING, CostModel, Peak, Phase, Polynomial

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "tests" / "jobs"
RECORDED = ROOT / "tests" / "recorded"
# Where the jobs of the tests run: `make test-gpu` names an emulated device.
DEVICE = os.environ.get("BEXPLORE_TEST_DEVICE", "cpu")


def imported_job(
    model: str = "perceptron",
    *,
    batch: str = "samples",
    loss: str = "cross_entropy",
    backend: str = "aot_eager_decomp_partition",
    **fields,
) -> Job:
    """A job of `tests/jobs/programs.py`; its backend decomposes and partitions as Inductor does but builds nothing."""
    paths = {"model": f"programs:{model}", "batch": f"programs:{batch}", "loss": f"programs:{loss}"}
    compile_settings = fields.pop("compile", CompileSettings(backend=backend))
    return Job(
        workload="imported", model=paths, import_root=str(JOBS), compile=compile_settings, **{"device": DEVICE} | fields
    )


def step_job(step: str, **fields) -> Job:
    """A job of a whole step of `tests/jobs/programs.py`."""
    compile_settings = fields.pop("compile", CompileSettings(backend="aot_eager"))
    model = {"step": f"programs:{step}"} | fields.pop("model", {})
    return Job(
        workload="imported", model=model, import_root=str(JOBS), compile=compile_settings, **{"device": DEVICE} | fields
    )


def observed(micro_batch_size: int = 1, *, number: int = 0, **fields) -> Observation:
    """A measured observation with sensible times."""
    facts = {"outcome": Outcome.MEASURED, "pass_times_s": (0.1, 0.1, 0.1)} | fields
    return Observation(probe=Probe(number=number, micro_batch_size=micro_batch_size), **facts)


def cost_model(peak: Polynomial = NOTHING, *, phase: Phase = Phase.FORWARD, **fields) -> CostModel:
    """A trace of a step with one phase, whose peak is given in bytes."""
    facts = {
        "fingerprint": "0" * 16,
        "num_parameters": 1,
        "model_flops": Polynomial(0, 1),
        "hardware_flops": Polynomial(0, 1),
        "bytes_moved": Polynomial(0, 1),
        "resident": (),
        "peaks": {phase: (Peak(size=peak, buffers=()),)},
        "relative_sd": 0.02,
        "trace_s": 1.0,
        "device": "cpu",
        "compiler": "torch 2.13.0",
    }
    return CostModel(**facts | fields)


def calibration() -> Calibration:
    """A made-up table of a processor: 100 GFLOP/s, 10 GB/s."""
    spread = Spread(kernel=0.1, common=0.0)
    kinds = [f"{kind} {precision}" for kind in ("product", "convolution") for precision in ("half", "single")]
    fused = [f"attention {role}{precision}" for role in ("", "backward ") for precision in ("half", "single")]
    return Calibration(
        name="a processor",
        num_threads=2,
        torch_version="2.13.0",
        made_at="2026-01-01T00:00:00+00:00",
        products={kind: Rates(seconds=(1e-6, 1e-11, 1e-10, 1e-10, 1e-10), spread=spread) for kind in kinds}
        | {kind: Rates(seconds=(1e-6, 2e-11, 1e-10), spread=spread) for kind in fused},
        streams={work.value: StreamRates(num_bytes=(1e3, 1e8), seconds=(1e-6, 1e-2), spread=spread) for work in Work},
        fresh_s=3e-10,
        eager=Launches(kernel_s=5e-6),
        compiled=Launches(kernel_s=1e-6, pass_s=1e-4),
        program_sd=0.1,
    )


def in_child(work: Callable[[], object]) -> int:
    """Do some work in a forked process, which may be killed; return its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def free_port() -> int:
    """Return a port of this host that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(path: Path) -> None:
    """Wait until a file exists; the limit of the test ends a wait in vain."""
    while not path.exists():
        time.sleep(0.01)
