"""The private interfaces of torch that a trace uses, the compiler's above all: no other file of `trace/` names them.

`host.torch_interfaces` lists them. A name that another version of torch lacks ends as a `TraceError`, which costs an
exploration its cost model and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch

from bexplore.errors import WITHOUT_TRACE, TraceError
from bexplore.host.torch_interfaces import CHECKED_VERSIONS
from bexplore.workloads.modules import local

try:
    import torch._dynamo
    import torch._dynamo.backends.registry
    import torch._dynamo.exc
    import torch._functorch.config
    import torch._functorch.partitioners as partitioners
    import torch._inductor.config
    import torch._inductor.cpu_vec_isa
    import torch._inductor.ir as ir
    import torch._inductor.memory as memory_planning
    from torch._inductor.codegen import wrapper as wrapper_lines
    from torch._inductor.codegen.common import WorkspaceArg
    from torch._inductor.fx_utils import get_node_storage
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._ops import HigherOrderOperator, OpOverload
    from torch._prims_common import suggest_memory_format
    from torch._subclasses import fake_tensor
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
    from torch.optim import optimizer as torch_optimizer
    from torch.utils import _foreach_utils
    from torch.utils._mode_utils import no_dispatch
    from torch.utils.checkpoint import CheckpointPolicy
except (ImportError, AttributeError) as error:
    raise TraceError(
        f"This version of torch lacks what a trace reads: {error}.",
        hint=f"An exploration works without a trace; torch {CHECKED_VERSIONS[0]} to {CHECKED_VERSIONS[-1]} have it.",
    ) from error

__all__ = [
    "GraphLowering",  # one graph of the compiler, with the lines of the program that calls its kernels
    "HigherOrderOperator",  # an operator around another one
    "OpOverload",
    "SpecializationError",
    "WorkspaceArg",  # memory of a kernel of several operators
    "ir",  # the compiler's buffers and their layouts
    "suggest_memory_format",  # whether the channels of images come last
    "wrapper_lines",  # lines that allocate, reuse and free buffers
]

SpecializationError = (torch._dynamo.exc.UserError, ConstraintViolationError)  # a model fixes its batch dimension

# Chooses the nodes that a forward pass keeps: of its joint graph, what torch knows of that, and the budget.
ChooseSaved = Callable[[torch.fx.Graph, Any, float], list[torch.fx.Node]]

# Nothing is measured while a program is only planned: these settings of the compiler run kernels, or record them, on
# tensors of gigabytes. Padding is judged at a prime size, which is aligned to nothing, so that it would be chosen where
# a real size would not have it.
_WITHOUT_MEASUREMENTS = {
    "force_disable_caches": True,
    "compile_threads": 1,  # more start a pool of processes, which builds each kernel as soon as its text is written
    "cpp_wrapper": False,
    "shape_padding": False,
    "triton.cudagraphs": False,
    "graph_partition": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "benchmark_kernel": False,
}
# Folding computes a constant on the device, where there is none.
_WITHOUT_DEVICE = {"joint_graph_constant_folding": False}
# What is recomputed after a random operation gets the state of its generator as a tensor: an absent device has none.
_WITHOUT_GENERATORS = {"graphsafe_rng_functionalization": False}


Backend = Callable[..., Any]  # (graph, its inputs) -> what runs in its place


def inductor_backend(options: Mapping[str, Any] | None, *, dynamic: bool | None) -> Backend:
    """Return what `torch.compile` makes of its arguments `options` and `dynamic`."""
    return torch._TorchCompileInductorWrapper(None, options, dynamic)


def split_at_buckets(backend: Backend | str, bucket_cap_bytes: int) -> Backend:
    """Return a backend that splits each graph at gradient buckets, as in the forward of DistributedDataParallel.

    Source: `DDPOptimizer` in torch/_dynamo/backends/distributed.py, and its use in torch/_dynamo/convert_frame.py.
    """
    from torch._dynamo.backends.distributed import DDPOptimizer  # torch.distributed: only where there are replicas

    inner = torch._dynamo.backends.registry.lookup_backend(backend)
    return DDPOptimizer(bucket_bytes_cap=bucket_cap_bytes, backend_compile_fn=inner).compile_fn


@contextlib.contextmanager
def compile_without_building(
    load: Callable[[GraphLowering], Callable[[list[Any]], Any]],
    *,
    device_type: str,
    activation_memory_budget: float,
    choose_saved: ChooseSaved | None,
) -> Iterator[None]:
    """Make torch.compile run up to the text of its programs, and call something else in place of each program.

    Args:
        load: Planned graph -> what is called with the program's list of inputs.
        activation_memory_budget: 1 leaves what the user's own code sets.
        choose_saved: Called in place of the compiler's own choice of what a forward pass keeps; None leaves that.
    """

    def load_instead(graph: GraphLowering) -> types.SimpleNamespace:
        graph.codegen()
        graph.cache_key, graph.cache_path, graph.cache_linemap = "", os.devnull, []
        return types.SimpleNamespace(call=load(graph), __file__=os.devnull)

    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(GraphLowering, "compile_to_module", load_instead))
        # finding the vector width builds programs; the width changes kernels, not buffers
        stack.enter_context(mock.patch.object(torch._inductor.cpu_vec_isa, "valid_vec_isa_list", lambda: []))
        stack.enter_context(torch._inductor.config.patch(_WITHOUT_MEASUREMENTS))
        if device_type != "cpu":
            stack.enter_context(torch._inductor.config.patch(_WITHOUT_DEVICE))
            stack.enter_context(torch._functorch.config.patch(_WITHOUT_GENERATORS))
        if activation_memory_budget < 1.0:
            stack.enter_context(torch._functorch.config.patch(activation_memory_budget=activation_memory_budget))
        if choose_saved is not None:
            stack.enter_context(mock.patch.object(partitioners, "choose_saved_values_set", choose_saved))
        stack.enter_context(_silence())
        stack.callback(torch._dynamo.reset)
        yield


@contextlib.contextmanager
def compare_orders(
    sizes: Iterable[int], scale: Callable[[int, int], int], report: Callable[[int, int], None]
) -> Iterator[None]:
    """Tell of each graph that is planned how much lower its peak were in the order of its operators at other sizes.

    The compiler takes that order of which it estimates the lowest peak at the size for which it compiles. Source:
    `reorder_for_peak_memory` in torch/_inductor/memory.py, torch 2.13. Where another version estimates otherwise,
    nothing is told: the trace stands for all sizes.

    Args:
        scale: (a number of bytes or elements at the size of the plan, another size) -> the number at that size.
        report: Called with a size and the bytes.
    """
    try:
        usual, estimate = memory_planning.reorder_for_peak_memory, memory_planning.prepare_planning_info
    except AttributeError:
        yield
        return

    def reorder(nodes: Any, *rest: Any) -> Any:
        order = usual(nodes, *rest)
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            for size in sizes:
                with _estimate_at(size, scale):
                    peaks = [estimate(one, *rest)[0] for one in (order, usual(nodes, *rest))]
                report(size, peaks[0] - peaks[1])
        estimate(nodes, *rest)  # as it left them
        return order

    with mock.patch.object(memory_planning, "reorder_for_peak_memory", reorder):
        yield


@contextlib.contextmanager
def _estimate_at(size: int, scale: Callable[[int, int], int]) -> Iterator[None]:
    graph = V.graph
    of_expression, of_input = graph.sizevars.optimization_hint, graph.get_dep_size_hint
    with (
        mock.patch.object(graph.sizevars, "optimization_hint", lambda *a, **k: scale(of_expression(*a, **k), size)),
        # of inputs it remembers those of the plan's own size
        mock.patch.object(graph, "get_dep_size_hint", lambda *a, **k: scale(of_input(*a, **k), size)),
    ):
        yield


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hide the compiler's own log lines and warnings: those that matter are errors, and are raised."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


usual_choice: ChooseSaved = partitioners.choose_saved_values_set


def size_of_node(node: torch.fx.Node) -> int:
    """Return the bytes of the result of a node of a joint graph."""
    return int(partitioners._size_of(node))


def cut(
    joint_graph: torch.fx.Graph, node_info: Any, *, freedom: int = 0, recomputed: Sequence[torch.fx.Node] = ()
) -> tuple[list[torch.fx.Node], Iterable[torch.fx.Node]]:
    """Return what a forward pass keeps, and the nodes that must not be recomputed, by a minimal cut of a joint graph.

    Args:
        freedom: How many of the rules are lifted that keep the compiler from recomputation: 0 for none, 1 for those
            that spoil fusion, 2 for that of operators that are not known to be cheap, too.
        recomputed: Nodes that may be recomputed all the same.
    """
    settings = torch._functorch.config
    is_free = freedom > 0 or settings.aggressive_recomputation
    options = partitioners.MinCutOptions(
        ban_if_used_far_apart=settings.ban_recompute_used_far_apart and not is_free,
        ban_if_long_fusible_chains=settings.ban_recompute_long_fusible_chains and not is_free,
        ban_if_materialized_backward=settings.ban_recompute_materialized_backward and not is_free,
        ban_if_not_in_allowlist=settings.ban_recompute_not_in_allowlist
        and freedom < 2
        and not settings.aggressive_recomputation,
        ban_if_reduction=settings.ban_recompute_reductions,
    )
    ordered = partitioners.OrderedSet(recomputed)  # type: ignore[attr-defined]  # imported there
    saved, banned = partitioners.solve_min_cut(joint_graph, node_info, options, ordered)
    return list(saved), banned


def list_knapsack_items(
    node_info: Any, banned: Iterable[torch.fx.Node]
) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Return the nodes among which a budget chooses, in the order of the graph, and those that are kept in any case."""
    inputs = {get_node_storage(node) for node in node_info.inputs}
    needed = [
        node
        for node in banned
        if node.dist_from_bw < int(1e9)  # type: ignore[attr-defined]  # the partitioner puts it there
        and (get_node_storage(node) not in inputs or partitioners.is_non_builtin_to_include(node))
    ]
    must_save = [node for node in needed if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE]
    return [node for node in needed if node not in must_save], must_save


def solve_knapsack(
    joint_graph: torch.fx.Graph, node_info: Any, items: Sequence[torch.fx.Node], all_bytes: float, budget: float
) -> list[int]:
    """Return the positions of the items that are kept; `budget` is a share of the bytes that are kept without one."""
    order = sorted(range(len(items)), key=lambda index: size_of_node(items[index]), reverse=True)
    runtimes = {node: partitioners.estimate_runtime(node) for node in dict.fromkeys(items)}
    with no_dispatch():
        _, kept, _ = partitioners._optimize_runtime_with_given_memory(
            joint_graph,
            [size_of_node(items[index]) / all_bytes for index in order],
            [runtimes[items[index]] for index in order],
            budget,
            node_info,
            [items[index] for index in order],
        )
    return [order[place] for place in kept]


def symbol_values(graph: GraphLowering) -> Mapping[Any, Any]:
    """Return the value that each symbolic size of a graph had while it was traced."""
    environment = graph.sizevars.shape_env
    return getattr(environment, "backed_var_to_val", None) or environment.var_to_val  # its name in earlier versions


def keep_symbolic(tensor: torch.Tensor, dimension: int) -> None:
    """Make the compiler keep a dimension symbolic, and refuse a program that fixes it."""
    torch._dynamo.mark_dynamic(tensor, dimension)


def suggest_symbolic(tensor: torch.Tensor, dimension: int) -> None:
    """Make the compiler keep a dimension symbolic unless the program fixes it."""
    torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def make_alias(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Return a part of a tensor's memory as a compiled program does: autograd does not take it for a view.

    A view that was made without gradients refuses to be changed in place; what a compiled program returns does not.
    """
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return torch.as_strided(tensor, shape, stride, offset)


def is_in_backward() -> bool:
    """Return whether autograd runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def number_of_node() -> int | None:
    """Return the number of the autograd function that runs, or whose results are being added; None outside of one."""
    node = torch._C._current_autograd_node() if is_in_backward() else None
    return node._sequence_nr() if node is not None else None


def may_add_gradients(maker: int | None) -> bool:
    """Return whether a sum in the backward pass may be one of gradients, the first made by the function of a number.

    Autograd adds the results of a function while that is the current one. What it has made itself is a part of its
    formula, unless two of its results belong to one tensor.
    """
    if not is_in_backward() or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    if node is None or node._sequence_nr() != maker:
        return True
    receivers = [receiver for receiver in node.next_functions if receiver[0] is not None]
    return len(set(receivers)) < len(receivers)


def runs_formula() -> bool:
    """Return whether a backward formula of torch's own runs, and no user's, nor a forward pass once more."""
    if not is_in_backward() or torch.is_grad_enabled():
        return False
    return not isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction)


def storage_key(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's memory, which views of it share."""
    return storage_key_of(_find_storage(tensor))


def _find_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    refuse_sparse(tensor)
    return tensor.untyped_storage()


def refuse_sparse(tensor: torch.Tensor) -> None:
    """Raise a TraceError for a tensor whose memory is not that of its shape."""
    if "sparse" in str(tensor.layout):
        raise TraceError(
            f"The memory of sparse tensors ({tensor.layout}) follows from their values.", hint=WITHOUT_TRACE
        )


def storage_key_of(storage: torch.UntypedStorage) -> int:
    """Return the identity of a piece of memory."""
    return storage._cdata


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the memory of tensors, each piece once; of those that ranks share, of the rank's own part."""
    parts = map(local, tensors)
    return sum({storage_key(part): int(_find_storage(part).nbytes()) for part in parts}.values())


def is_shared(kind: type) -> bool:
    """Return whether a type of tensor is one that ranks share, of which each has a part."""
    return issubclass(kind, torch.Tensor) and hasattr(kind, "full_tensor")


@contextlib.contextmanager
def report_resizes(report: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Call `report` with a storage and its new bytes before its size changes, which no operator shows.

    Source: `free_storage` and `alloc_storage` of torch/distributed/fsdp/_fully_shard/_fsdp_param.py.
    """
    resize = torch.UntypedStorage.resize_

    def reported(storage: torch.UntypedStorage, size: int) -> Any:
        report(storage, int(size))
        return resize(storage, size)

    with mock.patch.object(torch.UntypedStorage, "resize_", reported):
        yield


@contextlib.contextmanager
def wrap_shape_inference(around: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Enter a context while tensors that ranks share find out the whole shape of a result, on whole fake tensors.

    Source: `_propagate_tensor_meta_non_cached` in torch/distributed/tensor/_sharding_prop.py, torch 2.13.
    """
    propagation = sys.modules.get("torch.distributed.tensor._sharding_prop")
    if propagation is None:  # no rank shares a tensor
        yield
        return
    infer = propagation.ShardingPropagator._propagate_tensor_meta_non_cached

    def inferred(*arguments: Any) -> Any:
        with around():
            return infer(*arguments)

    with mock.patch.object(propagation.ShardingPropagator, "_propagate_tensor_meta_non_cached", inferred):
        yield


@contextlib.contextmanager
def use_foreach_kernels() -> Iterator[None]:
    """Let optimizers and clipping choose their kernels for fake tensors as they do for real ones.

    On an accelerator the default is one kernel over all parameters, with temporaries of all of them, where every type
    is known; a fake tensor's is not. Source: `_default_to_fused_or_foreach` in torch/optim/optimizer.py and
    `_has_foreach_support` in torch/utils/_foreach_utils.py (torch 2.11 to 2.13).
    """
    with contextlib.ExitStack() as stack:
        for module in (torch_optimizer, _foreach_utils):
            known = [*module._foreach_supported_types, fake_tensor.FakeTensor]
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", known))
        yield


@contextlib.contextmanager
def never_skip_updates() -> Iterator[None]:
    """Let gradient scalers always step: whether fake gradients are finite is unknown."""

    def step(_scaler: Any, optimizer: torch.optim.Optimizer, _state: Any, *arguments: Any, **keywords: Any) -> Any:
        return optimizer.step(*arguments, **keywords)

    with mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", step):
        yield


@contextlib.contextmanager
def convert_to_same() -> Iterator[None]:
    """Let a module be converted in its forward to what it is already, where a fake tensor refuses to be swapped.

    Source: `Module._apply` in torch/nn/modules/module.py, torch 2.13: a real parameter gets other data instead.
    """
    swap = torch.utils.swap_tensors

    def swap_others(first: torch.Tensor, second: torch.Tensor) -> None:
        if (first.dtype, first.device, first.shape) != (second.dtype, second.device, second.shape):
            swap(first, second)

    with mock.patch.object(torch.utils, "swap_tensors", swap_others):
        yield


def keep_layouts_of_convolutions() -> None:
    """Let convolutions of an absent CUDA device keep the layout of their operands, as cuDNN's do.

    The CPU build has no cuDNN; its other kernels give up channels-last. Source: `determine_backend_memory_format` in
    aten/src/ATen/native/Convolution.cpp, and `cudnn_conv_suggest_memory_format` in ConvUtils.h, of torch 2.11 to 2.13.
    """
    of_this_build = torch._C._conv_determine_backend_memory_format

    def determine(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        if input.device.type != "cuda":
            return of_this_build(input, weight, backend)
        formats = [suggest_memory_format(tensor) for tensor in (input, weight)]
        kept = [one for one in formats if one is not torch.contiguous_format]
        return kept[0] if kept and input.dtype is not torch.float64 else torch.contiguous_format

    torch._C._conv_determine_backend_memory_format = determine


def never_open_a_device() -> None:
    """Keep fake tensors of this process from opening a device, and the compiler from moving constants to it.

    Source: `proxy_call` in torch/fx/experimental/proxy_tensor.py, which computes what follows from constants of up to
    that many elements; `constant_name` in torch/_inductor/graph.py, torch 2.13.
    """
    setattr(proxy_tensor, "CONSTANT_NUMEL_LIMIT", -1)  # noqa: B010  # typed as final
    setattr(GraphLowering, "constant_name", lambda graph, name, device: name)  # noqa: B010  # a method
    setattr(fake_tensor, "init_gpu_context", lambda device: None)  # noqa: B010  # typed as a cached function
    setattr(fake_tensor.FakeTensorMode, "avoid_device_init", True)  # noqa: B010  # a property of the class
