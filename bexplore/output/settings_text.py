"""Settings that were explored together with the size, in words: what to set, what it gains, and the front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bexplore.config.sections.variants import ARGUMENT, name_settings
from bexplore.run.result import RunResult
from bexplore.run.settings_result import FrontPoint
from bexplore.units import format_bytes

MAX_ROWS = 8  # of the front in the summary; the result has all of it


def settings_words(result: RunResult) -> str:
    """Return the settings that belong to the recommended size, for its headline; empty for a job with one variant."""
    if not result.settings:
        return ""
    return f" with {name_settings(result.settings)}" if result.variant else " with the file's own settings"


def base_words(result: RunResult) -> str:
    """Return whose smallest size is the base; empty for a job with one variant."""
    if not result.settings:
        return ""
    return " with settings that fit" if result.base_variant else " with the file's own settings"


def settings_sentences(result: RunResult) -> Iterator[str]:
    """Yield what to set, what that gains and what it changes of the training; nothing for a job with one variant."""
    if not result.settings:
        return
    if not result.variant:
        yield "the file's own are the fastest that fit"
        return
    yield f"set {name_settings(result.settings)}: {_gain(result)}"
    if result.changes_training:
        yield f"this changes the training: {', '.join(result.changes_training)}, as explore.settings allows"
    arguments = [key.removeprefix(ARGUMENT) for key in result.settings if key.startswith(ARGUMENT)]
    if arguments:
        yield f"whether {', '.join(arguments)} changes the training, your own code decides"


def front_table(result: RunResult, tolerance: float) -> list[str]:
    """Return the lines of the front of memory against speed; none for a job with one variant."""
    points = shown_points(result, tolerance)
    if not result.settings or not points:
        return []
    names = [name_settings(point.settings) for point in points]
    width = max(map(len, names))
    rows = [
        f"  {name:<{width}}  {point.micro_batch_size:>5}  {format_bytes(point.peak_memory_bytes):>11}  "
        f"{point.samples_per_s:>9.4g}  {'ran' if point.ran else 'predicted'}"
        f"{'  <- recommended' if is_recommended(result, point) else ''}"
        for name, point in zip(names, points, strict=True)
    ]
    head = f"  {'settings':<{width}}  {'size':>5}  {'peak memory':>11}  {'samples/s':>9}"
    return ["Memory against speed, where nothing else is better in both:", head, *rows]


def shown_points(result: RunResult, tolerance: float, *, most: int = MAX_ROWS) -> Sequence[FrontPoint]:
    """Return the points of the front that differ by more than the tolerance, and the recommended one."""
    kept: list[FrontPoint] = []
    for point in result.pareto_front:
        is_faster = not kept or point.samples_per_s > kept[-1].samples_per_s * (1.0 + tolerance)
        if is_faster or is_recommended(result, point):
            kept.append(point)
    while len(kept) > most:
        spare = (one for one in kept[1:-1] if not is_recommended(result, one))
        kept.remove(min(spare, key=lambda one: _step(kept, one)))
    return kept


def is_recommended(result: RunResult, point: FrontPoint) -> bool:
    """Return whether a point of the front is the recommended size with its settings."""
    return point.micro_batch_size == result.micro_batch_size and dict(point.settings) == dict(result.settings)


def _gain(result: RunResult) -> str:
    if result.settings_over_file is None:
        operations = result.operations_over_file
        cost = "" if operations is None else f"; by the trace this takes {operations:.2f}x the operations"
        return f"with the file's own settings no size fits{cost}"
    low, high = result.settings_over_file_interval or (result.settings_over_file,) * 2
    return f"{result.settings_over_file:.2f}x ({low:.2f} to {high:.2f}) the speed of the file's own at their best size"


def _step(points: Sequence[FrontPoint], point: FrontPoint) -> float:
    """Return how much faster a point is than the one before it."""
    return point.samples_per_s / points[points.index(point) - 1].samples_per_s
