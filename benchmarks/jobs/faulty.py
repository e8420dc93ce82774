"""A tiny program of "the user" that fails once, in a chosen way, at the n-th call of a chosen function.

The file `fault.json` in the folder that BENCH_FAULT_DIR names says how; `calls` there counts over all workers.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo import register_backend

WIDTH = 32
CALLERS = {"trace": "trace/tracer.py", "loader": "workloads/loader.py"}  # what strikes a probe: the session


class Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + strike("step", x, self)


def model() -> nn.Module:
    return Faulty()


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    strike("data", torch.zeros(micro_batch_size, 1))
    return torch.randn(micro_batch_size, WIDTH), torch.randint(4, (micro_batch_size,))


def loader(micro_batch_size: int) -> Iterator[torch.Tensor]:
    while True:
        strike("loader", torch.zeros(micro_batch_size, 1))
        time.sleep(0.001)
        yield torch.randn(micro_batch_size, WIDTH)


@register_backend
def faulty(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    """A compiler that compiles nothing."""
    strike("compile", torch.zeros(1, 1))
    return graph.forward


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets)


@torch.compiler.disable
def strike(place: str, x: torch.Tensor, module: nn.Module | None = None) -> float:
    """Fail if it is time; 0 otherwise."""
    folder = Path(os.environ["BENCH_FAULT_DIR"])
    fault = json.loads((folder / "fault.json").read_text())
    where = {"step": ("step", "trace")}.get(place, (place,))
    if fault["place"] not in where or not _is_called_from(CALLERS.get(fault["place"], "engine/session.py")):
        return 0.0
    with (folder / "calls").open("ab") as calls:
        calls.write(b".")
    if (folder / "calls").stat().st_size != fault["call"]:
        return 0.0
    (folder / "struck").write_text(str(x.shape[0]))
    return _fail(fault["kind"], module)


def _is_called_from(caller: str) -> bool:
    """Whether this is the call that is meant: of a probe, and not of a trace or of two splits compared, say."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(caller):
            return True
        frame = frame.f_back
    return False


def _fail(kind: str, module: nn.Module | None) -> float:
    if kind in ("changes_dtype", "changes_device") and module is not None:
        module.to(torch.float64 if kind == "changes_dtype" else torch.device("meta"))
        return 0.0
    if kind == "memory_error":
        raise MemoryError
    if kind == "allocator":
        return float(torch.ones(2**40)[0])
    if kind == "exception":
        raise ValueError("the user's own mistake, about out of memory even")
    if kind == "not_finite":
        return float("nan")
    if kind == "exit":
        os._exit(7)
    if kind == "sys_exit":
        sys.exit(3)
    if kind == "hang":
        time.sleep(3600)
    if kind == "spin":
        while True:
            pass
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "flood":
        line = b"x" * 65536
        for _ in range(1000):
            os.write(1, line)
        return 0.0
    if kind == "close_pipe":
        os.closerange(3, 4096)
        return 0.0
    if kind == "close_stdout":
        os.close(1)
        os.close(2)
        return 0.0
    if kind == "leaves_children":
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        subprocess.Popen(command, start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), getattr(signal, kind))
    return 0.0
