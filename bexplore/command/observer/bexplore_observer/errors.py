"""The first error of a process: what left it or a backward pass, or was caught for lack of memory."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .exchange import Exchange, read_host

LOGGED_CHARACTERS = 8000
LINKS_OF_ERROR = 16  # exceptions of one chain that a report keeps
_NO_ERRORS = (SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit)


class ErrorReport:
    """Reports the first error of a process, with its rank and its steps and batches so far."""

    def __init__(
        self,
        exchange: Exchange,
        read_rank: Callable[[], str | None],
        read_counts: Callable[[], tuple[int, int]],
    ) -> None:
        self._exchange, self._read_rank, self._read_counts = exchange, read_rank, read_counts
        self.is_written = False

    def note(self, error: BaseException, where: str) -> None:
        """Write an error, if it is the first one."""
        if self.is_written or isinstance(error, _NO_ERRORS):
            return
        self.is_written = True
        try:
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            causes = find_causes(error)
            others = (one for one in find_links(error) if not any(one is cause for cause in causes))
            num_steps, num_batches = self._read_counts()
            self._exchange.log.write("error", where=where, type=type(error).__name__)
            record = {
                "pid": os.getpid(),
                "host": read_host(),
                "rank": self._read_rank(),
                "where": where,
                "chain": [describe(one) for one in causes],
                "contexts": [describe(one) for one in others],
                "traceback": text[-LOGGED_CHARACTERS:],
                "at_s": time.time(),
                "num_steps": num_steps,
                "num_batches": num_batches,
            }
            self._exchange.write(f"error-{read_host()}-{os.getpid()}.json", record)
        except Exception:  # a full disk: the training's own end shows the error
            pass

    def note_handled(self) -> None:
        """Write the exception that is being handled, if it is about memory."""
        error = sys.exc_info()[1]
        if error is None or self.is_written:
            return
        if any(is_about_memory(one) for one in find_links(error)):
            self.note(error, "handled")

    def chain_excepthook(self) -> None:
        """Note what leaves the process; a framework may have replaced the hook meanwhile."""
        inner = sys.excepthook
        if getattr(inner, "is_of_bexplore", False):
            return

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.note(error, "uncaught")
            inner(kind, error, trace)

        hook.is_of_bexplore = True  # type: ignore[attr-defined]
        sys.excepthook = hook


def is_about_memory(error: BaseException) -> bool:
    """Return whether an exception may be a refusal of memory; the explorer reads its message more closely."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or (isinstance(error, RuntimeError) and ("memory" in str(error) or "ALLOC_FAILED" in str(error)))


def find_causes(error: BaseException) -> list[BaseException]:
    """Return an exception and its explicit causes."""
    links: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(links) < LINKS_OF_ERROR:
        links.append(following)
        following = following.__cause__ or getattr(following, "inner_exception", None)
    return links


def find_links(error: BaseException) -> list[BaseException]:
    """Return all that led to an exception: causes, what was being handled, members of a group; itself first."""
    found: list[BaseException] = []
    waiting = deque([error])
    while waiting and len(found) < LINKS_OF_ERROR:
        link = waiting.popleft()
        if any(link is one for one in found):
            continue
        found.append(link)
        others = link.__cause__, getattr(link, "inner_exception", None), link.__context__
        members = getattr(link, "exceptions", ())
        members = members if isinstance(members, (list, tuple)) else ()
        waiting.extend(one for one in (*others, *members) if isinstance(one, BaseException))
    return found


def describe(error: BaseException) -> dict[str, Any]:
    """Return what the explorer reads of an exception."""
    kind = type(error)
    bases = [base.__name__ for base in kind.__mro__[1:-1]]
    return {"type": kind.__name__, "module": kind.__module__, "bases": bases, "message": str(error)[:2000]}
