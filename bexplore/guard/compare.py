"""The comparison of exact facts, each only where it is exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from bexplore.guard.report import Finding, NotCompared, Part, Status, Tier
from bexplore.trace.program_metrics import Item, ProgramMetrics, describe_polynomial, evaluate
from bexplore.units import format_bytes

BYTES_AND_FLOPS_TOLERANCE = 0.01  # relative; counts have none
# Sizes at which polynomials are compared, samples: one where the constant dominates and one where the slope does.
COMPARED_SIZES = (1, 64)
MAX_DETAILS = 8


class Unit(StrEnum):
    """The unit of a fact."""

    COUNT = "count"
    BYTES = "bytes"
    FLOPS = "flops"
    SAMPLES = "samples"  # follows from bytes


@dataclass(frozen=True, slots=True)
class Rule:
    """The comparison of one fact."""

    name: str  # the field of `ProgramMetrics`
    title: str  # its name for people
    tier: Tier  # where it is exact
    unit: Unit = Unit.COUNT  # the unit of its numbers; all but counts may differ by a tolerance
    items: str = ""  # the field whose items show what changed; empty for none
    more_is_worse: bool = True  # whether growth is a regression
    is_of_graphs: bool = False  # whether it covers the graphs only, and not what runs outside of them

    @property
    def tolerance(self) -> float:
        """Relative difference that counts as none."""
        return 0.0 if self.unit is Unit.COUNT else BYTES_AND_FLOPS_TOLERANCE

    def numbers(self, value: Any, sizes: Sequence[int]) -> list[float]:
        """Return the numbers of a value of `ProgramMetrics`: of bytes and operations, one at each size."""
        return [value] if self.unit is Unit.COUNT else [evaluate(value, size) for size in sizes]

    def show(self, value: Any) -> str:
        """Show a value of `ProgramMetrics`."""
        return f"{value:,}" if self.unit is Unit.COUNT else f"{describe_polynomial(value)} {self.unit}"


_ANY, _SAME = Tier.ANY_MACHINE, Tier.SAME_TOOLCHAIN
RULES = (
    Rule("num_parameters", "parameters", _ANY),
    Rule("flops", "flops of a pass", _ANY, Unit.FLOPS, "operators"),
    Rule("num_graph_breaks", "graph breaks", _ANY, items="graph_breaks"),
    Rule("num_eager_operators", "operators outside of graphs", _ANY, items="eager_operators"),
    Rule("num_graphs", "graphs", _ANY, items="graph_breaks", is_of_graphs=True),
    Rule("num_fixed_sizes", "fixed batch sizes", _ANY, items="fixed_sizes", is_of_graphs=True),
    Rule("num_saved_activations", "saved activations", _ANY, items="saved_activations", is_of_graphs=True),
    Rule(
        "saved_activation_bytes",
        "bytes of saved activations",
        _ANY,
        Unit.BYTES,
        items="saved_activations",
        is_of_graphs=True,
    ),
    Rule("largest_buffer_bytes", "largest buffer", _ANY, Unit.BYTES, "largest_buffers", is_of_graphs=True),
    Rule("num_kernels", "kernels after fusion", _SAME, items="kernels", is_of_graphs=True),
    Rule("num_recompiles", "recompilations across sizes", _SAME, items="recompiles", is_of_graphs=True),
)
# Lists that may change while all their numbers stay: another program, which the baseline does not describe.
INVENTORIES = (
    Rule("operators", "operators", _ANY, is_of_graphs=True),
    Rule("kernels", "fusions", _SAME, is_of_graphs=True),
)
PEAK = Rule("phases", "planned peak memory", _SAME, Unit.BYTES, "largest_buffers")
LARGEST_SIZE = Rule(
    "max_micro_batch_size", "largest size that fits the budget", _SAME, Unit.SAMPLES, more_is_worse=False
)


class _Value(NamedTuple):
    numbers: Sequence[float]
    text: str


def compare_metrics(
    before: ProgramMetrics,
    after: ProgramMetrics,
    *,
    tiers: Mapping[Tier, str],
    micro_batch_size: int | None = None,
    memory_budget_bytes: int | None = None,
) -> Part:
    """Compare the facts of two programs.

    Args:
        tiers: The tiers to compare, each with the reason why it cannot be compared, or an empty text.
        micro_batch_size: A size at which bytes and operations are compared too; None for no such size.
        memory_budget_bytes: The declared budget; None for none, and no largest size.
    """
    findings: list[Finding] = []
    missing: list[NotCompared] = []
    vanished: list[Rule] = []
    sizes = sorted({*COMPARED_SIZES, *([micro_batch_size] if micro_batch_size else [])})
    other_part = _find_other_part(before, after)
    for rule in (*RULES, PEAK, *([] if memory_budget_bytes is None else [LARGEST_SIZE])):
        old, new = (_read_value(rule, facts, sizes, memory_budget_bytes) for facts in (before, after))
        if rule.tier not in tiers:
            continue
        if tiers[rule.tier]:
            missing.append(NotCompared(title=rule.title, reason=tiers[rule.tier]))
        elif old is None:
            if new is not None:
                missing.append(NotCompared(title=rule.title, reason="the baseline does not have it"))
        elif new is None:
            vanished.append(rule)
        elif rule.is_of_graphs and other_part:
            missing.append(NotCompared(title=rule.title, reason=other_part))
        else:
            findings.append(_compare_values(rule, old, new, before, after))
    if vanished:
        findings.append(_report_vanished(vanished[0].tier, after))
        missing += [NotCompared(title=rule.title, reason="cannot be found any more") for rule in vanished]
    if not other_part:
        inventories = (rule for rule in INVENTORIES if tiers.get(rule.tier) == "")
        findings += [found for rule in inventories for found in _compare_inventories(rule, before, after)]
    # A list whose number has a finding already needs none of its own.
    changed = {one.name for one in findings if one.status in (Status.WORSE, Status.BETTER)}
    kept = tuple(one for one in findings if not (one.name == "kernels" and "num_kernels" in changed))
    return Part(findings=kept, not_compared=tuple(missing))


def _find_other_part(before: ProgramMetrics, after: ProgramMetrics) -> str:
    """Return why facts of the graphs cannot be compared: they cover another part of the program; empty for the same."""
    old, new = before.num_eager_operators, after.num_eager_operators
    if old == new:
        return ""
    if old is None or new is None:
        return "it is unknown how much of the program lies outside of graphs"
    return f"{old} operators lay outside of graphs, and {new} do now: the graphs are of another part of the program"


def _read_value(rule: Rule, facts: ProgramMetrics, sizes: Sequence[int], budget_bytes: int | None) -> _Value | None:
    if rule is PEAK:
        if not facts.phases:
            return None
        peaks = [float(facts.peak_memory_bytes(size) or 0) for size in sizes]
        text = ", ".join(f"{format_bytes(peak)} at {size}" for size, peak in zip(sizes, peaks, strict=True))
        return _Value(peaks, text)
    if rule is LARGEST_SIZE:
        assert budget_bytes is not None  # the caller has asked
        largest = facts.max_micro_batch_size(budget_bytes)
        return None if largest is None else _Value([largest], str(largest))
    value = getattr(facts, rule.name)
    return None if value is None else _Value(rule.numbers(value, sizes), rule.show(value))


def _compare_values(rule: Rule, old: _Value, new: _Value, before: ProgramMetrics, after: ProgramMetrics) -> Finding:
    status = _judge_numbers(rule, old.numbers, new.numbers)
    details: tuple[str, ...] = ()
    where, new_text = "", new.text
    if status is not Status.SAME and rule.items:
        details, where = _list_changes(getattr(before, rule.items), getattr(after, rule.items), rule)
    if status is not Status.SAME and rule.tolerance:
        relative = [(b - a) / a for a, b in zip(old.numbers, new.numbers, strict=True) if a]
        new_text += f" ({max(relative, key=abs):+.1%})" if relative else " (from nothing)"
    return Finding(
        name=rule.name,
        title=rule.title,
        tier=rule.tier,
        status=status,
        before=old.text,
        after=new_text,
        details=details,
        where=where,
    )


def _judge_numbers(rule: Rule, old: Sequence[float], new: Sequence[float]) -> Status:
    """Return worse if any number is worse; NaN is worse than any number."""
    if not all(math.isfinite(value) for value in new):
        return Status.WORSE
    if not all(math.isfinite(value) for value in old):
        return Status.BETTER
    signs = {_sign(a, b, rule.tolerance) for a, b in zip(old, new, strict=True)}
    worse = 1 if rule.more_is_worse else -1
    if worse in signs:
        return Status.WORSE
    return Status.BETTER if -worse in signs else Status.SAME


def _sign(old: float, new: float, tolerance: float) -> int:
    if abs(new - old) <= tolerance * abs(old):
        return 0
    return 1 if new > old else -1


def _report_vanished(tier: Tier, after: ProgramMetrics) -> Finding:
    """Return the finding for facts that cannot be found any more: the program no longer compiles at every size."""
    return Finding(
        name="program",
        title="the program can be traced",
        tier=tier,
        status=Status.WORSE,
        before="yes",
        after="no",
        details=after.problems,
        where=_find_place(after.problems),
    )


def _find_place(problems: Sequence[str]) -> str:
    for line in problems:
        head, _, tail = line.rpartition(" (")
        if head and ".py:" in tail:
            return tail.rstrip(")")
    return ""


def _compare_inventories(rule: Rule, before: ProgramMetrics, after: ProgramMetrics) -> list[Finding]:
    old, new = getattr(before, rule.name), getattr(after, rule.name)
    if not old or not new or _count_items(old) == _count_items(new):
        return []
    details, where = _list_changes(old, new, rule)
    num_old, num_new = sum(item.count for item in old), sum(item.count for item in new)
    return [
        Finding(
            name=rule.name,
            title=rule.title,
            tier=rule.tier,
            status=Status.CHANGED,
            before=f"{num_old} of {len(old)} kinds",
            after=f"{num_new} of {len(new)} kinds",
            details=details,
            where=where,
        )
    ]


def _list_changes(old: Sequence[Item], new: Sequence[Item], rule: Rule) -> tuple[tuple[str, ...], str]:
    """Return the gained and lost items in lines, and the place of the first gained item."""
    before, after = _count_items(old), _count_items(new)
    places = _find_places(old, new)
    gained = [label for label in after if after[label] > before.get(label, 0)]
    lost = [label for label in before if before[label] > after.get(label, 0)]
    is_fusion = rule.name in ("num_kernels", "kernels")
    new_word, gone_word = ("new kernel", "lost fusion") if is_fusion else ("new", "gone")
    lines = [_describe_change(new_word, label, after[label] - before.get(label, 0), places) for label in gained]
    lines += [
        _describe_change(
            gone_word if "+" in label or not is_fusion else "gone", label, before[label] - after.get(label, 0), places
        )
        for label in lost
    ]
    if len(lines) > MAX_DETAILS:
        kept = [*lines[: MAX_DETAILS // 2], *lines[len(gained) :][: MAX_DETAILS // 2]]
        kept = list(dict.fromkeys(kept))
        lines = [*kept, f"and {len(lines) - len(kept)} more changes"]
    first = next((places[label] for label in gained if places[label]), "")
    return tuple(lines), first.partition(",")[0]


def _find_places(old: Sequence[Item], new: Sequence[Item]) -> dict[str, str]:
    """Return the places of each label; of an item in several places, the new ones."""
    places = {item.label: item.where for item in old}
    for item in new:
        known = places.get(item.label, "").split(", ")
        added = [place for place in item.where.split(", ") if place not in known]
        places[item.label] = ", ".join(added) or item.where
    return places


def _describe_change(word: str, label: str, count: int, places: Mapping[str, str]) -> str:
    times = f" ({count} times)" if count > 1 else ""
    place = f" at {places[label]}" if places[label] else ""
    return f"{word}: {label}{times}{place}"


def _count_items(items: Sequence[Item]) -> dict[str, int]:
    return {item.label: item.count for item in items}
