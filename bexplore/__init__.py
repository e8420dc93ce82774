"""bexplore finds the fastest micro-batch size that fits, for any PyTorch training job, and says how sure it is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> module. Imported on first use, so that `import bexplore` costs nothing.
_PUBLIC = {
    "BexploreError": "bexplore.errors",
    "Config": "bexplore.config",
    "Finished": "bexplore.events",
    "Planned": "bexplore.events",
    "ProbeFinished": "bexplore.explorer",
    "ProbeStarted": "bexplore.explorer",
    "Recommended": "bexplore.events",
    "Stored": "bexplore.events",
    "Surroundings": "bexplore.exploration",
    "Traced": "bexplore.events",
    "explore": "bexplore.exploration",
    "load_config": "bexplore.dialects",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bexplore' has no attribute {name!r}")
    attribute = "load" if name == "load_config" else name
    return getattr(import_module(_PUBLIC[name]), attribute)
