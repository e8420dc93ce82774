"""Operations of single operators, and the names of those whose operations nothing tells.

Matrix products, convolutions and attention count, by the formulas below and, where there is none, by those of
`torch.utils.flop_counter`. What works on its elements one by one counts as nothing. An operator that neither has a
formula nor is known to be of that kind is unknown: a kernel of the user's own, a Fourier transform, a decomposition of
a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from bexplore.estimate.dispatch import Dispatch
from bexplore.trace.cost_model import NOTHING, Polynomial, TracedKernel
from bexplore.trace.kernel_shapes import find_kernels, is_collective, stream_kernel
from bexplore.trace.torch_private import HigherOrderOperator, OpOverload, is_in_backward
from bexplore.workloads.torch_private import tree_leaves, tree_map, unset_fake_temporarily

_FUSED_ATTENTION = "_scaled_dot_product_"
_FLEX_ATTENTION = "flex_attention"
_MODEL_SHARE_OF_ATTENTION_BACKWARD = 4 / 5  # of five matrix products, the scores' is a recomputation
# Namespaces of operators that torch has: views, what works on single elements, collectives, random numbers.
_TORCH_NAMESPACES = frozenset(
    [
        "aten",
        "prims",
        "prim",
        "inductor",
        "inductor_prims",
        "rngprims",
        "debugprims",
        "profiler",
        "fsdp",
        "c10d",
        "_c10d_functional",
        "bexplore",
        "_c10d_functional_autograd",
        "_dtensor",
        "symm_mem",
        "higher_order",
        "_inductor_test",
        "streams",
    ]
)
_USERS_KERNELS = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
# Operators around a program of their own, whose number of runs may depend on the data.
_PROGRAMS = frozenset(["associative_scan", "cond", "map", "map_impl", "scan", "switch", "while_loop"])
# Operators of `aten` whose operations are no product of matrices of a known number of passes.
_UNKNOWN_PREFIXES = ("_fft_", "linalg_", "_linalg_")
_UNKNOWN_NAMES = frozenset(
    [
        "cholesky",
        "cholesky_solve",
        "cholesky_inverse",
        "triangular_solve",
        "lu_unpack",
        "geqrf",
        "ormqr",
        "_cdist_forward",
        "_cdist_backward",
        "_cslt_sparse_mm",
        "_sparse_addmm",
        "_sparse_mm_reduce_impl",
        "_sparse_semi_structured_mm",
        "_sparse_semi_structured_addmm",
        "_dyn_quant_matmul_4bit",
        "_weight_int4pack_mm",
        "_transformer_encoder_layer_fwd",
        "_native_multi_head_attention",
    ]
)
_ROWS_OF_A_MASK = 64  # blocks of queries at which a mask is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one node of a graph, or of one kernel."""

    name: str = ""  # name of the node; a node of the backward graph with the name of a forward one is its recomputation
    module: str = ""  # modules, as in `Place`
    hardware_flops: Polynomial = NOTHING  # operations, recomputation included
    model_flops: Polynomial = NOTHING  # operations without those that fused attention recomputes
    bytes_moved: Polynomial = NOTHING
    kernels: tuple[TracedKernel, ...] = ()
    dispatches: Mapping[Dispatch, float] = field(default_factory=dict)  # calls of the host
    unknown: str = ""  # name of an operator whose operations are not known
    unknown_bytes: Polynomial = NOTHING  # what it reads and writes


def count_graph_flops(
    graph: torch.fx.Graph, probe_batch: int, find_modules: Callable[[torch.fx.Node], str]
) -> list[Cost]:
    """Return the cost of each node that has operations, of each that may have some, and of each collective."""
    costs = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), _value_of)
        operator, arguments = find_call(node.target, arguments)
        shapes = node_shapes(node)
        flops = count_flops(operator, arguments, keywords, shapes)
        unknown = find_unknown(operator) if flops is None else ""
        if not flops and not unknown and not is_collective(operator):
            continue
        hardware = Polynomial.from_value(flops or 0, probe_batch)
        kernels: tuple[TracedKernel, ...] = ()
        if flops or not unknown:
            itemsize = result_itemsize(node.meta.get("val"))
            kernels = find_kernels(
                operator, arguments, shapes, flops=flops or 0, itemsize=itemsize, probe_batch=probe_batch
            )
        is_replayed = node.target is torch.ops.higher_order.run_with_rng_state
        inputs = [one.meta.get("val") for one in node.all_input_nodes]
        costs.append(
            Cost(
                name=node.name,
                # a wrapper has no modules of its own; its inputs were made in the same ones
                module=find_modules(node) or next(filter(None, map(find_modules, node.all_input_nodes)), ""),
                hardware_flops=hardware,
                model_flops=NOTHING if is_replayed else model_share(operator, hardware),
                kernels=kernels,
                unknown=unknown,
                unknown_bytes=count_bytes((inputs, node.meta.get("val")), probe_batch) if unknown else NOTHING,
            )
        )
    return costs


def count_call(
    operator: Any,
    arguments: Any,
    keywords: Any,
    result: Any,
    *,
    itemsize: int,
    moved: Polynomial,
    largest_new: Polynomial,
    probe_batch: int,
) -> Cost:
    """Return the cost of one call of an operator outside of graphs, its tensors given as their shapes.

    Args:
        itemsize: Bytes of an element of its result.
        moved: Bytes that it reads and writes.
        largest_new: Bytes of the largest tensor that it made, and did not get.
    """
    called, of_call = find_call(operator, arguments)
    flops = count_flops(called, of_call, keywords, result)
    unknown = find_unknown(called) if flops is None else ""
    hardware = Polynomial.from_value(flops or 0, probe_batch)
    kernels: tuple[TracedKernel, ...] = ()
    if flops or is_collective(called):
        kernels = find_kernels(called, of_call, result, flops=flops or 0, itemsize=itemsize, probe_batch=probe_batch)
    if not kernels and moved and not is_collective(called):
        kernels = (stream_kernel(moved, largest_new, [called]),)
    return Cost(
        hardware_flops=hardware,
        model_flops=model_share(called, hardware),
        bytes_moved=moved,
        kernels=kernels,
        unknown=unknown,
        unknown_bytes=moved if unknown else NOTHING,
    )


def _value_of(node: torch.fx.Node) -> Any:
    """Return the program that a node names, and of any other its shapes."""
    module = node.graph.owning_module
    return getattr(module, str(node.target), None) if node.op == "get_attr" and module else node_shapes(node)


def find_call(target: Any, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the operator that is called and its arguments, without a wrapper that replays random numbers."""
    if not isinstance(target, HigherOrderOperator):
        return target, arguments
    places = [place for place, value in enumerate(arguments) if isinstance(value, OpOverload)]
    return (arguments[places[0]], arguments[places[0] + 1 :]) if places else (target, arguments)


def count_bytes(values: Any, probe_batch: int) -> Polynomial:
    """Return the bytes of all tensors among values."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    # one by one: a sum of tensors with and without samples divides by the batch as neither does
    sizes = (Polynomial.from_value(math.prod(_shape_of(one)) * one.itemsize, probe_batch) for one in tensors)
    return sum(sizes, start=NOTHING)


def list_written(operator: OpOverload, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator writes to; gradients, which only a scaler changes, are none of them.

    An operator on lists of tensors returns nothing.
    """
    given = dict(zip((one.name for one in operator._schema.arguments), arguments, strict=False)) | dict(keywords)
    written = [one.name for one in operator._schema.arguments if one.alias_info and one.alias_info.is_write]
    return [given[name] for name in written if name in given and name != "grads"]


def count_dispatches(arguments: Any, keywords: Any, *, is_view: bool) -> dict[Dispatch, float]:
    """Return what the host does for one eager operator; one on lists of tensors has more to do the more there are.

    A forward pass that is computed again within the backward pass is called from Python, as the first one is.
    """
    is_autograd = is_in_backward() and not torch.is_grad_enabled()
    view = Dispatch.BACKWARD_VIEW if is_autograd else Dispatch.VIEW
    operator = Dispatch.BACKWARD_OPERATOR if is_autograd else Dispatch.OPERATOR
    lists = [one for one in (*arguments, *keywords.values()) if isinstance(one, tuple | list)]
    in_lists = sum(isinstance(one, torch.Tensor) for own in lists for one in own)
    calls = {view if is_view else operator: 1.0}
    return calls | {Dispatch.LIST_TENSOR: float(in_lists)} if in_lists else calls


def result_itemsize(result: Any) -> int:
    """Return the bytes of an element of an operator's first tensor of floating-point numbers, else of its first one.

    0 without a tensor. Attention that runs again has the state of its random numbers before its result.
    """
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return next((one.itemsize for one in tensors if one.is_floating_point()), tensors[0].itemsize if tensors else 0)


def model_share(operator: Any, hardware_flops: Polynomial) -> Polynomial:
    """Return the operations of one call without what fused attention recomputes in the backward pass."""
    name = str(operator)
    is_attention = _FUSED_ATTENTION in name or _FLEX_ATTENTION in name
    if is_attention and "backward" in name:
        return hardware_flops.times(_MODEL_SHARE_OF_ATTENTION_BACKWARD)
    return hardware_flops


def node_shapes(node: torch.fx.Node) -> Any:
    """Return a node's value with tensors replaced by shapes, and symbolic numbers by their values."""
    return map_shapes(node.meta.get("val"))


def map_shapes(values: Any) -> Any:
    """Return values outside of a graph in the form of `node_shapes`."""
    return tree_map(_shape_of, values)


def _shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Size(_shape_of(size) for size in value.shape)
    if isinstance(value, torch.ScriptObject):  # such as the handle of a collective: its text would be its address
        return torch.ScriptObject.__name__
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def count_flops(operator: Any, arguments: Any, keywords: Any, result: Any) -> int | None:
    """Return the operations of one call, its tensors given as their shapes; None where no formula tells them."""
    if isinstance(operator, HigherOrderOperator):
        return _count_flex_attention(arguments, operator.name()) if _FLEX_ATTENTION in operator.name() else None
    packet = getattr(operator, "overloadpacket", None)
    if packet is None:
        return None
    if packet.__name__.startswith(_FUSED_ATTENTION):
        arguments = _widen_heads(packet.__name__, arguments)
        if packet not in flop_registry:
            return _count_attention(packet.__name__, arguments)
    formula = _FORMULAS.get(str(packet))
    if formula is not None:
        return formula(*_fill(operator, arguments, keywords))
    return int(flop_registry[packet](*arguments, **keywords, out_val=result)) if packet in flop_registry else None


def _fill(operator: Any, arguments: Any, keywords: Any) -> Iterator[Any]:
    """Yield the arguments of a call in the order of the schema."""
    for place, argument in enumerate(operator._schema.arguments):
        yield arguments[place] if place < len(arguments) else keywords.get(argument.name, argument.default_value)


def find_unknown(operator: Any) -> str:
    """Return the name of an operator that may have operations which no formula tells; empty for one that has none."""
    if isinstance(operator, HigherOrderOperator):
        name = operator.name()
        if name in _USERS_KERNELS:
            return "a Triton kernel"
        return name if name in _PROGRAMS else ""
    packet = getattr(operator, "overloadpacket", None)
    if packet is None:
        return ""
    name = packet.__name__
    if operator.namespace in _TORCH_NAMESPACES:
        is_unknown = name.startswith(_UNKNOWN_PREFIXES) or name in _UNKNOWN_NAMES
        return f"torch's {name}" if is_unknown else ""
    return f"{operator.namespace}::{name}"


def _widen_heads(name: str, arguments: Any) -> tuple[Any, ...]:
    """Give keys and values as many heads as queries have: a kernel repeats them, and torch 2.11 counts no fewer."""
    query = 1 if "backward" in name else 0
    heads = arguments[query][1]
    widened = [torch.Size((batch, heads, *rest)) for batch, _, *rest in arguments[query + 1 : query + 3]]
    return (*arguments[: query + 1], *widened, *arguments[query + 3 :])


def _count_attention(name: str, arguments: Any) -> int:
    """Count fused attention of kernels that torch's counter lacks, such as those of the CPU."""
    if "backward" in name:
        return int(sdpa_backward_flop_count(*arguments[:4]))
    return int(sdpa_flop_count(*arguments[:3]))


def _count_flex_attention(arguments: Any, name: str) -> int:
    """Count the blocks of attention that a block mask leaves; all where the mask reads data."""
    mask = next((one for one in arguments if isinstance(one, tuple) and callable(one[-1] if one else None)), None)
    reads_data = bool(arguments[-1])  # the tensors that the mask closes over
    share = 1.0 if mask is None or reads_data else _find_density(mask[-1], arguments[0], arguments[1], mask)
    if "backward" in name:
        query, *others = _widen_heads("", arguments[:3])
        return round(share * sdpa_backward_flop_count(query, query, *others))
    return round(share * sdpa_flop_count(*_widen_heads("", arguments[:3])))


def _find_density(mask_mod: Any, query: Any, key: Any, mask: tuple[Any, ...]) -> float:
    """Return the share of the blocks of scores that a mask does not skip; 1 where it cannot be asked.

    The first and the last row of evenly spaced blocks of queries are looked at, against all keys.
    """
    rows, columns = query[-2], key[-2]
    block_rows, block_columns = (int(size) for size in mask[-3:-1])
    num_blocks = math.ceil(rows / block_rows)
    chosen = sorted({round(place * (num_blocks - 1) / (_ROWS_OF_A_MASK - 1)) for place in range(_ROWS_OF_A_MASK)})
    kept = total = 0
    try:
        with unset_fake_temporarily():
            zero, keys = torch.tensor(0), torch.arange(columns)
            for block in chosen:
                edges = torch.tensor([block * block_rows, min(rows, (block + 1) * block_rows) - 1])
                seen = torch.as_tensor(mask_mod(zero, zero, edges[:, None], keys[None, :]))
                by_key = seen.expand(2, columns).any(0)
                kept += sum(int(part.any()) for part in by_key.split(block_columns))
                total += math.ceil(columns / block_columns)
    except Exception:  # a mask of the user's own may fail on several rows at once
        return 1.0
    return kept / total


def _count_product(left: Any, right: Any, *_: Any) -> int:
    """Count a product of matrices, and one of groups: of rows to their own matrix, and of sums over groups.

    Every row of `left` belongs to one group wherever the groups end, so that the offsets, which are data, change
    nothing. Rows beyond the last group would be too many: no library makes such.
    """
    groups = left[0] if len(left) == len(right) == 3 else 1
    return int(2 * groups * left[-2] * left[-1] * right[-1])


def _count_convolution_backward(gradient: Any, images: Any, weight: Any, *settings: Any) -> int:
    """Count the gradients of images and weights, each as the forward pass: `conv_backward_flop` leaves out the groups.

    Of a transposed one, whose source and result are exchanged, each point of the images meets the weights.
    """
    is_transposed, is_needed = settings[4], settings[7]
    points = images if is_transposed else gradient
    return int(2 * sum(is_needed[:2]) * points[0] * math.prod(points[2:]) * math.prod(weight))


def _count_elements_twice(*shapes: Any) -> int:
    return int(2 * math.prod(shapes[0]))


def _count_recurrent_layer(rows: Any, *weights: Any) -> int:
    """Count one layer of a recurrent network in one direction: each token meets each weight of its two matrices."""
    return int(2 * math.prod(rows[:-1]) * sum(math.prod(weight) for weight in weights[:2]))


def _count_recurrent_layers(rows: Any, weights: Any, *_: Any) -> int:
    """Count all layers and directions of cuDNN; biases, which have one dimension, are no product."""
    matrices = sum(math.prod(weight) for weight in weights if len(weight) == 2)
    return int(2 * math.prod(rows[:-1]) * matrices)


def _twice(formula: Callable[..., int]) -> Callable[..., int]:
    """Return the formula of the backward pass: a product for the gradient of each of two operands."""
    return lambda *arguments: 2 * formula(*arguments)


# Those that `torch.utils.flop_counter` lacks or has wrong, by the operator's name.
_FORMULAS: dict[str, Callable[..., int]] = {
    "aten.convolution_backward": _count_convolution_backward,
    "aten._grouped_mm": _count_product,
    "aten._scaled_grouped_mm": _count_product,
    "aten._scaled_grouped_mm_v2": _count_product,
    "aten._scaled_mm_v2": _count_product,
    "aten._int_mm": _count_product,
    "aten.mv": _count_elements_twice,
    "aten.dot": _count_elements_twice,
    "aten.vdot": _count_elements_twice,
    "aten.addmv": lambda _, matrix, *rest: _count_elements_twice(matrix),
    "aten.addbmm": lambda _, left, right, *rest: _count_product(left, right),
    "aten._addmm_activation": lambda _, left, right, *rest: _count_product(left, right),
    "aten._weight_int8pack_mm": lambda rows, weight, *rest: int(2 * rows[0] * math.prod(weight)),
    "aten.linear": lambda rows, weight, *rest: int(2 * math.prod(rows[:-1]) * math.prod(weight)),
    "aten.mkldnn_linear": lambda rows, weight, *rest: int(2 * math.prod(rows[:-1]) * math.prod(weight)),
    "aten.mkldnn_rnn_layer": _count_recurrent_layer,
    "aten.mkldnn_rnn_layer_backward": _twice(_count_recurrent_layer),
    "aten._cudnn_rnn": _count_recurrent_layers,
    "aten._cudnn_rnn_backward": _twice(_count_recurrent_layers),
    "aten.miopen_rnn": _count_recurrent_layers,
    "aten.miopen_rnn_backward": _twice(_count_recurrent_layers),
    # Experts of transformers in types that torch's grouped product lacks.
    "transformers.grouped_mm_fallback": _count_product,
    "transformers.grouped_mm_fallback_backward": _twice(_count_product),
}
