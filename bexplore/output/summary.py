"""What a run says at its end: which size and why, what is valid with it, where everything is, what to paste."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from bexplore.output.memory_text import headroom_words, memory_words
from bexplore.units import counted, format_bytes, format_seconds

STOP_REASONS = {
    "target_confidence": "the confidence that was asked for{target} is reached",
    "costs_more_than_it_saves": "another probe would cost more than it is expected to save",
    "nothing_left": "no further probe is worth its cost",
    "max_probes": "the number of probes that was allowed is used up",
    "time_budget": "the time that was allowed is used up",
    "interrupted": "it was interrupted; the same command goes on from here",
}
WIDTH = 10
MOST_BOTTLENECKS = 2  # the weightiest; all of them are in the report
MAX_TRACEBACK_LINES = 16
LEAST_LEFT = 0.0005  # of the fastest size's speed; below, nobody looks on
MAX_FAILURES = 4  # reasons that are shown; more would push the answer off the screen


def print_summary(
    record: Mapping[str, Any],
    *,
    yaml_key: str,
    tolerance: float,
    target_confidence: float | None = None,
    config: str = "",
    paste: str = "",
    report: str | None = None,
) -> str:
    """The closing text of a `result` record, for people.

    Args:
        record: The `result` event.
        yaml_key: Where the size goes, dotted.
        tolerance: Within which sizes are as good as each other.
        target_confidence: That was asked for; None where it is not known.
        config: The user's file and the options that it was explored with, as they are typed, for the command that
            writes the size into it; empty leaves that out.
        paste: The lines to write by hand; empty for the dotted key, where the file is gone.
        report: The page with everything; None where there is none.
    """
    if record["micro_batch_size"] is None:
        rows = [_row("failed", text) for text in _failed(record)]
        stopped = stop_words(record["stop_reason"], target_confidence)
        return "\n".join([f"No recommendation: {stopped}.", *rows, f"Results: {record['run_dir']}"])
    lines = [_headline(record), *_lines(keeping_sentence(record, target_confidence)), ""]
    lines += [_row("why", _why(record, target_confidence)), *_rows("left", left_sentence(record))]
    lines += _rows("score", score_sentence(record, tolerance))
    lines += [_row("memory", _memory(record))]
    lines += _rows("smaller", _smaller(record, tolerance))
    lines += _rows("compiled", _compiled(record))
    lines += _rows("depth", _depth(record))
    lines += _rows("eager", eager_sentence(record.get("eager"), tolerance))
    lines += [_row("failed", text) for text in _failed(record)]
    lines += _rows("training", (record.get("gradient_equivalence") or {}).get("message"))
    lines += _rows("input", loader_sentence(record.get("loader")))
    lines += [_row("limits", _limit(item)) for item in record.get("bottlenecks", ())[:MOST_BOTTLENECKS]]
    lines += [_row("warning", text) for text in record.get("warnings", ())]
    lines += ["", "Valid global batch sizes:", *_batch_table(record), ""]
    lines += [f"Results: {record['run_dir']}"]
    lines += [f"Report:  {report}"] if report else []
    lines += [f"Apply:   bexplore apply {config}"] if config else []
    lines += _warm_start(record.get("artifacts_dir"))
    lines += _pasted(paste or f"{yaml_key}: {record['micro_batch_size']}")
    return "\n".join(lines)


def _pasted(text: str) -> list[str]:
    """What to paste, its lines below each other."""
    first, *rest = text.splitlines()
    return [f"Paste:   {first}", *(f"         {line}" for line in rest)]


def _limit(item: Mapping[str, Any]) -> str:
    return item["finding"] + (f"; try: {item['action']}" if item["action"] else "")


def loader_sentence(loader: Mapping[str, Any] | None) -> str | None:
    """What a loader that was timed gives; where it was not, the advice tells why."""
    if not loader or loader["problem"]:
        return None
    workers = loader["num_workers"]
    told = "" if workers is None else f", {counted(workers, 'worker')}"
    return f"your data loader gives {loader['samples_per_s']:.4g} samples/s (timed alone, no step beside it{told})"


def _headline(record: Mapping[str, Any]) -> str:
    return (
        f"Use micro_batch_size {record['micro_batch_size']}: {record['relative_performance']:.2f}x{_between(record)} "
        f"the speed of size {record['base_micro_batch_size']}, {record['samples_per_s']:.4g} samples/s; "
        f"confidence {record['confidence']} out of 100."
    )


def _between(record: Mapping[str, Any]) -> str:
    """The interval of the relative performance, where it can be seen."""
    low, high = record.get("relative_performance_interval") or (1.0, 1.0)
    return "" if f"{low:.2f}" == f"{high:.2f}" else f" ({low:.2f} to {high:.2f})"


def _why(record: Mapping[str, Any], target_confidence: float | None) -> str:
    outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(record["outcomes"].items()))
    took = format_seconds(record["elapsed_s"])
    stopped = stop_words(record["stop_reason"], target_confidence)
    return f"fastest of {counted(record['num_probes'], 'probe')} ({outcomes}) in {took}; ended because {stopped}"


def score_sentence(record: Mapping[str, Any], tolerance: float) -> str | None:
    """What a score below 90 is still good for; None where nothing is to be said."""
    share = record.get("regret_bound_90")
    if share is None or share <= tolerance:
        return None
    shown = math.ceil(1000.0 * share) / 1000.0  # rounded up: what is promised must hold
    return (
        f"{record['confidence']} out of 100 that it is within {100 * tolerance:g}% of the fastest that fits, "
        f"90 out of 100 that it is within {shown:.1%}"
    )


def left_sentence(record: Mapping[str, Any]) -> str | None:
    """What is left to gain, and what another probe would cost and save; None where that is not known.

    Args:
        record: The `result` event; `left_to_gain` and `next_probe_saves` are shares of `training_time_s`.
    """
    share, training_s, cost_s = (record.get(name) for name in ("left_to_gain", "training_time_s", "next_probe_s"))
    if share is None:
        return None
    at = f"at a score of {record['confidence']}"
    if share < LEAST_LEFT:
        return f"as good as nothing {at}: less than {LEAST_LEFT:.2%} in expectation"
    if training_s is None or cost_s is None:
        return f"{share:.1%} in expectation, {at}"
    saves_s = record["next_probe_saves"] * training_s
    saves = "next to nothing" if saves_s < 1.0 else format_seconds(saves_s)
    training = format_seconds(training_s)
    training += "" if record.get("training_samples") is None else " by the file's steps"
    return (
        f"{share:.1%} in expectation, {format_seconds(share * training_s)} of {training}, {at}; "
        f"another probe costs {format_seconds(cost_s)} and is expected to save {saves}"
    )


def stop_words(stop_reason: str, target_confidence: float | None) -> str:
    """Why an exploration ended, in words; a reason that is not in the table speaks for itself."""
    target = "" if target_confidence is None else f", {target_confidence:g} out of 100,"
    return STOP_REASONS.get(stop_reason, stop_reason).replace("{target}", target)


def _memory(record: Mapping[str, Any]) -> str:
    if record["peak_memory_bytes"] is None:
        return "peak unknown on this device"
    peak, held, headroom = (
        record["peak_memory_bytes"],
        record.get("resident_memory_bytes"),
        record["memory_headroom_bytes"],
    )
    text = memory_words(peak, held, is_full=headroom == 0)
    return text if headroom is None else f"{text}, {headroom_words(headroom, max(peak, held or 0))}"


def _smaller(record: Mapping[str, Any], tolerance: float) -> str | None:
    small = record["smallest_within_tolerance"]
    if small is None or small == record["micro_batch_size"]:
        return None
    saved = record.get("memory_saved_bytes")
    saves = f" and saves {format_bytes(saved)}" if saved else ""
    return f"{small} is within {tolerance:.0%} of it{saves}"


def _failed(record: Mapping[str, Any]) -> list[str]:
    """What did not run for a reason of its own; that a size is too big is no failure."""
    told = [item for item in record.get("failures", ()) if item["outcome"] != "out_of_memory"]
    lines = [
        f"{', '.join(map(str, item['micro_batch_sizes']))}: {item['outcome'].replace('_', ' ')}: {item['reason']}"
        for item in told[:MAX_FAILURES]
    ]
    lines += next((_users_lines(item["traceback_text"]) for item in told if item.get("traceback_text")), [])
    return lines + (
        [f"and {counted(len(told) - MAX_FAILURES, 'more reason')} in the run log"] if len(told) > MAX_FAILURES else []
    )


def _users_lines(traceback_text: str) -> list[str]:
    """The lines of a traceback that are the user's own: frames of torch and of the worker are left out, and notes."""
    lines: list[str] = []
    is_own = False
    for line in traceback_text.strip().splitlines():
        if line.startswith("  File "):
            is_own = not re.search(r"/(torch|bexplore/(engine|workloads))/", line)
        is_frame = line.startswith("  ")
        if (is_frame and is_own) or (not is_frame and line.strip()):
            lines.append(f"  {line}")
        is_own = is_own and is_frame
    return lines[:MAX_TRACEBACK_LINES]


def _compiled(record: Mapping[str, Any]) -> str | None:
    ratio = record.get("exact_over_shared")
    if ratio is None:
        return None
    return f"run exactly as your training will compile it: {ratio:.2f}x of the search's shared compilation"


def _depth(record: Mapping[str, Any]) -> str | None:
    ratio = record.get("full_over_reduced")
    if ratio is None:
        return None
    return f"searched with few of the identical blocks and extrapolated; run whole, it has {ratio:.2f}x that speed"


def eager_sentence(eager: Mapping[str, Any] | None, tolerance: float) -> str | None:
    """Whether torch.compile is worth it here; a look that nobody asked for speaks only if it is not."""
    if not eager or not (eager["asked"] or eager["verdict"] == "faster"):
        return None
    if eager["problem"]:
        return f"without torch.compile this size does not run: {eager['problem']}"
    peak = eager["peak_memory_bytes"]
    memory = f", peak {format_bytes(peak)}" if peak is not None else ""
    timed = format_seconds(min(eager["compiled_timed_s"], eager["eager_timed_s"]))
    sure = (
        f"95% interval {eager['low']:.2f} to {eager['high']:.2f}; {eager['num_pairs']} turns, {timed}, of each{memory}"
    )
    told = f"without torch.compile this size runs at {eager['over_compiled']:.2f}x the speed ({sure})"
    return f"{told}: {_eager_advice(eager, tolerance)}"


def _eager_advice(eager: Mapping[str, Any], tolerance: float) -> str:
    if eager["verdict"] == "faster" and eager["asked"]:
        return "do not compile, or explore again with explore.compile: false"
    if eager["verdict"] == "faster":
        return "do not compile, or explore again with explore.compile: both, which looks closer"
    if eager["verdict"] == "slower":
        return "keep torch.compile"
    if eager["verdict"] == "same":
        return f"within {100 * tolerance:g}% that is as fast, so that compiling gains nothing"
    return "too uncertain to tell whether compiling pays"


def _warm_start(artifacts_dir: str | None) -> list[str]:
    """The line that spares a training its compilation."""
    if artifacts_dir is None:
        return []
    return [
        f"Warm:    export TORCHINDUCTOR_CACHE_DIR={shlex.quote(artifacts_dir)}",
        "         before a training that compiles the same model and loss as one: its first step loads what was",
        "         compiled here. It is code that will be run: take it from nobody whom you do not trust.",
    ]


def _batch_table(record: Mapping[str, Any]) -> list[str]:
    sizes = record["global_batch_sizes"]
    has_tokens = any(size["num_tokens"] for size in sizes)
    has_times = any(size.get("step_time_s") for size in sizes)
    head = f"  {'batch_size':>10}  {'accumulation':>12}"
    head += f"  {'tokens':>12}" if has_tokens else ""
    head += f"  {'step time':>12}" if has_times else ""
    rows = [head]
    for size in sizes:
        row = f"  {size['global_batch_size']:>10}  {size['accumulation_steps']:>12}"
        row += f"  {size['num_tokens']:>12,}" if has_tokens else ""
        row += f"  {format_seconds(size.get('step_time_s')):>12}" if has_times else ""
        row += "  <- yours" if size["global_batch_size"] == record.get("batch_size") else ""
        rows.append(row)
    if record.get("batch_message"):
        rows.append(f"  {record['batch_message']}")
    return rows


def keeping_sentence(record: Mapping[str, Any], target_confidence: float | None) -> str | None:
    """The second answer of a `result` record: which size keeps the user's batch size, and what that costs.

    Args:
        record: The `result` event.
        target_confidence: That was asked for; None where it is not known.

    Returns:
        None where no batch size was given.
    """
    own, keeps = record.get("batch_size"), record.get("keeps_batch_size")
    if own is None:
        return None
    rule = "even" if record.get("divisibility") == "even" else "divisors"
    if keeps is None and record.get("replica_batch_size") is None:
        return f"No micro_batch_size keeps batch_size {own}: the replicas have no equal shares of it."
    if keeps is None:
        return f"No micro_batch_size that was run keeps batch_size {own}; explore.candidates: {rule} tries those alone."
    size, free, steps = keeps["micro_batch_size"], keeps["free_micro_batch_size"], keeps["accumulation_steps"]
    in_steps = counted(steps, "accumulation step")
    if size == free:
        return f"It keeps batch_size {own}, in {in_steps}."
    speed = f"{keeps['over_recommended']:.2f}x the speed of size {free}"
    if size == record["micro_batch_size"]:
        return f"It keeps batch_size {own}, in {in_steps}, at {speed}, which does not."
    told = (
        f"To keep batch_size {own}, use micro_batch_size {size} in {in_steps}: {speed}, "
        f"{keeps['samples_per_s']:.4g} samples/s; confidence {keeps['confidence']} out of 100."
    )
    is_sure = target_confidence is None or keeps["confidence"] >= target_confidence
    return told if is_sure else f"{told} explore.candidates: {rule} tries such sizes alone."


def _lines(text: str | None) -> list[str]:
    return [text] if text else []


def _rows(label: str, text: str | None) -> list[str]:
    return [_row(label, text)] if text else []


def _row(label: str, text: str) -> str:
    return f"  {label:<{WIDTH}}{text}"
