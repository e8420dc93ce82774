"""The commands and their exit codes: the command-line library's only door."""

from __future__ import annotations

from bexplore.cli.entry import cli, main

__all__ = ["cli", "main"]
