"""Where events go: the BEXP lines, people, and programs. A sink is called with each event and returns nothing."""

from __future__ import annotations

from collections.abc import Callable

from bexplore.exploration.events import JobEvent

Sink = Callable[[JobEvent], None]
