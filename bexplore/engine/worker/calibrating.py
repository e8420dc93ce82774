"""Times of single kernels and of tiny programs on a device: what a model of kernel times is fitted on."""

from __future__ import annotations

import functools
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torch.nn import functional

from bexplore.engine.protocol.messages import Calibrate, Done
from bexplore.engine.worker.context import Context, Handlers
from bexplore.engine.worker.device import take
from bexplore.engine.worker.steps import synchronize
from bexplore.estimate.kernels import Attention, Kernel, MatrixProduct, Stream, Work
from bexplore.estimate.processor import Calibration, TimedKernel, TimedProgram, fit_calibration
from bexplore.host.machine import num_threads, package_version, processor_name
from bexplore.host.records import to_record
from bexplore.job import CompileSettings, Job
from bexplore.trace.tracer import trace_job
from bexplore.workloads import build

_ROTATED_BYTES = 8 * 2**20  # of operands that take turns: a pass comes back to weights that other kernels displaced
_MOST_SETS = 16
_ROUNDS, _MOST_BLOCKS, _BLOCK_S = 2, 8, 5e-4
_LARGEST_FLOPS = 2e10  # of a product: a fifth of a second at 100 GFLOP/s

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Case:
    """Some kernels of one call, and what makes the call."""

    kernel: Kernel
    make: Callable[[], Call]  # operands, and the call on them
    num_bytes: float


def handlers(context: Context) -> Handlers:
    """Return the handler of `Calibrate`."""

    def answer(request: Calibrate) -> Done:
        found = calibrate(take(request.device), request.seconds_of_each, report=context.report)
        return Done(values={"calibration": to_record(found)})

    return {Calibrate: answer}


def calibrate(device: torch.device, seconds_of_each: float, *, report: Callable[..., None]) -> Calibration:
    """Measure what kernels and programs take on a device, and fit a table on it."""
    return fit_calibration(
        time_kernels(device, seconds_of_each, report=report),
        time_programs(report=report),
        name=processor_name(),
        num_threads=num_threads(),
        torch_version=package_version("torch"),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def time_kernels(device: torch.device, seconds_of_each: float, *, report: Callable[..., None]) -> list[TimedKernel]:
    """Time each kind of kernel over its sizes, the shortest seconds of rounds in random order.

    Other programs and interrupts only ever add to them, and a busy moment meets kernels of all kinds in one round.
    """
    cases = list(_list_cases(device))
    shortest = dict.fromkeys(range(len(cases)), math.inf)
    for round_number in range(_ROUNDS):
        report(stage=f"kernels, round {round_number + 1} of {_ROUNDS}")
        for place in random.Random(round_number).sample(range(len(cases)), len(cases)):
            seconds = _time_case(cases[place], device, seconds_of_each / _ROUNDS)
            shortest[place] = min(shortest[place], seconds)
    return [TimedKernel(kernel=case.kernel, seconds=shortest[place]) for place, case in enumerate(cases)]


def _time_case(case: _Case, device: torch.device, budget_s: float) -> float:
    num_sets = int(min(_MOST_SETS, max(1, _ROTATED_BYTES // max(case.num_bytes, 1))))
    calls = itertools.cycle([case.make() for _ in range(num_sets)])
    return time_calls(lambda: next(calls)(), device, budget_s)


def time_calls(call: Call, device: torch.device, budget_s: float) -> float:
    """Return the shortest mean seconds of a call, over blocks of calls that are long against a tick of the clock."""
    call()
    once_s = _time_block(call, 1, device)
    calls_of_block = max(1, round(_BLOCK_S / max(once_s, 1e-9)))
    num_blocks = max(1, round(budget_s / max(once_s * calls_of_block, 1e-9)))
    return min(_time_block(call, calls_of_block, device) for _ in range(min(num_blocks, _MOST_BLOCKS)))


def _time_block(call: Call, num_calls: int, device: torch.device) -> float:
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(num_calls):
        call()
    synchronize(device)
    return (time.perf_counter() - began_s) / num_calls


# Rows are tokens of a micro-batch; columns and inner dimensions those of layers, of heads and of vocabularies.
_ROWS = (8, 32, 100, 256, 700, 2048, 6000)
_LAYERS = (
    (64, 64),
    (128, 128),
    (128, 512),
    (512, 128),
    (344, 128),
    (384, 384),
    (512, 2048),
    (1024, 1024),
    (192, 4096),
    (10, 256),
    (1000, 200),
)
_BATCHED = ((16, 32, 32, 16), (64, 64, 64, 32), (64, 128, 128, 32), (16, 256, 256, 64), (256, 64, 32, 64))


def _list_roles(rows: int, columns: int, inner: int, dtype: torch.dtype, device: torch.device) -> Iterator[_Case]:
    """Yield the three products of a linear layer: its result, and the gradients of its input and of its weights."""
    yield _make_product(rows, columns, inner, 1, dtype, device, first="rk", second="ck")
    yield _make_product(rows, inner, columns, 1, dtype, device, first="rk", second="kc")
    yield _make_product(columns, inner, rows, 1, dtype, device, first="kr", second="kc")


def _make_product(
    rows: int,
    columns: int,
    inner: int,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    first: str,
    second: str,
) -> _Case:
    sizes = {"r": rows, "c": columns, "k": inner}
    kernel = MatrixProduct(rows=rows, columns=columns, inner=inner, batch=batch, itemsize=dtype.itemsize)

    def make() -> Call:
        left, right = (
            torch.full((batch, *(sizes[one] for one in form)), 0.5, device=device, dtype=dtype)
            for form in (first, second)
        )
        left = left if first == "rk" else left.mT
        right = right if second == "kc" else right.mT
        if batch == 1:
            left, right = left[0], right[0]
        return lambda: left @ right

    return _Case(kernel, make, kernel.num_bytes)


_CONVOLUTIONS = (
    (3, 32, 64, 3),
    (3, 64, 32, 7),
    (16, 32, 32, 3),
    (32, 32, 32, 3),
    (64, 64, 16, 3),
    (64, 128, 16, 1),
    (128, 128, 8, 3),
    (256, 64, 8, 1),
    (256, 256, 4, 3),
)
_IMAGES = (1, 4, 16, 64)


def _make_convolution(
    images: int, inputs: int, outputs: int, side: int, window: int, role: int, device: torch.device
) -> _Case:
    pixels, area = images * side * side, window * window
    sizes = ((pixels, outputs, inputs * area), (pixels, inputs, outputs * area), (outputs, inputs * area, pixels))[role]
    kernel = MatrixProduct(
        rows=sizes[0], columns=sizes[1], inner=sizes[2], itemsize=4, window=area, is_weight_gradient=role == 2
    )

    def make() -> Call:
        image = torch.full((images, inputs, side, side), 0.5, device=device)
        weight = torch.full((outputs, inputs, window, window), 0.5, device=device)
        if role == 0:
            return lambda: functional.conv2d(image, weight, padding=window // 2)
        gradient, padding = torch.full((images, outputs, side, side), 0.5, device=device), window // 2
        mask = [role == 1, role == 2, False]
        return lambda: torch.ops.aten.convolution_backward(
            gradient, image, weight, [0], [1, 1], [padding, padding], [1, 1], False, [0, 0], 1, mask
        )

    return _Case(kernel, make, 4.0 * images * side * side * (inputs + outputs))


_ATTENTION = (
    (1, 4, 64, 32),
    (8, 4, 64, 32),
    (2, 4, 256, 32),
    (8, 4, 256, 32),
    (32, 4, 128, 32),
    (2, 8, 256, 64),
    (1, 8, 1024, 64),
)


def _make_attention(
    batch: int, heads: int, length: int, width: int, dtype: torch.dtype, device: torch.device, *, is_backward: bool
) -> _Case:
    elements = batch * heads * length * width
    flops = (10.0 if is_backward else 4.0) * elements * length
    moved = dtype.itemsize * elements * (8.0 if is_backward else 4.0)
    kernel = Attention(flops=flops / 2, num_bytes=moved, is_backward=is_backward, itemsize=dtype.itemsize)

    def make() -> Call:
        query, key, value = (
            torch.randn(batch, heads, length, width, device=device, dtype=dtype, requires_grad=is_backward)
            for _ in range(3)
        )

        def attend() -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

        if not is_backward:
            return attend
        result = attend()
        gradient = torch.randn_like(result)
        return lambda: torch.autograd.grad(result, (query, key, value), gradient, retain_graph=True)

    return _Case(kernel, make, moved)


_WIDTH = 256
_CHANNELS = 32
_STREAM_ELEMENTS = tuple(_WIDTH * 2**power for power in (2, 5, 8, 11, 14, 16))  # 1,024 to 16.8 million


def _numbers(rows: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows, _WIDTH), 0.5, device=device)


def _images(rows: int, device: torch.device) -> torch.Tensor:
    """Return as many numbers as images of 16 x 16 points, of which the fewest have a channel each."""
    return _numbers(rows, device).view(-1, min(rows, _CHANNELS), 16, 16)


def _pointwise(operator: Callable[..., object], operands: int) -> Callable[[int, torch.device], Call]:
    def make(rows: int, device: torch.device) -> Call:
        given = [_numbers(rows, device) for _ in range(operands)]
        return lambda: operator(*given)

    return make


def _softmax_backward(rows: int, device: torch.device) -> Call:
    probabilities, gradient = torch.softmax(_numbers(rows, device), -1), _numbers(rows, device)
    return lambda: torch.ops.aten._softmax_backward_data(gradient, probabilities, -1, torch.float32)


def _norm(rows: int, device: torch.device) -> Call:
    given, scale = _numbers(rows, device), torch.ones(_WIDTH, device=device)
    return lambda: functional.layer_norm(given, (_WIDTH,), scale, scale)


def _norm_backward(rows: int, device: torch.device) -> Call:
    given, scale = _numbers(rows, device), torch.ones(_WIDTH, device=device)
    _, mean, deviation = torch.native_layer_norm(given, (_WIDTH,), scale, scale, 1e-5)
    return lambda: torch.ops.aten.native_layer_norm_backward(
        given, given, (_WIDTH,), mean, deviation, scale, scale, [True, True, True]
    )


def _batch_norm(rows: int, device: torch.device) -> Call:
    given = _images(rows, device)
    scale = torch.ones(given.shape[1], device=device)
    return lambda: torch.native_batch_norm(given, scale, scale, None, None, True, 0.1, 1e-5)


def _batch_norm_backward(rows: int, device: torch.device) -> Call:
    given = _images(rows, device)
    scale = torch.ones(given.shape[1], device=device)
    _, mean, deviation = torch.native_batch_norm(given, scale, scale, None, None, True, 0.1, 1e-5)
    mask = [True, True, True]
    return lambda: torch.ops.aten.native_batch_norm_backward(
        given, given, scale, None, None, mean, deviation, True, 1e-5, mask
    )


def _gather(rows: int, device: torch.device) -> Call:
    table, places = torch.randn(4096, _WIDTH, device=device), torch.randint(4096, (rows,), device=device)
    return lambda: functional.embedding(places, table)


def _scatter(rows: int, device: torch.device) -> Call:
    gradient, places = _numbers(rows, device), torch.randint(64, (rows,), device=device)
    return lambda: torch.ops.aten.embedding_dense_backward(gradient, places, 64, -1, False)


def _turn(rows: int, device: torch.device) -> Call:
    given = _numbers(rows, device).view(-1, 4, 4, _WIDTH // 16)
    return lambda: given.transpose(1, 2).contiguous()


def _pool(rows: int, device: torch.device) -> Call:
    images = _numbers(rows, device).view(-1, 1, 16, 16).expand(-1, 1, 16, 16)
    return lambda: functional.max_pool2d(images, 2, return_indices=True)


# Kind, tensors of as many elements that are read and written, those of the result, and what makes the call.
_OPERATORS: tuple[tuple[Work, float, float, Callable[[int, torch.device], Call]], ...] = (
    (Work.POINTWISE, 3, 1, _pointwise(torch.add, 2)),
    (Work.POINTWISE, 2, 1, _pointwise(lambda x: x * 0.5, 1)),
    (Work.POINTWISE, 2, 1, _turn),
    (Work.TRANSCENDENTAL, 2, 1, _pointwise(functional.gelu, 1)),
    (Work.TRANSCENDENTAL, 3, 1, _pointwise(lambda x, y: torch.ops.aten.gelu_backward(y, x), 2)),
    (Work.TRANSCENDENTAL, 2, 1, _pointwise(functional.silu, 1)),
    (Work.REDUCTION, 2, 1, _pointwise(lambda x: torch.softmax(x, -1), 1)),
    (Work.REDUCTION, 3, 1, _softmax_backward),
    (Work.REDUCTION, 2, 1, _norm),
    (Work.REDUCTION, 3, 1, _norm_backward),
    (Work.CHANNELS, 2, 1, _batch_norm),
    (Work.CHANNELS, 3, 1, _batch_norm_backward),
    (Work.REDUCTION, 1, 0, _pointwise(lambda x: x.sum(0), 1)),
    (Work.RANDOM, 2, 1, _pointwise(lambda x: torch.empty_like(x).bernoulli_(0.9), 1)),
    (Work.GATHER, 2, 1, _gather),
    (Work.SCATTER, 1, 0, _scatter),
    (Work.POOLING, 1.75, 0.25, _pool),
)


def _list_cases(device: torch.device) -> Iterator[_Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for rows, (columns, inner) in itertools.product(_ROWS, _LAYERS):
            if 2 * rows * columns * inner <= _LARGEST_FLOPS:
                yield from _list_roles(rows, columns, inner, dtype, device)
        for batch, rows, columns, inner in _BATCHED:
            yield _make_product(rows, columns, inner, batch, dtype, device, first="rk", second="kc")
        for sizes, is_backward in itertools.product(_ATTENTION, (False, True)):
            yield _make_attention(*sizes, dtype, device, is_backward=is_backward)
    for (inputs, outputs, side, window), images, role in itertools.product(_CONVOLUTIONS, _IMAGES, range(3)):
        yield _make_convolution(images, inputs, outputs, side, window, role, device)
    for elements, (work, moved, results, make) in itertools.product(_STREAM_ELEMENTS, _OPERATORS):
        kernel = Stream(num_bytes=4.0 * elements * moved, work=work, result_bytes=4.0 * elements * results)
        yield _Case(kernel, functools.partial(make, elements // _WIDTH, device), kernel.num_bytes)


# A decoder whose kernels are so small that its launches show, and one of a few milliseconds, which is kept apart.
_TINY = {"num_heads": 2, "vocab_size": 64, "max_position_embeddings": 16, "hidden_size": 16, "intermediate_size": 32}
_SMALL = {"num_heads": 4, "vocab_size": 512, "max_position_embeddings": 64, "hidden_size": 128, "num_layers": 2}
_DECODERS = (
    (_TINY | {"num_layers": 2}, 16, (1,)),
    (_TINY | {"num_layers": 6}, 16, (1,)),
    (_SMALL, 64, (1, 4, 16)),
)
_PROGRAMS = tuple(
    (Job(workload="decoder", model=model, sequence_length=length, compile=CompileSettings(enabled=is_compiled)), sizes)
    for is_compiled in (False, True)
    for model, length, sizes in _DECODERS
)
_PASSES_S = 0.5  # of each program and size


def time_programs(*, report: Callable[..., None]) -> list[TimedProgram]:
    """Time passes of small programs, eager and compiled, as a training runs them."""
    timed = []
    for number, (job, sizes) in enumerate(_PROGRAMS):
        report(stage=f"program {number} of {len(_PROGRAMS)}")
        cost_model, workload = trace_job(job), build(job)
        for module in workload.compiled_modules if job.compile.enabled else ():
            module.compile(dynamic=False)
        for size in sizes:
            batch = workload.make_batch(size)
            call = functools.partial(workload.forward_backward, batch)
            seconds = time_calls(call, torch.device(job.device), _PASSES_S)
            timed.append(
                TimedProgram(
                    calls=cost_model.kernel_calls(size),
                    kept_bytes=cost_model.activation_bytes(size),
                    seconds=seconds,
                    is_compiled=job.compile.enabled,
                    is_apart=len(sizes) > 1,
                )
            )
    return timed
