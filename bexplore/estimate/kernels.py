"""Kernels by their shapes: what a model of their times needs to know."""

from __future__ import annotations

from dataclasses import dataclass

HALF_BYTES = 2  # of an element in half precision


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`batch` products of `rows x inner` by `inner x columns` in half precision on tensor cores, in one kernel."""

    rows: int
    columns: int
    inner: int
    batch: int = 1

    @property
    def flops(self) -> float:
        """Operations; a multiplication and an addition are two."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A kernel whose time is that of its bytes: `pointwise`, `activation` of gated halves, or `reduction` of rows."""

    num_bytes: float  # read and written
    kind: str = "pointwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A fused attention kernel in half precision, which keeps no scores in memory."""

    flops: float  # those that a causal mask leaves
    num_bytes: float  # read and written
    is_backward: bool


Kernel = MatrixProduct | Stream | Attention
