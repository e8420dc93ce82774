"""Private interfaces of PyTorch that are used here, the versions with which they were checked, and what each is for.

`make test-torch` runs the tests under each version. Nothing here imports torch before it is asked to look.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

# Each has all names, and its traces of six jobs were compared; which suites ran stands in docs/guide.md, "Versions of
# PyTorch".
CHECKED_VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")

# Those on which the program of a GPU that is not there was planned, and compared with the recorded ones.
ABSENT_GPU_VERSIONS = ("2.13", "2.15")

_TRACE = "the trace: memory and speed of a job are known from probes alone"
_JOBS = "explorations of a job; a training command is explored all the same"
_ONE_PROGRAM = "one program for all sizes where the compiler knows of no size: each has its thresholds, or is compiled"
_BATCH_NORM = "one program for all sizes of models with BatchNorm on vectors, which may be compiled again"
_THRESHOLDS = "one program for all sizes of a GPU, which may be compiled again beyond a threshold of its kernels"
_LAYOUT = "the layout of convolutions in one program for all sizes of a GPU, whose kernels may be others"
_READY_COMPILER = "a compiler that is made ready beside the trace: the first probe takes seconds longer"
_MEMORY_RECORD = "the record of a GPU's memory in a profile"
_ORDER = "the memory of small sizes of a program whose order of operators depends on the size: a tenth may be wrong"
_MANY_RANKS = "a quick trace of many ranks of FSDP2"

# What an exploration lacks without them -> names. `tests/rules/test_torch_interfaces.py` holds that these are the names
# that the files `torch_private.py` use, `tests/torch/test_torch_interfaces.py` that the PyTorch that runs has each.
PRIVATE_INTERFACES: Mapping[str, tuple[str, ...]] = {
    _TRACE: (
        "torch._C._AutoDispatchBelowADInplaceOrView",
        "torch._C._conv_determine_backend_memory_format",
        "torch._C._current_autograd_node",
        "torch._C._current_graph_task_id",
        "torch._TorchCompileInductorWrapper",
        "torch._dynamo.backends.distributed.DDPOptimizer",
        "torch._dynamo.backends.registry.lookup_backend",
        "torch._dynamo.exc.UserError",
        "torch._dynamo.mark_dynamic",
        "torch._dynamo.maybe_mark_dynamic",
        "torch._dynamo.reset",
        "torch._functorch.config.patch",
        "torch._functorch.partitioners.MinCutOptions",
        "torch._functorch.partitioners.OrderedSet",
        "torch._functorch.partitioners._optimize_runtime_with_given_memory",
        "torch._functorch.partitioners._size_of",
        "torch._functorch.partitioners.choose_saved_values_set",
        "torch._functorch.partitioners.estimate_runtime",
        "torch._functorch.partitioners.is_non_builtin_to_include",
        "torch._functorch.partitioners.solve_min_cut",
        "torch._inductor.codegen.common.WorkspaceArg",
        "torch._inductor.codegen.wrapper",
        "torch._inductor.config.patch",
        "torch._inductor.cpu_vec_isa.valid_vec_isa_list",
        "torch._inductor.fx_utils.get_node_storage",
        "torch._inductor.graph.GraphLowering.compile_to_module",
        "torch._inductor.graph.GraphLowering.constant_name",
        "torch._inductor.ir",
        "torch._ops.HigherOrderOperator",
        "torch._ops.OpOverload",
        "torch._prims_common.suggest_memory_format",
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init",
        "torch._subclasses.fake_tensor.init_gpu_context",
        "torch.amp.GradScaler._maybe_opt_step",
        "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT",
        "torch.optim.optimizer._foreach_supported_types",
        "torch.utils._foreach_utils._foreach_supported_types",
        "torch.utils._mode_utils.no_dispatch",
    ),
    _JOBS: (
        "torch._C._profiler._EventType.Allocation",
        "torch._check",
        "torch._dynamo.callback.callback_handler.register_end_callback",
        "torch._dynamo.callback.callback_handler.register_start_callback",
        "torch._dynamo.callback.callback_handler.remove_end_callback",
        "torch._dynamo.callback.callback_handler.remove_start_callback",
        "torch._dynamo.config.fail_on_recompile_limit_hit",
        "torch._dynamo.config.suppress_errors",
        "torch._dynamo.decorators.mark_dynamic",
        "torch._dynamo.decorators.maybe_mark_dynamic",
        "torch._dynamo.utils.clear_compilation_metrics",
        "torch._dynamo.utils.get_compilation_metrics",
        "torch._dynamo.utils.graph_break_reasons",
        "torch._foreach_zero_",
        "torch._functorch.config.activation_memory_budget",
        "torch._guards.CompileContext.current_compile_id",
        "torch._guards.detect_fake_mode",
        "torch._higher_order_ops.invoke_subgraph",
        "torch._inductor.config.joint_graph_constant_folding",
        "torch._inductor.runtime.cache_dir_utils.cache_dir",
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch._subclasses.fake_tensor.unset_fake_temporarily",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree.tree_leaves",
        "torch.utils._pytree.tree_map",
        "torch.utils._pytree.tree_map_only",
    ),
    _ONE_PROGRAM: ("torch._dynamo.decorators.mark_unbacked",),
    _BATCH_NORM: ("torch.nn.functional._verify_batch_size",),
    _THRESHOLDS: (
        "torch._inductor.codegen.simd.expr_fits_within_32bit",
        "torch._inductor.codegen.triton_utils.expr_fits_within_32bit",
        "torch._inductor.scheduler.MixOrderReduction.can_fuse",
        "torch._inductor.virtualized.V",
    ),
    _LAYOUT: (
        "torch._inductor.graph.GraphLowering.decide_layout_opt",
        "torch._inductor.graph.has_free_symbols",
    ),
    _READY_COMPILER: ("torch._inductor.codecache.CppPythonBindingsCodeCache.load_pybinding",),
    _MEMORY_RECORD: (
        "torch.cuda.memory._dump_snapshot",
        "torch.cuda.memory._record_memory_history",
    ),
    _ORDER: (
        "torch._inductor.memory.prepare_planning_info",
        "torch._inductor.memory.reorder_for_peak_memory",
        "torch._inductor.virtualized.V.graph",
    ),
    _MANY_RANKS: ("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty",),
}


def is_checked(torch_version: str) -> bool:
    """Return whether a version, such as `2.13.0+cu130`, is one of those with which the interfaces were checked."""
    return ".".join(torch_version.split(".")[:2]) in CHECKED_VERSIONS


def version_warnings(torch_version: str) -> tuple[str, ...]:
    """Return a line where a version was not checked; none where it was, and where there is no torch."""
    if torch_version == "absent" or is_checked(torch_version):
        return ()
    text = (
        f"torch {torch_version} was not tested ({CHECKED_VERSIONS[0]} to {CHECKED_VERSIONS[-1]} were): "
        "bexplore doctor tells what is lost"
    )
    return (text,)


def find_interface(name: str) -> Any:
    """Return what a dotted name stands for in this process's torch, which is imported; None where it is missing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except Exception:  # no module of that name, or one that lacks what it needs itself
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found
    return None


def missing_interfaces() -> Iterator[tuple[str, str]]:
    """Yield what an exploration lacks with this process's torch, which is imported, and the name that is missing."""
    for lost, names in PRIVATE_INTERFACES.items():
        missing = [name for name in names if find_interface(name) is None]
        if missing:
            yield lost, missing[0]
