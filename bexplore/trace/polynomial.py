"""A number of bytes or operations as a function of the micro-batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Polynomial:
    """`constant + linear b + quadratic b^2`, where b is the micro-batch size.

    Nearly every size in a training step is affine in b; in a contrastive loss, which compares all samples with each
    other, sizes are quadratic.
    """

    constant: float = 0
    linear: float = 0
    quadratic: float = 0

    def __call__(self, micro_batch_size: int) -> float:
        """Return the value at a micro-batch size."""
        return self.constant + micro_batch_size * (self.linear + micro_batch_size * self.quadratic)

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial(self.constant + other.constant, self.linear + other.linear, self.quadratic + other.quadratic)

    def __neg__(self) -> Polynomial:
        return self.times(-1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        """Return the product up to b^2: a stride and a size that both grow make no higher power."""
        return Polynomial(
            self.constant * other.constant,
            self.constant * other.linear + self.linear * other.constant,
            self.constant * other.quadratic + self.linear * other.linear + self.quadratic * other.constant,
        )

    def __bool__(self) -> bool:
        return bool(self.constant or self.linear or self.quadratic)

    def times(self, factor: float) -> Polynomial:
        """Return the polynomial multiplied by a number."""
        return Polynomial(self.constant * factor, self.linear * factor, self.quadratic * factor)

    def as_record(self) -> list[float]:
        """Return the three coefficients for JSON, the constant first."""
        return [self.constant, self.linear, self.quadratic]

    @classmethod
    def from_record(cls, coefficients: Sequence[float]) -> Polynomial:
        """Rebuild a polynomial from `as_record`."""
        return cls(*coefficients)

    @classmethod
    def of_value(cls, value: int, probe_batch: int) -> Polynomial:
        """Return the polynomial that has a value at one micro-batch size, which divides no other size.

        Args:
            value: The value at the micro-batch size `probe_batch`.
            probe_batch: A prime that divides no dimension but those that contain the samples.
        """
        if value % probe_batch:
            return cls(value)
        if value % (probe_batch * probe_batch):
            return cls(0, value // probe_batch)
        return cls(0, 0, value // (probe_batch * probe_batch))

    @classmethod
    def of_function(cls, function: Callable[[int], int], base: int) -> Polynomial:
        """Interpolate a function at `base`, `2 base` and `3 base`; exact up to degree two.

        A size that is rounded up to a multiple is met within the rounding.
        """
        first, second, third = (function(multiple * base) for multiple in (1, 2, 3))
        if third - second == second - first:  # the usual case, kept in whole numbers
            slope, rest = divmod(second - first, base)
            if not rest:
                return cls(first - slope * base, slope)
        quadratic = (third - 2 * second + first) / (2 * base * base)
        linear = (second - first) / base - 3 * base * quadratic
        return cls(first - base * (linear + base * quadratic), linear, quadratic)


NOTHING = Polynomial()
