"""Kernels by their shapes: what a model of their times needs to know."""

from __future__ import annotations

from dataclasses import dataclass

HALF_BYTES, SINGLE_BYTES = 2, 4  # of an element


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`batch` products of `rows x inner` by `inner x columns` in one kernel; in half precision on tensor cores."""

    rows: int
    columns: int
    inner: int
    batch: int = 1
    itemsize: int = HALF_BYTES

    @property
    def flops(self) -> float:
        """Operations; a multiplication and an addition are two."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A kernel whose time is that of its bytes.

    Its kind is `pointwise`, or one of a serving engine's: `activation` of gated halves, `gelu`, `reduction` (the root
    mean square of rows), `layer_norm`.
    """

    num_bytes: float  # read and written
    kind: str = "pointwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A fused attention kernel, which keeps no scores in memory."""

    flops: float  # those that a causal mask leaves
    num_bytes: float  # read and written
    is_backward: bool
    itemsize: int = HALF_BYTES


Kernel = MatrixProduct | Stream | Attention
