"""The summary at the end of a run: which size and why, valid batch sizes, where the files are, what to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bexplore.config.variants import name_settings
from bexplore.output.table import Table, wrap_words
from bexplore.run.parts.choice import FrontPoint
from bexplore.run.parts.row import Row
from bexplore.run.result import RunResult
from bexplore.units import counted, format_bytes, format_rate, format_seconds

WIDTH = 17  # characters of a row's label
MAX_POINTS = 8  # of the front in the summary; the result has all of it
# What stays in a command to be filled in: numbers where its batch is not given, and folders.
TO_FILL_IN = {
    "{accumulation}": "as in the table above",
    "{global_batch_size}": "as in the table above",
    "{output_dir}": "the folder in which your training writes",
}


def summary_text(
    result: RunResult,
    *,
    tolerance: float,
    target_confidence: float | None = None,
    config: str = "",
    paste: str = "",
    command_line: tuple[str, str] = ("", ""),
    report: str | None = None,
    width: int | None = None,
) -> str:
    """Return the closing text of a run.

    Args:
        tolerance: Width of the indifference zone, as a share of speed.
        target_confidence: The requested score; None if unknown.
        config: The user's file and options, as typed, for the `apply` command; empty leaves the command out.
        paste: The lines to paste into the file; empty for the size alone.
        command_line: The training command with the size filled in, and what `{config}` stands for in it; empty where a
            file holds the size.
        report: The path of the report; None for none.
        width: Characters of a line, between whose words sentences are cut; lines to copy stay whole. None for no limit.
    """
    view = result.view(tolerance, target_confidence)
    if result.micro_batch_size is None:
        rows = [line for row in result.search.failed_rows() for line in _lines(row, width)]
        stopped = wrap_words(f"No recommendation: {result.search.stop_words(view)}.", width)
        return "\n".join([*stopped, *rows, f"Results: {result.run_dir}"])
    keeping = keeping_sentence(result, target_confidence)
    front = (
        front_table(result, tolerance).as_lines(width) if result.choice.settings and result.choice.pareto_front else []
    )
    message = result.batch.batch_message
    run, copy = command_line
    to_fill_in = TO_FILL_IN | {"{config}": copy, "{config_dir}": f"a folder with {copy}"}
    first, *rest = (paste or f"micro_batch_size: {result.micro_batch_size}").splitlines()
    return "\n".join(
        [
            *wrap_words(headline(result), width),
            *(wrap_words(keeping, width) if keeping else []),
            "",
            *(line for row in result.rows(view) for line in _lines(row, width)),
            "",
            *(["Memory against speed, where nothing else is better in both:", *front, ""] if front else []),
            "Valid global batch sizes:",
            *batch_sizes_table(result).as_lines(width),
            *(wrap_words(message, width, first="  ", indent="  ") if message else []),
            "",
            f"Results: {result.run_dir}",
            *([f"Report:  {report}"] if report else []),
            *([f"Apply:   bexplore apply {config}"] if config and not run else []),
            *_warm_start(result.program.artifacts_dir),
            *([f"Run:     {run}"] if run else [f"Paste:   {first}"]),
            *(f"         {line}" for line in rest if not run),
            *(f"         {name}: {words}" for name, words in to_fill_in.items() if name in run),
        ]
    )


def _lines(row: Row, width: int | None) -> list[str]:
    return wrap_words(row.text, width, first=f"  {row.label:<{WIDTH}}", indent=" " * (WIDTH + 2))


def headline(result: RunResult) -> str:
    """Return the answer in a sentence."""
    if result.is_emulated:
        return f"{_size_words(result)}{result.choice.words} is {fitting_words(result)}."
    estimated = f" It is {result.estimate.words}." if result.estimate else ""
    return (
        f"Use {_size_words(result)}{result.choice.words}: {_factor_words(result)}{speed_words(result)}; "
        f"confidence {result.answer.confidence} out of 100.{estimated}"
    )


def fitting_words(result: RunResult) -> str:
    """Return what is known of the answer on an emulated device: that it fits, and which larger size does not."""
    larger = result.smallest_out_of_memory
    limit = "no larger one was tried" if larger is None else f"size {larger} is out of memory"
    return f"the largest size that ran on {result.device_info.get('device_name')}, emulated; {limit}; no speed is known"


def _factor_words(result: RunResult) -> str:
    """Return the speed over the base's, and that of the base, whose ratio it is; the base itself has no factor."""
    base = result.answer.base_micro_batch_size
    if result.micro_batch_size == base and result.choice.variant == result.choice.base_variant:
        return "the smallest size that ran, "
    low, high = result.answer.relative_performance_interval or (1.0, 1.0)
    digits = 2 if high < 100 else 0
    interval = "" if f"{low:.2f}" == f"{high:.2f}" else f" ({low:.{digits}f} to {high:.{digits}f})"
    factor = f"{result.answer.relative_performance:.{digits}f}x{interval}"
    return f"{factor} the speed of size {base}{result.choice.base_words}, "


def speed_words(result: RunResult) -> str:
    """Return the answer's samples/s; of several replicas that ran together those of all, and of each."""
    one, total = result.answer.samples_per_s, result.answer.total_samples_per_s
    if one is None:
        return "speed unknown"
    own = f"{format_rate(one)} samples/s"
    if total is not None and total != one:
        return f"{format_rate(total)} samples/s of all {round(total / one)} replicas ({own} of each)"
    return f"{own}{' of a replica' if result.parallel else ''}"


def _size_words(result: RunResult) -> str:
    tokens = result.lengths.micro_batch_tokens if result.lengths else None
    return f"micro_batch_size {result.micro_batch_size}" if tokens is None else f"micro_batch_tokens {tokens}"


def _warm_start(artifacts_dir: str | None) -> list[str]:
    """Return the line that saves a training its compilation."""
    if artifacts_dir is None:
        return []
    return [
        f"Warm:    export TORCHINDUCTOR_CACHE_DIR={shlex.quote(artifacts_dir)}",
        "         before a training that compiles the same model and loss as one: its first step loads this compiled",
        "         program. It is executable code: use only caches that you trust.",
    ]


def batch_sizes_table(result: RunResult) -> Table:
    """Return the global batch sizes that are valid with the recommended size; the user's own is marked."""
    sizes, own = result.batch.global_batch_sizes, result.batch.batch_size
    marked = next((index for index, size in enumerate(sizes) if size.global_batch_size == own), None)
    is_measured = marked is not None and sizes[marked].is_measured
    return Table(
        headings=("batch_size", "accumulation", "tokens", "step time"),
        rows=tuple(
            (
                str(size.global_batch_size),
                str(size.accumulation_steps),
                f"{size.num_tokens:,}" if size.num_tokens else "",
                format_seconds(size.step_time_s) if size.step_time_s else "",
            )
            for size in sizes
        ),
        is_number=(True,) * 4,
        highlighted=marked,
        mark="yours, a real step was timed" if is_measured else "yours",
    ).without_empty_columns("")


def keeping_sentence(result: RunResult, target_confidence: float | None) -> str | None:
    """Return which size keeps the user's batch size, and at what speed; None where no batch size was given."""
    own, keeps = result.batch.batch_size, result.batch.keeps_batch_size
    if own is None:
        return None
    rule = "even" if result.batch.divisibility == "even" else "divisors"
    if keeps is None and result.batch.replica_batch_size is None:
        return f"No micro_batch_size keeps batch_size {own}: the replicas have no equal shares of it."
    passes, replicas = result.batch.passes_per_step, result.batch.num_replicas or 1
    if keeps is None and passes is not None and own % (passes * replicas) == 0:
        made = f"the command has {counted(passes, 'pass')} a step, so that {own // (passes * replicas)} would keep it"
        return f"No micro_batch_size that ran keeps batch_size {own}: {made}."
    if keeps is None:
        return f"No micro_batch_size that ran keeps batch_size {own}; explore.candidates: {rule} tries only such sizes."
    size, free = keeps.micro_batch_size, keeps.free_micro_batch_size
    in_steps = counted(keeps.accumulation_steps, "accumulation step")
    if size == free and result.batch.is_made_of_size:
        return f"A step of the command has {own} samples, in {in_steps}."
    if size == free:
        return f"It keeps batch_size {own}, in {in_steps}."
    if keeps.over_recommended is None or keeps.samples_per_s is None:
        return f"The largest size that ran and keeps batch_size {own} is {size}, in {in_steps}."
    speed = f"{keeps.over_recommended:.2f}x the speed of size {free}"
    if size == result.micro_batch_size:
        return f"It keeps batch_size {own}, in {in_steps}, at {speed}, which does not."
    of_each = " of each replica" if result.answer.total_samples_per_s not in (None, result.answer.samples_per_s) else ""
    text = (
        f"To keep batch_size {own}, use micro_batch_size {size} in {in_steps}: {speed}, "
        f"{format_rate(keeps.samples_per_s)} samples/s{of_each}; confidence {keeps.confidence} out of 100."
    )
    is_sure = target_confidence is None or (keeps.confidence or 0) >= target_confidence
    return text if is_sure else f"{text} explore.candidates: {rule} tries only such sizes."


def front_table(result: RunResult, tolerance: float, *, most: int = MAX_POINTS) -> Table:
    """Return the front of memory against speed; no rows for a job with one variant."""
    points = shown_points(result, tolerance, most=most)
    recommended = (result.choice.is_recommended(point, result.micro_batch_size) for point in points)
    return Table(
        headings=("settings", "size", "peak memory", "samples/s", ""),
        rows=tuple(
            (
                name_settings(point.settings),
                str(point.micro_batch_size),
                format_bytes(point.peak_memory_bytes),
                format_rate(point.samples_per_s),
                "ran" if point.ran else "predicted",
            )
            for point in points
        ),
        is_number=(False, True, True, True, False),
        highlighted=next((index for index, is_best in enumerate(recommended) if is_best), None),
        mark="recommended",
    )


def shown_points(result: RunResult, tolerance: float, *, most: int = MAX_POINTS) -> Sequence[FrontPoint]:
    """Return the points of the front that differ by more than the tolerance, and the recommended one."""
    kept: list[FrontPoint] = []
    for point in result.choice.pareto_front:
        is_faster = not kept or point.samples_per_s > kept[-1].samples_per_s * (1.0 + tolerance)
        if is_faster or result.choice.is_recommended(point, result.micro_batch_size):
            kept.append(point)
    while len(kept) > most:
        spare = (one for one in kept[1:-1] if not result.choice.is_recommended(one, result.micro_batch_size))
        kept.remove(min(spare, key=lambda one: _step(kept, one)))
    return kept


def _step(points: Sequence[FrontPoint], point: FrontPoint) -> float:
    """Return how much faster a point is than the one before it."""
    return point.samples_per_s / points[points.index(point) - 1].samples_per_s
