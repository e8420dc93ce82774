"""The thirty findings on CUDA, again, on a device that runs PyTorch's own CUDA build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bexplore.emulated_gpu import Faults
from tests.emulated_gpu import findings

# Finding -> where it is shown, or why it cannot be.
ELSEWHERE = {
    5: "test_shared_program.py; kernels of each mode were counted once, benchmarks/results/shared_kernels.md",
    6: "make gpu-check ARGS=--emulated, step max_autotune: minutes of compiling",
    12: "below: it needs a device that fails",
    15: "the order of two processes, in tests/torch/engine/test_device.py",
    16: "test_explorations.py: the trace of `device: cuda` is that of the device",
    20: "test_devices.py: what the table says is what torch shows; only a real device can show that the table is right",
    21: "not here: nvidia-smi and the clocks of a device are not emulated",
    23: "not here: which configuration is fastest is a time; that a middle size is first is in "
    "tests/unit/exploration/test_exploration.py",
    25: "tests/engine/test_runner.py on the device: a vision network with batch statistics is measured",
    27: "test_explorations.py: doctor compiles and runs a kernel",
    28: "not here: XPU and MPS are no CUDA devices",
}
NUM_FINDINGS = 30
WITH_CUDA_GRAPHS = (7, 8)  # last, since their memory stays
IN_ORDER = [str(one) for one in sorted(findings.CHECKS, key=lambda number: (number in WITH_CUDA_GRAPHS, number))]


@pytest.fixture(scope="module")
def found() -> dict[int, object]:
    return {}


def test_each_finding_is_looked_at_or_has_its_place():
    assert sorted([*findings.CHECKS, *ELSEWHERE]) == list(range(1, NUM_FINDINGS + 1))


@pytest.mark.parametrize("number", sorted(findings.CHECKS))
def test_what_was_found_wrong_on_cuda_is_right(emulate, found, number):
    if not found:  # all of them in one process, at the first
        program = f"""
        import subprocess, sys
        subprocess.run([sys.executable, {str(Path(findings.__file__))!r}, *{IN_ORDER}])
        """
        for line in emulate(program, num_devices=2):
            found.update({int(key): value for key, value in json.loads(line).items()})
    assert found.get(number) is True, f"{findings.CHECKS[number].__name__}: {found.get(number, 'no answer')}"


def test_a_kernel_that_breaks_the_device_alone_is_the_compilers(emulate, tmp_path):
    """Finding 12: the check without the compiler runs in a new process, which the broken device does not reach."""
    (line,) = emulate(
        f"""
        from pathlib import Path
        from bexplore.engine.runner import EngineRunner, RunnerSettings
        from bexplore.measurement.probe import Compilation, Probe
        from tests.builders import imported_job
        from bexplore.job import CompileSettings

        if __name__ == "__main__":
            job = imported_job(device="cuda:0", compile=CompileSettings())
            with EngineRunner(RunnerSettings(job=job, run_dir=Path({str(tmp_path)!r}))) as runner:
                seen = runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.EXACT))
            print(seen.outcome.value, "in a new process, the same step runs" in seen.reason, seen.reason)
        """,
        faults=Faults(illegal_access_at_launch=150),
    )
    assert line.startswith("compile_failed True"), line
