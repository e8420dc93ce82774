"""The summary at the end of a run: which size and why, valid batch sizes, where the files are, what to paste."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping

from bexplore.engine.eager_comparison import EagerComparison, EagerVerdict
from bexplore.engine.process.launcher import EXTERNAL
from bexplore.measurement.probe import Compilation, Outcome
from bexplore.output.bexp import memory_words
from bexplore.output.lengths_text import lengths_rows
from bexplore.output.settings_text import base_words, front_table, settings_sentences, settings_words
from bexplore.run.parallel_result import ParallelResult
from bexplore.run.result import RunResult
from bexplore.search.policy.decision import StopReason
from bexplore.units import counted, format_bytes, format_seconds, format_share

STOP_REASONS: dict[str, str] = {
    StopReason.TARGET_CONFIDENCE: "the requested confidence{target} is reached",
    StopReason.COSTS_MORE_THAN_IT_SAVES: "another probe would cost more than it is expected to save",
    StopReason.NOTHING_LEFT: "no further probe is worth its cost",
    StopReason.MAX_PROBES: "the allowed number of probes is used up; a larger explore.max_probes searches on",
    StopReason.TIME_BUDGET: "the allowed time is used up; a larger explore.time_budget searches on",
    StopReason.INTERRUPTED: "it was interrupted; the same command resumes it",
}
WIDTH = 17  # characters of a row's label
MAX_BOTTLENECKS = 2  # the most important; the report lists all
MAX_TRACEBACK_LINES = 16
MAX_HOSTS = 4  # names; a cluster has too many for a line
MAX_FAILURES = 4  # reasons; more would push the answer off the screen
NEGLIGIBLE_GAIN = 0.0005  # of the fastest size's speed
OF_TABLE = ("{accumulation}", "{global_batch_size}")  # that stay in a command where its batch is not given


def summary_text(
    result: RunResult,
    *,
    yaml_key: str,
    tolerance: float,
    target_confidence: float | None = None,
    config: str = "",
    paste: str = "",
    command_line: str = "",
    report: str | None = None,
) -> str:
    """Return the closing text of a run.

    Args:
        yaml_key: Dotted key of the size in the user's file.
        tolerance: Width of the indifference zone, as a share of speed.
        target_confidence: The requested score; None if unknown.
        config: The user's file and options, as typed, for the `apply` command; empty leaves the command out.
        paste: The lines of YAML to paste; empty for the dotted key alone.
        command_line: The training command with the size filled in; empty where a file holds the size.
        report: The path of the report; None for none.
    """
    if result.micro_batch_size is None:
        rows = [_row("failed", text) for text in _failed(result)]
        stopped = stop_words(result, target_confidence)
        return "\n".join([f"No recommendation: {stopped}.", *rows, f"Results: {result.run_dir}"])
    keeping = keeping_sentence(result, target_confidence)
    front = front_table(result, tolerance)
    first, *rest = (paste or f"{yaml_key}: {result.micro_batch_size}").splitlines()
    return "\n".join(
        [
            _headline(result),
            *([keeping] if keeping else []),
            "",
            *_rows(result, tolerance, target_confidence),
            "",
            *([*front, ""] if front else []),
            "Valid global batch sizes:",
            *_batch_table(result),
            "",
            f"Results: {result.run_dir}",
            *([f"Report:  {report}"] if report else []),
            *([f"Apply:   bexplore apply {config}"] if config and not command_line else []),
            *_warm_start(result.artifacts_dir),
            *([f"Run:     {command_line}"] if command_line else [f"Paste:   {first}"]),
            *(f"         {line}" for line in rest if not command_line),
            *(f"         {name}: as in the table above" for name in OF_TABLE if name in command_line),
        ]
    )


def _rows(result: RunResult, tolerance: float, target_confidence: float | None) -> list[str]:
    limits = [
        item.finding + (f"; try: {item.action}" if item.action else "") for item in result.bottlenecks[:MAX_BOTTLENECKS]
    ]
    rows = [
        ("why", _why(result, target_confidence)),
        *(("settings", text) for text in settings_sentences(result)),
        ("remaining gain", left_sentence(result)),
        ("score", score_sentence(result, tolerance)),
        ("memory", _memory(result)),
        *lengths_rows(result.lengths),
        ("ranks", ranks_sentence(result)),
        ("smaller size", smaller_sentence(result, tolerance)),
        ("compiled", _compiled(result)),
        ("own process", _own_process(result)),
        ("own start", _own_start(result)),
        ("eager", eager_sentence(result.eager, tolerance)),
        ("runs at", result.runs_at),
        *(("failed", text) for text in _failed(result)),
        ("training", (result.gradient_equivalence or {}).get("message")),
        ("input", loader_sentence(result)),
        *(("limits", text) for text in limits),
        *(("warning", text) for text in result.warnings),
    ]
    return [_row(label, text) for label, text in rows if text]


def _row(label: str, text: str) -> str:
    return f"  {label:<{WIDTH}}{text}"


def _headline(result: RunResult) -> str:
    if result.is_emulated:
        return f"{_size_words(result)}{settings_words(result)} is {fitting_words(result)}."
    return (
        f"Use {_size_words(result)}{settings_words(result)}: {_factor_words(result)}{speed_words(result)}; "
        f"confidence {result.confidence} out of 100."
    )


def fitting_words(result: RunResult) -> str:
    """Return what is known of the answer on an emulated device: that it fits, and which larger size does not."""
    larger = result.smallest_out_of_memory
    limit = "no larger one was tried" if larger is None else f"size {larger} is out of memory"
    return f"the largest size that ran on {result.device_info.get('device_name')}, emulated; {limit}; no speed is known"


def _factor_words(result: RunResult) -> str:
    """Return the speed over the base's, and that of the base, whose ratio it is; the base itself has no factor."""
    base = result.base_micro_batch_size
    if result.micro_batch_size == base and result.variant == result.base_variant:
        return "the smallest size that ran, "
    low, high = result.relative_performance_interval or (1.0, 1.0)
    interval = "" if f"{low:.2f}" == f"{high:.2f}" else f" ({low:.2f} to {high:.2f})"
    return f"{result.relative_performance:.2f}x{interval} the speed of size {base}{base_words(result)}, "


def speed_words(result: RunResult) -> str:
    """Return the answer's samples/s; of several replicas that ran together those of all, and of each."""
    if result.samples_per_s is None:
        return "speed unknown"
    own = f"{result.samples_per_s:.4g} samples/s"
    if result.total_samples_per_s is not None and result.total_samples_per_s != result.samples_per_s:
        number = round(result.total_samples_per_s / result.samples_per_s)
        return f"{result.total_samples_per_s:.4g} samples/s of all {number} replicas ({own} of each)"
    return f"{own}{' of a replica' if result.parallel else ''}"


def _size_words(result: RunResult) -> str:
    tokens = result.lengths.micro_batch_tokens if result.lengths else None
    return f"micro_batch_size {result.micro_batch_size}" if tokens is None else f"micro_batch_tokens {tokens}"


def loader_sentence(result: RunResult) -> str | None:
    """Return the measured speed of the user's loader; None where there is none, or it could not be timed."""
    loader = result.loader
    if not loader or loader["problem"]:
        return None
    workers = "" if loader["num_workers"] is None else f", {counted(loader['num_workers'], 'worker')}"
    return f"your data loader gives {loader['samples_per_s']:.4g} samples/s (timed alone, no step beside it{workers})"


def _why(result: RunResult, target_confidence: float | None) -> str:
    outcomes = outcomes_words(result.outcomes)
    took, stopped = format_seconds(result.elapsed_s), stop_words(result, target_confidence)
    best = "largest" if result.is_emulated else "fastest"
    return f"{best} of {counted(result.num_probes or 0, 'probe')} ({outcomes}) in {took}; ended because {stopped}"


def outcomes_words(outcomes: Mapping[str, int]) -> str:
    """Return the number of probes by outcome, in words."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(outcomes.items()))


def score_sentence(result: RunResult, tolerance: float) -> str | None:
    """Return the regret bound of a score below 90; None for a score that needs no explanation."""
    share = result.regret_bound_90
    if share is None or share <= tolerance:
        return None
    shown = math.ceil(1000.0 * share) / 1000.0  # rounded up: the bound must hold
    return (
        f"{result.confidence} out of 100 that it is within {100 * tolerance:g}% of the fastest that fits, "
        f"90 out of 100 that it is within {shown:.1%}"
    )


def left_sentence(result: RunResult) -> str | None:
    """Return the expected remaining gain, and the cost and gain of another probe; None if unknown."""
    share, training_s, saves = result.left_to_gain, result.training_time_s, result.next_probe_saves
    if share is None:
        return None
    at = f"at a score of {result.confidence}"
    if share < NEGLIGIBLE_GAIN:
        return f"negligible {at}: less than {NEGLIGIBLE_GAIN:.2%} in expectation"
    if training_s is None or saves is None:
        return f"{share:.1%} in expectation, {at}"
    saved = "next to nothing" if saves * training_s < 1.0 else format_seconds(saves * training_s)
    training = format_seconds(training_s) + ("" if result.training_samples is None else " by the file's steps")
    return (
        f"{share:.1%} in expectation, {format_seconds(share * training_s)} of {training}, {at}; "
        f"another probe costs {format_seconds(result.next_probe_s)} and is expected to save {saved}"
    )


def stop_words(result: RunResult, target_confidence: float | None) -> str:
    """Return why an exploration ended, in words; a text of `should_stop` is returned as it is."""
    stop_reason = result.stop_reason
    if result.is_emulated and stop_reason in (StopReason.TARGET_CONFIDENCE, StopReason.COSTS_MORE_THAN_IT_SAVES):
        return "a clearly larger size is unlikely to fit"
    target = "" if target_confidence is None else f", {target_confidence:g} out of 100,"
    return STOP_REASONS.get(stop_reason, stop_reason).replace("{target}", target)


def _memory(result: RunResult) -> str:
    if result.peak_memory_bytes is None:
        return "peak unknown on this device"
    text = memory_words(
        result.peak_memory_bytes, result.resident_memory_bytes, is_full=result.memory_headroom_bytes == 0
    )
    return ", ".join(filter(None, [text, headroom_words(result), _prediction(result)]))


def _prediction(result: RunResult) -> str:
    """Return how far the trace is from the peak, where the peak is all that was looked for; else empty."""
    predicted, peak = result.predicted_peak_memory_bytes, result.peak_memory_bytes
    if not (result.is_emulated and predicted and peak):
        return ""
    return f"the trace predicted {format_bytes(predicted)}, {100 * (predicted / peak - 1.0):+.1f}%"


def headroom_words(result: RunResult) -> str:
    """Return the memory budget that stays free, in words; empty if unknown."""
    headroom, peak = result.memory_headroom_bytes, result.peak_memory_bytes
    if headroom is None or peak is None:
        return ""
    if headroom <= 0:
        return "nothing of the budget stays free"
    share = headroom / (headroom + max(peak, result.resident_memory_bytes or 0))
    return f"{format_bytes(headroom)} ({format_share(share)}) of the budget stay free"


def ranks_sentence(result: RunResult) -> str | None:
    """Return where the ranks ran, which one holds the others up, and what communication costs; None for one device."""
    ranks = result.parallel
    if ranks is None:
        return None
    texts = [_where_ranks_ran(ranks), *_worst_ranks(ranks), *_passes_of_step(ranks), *_communication(ranks)]
    return "; ".join(texts)


def _where_ranks_ran(ranks: ParallelResult) -> str:
    if not ranks.holds_communication:
        return f"one of {counted(ranks.num_ranks, 'rank')} ran, alone ({ranks.description})"
    shown = ", ".join(ranks.hosts[:MAX_HOSTS])
    more = f" and {len(ranks.hosts) - MAX_HOSTS} more" if len(ranks.hosts) > MAX_HOSTS else ""
    starter = "you" if ranks.launcher == EXTERNAL else ranks.launcher
    return f"{ranks.num_ranks} ran on {shown}{more}, started by {starter} ({ranks.description})"


def _worst_ranks(ranks: ParallelResult) -> Iterator[str]:
    if ranks.slowest_rank is not None and ranks.slowest_rank_lag is not None:
        yield (
            f"rank {ranks.slowest_rank} computes slowest: at {format_share(1.0 - ranks.slowest_rank_lag)} of the "
            "median rank's speed"
        )
    if ranks.worst_peak_rank is not None:
        yield f"rank {ranks.worst_peak_rank} needs most memory, {format_bytes(ranks.worst_peak_memory_bytes)}"


def _passes_of_step(ranks: ParallelResult) -> Iterator[str]:
    """Tell of the passes of a step where they differ: those of one alone, else the last and the others."""
    if ranks.last_pass_s is None:
        return
    last = format_seconds(ranks.last_pass_s)
    if ranks.inner_pass_s is None:
        yield f"the one pass of a step reduces gradients, {last}"
        return
    steps = "" if ranks.accumulation_steps is None else f" of {ranks.accumulation_steps} passes"
    inner = format_seconds(ranks.inner_pass_s)
    yield f"a pass takes {inner}, and the last of a step{steps}, which reduces gradients, {last}"


def _communication(ranks: ParallelResult) -> Iterator[str]:
    if ranks.exposed_communication_s is None or ranks.parallel_efficiency is None:
        return
    if ranks.exposed_communication_s <= 0.0:
        inner_s, last_s = ranks.inner_pass_s, ranks.last_pass_s
        if inner_s is not None and last_s is not None and last_s > inner_s:
            yield f"communication adds {format_seconds(last_s - inner_s)} to it"  # to the last pass, told before
        else:
            yield "computation hides all communication"
        return
    exposed = format_seconds(ranks.exposed_communication_s)
    yield f"communication adds {exposed} to a pass: parallel efficiency {ranks.parallel_efficiency:.0%}"


def smaller_sentence(result: RunResult, tolerance: float) -> str | None:
    """Return the smallest size in the indifference zone and the memory that it saves; None for the size itself."""
    small, saved = result.smallest_within_tolerance, result.memory_saved_bytes
    if small is None or small == result.micro_batch_size:
        return None
    return f"size {small} is within {tolerance:.0%} of it" + (f" and saves {format_bytes(saved)}" if saved else "")


def _failed(result: RunResult) -> list[str]:
    """Return the failures in lines; a size that is too big is none."""
    failures = [item for item in result.failures if item.outcome != Outcome.OUT_OF_MEMORY]
    lines = [
        f"{', '.join(map(str, item.micro_batch_sizes))}: {item.outcome.replace('_', ' ')}: {item.reason}"
        for item in failures[:MAX_FAILURES]
    ]
    lines += next((_users_lines(item.traceback_text) for item in failures if item.traceback_text), [])
    hidden = len(failures) - MAX_FAILURES
    return lines + ([f"and {counted(hidden, 'more reason')} in the run log"] if hidden > 0 else [])


def _users_lines(traceback_text: str) -> list[str]:
    """Return the user's own lines of a traceback, without the frames of torch and of the worker."""
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


def _compiled(result: RunResult) -> str | None:
    ratio = result.exact_over_shared
    if ratio is None or result.compilation == Compilation.EAGER or _is_of_command(result):
        return None
    return f"run exactly as your training will compile it: {ratio:.2f}x of the search's shared compilation"


def _own_process(result: RunResult) -> str | None:
    ratio = result.exact_over_shared
    if ratio is None or result.compilation != Compilation.EAGER:
        return None
    return f"run in a process of its own, as your training will: {ratio:.2f}x of its speed beside other sizes"


def _is_of_command(result: RunResult) -> bool:
    return result.num_replicas is not None


def _own_start(result: RunResult) -> str | None:
    ratio = result.exact_over_shared
    if ratio is None or not _is_of_command(result):
        return None
    return f"run in a start of its own, as your training will: {ratio:.2f}x of its speed in a start with other sizes"


def eager_sentence(eager: EagerComparison | None, tolerance: float) -> str | None:
    """Return whether torch.compile is worth it; None where that was not compared."""
    if eager is None:
        return None
    if eager.problem or eager.verdict is None:
        return f"without torch.compile this size does not run: {eager.problem}"
    peak = eager.peak_memory_bytes
    memory = f", peak {format_bytes(peak)}" if peak is not None else ""
    timed = format_seconds(min(eager.compiled_timed_s, eager.eager_timed_s))
    return (
        f"without torch.compile this size runs at {eager.over_compiled:.2f}x the speed (95% interval {eager.low:.2f} "
        f"to {eager.high:.2f}; {counted(eager.num_pairs, 'round')}, {timed}, of each{memory}): "
        f"{_eager_advice(eager, tolerance)}"
    )


def _eager_advice(eager: EagerComparison, tolerance: float) -> str:
    return {
        EagerVerdict.FASTER: "do not compile, or explore again with explore.compile: false",
        EagerVerdict.SLOWER: "keep torch.compile",
        EagerVerdict.SAME: f"within {100 * tolerance:g}% that is as fast, so that compiling gains nothing",
        EagerVerdict.UNSURE: "too uncertain to decide whether compiling pays",
    }[eager.verdict or EagerVerdict.UNSURE]


def _warm_start(artifacts_dir: str | None) -> list[str]:
    """Return the line that saves a training its compilation."""
    if artifacts_dir is None:
        return []
    return [
        f"Warm:    export TORCHINDUCTOR_CACHE_DIR={shlex.quote(artifacts_dir)}",
        "         before a training that compiles the same model and loss as one: its first step loads this compiled",
        "         program. It is executable code: use only caches that you trust.",
    ]


def _batch_table(result: RunResult) -> list[str]:
    sizes = result.global_batch_sizes
    columns = [
        ("batch_size", 10, [str(size.global_batch_size) for size in sizes]),
        ("accumulation", 12, [str(size.accumulation_steps) for size in sizes]),
    ]
    if any(size.num_tokens for size in sizes):
        columns.append(("tokens", 12, [f"{size.num_tokens:,}" for size in sizes]))
    if any(size.step_time_s for size in sizes):
        columns.append(("step time", 12, [format_seconds(size.step_time_s) for size in sizes]))
    rows = ["".join(f"  {name:>{width}}" for name, width, _ in columns)]
    for index, size in enumerate(sizes):
        row = "".join(f"  {cells[index]:>{width}}" for _, width, cells in columns)
        timed = ", a real step was timed" if size.is_measured else ""
        rows.append(row + (f"  <- yours{timed}" if size.global_batch_size == result.batch_size else ""))
    return rows + ([f"  {result.batch_message}"] if result.batch_message else [])


def keeping_sentence(result: RunResult, target_confidence: float | None) -> str | None:
    """Return which size keeps the user's batch size, and at what speed; None where no batch size was given."""
    own, keeps = result.batch_size, result.keeps_batch_size
    if own is None:
        return None
    rule = "even" if result.divisibility == "even" else "divisors"
    if keeps is None and result.replica_batch_size is None:
        return f"No micro_batch_size keeps batch_size {own}: the replicas have no equal shares of it."
    if keeps is None:
        return f"No micro_batch_size that ran keeps batch_size {own}; explore.candidates: {rule} tries only such sizes."
    size, free = keeps.micro_batch_size, keeps.free_micro_batch_size
    in_steps = counted(keeps.accumulation_steps, "accumulation step")
    if size == free:
        return f"It keeps batch_size {own}, in {in_steps}."
    if keeps.over_recommended is None:
        return f"The largest size that ran and keeps batch_size {own} is {size}, in {in_steps}."
    speed = f"{keeps.over_recommended:.2f}x the speed of size {free}"
    if size == result.micro_batch_size:
        return f"It keeps batch_size {own}, in {in_steps}, at {speed}, which does not."
    of_each = " of each replica" if result.total_samples_per_s not in (None, result.samples_per_s) else ""
    text = (
        f"To keep batch_size {own}, use micro_batch_size {size} in {in_steps}: {speed}, "
        f"{keeps.samples_per_s:.4g} samples/s{of_each}; confidence {keeps.confidence} out of 100."
    )
    is_sure = target_confidence is None or (keeps.confidence or 0) >= target_confidence
    return text if is_sure else f"{text} explore.candidates: {rule} tries only such sizes."
