"""Kernels by their shapes: what a model of their times needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HALF_BYTES, SINGLE_BYTES = 2, 4  # of an element


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`batch` products of `rows x inner` by `inner x columns` in one kernel; in half precision on tensor cores."""

    rows: int
    columns: int
    inner: int
    batch: int = 1
    itemsize: int = HALF_BYTES
    window: int = 0  # points of the window of a convolution; 0 for a product
    is_weight_gradient: bool = False  # whether it is that of a convolution, a sum over its images
    allows_tf32: bool = False  # whether float32 may be rounded to TF32, for tensor cores that have it

    @property
    def num_bytes(self) -> float:
        """Bytes of operands and result, each element once."""
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return float(self.itemsize * self.batch * elements)

    @property
    def result_bytes(self) -> float:
        """Bytes of the result."""
        return float(self.itemsize * self.batch * self.rows * self.columns)

    @property
    def flops(self) -> float:
        """Operations; a multiplication and an addition are two."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner


class Work(StrEnum):
    """What the costliest operator of a kernel does with each element, which decides its time on a processor."""

    POINTWISE = "pointwise"  # arithmetic, copies
    TRANSCENDENTAL = "transcendental"  # exponential functions and the like
    REDUCTION = "reduction"  # sums, norms, softmax
    CHANNELS = "channels"  # norms of each channel over all images
    RANDOM = "random"  # random numbers
    GATHER = "gather"  # reads rows of a table by indices
    SCATTER = "scatter"  # adds rows to a table by indices
    POOLING = "pooling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A kernel whose time is that of its bytes.

    Its kind is `pointwise`, or one of a serving engine's: `activation` of gated halves, `gelu`, `reduction` (the root
    mean square of rows), `layer_norm`.
    """

    num_bytes: float  # read and written
    kind: str = "pointwise"
    work: Work = Work.POINTWISE
    result_bytes: float = 0.0  # of its largest result that takes memory of its own
    flops: float = 0.0  # of a convolution of each channel alone, which no tensor core does; else they do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A fused attention kernel, which keeps no scores in memory."""

    flops: float  # those that a causal mask leaves
    num_bytes: float  # read and written
    is_backward: bool
    itemsize: int = HALF_BYTES


Kernel = MatrixProduct | Stream | Attention
