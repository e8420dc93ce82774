"""Shapes of the kernels of a traced operator, for estimates of their times: `find_kernels`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from bexplore.estimate.kernels import SINGLE_BYTES, Work
from bexplore.trace.cost_model import NOTHING, KernelKind, Polynomial, TracedKernel

_CAUSAL = "is_causal"
_ADDED_TO = frozenset(["addmm", "baddbmm", "addbmm", "_addmm_activation"])  # their first argument is no factor
# Products that `torch.utils.flop_counter` does not count.
_MORE_PRODUCTS = frozenset(
    ["_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2", "_scaled_mm_v2", "_int_mm", "grouped_mm_fallback"]
)

_RECURRENT = frozenset(["mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"])  # one layer in one direction
# Parts of the names of operators by what they do with each element, the costliest first; others are pointwise.
_WORKS = (
    (Work.RANDOM, ("bernoulli", "dropout", "rand", "normal_", "uniform", "exponential_")),
    (Work.SCATTER, ("embedding_dense_backward", "index_put", "scatter", "index_add", "embedding_bag")),
    (Work.POOLING, ("pool",)),
    (Work.CHANNELS, ("batch_norm",)),
    (Work.REDUCTION, ("softmax", "norm", "sum", "mean", "var", "amax", "amin", "std", "argm", "nll_loss", "prod")),
    (
        Work.TRANSCENDENTAL,
        ("gelu", "silu", "tanh", "sigmoid", "exp", "log", "erf", "sin", "cos", "pow", "mish", "softplus"),
    ),
    (Work.GATHER, ("embedding", "index", "gather", "take")),
)
_NO_WORK = ("native_dropout_backward", "expand", "logical_not", "logical_and", "logical_or")  # none of those parts


# Namespaces of collectives. Ranks that share matrices call functional ones, of which the trace keeps the bytes; what
# shards exchange is known by their parameters.
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_FUNCTIONAL = {
    "all_reduce": KernelKind.ALL_REDUCE,
    "all_gather_into_tensor": KernelKind.ALL_GATHER,
    "reduce_scatter_tensor": KernelKind.REDUCE_SCATTER,
}


def find_work(operators: Iterable[Any]) -> Work:
    """Return what the costliest of the operators of a kernel does."""
    packets = (getattr(operator, "overloadpacket", operator) for operator in operators)
    names = [name for name in (str(getattr(one, "__name__", one)) for one in packets) if name not in _NO_WORK]
    return next(
        (work for work, parts in _WORKS for name in names if any(part in name for part in parts)), Work.POINTWISE
    )


def has_kernels(operator: Any) -> bool:
    """Return whether `find_kernels` finds the kernels of an operator."""
    packet = getattr(operator, "overloadpacket", None)
    if packet is None:
        return False
    if is_collective(operator):
        return True
    name = packet.__name__
    is_product = name in _MORE_PRODUCTS | _ADDED_TO | _RECURRENT
    return packet in flop_registry or "scaled_dot_product" in name or is_product


def is_collective(operator: Any) -> bool:
    """Return whether an operator sends to other ranks, or waits for what they send."""
    return getattr(operator, "namespace", "") in _COLLECTIVES


def find_kernels(
    operator: Any, arguments: Any, result: Any, *, flops: int, itemsize: int, probe_batch: int
) -> tuple[TracedKernel, ...]:
    """Return the products, attention or collective of one call, tensors given as their shapes; else nothing."""
    if not has_kernels(operator):
        return ()
    name = operator.overloadpacket.__name__
    if is_collective(operator):
        return _find_collective(name, arguments, result, itemsize=itemsize, probe_batch=probe_batch)
    if name in _RECURRENT:
        return _find_recurrent(name, arguments, itemsize=itemsize, probe_batch=probe_batch)
    if "attention" in name:
        moved = itemsize * sum(map(math.prod, _tensor_shapes((arguments, result), least_dimensions=4)))
        sizes: list[tuple[int, ...]] = [(flops // 2 if _is_causal(operator, arguments) else flops, moved)]
        kind = KernelKind.ATTENTION_BACKWARD if "backward" in name else KernelKind.ATTENTION
    elif _is_of_single_channels(operator, arguments):
        return (_find_single_channels(operator, arguments, result, flops, itemsize=itemsize, probe_batch=probe_batch),)
    else:
        kind, sizes = KernelKind.PRODUCT, list(_find_products(operator, arguments, result))
    window = math.prod(arguments[2 if "backward" in name else 1][2:]) if "conv" in name else 0
    allows_tf32 = kind is KernelKind.PRODUCT and itemsize == SINGLE_BYTES and _allows_tf32(name)
    return tuple(
        TracedKernel(
            kind=kind,
            sizes=tuple(Polynomial.from_value(size, probe_batch) for size in own),
            itemsize=itemsize,
            window=window,
            is_weight_gradient=bool(window) and _is_weight_gradient(name, arguments, own),
            allows_tf32=allows_tf32,
        )
        for own in sizes
    )


def _find_collective(
    name: str, arguments: Any, result: Any, *, itemsize: int, probe_batch: int
) -> tuple[TracedKernel, ...]:
    kind = _FUNCTIONAL.get(name.removesuffix("_out").removesuffix("_"))  # a compiler's write to a tensor that is there
    if kind is None:
        return ()
    whole = arguments[0] if kind is KernelKind.REDUCE_SCATTER else result
    num_bytes = Polynomial.from_value(itemsize * math.prod(whole), probe_batch)
    return (TracedKernel(kind=kind, sizes=(num_bytes,), itemsize=itemsize),)


def _allows_tf32(name: str) -> bool:
    """Return whether this process lets an operator round float32 to TF32: convolutions may by PyTorch's default."""
    return torch.backends.cudnn.allow_tf32 if "conv" in name else torch.get_float32_matmul_precision() != "highest"


def _is_weight_gradient(name: str, arguments: Any, sizes: tuple[int, ...]) -> bool:
    if name != "convolution_backward":
        return False
    outputs, *rest = arguments[2]
    groups = arguments[9]
    return sizes[:2] == (outputs // groups, math.prod(rest))


def _find_recurrent(name: str, arguments: Any, *, itemsize: int, probe_batch: int) -> tuple[TracedKernel, ...]:
    """Return the products of a recurrent layer: of all inputs at once, and of the states one step after the other."""
    (steps, samples, inputs), (gates, _), (_, states) = arguments[:3]
    tokens = steps * samples
    products = [(1, (tokens, gates, inputs, 1)), (steps, (samples, gates, states, 1))]
    if "backward" in name:
        products = [(1, (tokens, inputs, gates, 1)), (1, (gates, inputs, tokens, 1))]
        products += [(steps, (samples, states, gates, 1)), (1, (gates, states, tokens, 1))]
    return tuple(
        TracedKernel(
            kind=KernelKind.PRODUCT,
            sizes=tuple(Polynomial.from_value(size, probe_batch) for size in sizes),
            itemsize=itemsize,
            calls=float(calls),
        )
        for calls, sizes in products
    )


def stream_kernel(moved: Polynomial, result: Polynomial, operators: Iterable[Any]) -> TracedKernel:
    """Return a kernel that reads and writes so many bytes for some operators.

    Args:
        result: Bytes of its largest result that takes memory of its own.
    """
    return TracedKernel(kind=KernelKind.STREAM, sizes=(moved, result), work=find_work(operators))


def _tensor_shapes(values: Any, least_dimensions: int) -> Iterator[Sequence[int]]:
    for value in values:
        if isinstance(value, tuple | list):
            if len(value) >= least_dimensions and all(isinstance(size, int) for size in value):
                yield value
            else:
                yield from _tensor_shapes(value, least_dimensions)


def _is_causal(operator: Any, arguments: Any) -> bool:
    return bool(_argument(operator, arguments, _CAUSAL, False))


def _argument(operator: Any, arguments: Any, name: str, default: Any) -> Any:
    names = [argument.name for argument in operator._schema.arguments]
    place = names.index(name) if name in names else len(arguments)
    return arguments[place] if place < len(arguments) else default


def _is_of_single_channels(operator: Any, arguments: Any) -> bool:
    """Return whether an operator is a convolution of each channel alone: its kernels have no tiles."""
    groups = _argument(operator, arguments, "groups", 1)
    images = arguments[1 if operator.overloadpacket.__name__ == "convolution_backward" else 0]
    return bool(groups > 1 and groups == images[1])


def _find_single_channels(
    operator: Any, arguments: Any, result: Any, flops: int, *, itemsize: int, probe_batch: int
) -> TracedKernel:
    """Return a convolution of each channel alone, whose time is that of its bytes, or of its loads."""

    def count(shapes: Iterable[Sequence[int]]) -> list[Polynomial]:
        return [Polynomial.from_value(itemsize * math.prod(shape), probe_batch) for shape in shapes]

    moved = sum(count(_tensor_shapes((arguments, result), least_dimensions=3)), start=NOTHING)
    made = count(_tensor_shapes((result,), least_dimensions=3))
    largest = max(made, key=lambda size: size(probe_batch), default=NOTHING)
    one = stream_kernel(moved, largest, [operator])
    return dataclasses.replace(one, sizes=(*one.sizes, Polynomial.from_value(flops, probe_batch)))


def _find_products(operator: Any, arguments: Any, result: Any) -> Iterator[tuple[int, ...]]:
    """Yield rows, columns, inner dimension and batch of each product; a convolution is one for each group."""
    name = operator.overloadpacket.__name__
    groups = _argument(operator, arguments, "groups", 1)
    if name == "convolution_backward":
        gradient, images, weight, *_ = arguments
        inputs, outputs, area = images[1] // groups, gradient[1] // groups, math.prod(weight[2:])
        pixels, gradient_pixels = math.prod(images[2:]), math.prod(gradient[2:])
        fewest = min(pixels, gradient_pixels)  # a stride leaves out some of the products
        is_needed = arguments[10]
        if is_needed[0]:
            yield images[0] * pixels, inputs, outputs * area * fewest // pixels, groups
        if is_needed[1]:
            yield outputs, inputs * area, images[0] * fewest, groups
    elif "conv" in name:
        images, weight = arguments[:2]
        area = math.prod(weight[2:])
        if _argument(operator, arguments, "transposed", False):
            yield images[0] * math.prod(images[2:]), weight[1] * area, images[1] // groups, groups
        else:
            yield result[0] * math.prod(result[2:]), result[1] // groups, images[1] // groups * area, groups
    else:
        left, right = arguments[1:3] if name in _ADDED_TO else arguments[:2]
        rows, inner, batch = left[-2], left[-1], 1
        if len(left) == len(right) == 3:
            batch = left[0]
        elif len(right) == 3:  # rows of each group with a matrix of its own
            rows, batch = -(-rows // right[0]), right[0]
        elif len(result) == 3:  # the gradient of those matrices: a sum over the rows of each group
            inner, batch = -(-inner // result[0]), result[0]
        yield rows, right[-1], inner, batch
