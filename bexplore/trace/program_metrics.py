"""Exact metrics of a program before it runs: `ProgramMetrics`, made in a worker and compared by the guard.

Sizes that grow with the micro-batch size b are polynomials, `(constant, linear, quadratic)` coefficients of b.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

Coefficients = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One kind of operator, kernel, graph break, ... of a program."""

    label: str  # the kind, without what changes by itself (line numbers, addresses); the guard compares labels
    count: int = 1  # items of this kind
    # Source lines for people, never compared: `file.py:12` of the first item; of graph breaks and fixed sizes `a.py:12,
    # b.py:7` of all items; empty where unknown
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramMetrics:
    """Metrics of one traced program; None is unknown and never 0."""

    traced_device: str  # device type of the traced program, `cpu` or `cuda`
    num_parameters: int | None = None  # elements of all parameters, shared ones once
    flops: Coefficients | None = None  # operations of a pass, recomputation included
    num_graphs: int | None = None  # graphs that the compiler makes of a pass at one size
    num_graph_breaks: int | None = None  # places that break a graph
    graph_breaks: tuple[Item, ...] = ()  # graph breaks, by reason
    # Calls of operators in a forward pass that lie in no graph; no metric of graphs has them
    num_eager_operators: int | None = None
    eager_operators: tuple[Item, ...] = ()  # operators that lie in no graph, by name
    # Tensors that grow with b and that the forward pass leaves to the backward pass
    num_saved_activations: int | None = None
    saved_activation_bytes: Coefficients | None = None  # bytes of the saved activations
    saved_activations: tuple[Item, ...] = ()  # saved activations, by operator, type and shape
    largest_buffer_bytes: Coefficients | None = None  # bytes of the largest result of an operator
    largest_buffers: tuple[Item, ...] = ()  # largest results of operators, by operator, type and shape
    operators: tuple[Item, ...] = ()  # all operators of the graphs, by name, type and shape of the result
    # Peak bytes by phase of the step; the peak is the maximum of the polynomials
    phases: Mapping[str, tuple[Coefficients, ...]] = field(default_factory=dict)
    num_kernels: int | None = None  # loops and library calls of a pass after fusion
    kernels: tuple[Item, ...] = ()  # kernels, by the operators that are fused in each
    # Lines that turn a size of the batch into a number, which fixes the program to that size
    num_fixed_sizes: int | None = None
    fixed_sizes: tuple[Item, ...] = ()  # lines that fix a size, by their text
    num_recompiles: int | None = None  # compilations beyond the first that further sizes cause
    recompiles: tuple[Item, ...] = ()  # further compilations, by reason
    problems: tuple[str, ...] = ()  # reasons why a metric is unknown, one line each

    def peak_memory_bytes(self, micro_batch_size: int) -> int | None:
        """Return the planned bytes at the highest moment of a step; None if unknown."""
        polynomials = [polynomial for phase in self.phases.values() for polynomial in phase]
        return round(max(evaluate(one, micro_batch_size) for one in polynomials)) if polynomials else None

    def max_micro_batch_size(self, budget_bytes: int, limit: int = 1 << 24) -> int | None:
        """Return the largest size whose planned peak is within a budget; 0 for none, None if unknown."""
        if not self.phases:
            return None
        sizes = range(1, limit + 1)
        return bisect.bisect_right(sizes, budget_bytes, key=lambda size: self.peak_memory_bytes(size) or 0)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary for `from_record`; unknown metrics are left out.

        Items are an object, label -> `count where`, so that a file of them reads and merges line by line.
        """
        record: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ITEM_FIELDS:
                value = {item.label: f"{item.count} {item.where}".rstrip() for item in value}
            elif one.name == "phases":
                value = {name: [list(polynomial) for polynomial in phase] for name, phase in value.items()}
            elif isinstance(value, tuple):
                value = list(value)
            if value is not None and value not in ({}, []):
                record[one.name] = value
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProgramMetrics:
        """Rebuild metrics from `as_record`."""
        values = dict(record)
        for name in ITEM_FIELDS & values.keys():
            values[name] = tuple(_item(label, text) for label, text in values[name].items())
        for name in POLYNOMIAL_FIELDS & values.keys():
            values[name] = _coefficients(values[name])
        phases = values.get("phases", {})
        values["phases"] = {name: tuple(map(_coefficients, phase)) for name, phase in phases.items()}
        values["problems"] = tuple(values.get("problems", ()))
        for name in COUNT_FIELDS & values.keys():
            values[name] = _count(values[name])
        return cls(**values)


def _fields_of(annotation: str) -> frozenset[str]:
    return frozenset(one.name for one in fields(ProgramMetrics) if one.type == annotation)


ITEM_FIELDS = _fields_of("tuple[Item, ...]")
COUNT_FIELDS = _fields_of("int | None")
POLYNOMIAL_FIELDS = _fields_of("Coefficients | None")


def evaluate(polynomial: Sequence[float], micro_batch_size: int) -> float:
    """Return the value of a polynomial at a micro-batch size."""
    return sum(coefficient * micro_batch_size**power for power, coefficient in enumerate(polynomial))


def describe_polynomial(polynomial: Sequence[float]) -> str:
    """Write a polynomial of the micro-batch size b for people: `4096 + 128b`."""
    names = ("", "b", "b^2")
    terms = [
        f"{_number(coefficient)}{name}" if coefficient != 1 or not name else name
        for coefficient, name in zip(polynomial, names, strict=False)
        if coefficient
    ]
    return " + ".join(terms) or "0"


def _item(label: str, text: str) -> Item:
    count, _, where = text.partition(" ")
    return Item(label=label, count=int(count), where=where)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"


def _coefficients(values: Sequence[float]) -> Coefficients:
    constant, linear, quadratic = values
    if not all(isinstance(value, int | float) for value in values):
        raise TypeError(f"not numbers: {values}")
    return constant, linear, quadratic


def _count(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"not a count: {value!r}")
    return value
