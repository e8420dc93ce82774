"""Section 1: the device as torch, the driver and `bexplore doctor` show it, and whether a probe runs at all."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.commands import bexplore
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.gpu import nvidia_smi
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.host.accelerators import find_device
from bexplore.host.machine import accelerator_name, package_version
from bexplore.units import format_bytes

QUICKSTART = Path(__file__).parent.parent.parent / "configs" / "quickstart.yaml"
PACKAGES = ("torch", "triton", "numpy", "transformers", "lightning", "accelerate", "optuna", "pydantic", "pytest")
TABLE_TOLERANCE = 0.01  # of the memory that devices.py gives
HOLDS_A_CONTEXT = "import sys, torch; torch.cuda.mem_get_info(); print('ready', flush=True); sys.stdin.read()"


def look_at_device(context: Context) -> Verdict:
    """Everything that devices.py, the doctor and the absent GPU want to be told."""
    import torch

    context.note(
        python=platform.python_version(),
        packages={name: package_version(name) for name in PACKAGES},
        proc_driver=[path.read_text() for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))],
        accelerator_name=accelerator_name(),
        compilers={name: shutil.which(name) for name in ("cc", "gcc", "g++", "nvcc", "ptxas")},
        has_python_header=Path(sysconfig.get_paths()["include"], "Python.h").exists(),
        nvidia_smi_list=nvidia_smi("-L"),
        nvidia_smi_memory=nvidia_smi("--query-gpu=index,uuid,pci.bus_id,memory.total,driver_version", "--format=csv"),
    )
    if context.on_cpu:
        return judged(True, f"the CPU; torch {torch.__version__}")
    properties = torch.cuda.get_device_properties(context.device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(context.device)
    known = find_device(properties.name)
    context.note(
        properties=_fields(properties),
        mem_get_info=[free_bytes, total_bytes],
        context_bytes=_context_bytes(context.device),
        cublas_workspace_bytes=_cublas_workspace_bytes(context.device),
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        memory_in_table_bytes=known.total_memory_bytes if known else None,
        num_devices=torch.cuda.device_count(),
    )
    in_table = f"devices.py {format_bytes(known.total_memory_bytes)}" if known else "not in devices.py"
    found = f"{properties.name}: total_memory {format_bytes(properties.total_memory)}, {in_table}"
    is_near = known is not None and abs(known.total_memory_bytes / properties.total_memory - 1) <= TABLE_TOLERANCE
    return judged(is_near, f"{found}, free {format_bytes(free_bytes)}")


def _fields(properties: Any) -> dict[str, Any]:
    names = [name for name in dir(properties) if not name.startswith("_")]
    return {name: value for name in names if not callable(value := getattr(properties, name))}


def _context_bytes(device: str) -> int:
    """Memory of the context of a second process."""
    import torch

    before = torch.cuda.mem_get_info(device)[0]
    command = [sys.executable, "-c", HOLDS_A_CONTEXT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return int(before - torch.cuda.mem_get_info(device)[0])


def _cublas_workspace_bytes(device: str) -> int:
    """What the first product of matrices allocates beside its result (finding 29)."""
    import torch

    matrix = torch.ones(256, 256, device=device, dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated(device)
    product = matrix @ matrix
    return int(torch.cuda.memory_allocated(device) - before - product.nbytes)


def ask_doctor(context: Context) -> Verdict:
    ran = bexplore(["doctor", "--noise-s", "0", "--json"])
    context.note(code=ran.code, checks=ran.events, errors=ran.errors)
    bad = [f"{check['name']}: {check['message']}" for check in ran.events if check["status"] != "ok"]
    return judged(ran.code == 0, f"exit {ran.code}; {'; '.join(bad) or 'every line ok'}")


def probe_quickstart(context: Context) -> Verdict:
    """`cuda`, `cuda:0` and `auto` must all run (finding 1)."""
    outcomes = {}
    for device in ("cpu", "auto") if context.on_cpu else ("cuda", "cuda:0", "auto"):
        tiny = ["--set", "explore.compile.backend=eager", "--set", "model.hidden_size=24"] if context.on_cpu else []
        arguments = ["probe", str(QUICKSTART), "--micro-batch-size", "8", "--json", "--set", f"explore.device={device}"]
        ran = bexplore([*arguments, *tiny])
        told = ran.of("probe")
        outcomes[device] = told[0]["outcome"] if told else f"exit {ran.code}"
        context.note(**{device: {"code": ran.code, "probe": told, "errors": ran.errors}})
    found = ", ".join(f"{device} {outcome}" for device, outcome in outcomes.items())
    return judged(set(outcomes.values()) == {"measured"}, found)
