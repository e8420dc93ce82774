"""Memory that an opaque kernel allocates for itself, and that no plan shows."""

from __future__ import annotations

from typing import Any


def operator_workspace_bytes(operator: Any, args: Any, result: Any) -> int:
    """Bytes of the workspace of one call of an operator, at the sizes of its fake arguments; 0 where none is known."""
    return 0
