"""The implementation of `Runner` that touches hardware: a worker process that compiles one size and runs it for real.

Only the modules that run inside a worker import torch; the explorer's own process stays without it.
"""

from __future__ import annotations

from bexplore.engine.runner import EngineRunner

__all__ = ["EngineRunner"]
