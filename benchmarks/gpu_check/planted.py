"""Failures made on purpose, one a process: `python -m benchmarks.gpu_check.planted NAME DEVICE`; a JSON object of each.

What a library says when it has no memory, and what a GPU says that has been used wrongly, are texts that bexplore must
tell apart. They differ by version, so they are read from the device and kept as they are.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

CAP_BYTES = 4 * 2**30
TOO_MUCH_ON_CPU_BYTES = 2**46
LEFT_BYTES = 2 * 2**20  # the least piece that is still taken when all of a GPU's memory is to be used up
TEXT_LIMIT = 4000

WRITES_NOWHERE = 'extern "C" __global__ void writes_nowhere(int* p) { *(int*)16 = 1; }'
TRAPS = 'extern "C" __global__ void traps(int* p) { __trap(); }'
DOES_NOTHING = 'extern "C" __global__ void does_nothing(int* p) { }'


def main(name: str, device: str) -> None:
    cause, wanted = PLANTED[name]
    is_cuda = device != "cpu"
    if is_cuda:
        torch.cuda.init()
        torch.ones(1, device=device)
    held_before = _reserved(device)
    record: dict[str, Any] = {"name": name, "wanted": wanted, "raised": False}
    try:
        cause(device)
        if is_cuda:
            torch.cuda.synchronize(device)
    except Exception as error:  # any kind is the answer
        record |= _described(error)
    gc.collect()
    record |= {"usable_after": _is_usable(device), "held_before": held_before, "held_after": _reserved(device)}
    print(json.dumps(record), flush=True)
    os._exit(0)  # a device in an error state can hang an orderly end


def _described(error: BaseException) -> dict[str, Any]:
    from bexplore.engine.protocol.failures import classify_exception

    failure = classify_exception(error)
    chain, link = [], error
    while link is not None and len(chain) < 8:
        chain.append({"type": _name(type(link)), "text": str(link)[:TEXT_LIMIT]})
        link = link.__cause__ or link.__context__  # type: ignore[assignment]  # any exception may follow
    return {
        "raised": True,
        "types": [_name(kind) for kind in type(error).__mro__[:-2]],
        "chain": chain,
        "outcome": failure.outcome.value,
        "reason": failure.reason,
        "is_clean": failure.is_clean,
    }


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _reserved(device: str) -> int | None:
    if device == "cpu":
        return None
    try:
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_reserved(device))
    except RuntimeError:  # the device cannot be asked any more, which `usable_after` tells
        return None


def _is_usable(device: str) -> bool:
    try:
        return float(torch.ones(8, device=device).sum()) == 8.0
    except RuntimeError:  # of any kind: that is the answer
        return False


def _capped(device: str) -> None:
    if device != "cpu":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(CAP_BYTES / total, torch.device(device))


def _refused(device: str) -> torch.Tensor:
    """A tensor larger than the cap."""
    num_bytes = TOO_MUCH_ON_CPU_BYTES if device == "cpu" else 2 * CAP_BYTES
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def oom_forward(device: str) -> None:
    _capped(device)
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    (weight @ weight + _refused(device).sum()).sum().backward()


class _RefusedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * _refused(str(gradient.device))[0]


def oom_backward(device: str) -> None:
    _capped(device)
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    _RefusedBackward.apply(weight).sum().backward()


def oom_optimizer(device: str) -> None:
    """The states of AdamW, twice the parameters, do not fit; on a CPU the step itself asks for too much."""
    _capped(device)
    if device == "cpu":
        _refused(device)
    weight = torch.nn.Parameter(torch.zeros(CAP_BYTES // 3 // 4, device=device))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()


def oom_compile(device: str) -> None:
    """A backend is refused memory while it compiles."""
    _capped(device)

    def backend(graph: Any, _inputs: Any) -> Any:
        _refused(device)
        return graph.forward

    torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(8, device=device))


def oom_autotune(device: str) -> None:
    """The candidates of a product of matrices do not fit beside its operands."""
    _capped(device)
    if device == "cpu":
        _refused(device)
    side = 20480  # three matrices in bfloat16: 2.5 GB of the cap of 4 GiB, and autotuning makes its own
    left, right = (torch.ones(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    torch.compile(lambda a, b: (a @ b).relu(), mode="max-autotune-no-cudagraphs")(left, right)


def _use_up_memory(device: str) -> list[torch.Tensor]:
    """All of the GPU's free memory; nothing on a CPU, where a tensor of too many bytes stands for it."""
    if device == "cpu":
        return [_refused(device)]
    held, num_bytes = [], 2**34
    while num_bytes >= LEFT_BYTES:
        try:
            held.append(torch.empty(num_bytes, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            num_bytes //= 2
    return held


def cublas_without_memory(device: str) -> None:
    matrix = torch.ones(512, 512, device=device)
    product = torch.empty_like(matrix)
    held = _use_up_memory(device)
    torch.mm(matrix, matrix, out=product)
    del held


def cudnn_without_memory(device: str) -> None:
    images = torch.ones(8, 16, 32, 32, device=device)
    convolution = torch.nn.Conv2d(16, 16, 3).to(device)
    held = _use_up_memory(device)
    convolution(images)
    del held


def cusolver_without_memory(device: str) -> None:
    matrix = torch.eye(512, device=device)
    held = _use_up_memory(device)
    torch.linalg.qr(matrix)
    del held


def triton_without_memory(device: str) -> None:
    """The kernel is compiled, and cannot be loaded."""
    x = torch.ones(4096, device=device)
    held = _use_up_memory(device)
    torch.compile(lambda a: a.sin() * 2 + a.cos())(x)
    del held


def refused_with_expandable_segments(device: str) -> None:
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is set by whoever starts this."""
    held = _use_up_memory(device)
    held.append(_refused(device))


def device_assert(device: str) -> None:
    index = torch.tensor([9], device=device)
    torch.arange(4, device=device)[index].sum().item()


def device_assert_in_loss(device: str) -> None:
    """What a wrong label does, which is the usual way to meet one."""
    logits = torch.ones(4, 8, device=device, requires_grad=True)
    torch.nn.functional.cross_entropy(logits, torch.full((4,), 99, device=device)).backward()


def device_assert_compiled(device: str) -> None:
    backend = "eager" if device == "cpu" else "inductor"
    index = torch.tensor([9], device=device)
    torch.compile(lambda table, i: table[i] * 2, backend=backend)(torch.arange(4.0, device=device), index).sum().item()


def _launch(source: str, name: str, device: str, block: int = 1) -> None:
    kernel = torch.cuda._compile_kernel(source, name)
    kernel(grid=(1, 1, 1), block=(block, 1, 1), args=[torch.zeros(1, dtype=torch.int32, device=device)])


def illegal_access(device: str) -> None:
    _launch(WRITES_NOWHERE, "writes_nowhere", device)


def trap(device: str) -> None:
    _launch(TRAPS, "traps", device)


def launch_of_too_many_threads(device: str) -> None:
    _launch(DOES_NOTHING, "does_nothing", device, block=4096)


# Name -> what does it, and the outcome that bexplore should make of it.
PLANTED: dict[str, tuple[Callable[[str], None], str]] = {
    "oom_forward": (oom_forward, "out_of_memory"),
    "oom_backward": (oom_backward, "out_of_memory"),
    "oom_optimizer": (oom_optimizer, "out_of_memory"),
    "oom_compile": (oom_compile, "out_of_memory"),
    "oom_autotune": (oom_autotune, "out_of_memory"),
    "cublas_without_memory": (cublas_without_memory, "out_of_memory"),
    "cudnn_without_memory": (cudnn_without_memory, "out_of_memory"),
    "cusolver_without_memory": (cusolver_without_memory, "out_of_memory"),
    "triton_without_memory": (triton_without_memory, "out_of_memory"),
    "refused_with_expandable_segments": (refused_with_expandable_segments, "out_of_memory"),
    "device_assert": (device_assert, "crashed"),
    "device_assert_in_loss": (device_assert_in_loss, "crashed"),
    "device_assert_compiled": (device_assert_compiled, "crashed"),
    "illegal_access": (illegal_access, "crashed"),
    "trap": (trap, "crashed"),
    "launch_of_too_many_threads": (launch_of_too_many_threads, "crashed"),
}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
