"""The implementation of `Runner` that touches hardware: a worker process that compiles one size and runs it for real.

What runs inside a worker is in `worker/`, and only that imports torch; the explorer's own process stays without it.
"""

from __future__ import annotations

from bexplore.engine.process.pool import Workers
from bexplore.engine.runner import EngineRunner, RunnerSettings, begin

__all__ = ["EngineRunner", "RunnerSettings", "Workers", "begin"]
