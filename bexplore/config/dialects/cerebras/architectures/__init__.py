"""Models of the ModelZoo other than its plain decoders, each as a table of its keys."""

from __future__ import annotations

from bexplore.config.dialects.cerebras.architectures.find import find_architecture, shown_names

__all__ = ["find_architecture", "shown_names"]
