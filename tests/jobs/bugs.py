"""Programs of "the user" with mistakes of their own, which show at some sizes or in some ways only."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from programs import WIDTH, Perceptron, samples
from torch import nn
from torch._dynamo import register_backend


class OddOnly(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2 == 0:
            raise ValueError(f"this model pairs its samples around one in the middle, and got {x.shape[0]}")
        return super().forward(x)


def odd_only() -> nn.Module:
    return OddOnly()


class Slow(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(f"pass of {len(x)}", flush=True)
        time.sleep(0.3 * len(x))
        return super().forward(x)


def slow() -> nn.Module:
    return Slow()


class Reserving(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) in (4, 6) and not hasattr(self, "reserved"):
            resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
            self.reserved = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if len(x) == 6:
            torch.empty(2**60, dtype=torch.uint8)
        return super().forward(x)


def reserving() -> nn.Module:
    """Leaves a gibibyte of address space behind without memory, as a heap in pieces does, at size 4 or 6; 6 fails."""
    return Reserving()


class Normalized(Perceptron):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


def normalized() -> nn.Module:
    """Needs two samples at least."""
    return Normalized()


class ChangesType(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double())


def changes_type() -> nn.Module:
    return ChangesType()


class ChangesDevice(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to("meta"))


def changes_device() -> nn.Module:
    return ChangesDevice()


class Counted(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Path(os.environ["COUNT"]).open("ab") as count:
            count.write(b".")
        return super().forward(x)


def counted() -> nn.Module:
    return Counted()


class Misbehaves(Perceptron):
    """Does to its process what BUG names, at sizes above 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1:
            misbehave(os.environ["BUG"])
        return super().forward(x)


def misbehaves() -> nn.Module:
    return Misbehaves()


def misbehave(how: str) -> None:
    if how == "flood":
        for _ in range(300):
            os.write(1, b"x" * 65536)
    elif how == "close_pipe":
        os.closerange(3, 4096)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "leaves_children":
        # One in a session of its own, and one that still holds the pipe to the explorer open.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        time.sleep(3600)
    elif how == "raise":
        raise ValueError("the user's own mistake")


@register_backend
def misbehaving(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    """A compiler that leaves a child in a session of its own behind, as compiler pools do, and then misbehaves."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    Path(os.environ["CHILD"]).write_text(str(child.pid))
    misbehave(os.environ["BUG"])
    return graph.forward


def hangs_at_three(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if micro_batch_size == 3:
        misbehave("hang")
    return samples(micro_batch_size)


ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
poisoned = False


def fails_until(num_calls: int) -> bool:
    """Whether this is one of so many first calls in all processes together."""
    calls = Path(os.environ["CALLS"])
    with calls.open("ab") as file:
        file.write(b".")
    return calls.stat().st_size <= num_calls


@register_backend
def breaks_the_device(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    """A compiler whose first programs make an illegal access, after which nothing works in their process."""

    def run(*inputs: torch.Tensor):
        global poisoned
        poisoned = True
        raise torch.AcceleratorError(ILLEGAL_ACCESS)

    return run if fails_until(int(os.environ["TIMES"])) else graph.forward


class OnADevice(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            if poisoned:
                raise RuntimeError("nothing works any more on this device")
            if "BROKEN" in os.environ:
                raise torch.AcceleratorError(ILLEGAL_ACCESS)
        return super().forward(x)


def on_a_device() -> nn.Module:
    """Fails as a device does that an earlier kernel of the process has broken; in every process if BROKEN is set."""
    return OnADevice()


@register_backend
def lacks_memory(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    """A compiler that tries kernels on tensors that are too big, for its first programs."""
    if fails_until(int(os.environ["TIMES"])):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 797.00 GiB.")
    return graph.forward
