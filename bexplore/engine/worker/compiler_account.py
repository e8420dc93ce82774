"""The compiler's work: graphs, breaks, recompilations, seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bexplore.engine.worker import torch_private
from bexplore.errors import first_line

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Code in which a graph may break though the user's line is the one that counts.
LIBRARY_FOLDER = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A place that ends a graph, or that leaves the function around it to Python.

    Attributes:
        reason: First line of the compiler's reason.
        path: File of the innermost line outside of torch; empty where unknown.
        line: Its number; 0 where unknown.
    """

    reason: str
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.reason} at {Path(self.path).name}:{self.line}" if self.path else self.reason


@dataclass(slots=True)
class CompilerAccount:
    """What the compiler did since the last `take`.

    Attributes:
        num_graphs: Graphs that were compiled.
        num_recompiles: Those of them that replaced an earlier graph of the same code.
        compile_time_s: Seconds inside the compiler, backward graphs included.
        graph_breaks: Each place once.
        recompile_reasons: Why, first line of each.
    """

    num_graphs: int = 0
    num_recompiles: int = 0
    compile_time_s: float = 0.0
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompile_reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class CompilerCounters:
    """Reads torch's own records of its compilations; `take` gives what is new."""

    _num_seen_breaks: int = 0

    def take(self) -> CompilerAccount:
        """Return what was compiled since the last call, and forget it."""
        metrics = torch_private.take_compilation_records()
        frames = [m for m in metrics if getattr(m, "is_forward", True) is not False and m.graph_op_count]
        done = [frame for frame in frames if not frame.fail_type]
        again = [frame for frame in done if _compile_ordinal(frame.compile_id) > 0]
        reasons = {first_line(getattr(frame, "recompile_reason", None)) for frame in again} - {""}
        return CompilerAccount(
            num_graphs=len(done),
            num_recompiles=len(again),
            compile_time_s=sum(_seconds(metric) for metric in metrics),
            graph_breaks=tuple(dict.fromkeys([*self._new_breaks(), *_skipped_frames(metrics)])),
            recompile_reasons=tuple(sorted(reasons)),
        )

    def _new_breaks(self) -> list[GraphBreak]:
        known = torch_private.graph_break_records()
        first_new = self._num_seen_breaks if self._num_seen_breaks <= len(known) else 0  # a reset empties the list
        self._num_seen_breaks = len(known)
        return [_graph_break(one.reason, one.user_stack) for one in known[first_new:]]


def _graph_break(reason: str, stack: Sequence[Any]) -> GraphBreak:
    own = [frame for frame in stack if not frame.filename.startswith(LIBRARY_FOLDER)] or stack
    path, line = (own[-1].filename, own[-1].lineno or 0) if own else ("", 0)
    return GraphBreak(reason=_ADDRESS.sub("", first_line(reason)), path=path, line=line)


def _skipped_frames(metrics: Sequence[Any]) -> Iterator[GraphBreak]:
    """Yield breaks that leave a whole function to Python, as one inside a loop does; torch lists them nowhere else."""
    for metric in metrics:
        if metric.fail_type and metric.fail_user_frame_filename:
            yield GraphBreak(
                reason=_ADDRESS.sub("", first_line(metric.fail_reason)),
                path=metric.fail_user_frame_filename,
                line=metric.fail_user_frame_lineno or 0,
            )


def _compile_ordinal(compile_id: str | None) -> int:
    """Return the second number of torch's `frame/ordinal[_attempt]` compile id: 0 for a first compilation."""
    try:
        return int(str(compile_id).split("/")[1].split("_")[0])
    except (IndexError, ValueError):
        return 0


def _seconds(metric: Any) -> float:
    """Wall seconds of one compilation record: the frame's own for a forward, the lazy backward's otherwise."""
    duration_us = getattr(metric, "duration_us", None)
    return duration_us / 1e6 if duration_us else (metric.entire_frame_compile_time_s or 0.0)
