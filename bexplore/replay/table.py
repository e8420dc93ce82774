"""Recorded sweeps: a CSV file of throughput by micro-batch size; all of its problems are reported at once."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bexplore.errors import UserInputError

REQUIRED_COLUMNS = ("micro_batch_size",)
TIME_COLUMNS = ("throughput_samples_per_s", "step_time_s")
SHOWN_PROBLEMS = 20
_FLAGS = dict.fromkeys(("0", "0.0", "false", "no"), False) | dict.fromkeys(("1", "1.0", "true", "yes"), True)
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size of a recorded curve."""

    throughputs: tuple[float, ...] = ()  # samples/s of each repeat; empty where it ran out of memory
    pass_time_s: float = 0.0  # seconds of a pass, for the cost of a probe; 0 where unknown
    peak_memory_bytes: int | None = None  # peak; None where the table has none

    @property
    def fits(self) -> bool:
        """Whether the size ran."""
        return bool(self.throughputs)

    @property
    def throughput(self) -> float:
        """Median samples/s of the repeats."""
        return float(np.median(self.throughputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A recorded sweep of one job on one machine, with one of its settings."""

    curve_id: str  # its name in the table
    points: Mapping[int, Point]  # by micro-batch size, ascending
    setting: str = ""  # the job's setting, of those in the table; empty where the table has none

    @property
    def best_throughput(self) -> float:
        """Samples/s at the best recorded size; 0 where nothing fits."""
        return max((point.throughput for point in self.points.values() if point.fits), default=0.0)

    @property
    def best_size(self) -> int | None:
        """The smallest size that has the best recorded throughput; None where nothing fits."""
        return next(
            (size for size, one in self.points.items() if one.fits and one.throughput == self.best_throughput), None
        )

    def regret(self, size: int) -> float:
        """Return the share of the best throughput that is lost at a size."""
        return 1.0 - self.points[size].throughput / self.best_throughput


def load_table(path: str | Path) -> tuple[Curve, ...]:
    """Read a table of recorded sweeps.

    Columns: `micro_batch_size`, and `throughput_samples_per_s` or `step_time_s`; `curve_id`, `peak_mem_gib`, `oom`
    and `setting` may be absent, further columns are ignored. Without `curve_id` the table is one curve, which has the
    name of the file. Several rows of one size are repeats; a size with an
    `oom` row (1, true or yes) does not fit, whatever its other rows say. The settings of one `curve_id` are those of
    one job, each of which has the same sizes.

    Returns:
        A curve for each setting of each `curve_id`, in the order of the table.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = tuple(reader.fieldnames or ())
            _check_header(path, header)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserInputError(f"cannot read the table {path}: {error}", hint="name a CSV file with a header") from error
    problems: list[str] = []
    grouped: dict[str, dict[str, dict[int, list[_Row]]]] = {}
    for line, cells in rows:
        if "curve_id" not in header:
            cells["curve_id"] = Path(path).stem
        row = _parse(cells, f"{path}:{line}", problems)
        if row is not None:
            of_job = grouped.setdefault(row.curve_id, {})
            of_job.setdefault(row.setting, {}).setdefault(row.size, []).append(row)
    if not problems:
        problems.extend(problem for name, of_job in grouped.items() for problem in _gaps(name, of_job))
    if problems:
        rest = len(problems) - SHOWN_PROBLEMS
        shown = "\n".join(problems[:SHOWN_PROBLEMS]) + (f"\n... and {rest} more" if rest > 0 else "")
        raise UserInputError(shown, hint="correct these cells, or remove the rows")
    if not grouped:
        raise UserInputError(f"the table {path} has no rows", hint="add at least one row under the header")
    return tuple(
        Curve(curve_id=name, setting=setting, points={size: _point(sizes[size]) for size in sorted(sizes)})
        for name, of_job in grouped.items()
        for setting, sizes in of_job.items()
    )


def _gaps(name: str, of_job: Mapping[str, Mapping[int, Sequence[_Row]]]) -> Iterator[str]:
    """Name the sizes that a setting of a job lacks and another has."""
    every = set[int]().union(*of_job.values())
    for setting, sizes in of_job.items():
        lacking = sorted(every - set(sizes))
        if lacking:
            yield (
                f"curve {name!r}: the setting {setting!r} has no row of micro_batch_size "
                f"{', '.join(map(str, lacking))}, another has; give it one, with oom 1 where it did not fit"
            )


@dataclass(frozen=True, slots=True)
class _Row:
    curve_id: str
    setting: str
    size: int
    throughput: float | None
    step_time_s: float | None
    peak_mem_gib: float | None
    oom: bool


def _check_header(path: str | Path, header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if not any(name in header for name in TIME_COLUMNS):
        missing.append(" or ".join(TIME_COLUMNS))
    if missing:
        found = ", ".join(header) if header else "none"
        raise UserInputError(
            f"{path}:1: the table lacks the column {'; '.join(missing)} (found: {found})",
            hint="the header must name micro_batch_size and throughput_samples_per_s (or step_time_s), and may name "
            "curve_id, peak_mem_gib, oom and setting",
        )


def _parse(cells: Mapping[str, str | None], where: str, problems: list[str]) -> _Row | None:
    before = len(problems)
    name = (cells.get("curve_id") or "").strip()
    if not name:
        problems.append(f"{where}: curve_id is blank")
    size = _number(cells, "micro_batch_size", where, problems)
    if (size is None or size < 1 or size != int(size)) and (len(problems) == before or size is not None):
        problems.append(f"{where}: micro_batch_size {cells.get('micro_batch_size')!r} is not a whole number above 0")
    values = {key: _number(cells, key, where, problems) for key in (*TIME_COLUMNS, "peak_mem_gib")}
    problems.extend(
        f"{where}: {key} {cells[key]!r} is not above 0"
        for key, value in values.items()
        if value is not None and value <= 0
    )
    written = (cells.get("oom") or "0").strip()
    oom = _FLAGS.get(written.lower())
    if oom is None:
        problems.append(f"{where}: oom {written!r} is neither 0 nor 1, nor true, false, yes or no")
    if oom is False and len(problems) == before and all(values[key] is None for key in TIME_COLUMNS):
        problems.append(f"{where}: neither {' nor '.join(TIME_COLUMNS)} is given, and oom is not 1")
    if len(problems) > before:
        return None
    throughput, step_time = (values[key] for key in TIME_COLUMNS)
    setting = (cells.get("setting") or "").strip()
    return _Row(name, setting, int(size or 0), throughput, step_time, values["peak_mem_gib"], bool(oom))


def _number(cells: Mapping[str, str | None], key: str, where: str, problems: list[str]) -> float | None:
    """Return the finite number in a cell; None for a blank one."""
    text = (cells.get(key) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        problems.append(f"{where}: {key} {text!r} is not a finite number")
        return None
    return value


def _point(rows: Sequence[_Row]) -> Point:
    peaks = [row.peak_mem_gib for row in rows if row.peak_mem_gib is not None]
    if any(row.oom for row in rows):
        return Point()
    throughputs = [row.throughput or row.size / float(row.step_time_s or math.nan) for row in rows]
    times = [row.step_time_s or row.size / float(row.throughput or math.nan) for row in rows]
    return Point(
        throughputs=tuple(throughputs),
        pass_time_s=float(np.median(times)),
        peak_memory_bytes=round(max(peaks) * GIB) if peaks else None,
    )
