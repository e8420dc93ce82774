"""One program of a CUDA job, written by Inductor for a device that is absent: its kernels, as a line of JSON.

The worker's own functions compile the job and mark its batches. The batches are real tensors of the CPU, moved inside
the compiled module: the compiler drops the marks of fake ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.kernel_counts import count_kernels
from bexplore.host.accelerators import find_device
from bexplore.trace.absent_gpu import stand_in
from bexplore.trace.gpu_properties import GpuProperties

JOBS = Path(__file__).parent / "jobs"
DEVICE = "h100"
KEPT_BLOCKS = 3  # fewest that the worker compiles as nested regions; all blocks have the same kernels
STATIC = "static"  # as the user compiles


def write_program(
    name: str, mode: str, sizes: list[int], *, hint: int | None = None, largest: int | None = None
) -> list[dict[str, Any]]:
    """Run a forward and a backward pass of each size in turn, on fake tensors.

    Args:
        name: `benchmarks/jobs/engine_cuda_NAME.yaml`.
        mode: A `SharedMode`; `static` for the exact program of each size.
        sizes: Micro-batch sizes.
        hint: The number of samples that the compiler is told to expect; None for none.
        largest: Samples for which kernels of a backed number are chosen; of an unbacked one a bound, which the worker
            does not give. None for none.

    Returns:
        For each size: `micro_batch_size`; `compilations` and `recompile_reasons`; `graphs`, the counts of those that
        were written for it, in order; `pad_mm_gib`, most that the padding of a matrix product would have been tried on.
    """
    properties = GpuProperties.of_device(find_device(DEVICE))
    stand_in(properties)

    import torch
    from torch.utils._pytree import tree_map_only

    from bexplore.config.load import load_config
    from bexplore.engine.protocol.shared_mode import SharedMode
    from bexplore.engine.worker.compilation import (
        compile_workload,
        mark_batch_dimension,
        repeated_classes,
        truncate_layers,
    )
    from bexplore.engine.worker.compiler_account import CompilerCounters
    from bexplore.engine.worker.torch_private import make_limits_loud
    from bexplore.measurement.probe import Compilation
    from bexplore.trace.fake_build import build_fake

    job = dataclasses.replace(load_config(JOBS / f"engine_cuda_{name}.yaml").job, device="cuda:0")
    compilation = Compilation.EXACT if mode == STATIC else Compilation.SHARED
    workload, fake_mode = build_fake(job)
    block_classes = repeated_classes(workload)
    truncate_layers(workload, KEPT_BLOCKS, _num_blocks(workload))
    make_limits_loud()
    for module in workload.compiled_modules:
        _move_batch_inside(module, torch.device(job.device))
    backed_largest = largest if mode == "dynamic" else None
    compile_workload(workload, job.compile, compilation, SharedMode(mode), block_classes, largest_size=backed_largest)
    watch, records = CompilerCounters(), []
    with _programs_kept(fake_mode) as (programs, padded_bytes):
        for size in sizes:
            with fake_mode:
                fake = workload.make_batch(size)
            batch = tree_map_only(torch.Tensor, lambda one: torch.zeros(one.shape, dtype=one.dtype), fake)
            if compilation is Compilation.SHARED:
                growth = None if backed_largest is None else max(1.0, backed_largest / size)
                mark_batch_dimension(batch, workload.batch_dimensions, SharedMode(mode), hint=hint, growth=growth)
                if largest is not None and backed_largest is None:
                    _bound(batch, workload.batch_dimensions, hint, largest)
            workload.forward_backward(batch)
            account = watch.take()
            graphs = [
                {"is_backward": is_backward}
                | count_kernels(text, num_multiprocessors=properties.num_multiprocessors).as_dict()
                for is_backward, text in programs
            ]
            records.append(
                {
                    "micro_batch_size": size,
                    "compilations": account.num_graphs,
                    "recompile_reasons": list(account.recompile_reasons),
                    "graphs": graphs,
                    "pad_mm_gib": max(padded_bytes, default=0) / 2**30,
                }
            )
            programs.clear()
            padded_bytes.clear()
    return records


def _num_blocks(workload: Any) -> int:
    from bexplore.trace.repeated_blocks import find_repeats

    return max(repeat.copies for module in workload.compiled_modules for repeat in find_repeats(module))


def _move_batch_inside(module: Any, device: Any) -> None:
    import torch
    from torch.utils._pytree import tree_map

    forward = module.forward

    def moved(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    module.forward = lambda *batch: forward(*tree_map(moved, batch))


def _bound(batch: Any, dimensions: list[int | None], hint: int | None, largest: int) -> None:
    from torch._dynamo import decorators
    from torch.utils._pytree import tree_leaves

    for tensor, dimension in zip(tree_leaves(batch), dimensions, strict=True):
        if dimension is not None:
            decorators.mark_unbacked(tensor, dimension, shape_id="samples", hint_override=hint, max=largest)


@contextlib.contextmanager
def _programs_kept(fake_mode: Any) -> Iterator[tuple[list[tuple[bool, str]], list[int]]]:
    """Keep the text of each graph instead of building it, and bytes of matrix products that padding is tried on."""
    import torch._inductor.config as inductor_config
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.graph import GraphLowering

    programs: list[tuple[bool, str]] = []
    padded_bytes: list[int] = []

    def keep(graph: GraphLowering) -> types.SimpleNamespace:
        code, _ = graph.codegen()
        programs.append((bool(graph.is_backward), getattr(code, "value", code)))
        graph.cache_key, graph.cache_path, graph.cache_linemap = "", os.devnull, []
        return types.SimpleNamespace(call=lambda arguments: _fake_outputs(graph, arguments, fake_mode), __file__="")

    def refuse_to_pad(match: Any, first: Any, second: Any, op: Any, input: Any = None) -> bool:
        (*batch, rows, inner), columns = pad_mm.hint_symbols(first.shape), pad_mm.hint_symbols(second.shape)[-1]
        elements = rows * inner + inner * columns + rows * columns
        for size in batch:
            elements *= size
        padded_bytes.append(elements * first.dtype.itemsize)
        return False

    # Folding computes a constant on the device, and there is none; the caches know programs that were built.
    settings = {"force_disable_caches": True, "joint_graph_constant_folding": False}
    with (
        mock.patch.object(GraphLowering, "compile_to_module", keep),
        mock.patch.object(pad_mm, "_should_pad", refuse_to_pad),
        inductor_config.patch(settings),
    ):
        yield programs, padded_bytes


def _fake_outputs(graph: Any, arguments: list[Any], fake_mode: Any) -> tuple[Any, ...]:
    import torch
    from sympy import sympify
    from torch._inductor import ir

    sizes = dict(_sizes_of_inputs(graph, arguments))

    def at(size: Any) -> int:
        return int(graph.sizevars.remove_precomputed_replacements(sympify(size)).xreplace(sizes))

    def output(node: Any) -> Any:
        if isinstance(node, ir.NoneAsConstantBuffer):
            return None
        if isinstance(node, ir.ShapeAsConstantBuffer):
            return at(node.expr)
        layout = node.get_layout()
        shape, stride = [at(size) for size in layout.size], [at(size) for size in layout.stride]
        return torch.empty_strided(shape, stride, dtype=layout.dtype, device=layout.device)

    with fake_mode:
        return tuple(output(node) for node in graph.graph_outputs)


def _sizes_of_inputs(graph: Any, arguments: list[Any]) -> Iterator[tuple[Any, int]]:
    for node, argument in zip(graph.graph_inputs.values(), arguments, strict=True):
        if isinstance(argument, int):
            yield node, argument
        elif hasattr(node, "get_size"):
            yield from zip(node.get_size(), argument.shape, strict=True)


if __name__ == "__main__":
    print(json.dumps(write_program(**json.loads(sys.argv[1]))))
