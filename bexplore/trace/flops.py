"""Operations of a traced graph, by the formulas of `torch.utils.flop_counter`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from bexplore.trace.polynomial import NOTHING, Polynomial
from bexplore.trace.torch_private import HigherOrderOperator, OpOverload
from bexplore.workloads.torch_private import tree_map

_FUSED_ATTENTION = "_scaled_dot_product_"
_MODEL_SHARE_OF_ATTENTION_BACKWARD = 4 / 5  # of five matrix products, the scores' is a recomputation


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one node of a graph, or of one kernel.

    Attributes:
        name: Name of the node; a node of the backward graph with the name of a forward one is its recomputation.
        module: Modules, as in `Place`.
        hardware_flops: Operations, recomputation included.
        model_flops: Operations without those that fused attention recomputes.
        bytes_moved: Bytes read and written.
    """

    name: str = ""
    module: str
    hardware_flops: Polynomial = NOTHING
    model_flops: Polynomial = NOTHING
    bytes_moved: Polynomial = NOTHING


def count_graph_flops(graph: torch.fx.Graph, probe_batch: int, module_of: Callable[[torch.fx.Node], str]) -> list[Cost]:
    """Count matrix products, convolutions and fused attention; other operators count as nothing.

    Args:
        graph: Graph with `val` metadata.
        module_of: Node -> modules of the node.
    """
    costs = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), node_shapes)
        operator, arguments = _called(node.target, arguments)
        hardware = Polynomial.of_value(operator_flops(operator, arguments, keywords, node_shapes(node)), probe_batch)
        if hardware:
            is_replayed = node.target is torch.ops.higher_order.run_with_rng_state
            model = NOTHING if is_replayed else model_share(operator, hardware)
            # a wrapper has no modules of its own; its inputs were made in the same ones
            module = module_of(node) or next(filter(None, map(module_of, node.all_input_nodes)), "")
            costs.append(Cost(name=node.name, module=module, hardware_flops=hardware, model_flops=model))
    return costs


def _called(target: Any, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the operator that a node calls and its arguments, without a wrapper that replays random numbers."""
    if not isinstance(target, HigherOrderOperator):
        return target, arguments
    places = [place for place, value in enumerate(arguments) if isinstance(value, OpOverload)]
    return (arguments[places[0]], arguments[places[0] + 1 :]) if places else (target, arguments)


def model_share(operator: Any, hardware_flops: Polynomial) -> Polynomial:
    """Return the operations of one call without what fused attention recomputes in the backward pass."""
    name = str(operator)
    is_attention_backward = _FUSED_ATTENTION in name and "backward" in name
    return hardware_flops.times(_MODEL_SHARE_OF_ATTENTION_BACKWARD) if is_attention_backward else hardware_flops


def node_shapes(node: torch.fx.Node) -> Any:
    """Return a node's value with tensors replaced by shapes, and symbolic numbers by their values."""
    return shapes_of(node.meta.get("val"))


def shapes_of(values: Any) -> Any:
    """Return values outside of a graph in the form of `node_shapes`."""
    return tree_map(_shape_of, values)


def _shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Size(_shape_of(size) for size in value.shape)
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def counts_flops(operator: Any) -> bool:
    """Return whether the operations of an operator are counted."""
    packet = getattr(operator, "overloadpacket", None)
    return packet is not None and (packet in flop_registry or packet.__name__.startswith(_FUSED_ATTENTION))


def operator_flops(operator: Any, arguments: Any, keywords: Any, result: Any) -> int:
    """Return the operations of one call, its tensors given as their shapes; 0 for what is not counted."""
    if not counts_flops(operator):
        return 0
    packet = operator.overloadpacket
    if packet.__name__.startswith(_FUSED_ATTENTION):
        arguments = _with_heads_of_queries(packet.__name__, arguments)
    if packet not in flop_registry:
        return _attention_flops(packet.__name__, arguments)
    return int(flop_registry[packet](*arguments, **keywords, out_val=result))


def _with_heads_of_queries(name: str, arguments: Any) -> tuple[Any, ...]:
    """Give keys and values as many heads as queries have: a kernel repeats them, and torch 2.11 counts no fewer."""
    query = 1 if "backward" in name else 0
    heads = arguments[query][1]
    widened = [torch.Size((batch, heads, *rest)) for batch, _, *rest in arguments[query + 1 : query + 3]]
    return (*arguments[: query + 1], *widened, *arguments[query + 3 :])


def _attention_flops(name: str, arguments: Any) -> int:
    """Count fused attention on the CPU, which torch's counter lacks."""
    if "backward" in name:
        return int(sdpa_backward_flop_count(*arguments[:4]))
    return int(sdpa_flop_count(*arguments[:3]))
