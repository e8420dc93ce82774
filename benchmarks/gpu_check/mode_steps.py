"""Section 4: float16, CUDA graphs and autotuning: does a probe run, and are the gradients those of eager passes?"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_check.commands import bexplore
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.config.config import Config

SIZE = 4
PASSES = 2  # accumulated into one gradient
ROUNDS = 3  # CUDA graphs are recorded in the second and replayed from the third on
# Relative distance of two gradients, bfloat16 or float16 arithmetic in another order: 2^-8 an operation, averaged out.
GRADIENT_TOLERANCE = 0.02


def run_mode(context: Context, mode: str) -> Verdict:
    """One probe exactly and one with the shared program, then the gradients of accumulated passes."""
    override = [] if context.on_cpu else [f"explore.compile.mode={mode}"]
    outcomes = {}
    for compilation in ("exact", "shared"):
        arguments = context.arguments("gpt", *override, few_layers=True)
        asked = ["--micro-batch-size", str(SIZE), "--compilation", compilation, "--json"]
        ran = bexplore(["probe", *arguments, *asked])
        told = ran.of("probe")
        outcomes[compilation] = told[0]["outcome"] if told else f"exit {ran.code}"
        context.note(**{compilation: {"probe": told, "errors": ran.errors}})
    config = context.config("gpt", *override, few_layers=True)
    plain = _distance(context, config, keeps_gradients=False)
    attached = _distance(context, config, keeps_gradients=True)
    context.note(distance_plain=plain, distance_with_zeros_attached=attached)
    is_right = isinstance(attached, float) and attached <= GRADIENT_TOLERANCE
    told_outcomes = ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items())
    found = f"{told_outcomes}; gradients differ by {_text(attached)}, by {_text(plain)} where nothing is attached first"
    return judged(set(outcomes.values()) == {"measured"} and is_right, found)


def _text(distance: float | str) -> str:
    return f"{distance:.2%}" if isinstance(distance, float) else distance[:160]


def _distance(context: Context, config: Config, *, keeps_gradients: bool) -> float | str:
    """Relative distance of the accumulated gradients, compiled from eager; the error where the compiled passes fail."""
    expected = _gradients(config, is_compiled=False, keeps_gradients=True)
    try:
        found = _gradients(config, is_compiled=True, keeps_gradients=keeps_gradients)
    except RuntimeError as error:  # what CUDA graphs say of a gradient that was overwritten is the question
        context.note(**{f"error_{keeps_gradients=}": str(error)[:3000]})
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    apart = sum(float((one - other).square().sum()) for one, other in zip(found, expected, strict=True))
    return float((apart / sum(float(one.square().sum()) for one in expected)) ** 0.5)


def _gradients(config: Config, *, is_compiled: bool, keeps_gradients: bool) -> list[Any]:
    """Gradients of the last of some rounds of passes, each of which starts from none.

    Args:
        config: The job.
        is_compiled: As the job compiles; else eagerly.
        keeps_gradients: Give every parameter zeros before the first pass, outside the pool of a CUDA graph.
    """
    import torch

    from bexplore.workloads import build

    workload = build(config.job)
    settings = config.job.compile
    for module in workload.compiled_modules if is_compiled else ():
        more = {"mode": settings.mode} if settings.mode else {}
        module.compile(backend=settings.backend, dynamic=False, **more)
    batch = workload.make_batch(SIZE)
    parameters = [parameter for module in workload.compiled_modules for parameter in module.parameters()]
    for _ in range(ROUNDS):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if keeps_gradients else None
        for _ in range(PASSES):
            workload.forward_backward(batch)
    return [p.grad.detach().float().clone() for p in parameters if p.grad is not None]
