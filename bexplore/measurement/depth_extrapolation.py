"""Reduced depth: what two shallow copies of a model of identical blocks say of the whole one.

Seconds of a pass and bytes at its peak are affine in the number of identical blocks: each further block runs the same
kernels and keeps the same activations. Two depths give the line, and the line gives the whole depth.
"""

from __future__ import annotations

from dataclasses import dataclass

LOW, MIN_HIGH = 1, 4  # blocks
MIN_BLOCKS = 8  # from here on the two shallow models together cost clearly less than the whole one


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """The two depths at which a deep model is run instead of its own.

    Attributes:
        whole: Identical blocks of the model.
        block_share: Share of the operations of a pass, 0 to 1, that lies in them.
        low, high: Blocks that are kept in the two shallow models.
    """

    whole: int
    block_share: float
    high: int
    low: int = LOW

    def extrapolate(self, at_low: float, at_high: float) -> float:
        """The value at the whole depth of a quantity that is affine in the number of blocks, from those at the two."""
        return at_low + (self.whole - self.low) / (self.high - self.low) * (at_high - at_low)

    @property
    def cost_share(self) -> float:
        """What one pass at both depths costs, as a share of a pass at the whole depth."""
        return self._share(self.low) + self._share(self.high)

    @property
    def variance_factor(self) -> float:
        """Variance of an extrapolated ln(seconds) over that of one that was measured at the whole depth.

        Each measurement is taken to have the same relative error. With the seconds t1 and t2 of the two depths, as
        shares of the whole, and k = (whole - low) / (high - low), it is (1 - k)^2 t1^2 + k^2 t2^2.
        """
        slope = (self.whole - self.low) / (self.high - self.low)
        return (1.0 - slope) ** 2 * self._share(self.low) ** 2 + slope**2 * self._share(self.high) ** 2

    def _share(self, depth: int) -> float:
        return 1.0 - self.block_share * (1.0 - depth / self.whole)

    @classmethod
    def of(cls, *, num_blocks: int, block_share: float) -> Depths | None:
        """The depths that tell most per second; None where a model has too few identical blocks for them to pay.

        The lower is as low as can be. The higher one weighs the seconds of a pass against the noise that grows with
        the way to the whole depth.
        """
        if num_blocks < MIN_BLOCKS:
            return None
        possible = (cls(whole=num_blocks, block_share=block_share, high=high) for high in range(MIN_HIGH, num_blocks))
        return min(possible, key=lambda depths: depths.cost_share * depths.variance_factor)
