"""Kernels of a program that Inductor has written for a CUDA device, counted in its text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

# A reduction with at least so many elements is worth more than one program: 2^20, as in the issue that asked for this.
MIN_ELEMENTS = 2**20
# Where results are few, a split leaves shorter loops than this: 256 in the exact program of the GPT at 32 samples.
MIN_LOOP = 1024
# With so many programs, the multiprocessors are busy without a split. Source: torch/_inductor/ir.py, `num_splits`:
# `numel_hint >= num_sm * 2 * 32` is never split, 32 being the results of a program where a loop runs over rows.
PROGRAMS_PER_MULTIPROCESSOR = 2
RESULTS_PER_PROGRAM = 32

_DEFINITION = re.compile(r"^(\w+) = async_compile\.triton\('\w+', '''(.*?)^'''", re.DOTALL | re.MULTILINE)
_HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
_SIZE_HINTS = re.compile(r"size_hints=\{([^}]*)\}")
_WIDE_INDEX = re.compile(r"tl\.program_id\(\d\)\.to\(tl\.int64\)")
_FUNCTION = re.compile(r"^( *)def (\w+)\(", re.MULTILINE)
_LAUNCH = re.compile(r"(\w+)\.run\(")
_EXTERN = re.compile(r"(?<!\w)(?:extern_kernels\.(\w+)|torch\.ops\.(\w+(?:\.\w+)+))\(")
_NOT_OF_THE_PROGRAM = ("benchmark_compiled_module", "get_args")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of Triton.

    Attributes:
        kind: `pointwise`, `reduction` (a loop), `persistent_reduction`, `template`, ...: the heuristic that tunes it.
        results: Elements of its outer dimensions, rounded up to a power of two.
        reduced: Elements that each of them is reduced from, rounded up likewise; 1 for none.
        is_inner: Whether those lie one beside another, so that a program makes a single result.
        has_wide_index: Whether it computes indices in 64 bits.
    """

    kind: str
    results: int
    reduced: int
    is_inner: bool
    has_wide_index: bool

    def is_unsplit(self, num_multiprocessors: int) -> bool:
        """Whether few programs loop over many elements, so that most multiprocessors are idle."""
        is_long = self.reduced >= MIN_LOOP and self.results * self.reduced >= MIN_ELEMENTS
        programs = self.results if self.is_inner else self.results / RESULTS_PER_PROGRAM
        return self.kind == "reduction" and is_long and programs < PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounts:
    """Kernels of one graph.

    Attributes:
        kernels: Different kernels of Triton.
        launches: Launches of them in a pass.
        by_kind: Launches by kind, those of libraries under their own names.
        unsplit_reductions: Launches of reductions that keep most of the device idle.
        wide_index_kernels: Different kernels whose indices have 64 bits.
    """

    kernels: int
    launches: int
    by_kind: dict[str, int]
    unsplit_reductions: int
    wide_index_kernels: int

    def as_dict(self) -> dict[str, Any]:
        """Give a JSON-ready dictionary."""
        return asdict(self)


def count_kernels(program: str, *, num_multiprocessors: int) -> KernelCounts:
    """Count the kernels of a graph.

    Args:
        program: The module that Inductor has written for it.
        num_multiprocessors: Of the device.
    """
    kernels = {name: _read(source) for name, source in _DEFINITION.findall(program)}
    launches = _launches(_DEFINITION.sub("", program), kernels)
    of_triton = {name: count for name, count in launches.items() if name in kernels}
    by_kind: Counter[str] = Counter()
    for name, count in launches.items():
        by_kind[kernels[name].kind if name in kernels else name] += count
    unsplit = (count for name, count in of_triton.items() if kernels[name].is_unsplit(num_multiprocessors))
    return KernelCounts(
        kernels=len(of_triton),
        launches=sum(of_triton.values()),
        by_kind=dict(sorted(by_kind.items())),
        unsplit_reductions=sum(unsplit),
        wide_index_kernels=sum(kernels[name].has_wide_index for name in of_triton),
    )


def _read(source: str) -> Kernel:
    kind, hints = _HEURISTIC.search(source), _SIZE_HINTS.search(source)
    sizes = dict(_sizes(hints[1])) if hints else {}
    return Kernel(
        kind=kind[1] if kind else "unknown",
        results=math.prod(size for axis, size in sizes.items() if not axis.startswith("r")),
        reduced=math.prod(size for axis, size in sizes.items() if axis.startswith("r")),
        is_inner="reduction_hint=ReductionHint.INNER" in source,
        has_wide_index=bool(_WIDE_INDEX.search(source)),
    )


def _sizes(hints: str) -> Iterator[tuple[str, int]]:
    for part in hints.split(","):
        axis, _, size = part.partition(":")
        yield axis.strip(" '"), int(size)


def _launches(program: str, kernels: Mapping[str, Kernel]) -> Counter[str]:
    """Launches by name: those of a function that others call, as often as they call it."""
    bodies = dict(_functions(program))
    called = {name for body in bodies.values() for name in bodies if name in _names_called(body)}
    total: Counter[str] = Counter()
    for name in bodies.keys() - called:
        total += _launches_of(name, bodies, kernels)
    return total


def _functions(program: str) -> Iterator[tuple[str, str]]:
    starts = list(_FUNCTION.finditer(program))
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        if start[2] not in _NOT_OF_THE_PROGRAM:
            text = program[start.end() : end.start() if end else len(program)]
            yield start[2], "\n".join(line for line in text.splitlines() if "assert" not in line and "#" not in line)


def _names_called(body: str) -> Counter[str]:
    return Counter(re.findall(r"(?<![\w.])(\w+)\(", body))


def _launches_of(name: str, bodies: Mapping[str, str], kernels: Mapping[str, Kernel]) -> Counter[str]:
    body = bodies[name]
    launches = Counter(kernel for kernel in _LAUNCH.findall(body) if kernel in kernels)
    launches.update(library or operator for library, operator in _EXTERN.findall(body))
    for function, count in _names_called(body).items():
        if function in bodies and function != name:
            for kernel, times in _launches_of(function, bodies, kernels).items():
                launches[kernel] += count * times
    return launches
