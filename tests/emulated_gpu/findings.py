"""What was found wrong on CUDA by reading, before any device was there to see it: looked at again, one by one.

`python findings.py NUMBER...` prints a line of JSON for each of them, on an emulated device: whether it is right now.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

MIB = 2**20
CHECKS: dict[int, Callable[[], Any]] = {}
SMALL = {"vocab_size": 1001, "hidden_size": 64, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64}
WIDE = SMALL | {"vocab_size": 8192, "hidden_size": 256}  # whose parameters outweigh the libraries' workspaces
HOLDER = "import torch; x = torch.empty(2**30, dtype=torch.uint8, device='cuda'); print(flush=True); input()"


def finding(number: int) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(check: Callable[[], Any]) -> Callable[[], Any]:
        CHECKS[number] = check
        return check

    return keep


def job(**fields: Any) -> Any:
    from bexplore.job import Job

    given = {"model": SMALL, "data": {"sequence_length": 64}, "sequence_length": 64, "device": "cuda:0"} | fields
    return Job(workload="decoder", **given)


def measure(one: Any, probe: Any) -> dict[str, Any]:
    """Measure one size in a session; what it imports must find the device."""
    from bexplore.engine.worker import measuring

    return measuring.measure(one, probe, pass_budget_s=0.1)


def session(one: Any, mode: str = "dynamic", compilation: str = "exact", **fields: Any) -> Any:
    from bexplore.engine.protocol.messages import RunProbe, SharedMode
    from bexplore.engine.worker.device import take
    from bexplore.engine.worker.session import Session
    from bexplore.engine.worker.torch_private import make_limits_loud
    from bexplore.measurement.probe import Compilation

    make_limits_loud()
    take(one.device)
    request = RunProbe(job=one, probe=probe(4, Compilation(compilation)), shared_mode=SharedMode(mode), **fields)
    return Session(request, report=lambda **_: None)


def probe(size: int, compilation: Any) -> Any:
    from bexplore.measurement.probe import Probe

    return Probe(number=0, micro_batch_size=size, compilation=compilation, max_passes=3)


_LATEST: dict[Any, Any] = {}  # so that the peak of a session holds no tensors of another one


def measured(
    size: int = 64, precision: str = "autocast_bfloat16", mode: str | None = None, *, is_wide: bool = False
) -> Any:
    """A session that has run one size, and the facts of it."""
    import torch

    from bexplore.job import CompileSettings, Precision

    key = (size, precision, mode, is_wide)
    if key in _LATEST:
        return _LATEST[key]
    _LATEST.clear()
    gc.collect()
    torch.cuda.empty_cache()
    given = {"precision": Precision(precision), "compile": CompileSettings(mode=mode)}
    one = session(job(model=WIDE if is_wide else SMALL, **given), budget_bytes=8 * 2**30)
    _LATEST[key] = one, measure(one, probe(size, one.compilation))
    return _LATEST[key]


@cache
def predicted(precision: str = "autocast_bfloat16", *, is_wide: bool = False) -> Any:
    from bexplore.job import Precision
    from bexplore.trace.tracer import trace_job

    return trace_job(job(model=WIDE if is_wide else SMALL, precision=Precision(precision)))


def error_of_trace(size: int, precision: str = "autocast_bfloat16", *, is_wide: bool = False) -> float:
    """Relative error of the predicted peak."""
    model = predicted(precision, is_wide=is_wide)
    found = measured(size, precision, is_wide=is_wide)[1]["peak_memory_bytes"]
    return abs(model.peak_memory_bytes(size) / found - 1)


@finding(1)
def a_name_without_index_means_a_device_whose_memory_can_be_bounded() -> bool:
    import torch

    from bexplore.engine.worker.device import bound_memory, resolve_device

    devices = {name: resolve_device(name) for name in ("cuda", "cuda:0", "auto")}
    for device in devices.values():
        bound_memory(device, 8 * 2**30)
    share = torch.cuda.get_per_process_memory_fraction()
    bound_memory(devices["cuda"], 2**40)
    return {str(device) for device in devices.values()} == {"cuda:0"} and 0.05 < share < 0.15


@finding(2)
def a_trace_on_the_device_places_workspaces_of_kernels() -> bool:
    return predicted().device.startswith("cuda") and predicted().peak_memory_bytes(4) > 0


@finding(3)
def a_trace_knows_the_gradients_that_a_workspace_is_summed_to() -> bool:
    return error_of_trace(64) < 0.05


@finding(4)
def a_product_of_odd_width_is_padded_for_no_thousands_of_samples() -> bool:
    import torch

    odd = job(model=SMALL | {"vocab_size": 50257})
    one = session(odd, mode="unbacked", compilation="shared", budget_bytes=8 * 2**30)
    facts = measure(one, probe(4, one.compilation))
    return facts["num_graphs"] > 0 and torch.cuda.max_memory_reserved() < 2**30


@finding(7)
def passes_in_cuda_graphs_add_to_gradients_outside_of_them() -> bool:
    from bexplore.engine.worker import measuring

    one, facts = measured(4, mode="reduce-overhead")
    warnings = measuring.warn_of_cuda_graphs(one, _last())
    return facts["peak_memory_bytes"] > 0 and any("CUDA graphs" in text for text in warnings)


def _last() -> Any:
    from bexplore.measurement.probe import Compilation, Purpose

    return replace(probe(4, Compilation.EXACT), purpose=next(one for one in Purpose if one.is_verification))


@finding(8)
def a_process_with_cuda_graphs_serves_no_other_size() -> bool:
    return measured(4, mode="reduce-overhead")[0].try_recover() is False


@finding(9)
def a_trace_with_a_gradient_scaler_has_the_states_of_the_optimizer() -> bool:
    model = predicted("autocast_float16")
    states = 2 * 4 * model.num_parameters
    return any(buffer.size(1) >= states for buffer in model.resident) or error_of_trace(64, "autocast_float16") < 0.05


@finding(10)
def the_peak_with_a_gradient_scaler_has_the_states_of_the_optimizer() -> bool:
    one, _ = measured(64, "autocast_float16")
    (optimizer,) = one.workload.optimizers
    return len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups)


@finding(11)
def a_job_on_the_second_device_leaves_the_first_alone() -> bool:
    import torch

    allocated, free = torch.cuda.memory_allocated(0), torch.cuda.mem_get_info(0)[0]
    one = session(job(device="cuda:1"), compilation="eager")
    measure(one, probe(4, one.compilation))
    is_current = torch.cuda.current_device() == 1
    # Sessions of other findings may be freed meanwhile.
    untouched = torch.cuda.memory_allocated(0) <= allocated and torch.cuda.mem_get_info(0)[0] >= free
    torch.cuda.set_device(0)
    return is_current and untouched


@finding(13)
def memory_that_the_driver_refuses_is_out_of_memory() -> bool:
    import torch

    from bexplore.engine.protocol.failures import classify_exception

    outcomes = []
    for allocate in (
        lambda: torch.empty(2**40, dtype=torch.uint8, device="cuda"),
        lambda: torch.cuda.caching_allocator_alloc(2**40),
    ):
        try:
            allocate()
        except RuntimeError as error:
            outcomes.append(classify_exception(error).outcome)
    return outcomes == ["out_of_memory"] * 2


@finding(14)
def a_trace_takes_no_memory_of_the_device() -> bool:
    import torch

    from bexplore.trace.tracer import trace_job

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_reserved()
    trace_job(job(model=SMALL | {"vocab_size": 50257}))
    return torch.cuda.max_memory_reserved() - before <= 64 * MIB


@finding(17)
def a_trace_by_name_is_that_on_the_device() -> bool:
    from bexplore.host.accelerators import DEVICES
    from bexplore.trace.absent_gpu import GpuProperties

    facts = GpuProperties.from_device(DEVICES["h100"])
    own = GpuProperties.from_device_info(_facts())
    return own == facts


@cache
def _facts() -> dict[str, Any]:
    from bexplore.engine.worker.device import device_info

    return device_info("cuda:0")


@finding(18)
def an_update_over_all_parameters_at_once_is_traced_as_such() -> bool:
    return error_of_trace(1, is_wide=True) < 0.05


@finding(19)
def reserved_memory_is_told_beside_allocated() -> bool:
    facts = measured()[1]
    return facts["resident_memory_bytes"] >= facts["peak_memory_bytes"] > 0


@finding(22)
def short_passes_run_back_to_back() -> bool:
    return measured()[0].steps.num_back_to_back(0.001) > 1


@finding(24)
def settings_of_torch_are_those_of_the_job() -> bool:
    import torch

    from bexplore.job import TorchSettings

    settings = TorchSettings(float32_matmul_precision="high", cudnn_benchmark=True)
    one = session(job(torch=settings), compilation="eager")
    seen = []
    hook = one.workload.compiled_modules[0].register_forward_pre_hook(
        lambda *_: seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark))
    )
    measure(one, probe(4, one.compilation))
    hook.remove()
    return set(seen) == {("high", True)}


@finding(26)
def each_name_of_a_device_is_one_lock() -> bool:
    from bexplore.engine.process.device_lock import lock_names

    facts = _facts()
    return lock_names("cuda", facts) == lock_names("cuda:0", facts) == [facts["uuid"]] and len(set(facts["uuids"])) == 2


@finding(29)
def a_product_takes_the_workspace_that_the_trace_foresees() -> bool:
    program = """
import torch
matrix = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
before = torch.cuda.memory_allocated()
product = matrix @ matrix
print(torch.cuda.max_memory_allocated() - before - product.nbytes)  # versions from 2.15 on free it after the call
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    from bexplore.trace.tracer import _blas_workspaces_bytes

    return int(done.stdout) <= _blas_workspaces_bytes() <= 2 * int(done.stdout) + MIB


@finding(30)
def memory_that_a_killed_process_held_is_waited_for() -> bool:
    import torch

    from bexplore.engine.worker.device import await_memory, memory_info

    device = torch.device("cuda:0")
    free = memory_info(device)
    assert free is not None
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        held = memory_info(device)
        holder.kill()
    began_s = time.monotonic()
    return (
        held is not None
        and held[0] < free[0] - 2**30
        and await_memory(device, free[0]) is None
        and (time.monotonic() - began_s < 15.0)
    )


def main() -> None:
    for text in sys.argv[1:]:
        try:
            found: Any = CHECKS[int(text)]()
        except Exception as error:  # the test shows it
            import traceback

            found = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
        print(json.dumps({text: found}), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)
