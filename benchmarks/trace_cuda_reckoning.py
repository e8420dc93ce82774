"""A second reckoning of a step's memory on an absent CUDA device: `python -m benchmarks.trace_cuda_reckoning JOB SIZE`.

PyTorch's own `MemTracker` watches a whole step on fake tensors at one size: two accumulation passes and an update. It
shares with the trace the job's program and the device that is stood in for, and nothing else: it adds up storages when
an operator returns, while `bexplore.trace` reads the size of the samples out of each event.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.trace_cuda_jobs import EAGER_JOBS
from bexplore.host.accelerators import device_by_name
from bexplore.job import Job
from bexplore.trace.absent_gpu import GpuProperties, stand_in

GPU = GpuProperties.from_device(device_by_name("h100"))
ACCUMULATION_PASSES = 2


def reckon(job: Job, micro_batch_size: int) -> dict[str, int]:
    """The highest number of bytes on the device in the passes and in the update of the second step."""
    if GPU is None:
        raise ValueError("the table of devices says nothing of the H100's processors")
    stand_in(GPU)  # before torch is imported

    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.optim import optimizer as torch_optimizer
    from torch.utils import _foreach_utils

    from bexplore.workloads import build
    from bexplore.workloads.torch_private import CompilableMode

    class Tracker(MemTracker, CompilableMode):
        """Lets torch.compile work under it, and attributes nothing to modules, which it does for one call of each."""

        def _no_hook(self, *_: Any) -> None: ...

        _pre_fw_hook = _post_fw_hook = _pre_bw_hook = _post_bw_hook = _no_hook

    class Numbers(CompilableMode):
        """Answers what a step reads out of a tensor: the count of updates, and whether gradients overflowed."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._local_scalar_dense.default:
                return 0.0 if args[0].device.type == "cuda" else 1.0
            return func(*args, **(kwargs or {}))

    for module in (torch_optimizer, _foreach_utils):
        module._foreach_supported_types = [*module._foreach_supported_types, FakeTensor]

    def peak_of(tracker: MemTracker) -> int:
        snapshots = tracker.get_tracker_snapshot("peak").items()
        return max(int(snapshot["Total"]) for device, snapshot in snapshots if device.type == "cuda")

    tracker = Tracker()
    with FakeTensorMode():
        workload = build(job)
        if job.compile.backend == "aot_eager":
            for module in workload.compiled_modules:
                module.compile(backend="aot_eager", dynamic=False)
        tracker.track_external(*workload.compiled_modules)
        with tracker:
            batch = workload.make_batch(micro_batch_size)

        def passes() -> None:
            for _ in range(ACCUMULATION_PASSES):
                workload.forward_backward(batch, 1 / ACCUMULATION_PASSES)

        peaks = {}
        for _ in range(2):  # the first step makes the states of the optimizer
            for name, part in (("passes", passes), ("update", workload.update)):
                with tracker, Numbers():
                    part()
                peaks[name] = peak_of(tracker)
    return peaks


if __name__ == "__main__":
    print(json.dumps(reckon(EAGER_JOBS[sys.argv[1]], int(sys.argv[2]))))
