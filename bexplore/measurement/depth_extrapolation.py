"""Reduced depth: a deep model's cost, extrapolated from two shallow copies of it.

Seconds of a pass and bytes at its peak are affine in the number of identical blocks, since each further block runs the
same kernels and keeps the same activations. Two depths give the line, and the line gives the full depth.
"""

from __future__ import annotations

from dataclasses import dataclass

# Blocks of the two shallow models: the fewest, and the fewest of the deeper one. Source: the formulas of
# `Depths.cost_share` and `Depths.variance_factor`, of which `Depths.of` takes the least product.
LOW, MIN_HIGH = 1, 4
# From so many blocks on, the two shallow models together cost clearly less than the full one. Source: `cost_share` is
# (1 + 4) / 8 there.
MIN_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """The two depths at which a deep model is run instead of its own.

    Attributes:
        whole: Identical blocks of the model.
        block_share: Share of the operations of a pass, 0 to 1, that lies in these blocks.
        low, high: Blocks that are kept in the two shallow models.
    """

    whole: int
    block_share: float
    high: int
    low: int = LOW

    def extrapolate(self, at_low: float, at_high: float) -> float:
        """Return the value at full depth of a quantity that is affine in the number of blocks."""
        return at_low + (self.whole - self.low) / (self.high - self.low) * (at_high - at_low)

    @property
    def cost_share(self) -> float:
        """Cost of one pass at both depths, as a share of a pass at full depth."""
        return self._share(self.low) + self._share(self.high)

    @property
    def variance_factor(self) -> float:
        """Variance of an extrapolated ln(seconds) over that of one measured at full depth.

        Each measurement has the same relative error. With the seconds t1 and t2 of the two depths, as shares of the
        full depth's, and k = (whole - low) / (high - low), the factor is (1 - k)^2 t1^2 + k^2 t2^2.
        """
        slope = (self.whole - self.low) / (self.high - self.low)
        return (1.0 - slope) ** 2 * self._share(self.low) ** 2 + slope**2 * self._share(self.high) ** 2

    def _share(self, depth: int) -> float:
        return 1.0 - self.block_share * (1.0 - depth / self.whole)

    @classmethod
    def of(cls, *, num_blocks: int, block_share: float) -> Depths | None:
        """Return the depths with the least cost times variance; None for too few identical blocks to pay."""
        if num_blocks < MIN_BLOCKS:
            return None
        possible = (cls(whole=num_blocks, block_share=block_share, high=high) for high in range(MIN_HIGH, num_blocks))
        return min(possible, key=lambda depths: depths.cost_share * depths.variance_factor)
