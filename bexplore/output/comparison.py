"""Runs beside each other: their answers, the speeds of the sizes that all of them ran, and how their jobs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bexplore.config.variants import name_settings
from bexplore.errors import UserInputError
from bexplore.output.table import Table
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run, differences
from bexplore.search.recommendation import Speed
from bexplore.units import format_bytes, format_rate

UNKNOWN = "–"


class _Finished(NamedTuple):
    run: Run
    name: str
    meta: Mapping[str, Any]
    result: RunResult

    @property
    def speeds(self) -> dict[int, Speed]:
        """The speed of each size that ran with the settings of the answer."""
        answer, variant = self.result.answer, self.result.choice.variant
        return {one.micro_batch_size: one for one in answer.speeds if one.variant == variant}


class Comparison:
    """Finished runs, of which the first is what the others are compared with."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """Read the runs.

        Raises:
            UserInputError: A run has no answer, or a file of it is damaged.
        """
        names = _short_names(runs)
        self._runs = [_read(run, name) for run, name in zip(runs, names, strict=True)]

    def lines(self, width: int | None = None) -> list[str]:
        """Return the lines for a terminal of a width; None for no limit."""
        parts = [self._answers().as_lines(width), self._speeds().as_lines(width)]
        lines = [*parts[0], *(["", "samples/s of each size:", *parts[1]] if self._sizes else [])]
        return [*lines, "", *self._differences()]

    def markdown(self) -> list[str]:
        """Return the lines of Markdown."""
        tables = [self._answers(), *([self._speeds()] if self._sizes else [])]
        return [
            "### bexplore: runs compared",
            *(line for table in tables for line in ("", *table.as_markdown())),
            "",
            *(f"- {text}" for text in self._differences()),
        ]

    def record(self) -> dict[str, Any]:
        """Return the `comparison` event: a record of each run, and of each size that all of them ran."""
        return {
            "event": "comparison",
            "runs": [
                {
                    "run": str(one.run.directory),
                    "micro_batch_size": one.result.micro_batch_size,
                    "settings": dict(one.result.choice.settings),
                    "samples_per_s": one.result.answer.samples_per_s,
                    "over_first": self._over_first(one),
                    "confidence": one.result.answer.confidence,
                    "peak_memory_bytes": one.result.memory.peak_memory_bytes,
                    "differences": list(differences(self._runs[0].meta, one.meta)),
                }
                for one in self._runs
            ],
            "sizes": [
                {"micro_batch_size": size, "samples_per_s": [one.speeds[size].samples_per_s for one in self._runs]}
                for size in self._sizes
            ],
        }

    @property
    def _sizes(self) -> list[int]:
        """Sizes that all runs ran."""
        return sorted(set.intersection(*(set(one.speeds) for one in self._runs)))

    def _over_first(self, one: _Finished) -> float | None:
        own, first = one.result.answer.samples_per_s, self._runs[0].result.answer.samples_per_s
        return own / first if own and first else None

    def _answers(self) -> Table:
        rows = []
        for one in self._runs:
            answer, over = one.result.answer, self._over_first(one)
            rows.append(
                (
                    one.name,
                    str(answer.micro_batch_size),
                    name_settings(one.result.choice.settings),
                    UNKNOWN if answer.samples_per_s is None else format_rate(answer.samples_per_s),
                    UNKNOWN if over is None else f"{over:.2f}x",
                    UNKNOWN if answer.confidence is None else str(answer.confidence),
                    format_bytes(one.result.memory.peak_memory_bytes),
                )
            )
        headings = ("run", "size", "settings", "samples/s", f"over {self._runs[0].name}", "confidence", "peak memory")
        return Table(
            headings=headings, rows=tuple(rows), is_number=(False, True, False, True, True, True, True)
        ).without_empty_columns(UNKNOWN)

    def _speeds(self) -> Table:
        """Return the samples/s of each size, the last run's over the first's, and whether they surely differ."""
        first, last = self._runs[0], self._runs[-1]
        rows = [
            (
                str(size),
                *(format_rate(one.speeds[size].samples_per_s) for one in self._runs),
                *_compare(first.speeds[size], last.speeds[size]),
            )
            for size in self._sizes
        ]
        names = tuple(one.name for one in self._runs)
        return Table(
            headings=("size", *names, f"{last.name} over {first.name}", ""),
            rows=tuple(rows),
            is_number=(True, *(True for _ in names), True, False),
        )

    def _differences(self) -> list[str]:
        first = self._runs[0]
        lines = []
        for one in self._runs[1:]:
            found = differences(first.meta, one.meta)
            what = "the same job, machine and search" if not found else "differs in"
            lines.append(f"{one.name} and {first.name}: {what}")
            lines += [f"  {text}" for text in found]
        return lines


def _read(run: Run, name: str) -> _Finished:
    result = run.result()
    if result is None or result.micro_batch_size is None:
        raise UserInputError(
            f"{run.directory} has no answer yet", hint="the same command as before resumes the exploration"
        )
    return _Finished(run, name, run.meta(), result)


def _short_names(runs: Sequence[Run]) -> list[str]:
    """Return names that tell runs apart: of their folders, or of the folders above where these are alike."""
    parts = [run.directory.parts for run in runs]
    while len({one[-1] for one in parts}) == 1:
        parts = [one[:-1] for one in parts]
    named = (["/".join(one[-depth:]) for one in parts] for depth in range(1, max(map(len, parts)) + 1))
    return next(names for names in named if len(set(names)) == len(names))


def _compare(first: Speed, last: Speed) -> tuple[str, str]:
    """Return the ratio of two speeds, and in words whether their 95 % intervals lie apart."""
    ratio = f"{last.samples_per_s / first.samples_per_s:.3f}x"
    if last.interval[0] > first.interval[1]:
        return ratio, "faster"
    return ratio, "slower" if last.interval[1] < first.interval[0] else "not told apart"
