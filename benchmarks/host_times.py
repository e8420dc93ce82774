"""Seconds of a host for the calls of a pass: `python -m benchmarks.host_times CUDA_FOLDER`.

CUDA_FOLDER has the CUDA build of torch, as `make test-gpu` fetches it. Models are trained on an emulated GPU, whose
driver and kernels do nothing, so that what remains is the host: Python, PyTorch's dispatcher, autograd, the allocator.
Processor seconds, the least of many passes: the machine has other work. Operators are counted as the trace counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine_facts import machine_facts
from bexplore.emulated_gpu import emulated_environment
from bexplore.host.accelerators import DEVICES
from tests.emulated_gpu.on_device import environment

RESULTS = Path(__file__).parent / "results"
ROUNDS, REPEATS = 4, 12
DEPTHS = (20, 60)  # layers of the compiled network
OPTIMIZERS = ("AdamW", "AdamW, fused", "SGD with momentum")

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the CUDA build: torch/ and triton/")
    parser.add_argument("--child", action="store_true")
    arguments = parser.parse_args()
    if arguments.child:
        measure()
    folder = arguments.folder.absolute()
    own = environment(folder, emulated_environment(DEVICES["h100"], torch_folder=folder / "torch"))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.host_times", str(folder), "--child"],
        env=own,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1]) | {
        "facts": machine_facts() | {"command": "python -m benchmarks.host_times CUDA_FOLDER"}
    }
    (RESULTS / "host_times.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "host_times.md").write_text(markdown(report))
    print(markdown(report))


def measure() -> None:
    """In a process that sees the emulated device: print all rows, and end without the interpreter's own end."""
    rows: dict[str, Row] = {}
    for _ in range(ROUNDS):
        for name, make in _models().items():
            for autocast in (False, True):
                row = measure_eager(*make(), autocast=autocast)
                key = f"{name}, autocast" if autocast else name
                known = rows.setdefault(key, row)
                for part in ("forward_s", "backward_s", *OPTIMIZERS):
                    known[part] = min(known[part], row[part])
            print(name, file=sys.stderr)
    print(json.dumps({"eager": rows, "compiled": measure_compiled()}), flush=True)
    os._exit(0)


def _models() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    import torch
    import transformers as tf

    tokens = {name: torch.zeros(2, 64, dtype=torch.long, device="cuda") for name in ("input_ids", "labels")}
    images = {
        "pixel_values": torch.zeros(2, 3, 224, 224, device="cuda"),
        "labels": torch.zeros(2, dtype=torch.long, device="cuda"),
    }
    llama = tf.LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=16, num_attention_heads=4)
    return {
        "BERT base": lambda: (tf.BertForMaskedLM(tf.BertConfig(attn_implementation="eager")), tokens),
        "GPT-2 small": lambda: (tf.GPT2LMHeadModel(tf.GPT2Config()), tokens),
        "LLaMA, 16 layers": lambda: (tf.LlamaForCausalLM(llama), tokens),
        "ViT base": lambda: (tf.ViTForImageClassification(tf.ViTConfig()), images),
        "ResNet-50": lambda: (tf.ResNetForImageClassification(tf.ResNetConfig()), images),
        "ConvNeXt tiny": lambda: (tf.ConvNextForImageClassification(tf.ConvNextConfig()), images),
        "Swin tiny": lambda: (tf.SwinForImageClassification(tf.SwinConfig()), images),
    }


def measure_eager(model: Any, batch: dict[str, Any], *, autocast: bool) -> Row:
    """Return least seconds of passes and updates, and the operators of a pass and of each update."""
    import torch

    model = model.cuda().train()
    parameters = list(model.parameters())
    optimizers = {
        "AdamW": torch.optim.AdamW(parameters, foreach=True),
        "AdamW, fused": torch.optim.AdamW(parameters, fused=True),
        "SGD with momentum": torch.optim.SGD(parameters, momentum=0.9, foreach=True),
    }

    def forward() -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return model(**batch).loss

    row: Row = {"num_parameters": len(parameters)} | dict.fromkeys(("forward_s", "backward_s", *OPTIMIZERS), 1e9)
    for _ in range(REPEATS):
        began = time.process_time()
        loss = forward()
        middle = time.process_time()
        loss.backward()
        row["forward_s"] = min(row["forward_s"], middle - began)
        row["backward_s"] = min(row["backward_s"], time.process_time() - middle)
        for name, optimizer in optimizers.items():
            began = time.process_time()
            optimizer.step()
            row[name] = min(row[name], time.process_time() - began)
        model.zero_grad()
    row["calls"] = count(lambda: forward().backward())
    row["calls_of_update"] = {name: count(optimizer.step) for name, optimizer in optimizers.items()}
    return row


def count(run: Callable[[], Any]) -> dict[str, float]:
    """Return the calls of operators, as `bexplore.trace` counts them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from bexplore.trace.lifetimes import launches_nothing
    from bexplore.trace.operations import count_dispatches

    calls: dict[str, float] = {}

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            own = count_dispatches(args, kwargs or {}, is_view=launches_nothing(func))
            if str(func) != "aten._local_scalar_dense.default":  # a trace reads no number of a fake tensor
                for kind, number in own.items():
                    calls[kind] = calls.get(kind, 0.0) + number
            return func(*args, **(kwargs or {}))

    with Counter():
        run()
    return calls


def measure_compiled() -> list[Row]:
    """Return least seconds of compiled passes of two depths, by turns, and the kernels that their programs call."""
    rows, steps = zip(*map(_compile, DEPTHS), strict=True)
    for _ in range(4 * ROUNDS * REPEATS):
        for row, step in zip(rows, steps, strict=True):
            began = time.process_time()
            step()
            row["seconds"] = min(row["seconds"], time.process_time() - began)
    return list(rows)


def _compile(depth: int) -> tuple[Row, Callable[[], Any]]:
    import torch
    from torch._inductor.utils import run_and_get_code

    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    model = torch.compile(torch.nn.Sequential(*layers).cuda(), dynamic=False)
    batch = torch.zeros(8, 64, device="cuda")

    def step() -> Any:
        return model(batch).sum().backward()

    _, sources = run_and_get_code(step)
    num_kernels = sum(source.count(".run(") + source.count("extern_kernels.") for source in sources)
    return {"depth": depth, "num_kernels": num_kernels, "seconds": 1e9}, step


def fit(rows: dict[str, Row], kinds: tuple[str, str], part: str) -> tuple[float, float, float]:
    """Return seconds of a call of two kinds by least relative deviations, and the standard deviation of ln."""
    calls = np.array([[row["calls"].get(kind, 0.0) for kind in kinds] for row in rows.values()])
    logs = np.log([row[part] for row in rows.values()])
    grid = np.geomspace(0.2e-6, 60e-6, 120)
    deviations = [(float(np.abs(np.log(calls @ np.array([a, b])) - logs).sum()), a, b) for a in grid for b in grid]
    _, first, second = min(deviations)
    return first, second, float(np.std(np.log(calls @ np.array([first, second])) - logs))


def fit_update(rows: dict[str, Row], operator_s: float) -> float:
    """Return the median seconds of a tensor of a list, beside those of the operators of updates."""
    found = [
        (row[name] - operator_s * calls["operator"]) / calls["list_tensor"]
        for row in rows.values()
        for name, calls in row["calls_of_update"].items()
    ]
    return float(np.median(found))


def markdown(report: Row) -> str:
    """The report for people."""
    rows = report["eager"]
    operator_s, view_s, forward_sd = fit(rows, ("operator", "view"), "forward_s")
    back_s, back_view_s, backward_sd = fit(rows, ("backward_operator", "backward_view"), "backward_s")
    lines = [
        f"| {name} | {row['calls']['operator']:.0f} | {row['calls']['view']:.0f} | {1e3 * row['forward_s']:.1f} | "
        f"{row['calls']['backward_operator']:.0f} | {row['calls']['backward_view']:.0f} | "
        f"{1e3 * row['backward_s']:.1f} | " + " | ".join(f"{1e3 * row[one]:.2f}" for one in OPTIMIZERS) + " |"
        for name, row in rows.items()
    ]
    facts = report["facts"]
    return "\n".join(
        [
            "# Seconds of a host",
            "",
            f"`{facts['command']}`, {facts['at']}, {facts['processor']}, torch {facts['torch']}. Least processor "
            "seconds on an emulated H100, whose driver does nothing.",
            "",
            "| call | us |",
            "|---|---:|",
            f"| operator of a forward pass | {1e6 * operator_s:.1f} |",
            f"| view of a forward pass | {1e6 * view_s:.1f} |",
            f"| operator of a backward pass | {1e6 * back_s:.1f} |",
            f"| view of a backward pass | {1e6 * back_view_s:.1f} |",
            f"| tensor of a list, in an update | {1e6 * fit_update(rows, operator_s):.2f} |",
            *(
                f"| kernel of a compiled program of {row['num_kernels']}, with all that is around them | "
                f"{1e6 * row['seconds'] / row['num_kernels']:.1f} |"
                for row in report["compiled"]
            ),
            "",
            f"Standard deviation of ln over programs: forward {forward_sd:.2f}, backward {backward_sd:.2f}.",
            "",
            "| model | operators | views | forward ms | operators | views | backward ms | "
            + " | ".join(f"{one} ms" for one in OPTIMIZERS)
            + " |",
            "|---|---:|---:|---:|---:|---:|---:|" + "---:|" * len(OPTIMIZERS),
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
