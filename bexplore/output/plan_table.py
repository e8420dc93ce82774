"""Plans as a table for people, and as the section of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bexplore.output.table import Table
from bexplore.planning.costs import OtherSettings
from bexplore.planning.plan import SECONDS_PER_DAY, Plans
from bexplore.planning.step import Plan
from bexplore.units import format_count, format_rate, format_seconds, format_share

_NO_VALUE = "-"


def plan_table(plans: Plans, *, width: int | None = None) -> str:
    """Return the plans as lines: a table, what each rests on, its cautions, and what other settings change."""
    costs = plans.costs
    shown = [_cells(plan) for plan in plans.plans]
    table = Table(
        headings=_HEADS,
        rows=tuple(tuple(row[head] for head in _HEADS) for row in shown),
        is_number=(True,) * len(_HEADS),
    ).without_empty_columns(_NO_VALUE)
    return "\n".join(
        [
            costs.title,
            f"step times {costs.origin}",
            "",
            *table.as_lines(width),
            *(f"  {one.devices}, batch {one.batch_size}: {one.reason}; {one.hint}" for one in plans.refused),
            "",
            *_basis(plans.plans),
            *_cautions(plans.plans),
            *(f"note: {note}" for note in plans.notes),
            *_other_settings(costs.other_settings, plans.plans[0]),
        ]
    ).rstrip()


_HEADS = (
    *("devices", "batch", "tokens", "micro", "accum.", "steps", "step", "days", "device-hours", "price", "tokens/s"),
    *("samples/s", "MFU", "HFU", "passes", "update", "comm.", "bubble", "in time"),
)


def _cells(plan: Plan) -> dict[str, str]:
    """Return the cells of a plan by the head of their column; a dash where a value is unknown."""
    nodes = "" if plan.num_nodes is None else f" ({plan.num_nodes}x{plan.num_devices // plan.num_nodes})"
    found = {
        "devices": f"{plan.num_devices}{nodes}",
        "batch": str(plan.global_batch_size),
        "tokens": None if plan.global_batch_tokens is None else format_count(plan.global_batch_tokens),
        "micro": plan.micro_batch_size,
        "accum.": plan.accumulation_steps,
        "steps": None if plan.num_steps is None else f"{plan.num_steps:,}",
        "step": format_seconds(plan.step_time_s),
        "days": None if plan.training_time_s is None else days_of(plan.training_time_s),
        "device-hours": None
        if plan.device_hours is None
        else format_count(plan.device_hours)
        if plan.device_hours >= 10
        else f"{plan.device_hours:.3g}",
        "price": None if plan.price is None else f"{plan.price:,.2f}" if plan.price < 1000 else f"{plan.price:,.0f}",
        "tokens/s": None if plan.tokens_per_s is None else f"{plan.tokens_per_s:,.0f}",
        "samples/s": format_rate(plan.samples_per_s) if plan.tokens_per_s is None else None,
        "MFU": None if plan.mfu is None else f"{plan.mfu:.1%}",
        "HFU": None if plan.hfu is None or plan.hfu == plan.mfu else f"{plan.hfu:.1%}",
        "passes": _share(plan, plan.passes_s),
        "update": _share(plan, plan.update_s),
        "comm.": _share(plan, plan.communication_s) if plan.num_replicas > 1 else None,
        "bubble": _share(plan, plan.bubble_s),
        "in time": None if plan.is_in_time is None else "yes" if plan.is_in_time else "no",
    }
    return {head: _NO_VALUE if value is None else str(value) for head, value in found.items()}


_WORDS = {
    "batch": "global batch size",
    "tokens": "tokens of a step",
    "micro": "micro-batch size",
    "accum.": "accumulation steps",
    "steps": "optimizer steps",
    "step": "time of a step",
    "days": "time of the training",
    "comm.": "share of communication",
    "passes": "share of passes",
    "update": "share of the update",
    "bubble": "share of the pipeline's bubble",
}


def plan_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is known of one plan: a word and its value."""
    for head, value in _cells(plan).items():
        if value != _NO_VALUE:
            is_days = head == "days" and value.replace(".", "").replace(",", "").isdigit()
            yield _WORDS.get(head, head), f"{value} days" if is_days else value


def days_of(seconds: float) -> str:
    """Return a training's time in days, or as a duration where it is less than one."""
    days = seconds / SECONDS_PER_DAY
    return format_seconds(seconds) if days < 1 else f"{days:,.1f}" if days < 1000 else f"{days:,.0f}"


def _share(plan: Plan, part_s: float | None) -> str | None:
    share = plan.share(part_s)
    return None if share is None else format_share(max(0.0, share))


def _basis(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield what plans rest on, each sentence once, with the devices of the plans that it is of."""
    yield from _grouped("basis", [(plan, line) for plan in plans for line in plan.basis], len(plans))


def _cautions(plans: Sequence[Plan]) -> Iterator[str]:
    yield from _grouped("caution", [(plan, line) for plan in plans for line in plan.cautions], len(plans))


def _grouped(word: str, lines: Sequence[tuple[Plan, str]], num_plans: int) -> Iterator[str]:
    by_line: dict[str, list[Plan]] = {}
    for plan, line in lines:
        by_line.setdefault(line, []).append(plan)
    for line, of in by_line.items():
        numbers = list(dict.fromkeys(str(plan.num_devices) for plan in of))
        whose = "" if len(of) == num_plans else f" ({', '.join(numbers)} {'device' if numbers == ['1'] else 'devices'})"
        yield f"{word}{whose}: {line}"


def _other_settings(settings: Sequence[OtherSettings], plan: Plan) -> Iterator[str]:
    """Yield what other settings would make of the first plan."""
    for one in settings:
        named = ", ".join(f"{key}: {value}" for key, value in one.settings.items())
        time = "" if plan.training_time_s is None else f", {days_of(one.time_share * plan.training_time_s)} days"
        if plan.training_time_s is not None and one.time_share * plan.training_time_s < SECONDS_PER_DAY:
            time = time.removesuffix(" days")
        how = "measured" if one.is_measured else "by the operations of the trace"
        changes = f"; trains with {', '.join(one.changes_training)}" if one.changes_training else ""
        yield (
            f"with {named}: {one.time_share:.2f}x the time of a sample at size {one.micro_batch_size}{time} "
            f"({how}){changes}"
        )
