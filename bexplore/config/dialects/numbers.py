"""The batch of a training: micro-batch, accumulation, replicas, global batch; one follows from the others."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

# The factors of the global batch, with their names for people.
_FACTORS = {"micro_batch_size": "micro-batch", "accumulation": "accumulation", "num_replicas": "replicas"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of a file; None for one that it leaves open.

    Attributes:
        micro_batch_size: Samples of one replica in one pass.
        accumulation: Micro-batches of one replica in one optimizer step.
        num_replicas: Data-parallel replicas.
        global_batch_size: Samples of one optimizer step over all replicas.
        sequence_length: Tokens of a sample.
    """

    micro_batch_size: int | None = None
    accumulation: int | None = None
    num_replicas: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None

    def solved(self) -> Numbers:
        """Return the numbers with the one that follows from the others: global = micro x accumulation x replicas.

        A division that leaves a remainder is not made: `conflict` describes it.
        """
        known, total = self._factors(), self.global_batch_size
        product, missing = math.prod(known.values()), _FACTORS.keys() - known.keys()
        if total is None and not missing and product:
            return dataclasses.replace(self, global_batch_size=product)
        if total and len(missing) == 1 and product and total % product == 0:
            return dataclasses.replace(self, **{missing.pop(): total // product})
        return self

    def conflict(self) -> str:
        """Return why the numbers exclude each other; empty where they do not."""
        known, total = self._factors(), self.global_batch_size
        if total is None or not known:
            return ""
        product, is_whole = math.prod(known.values()), len(known) == len(_FACTORS)
        if product == total if is_whole else total % product == 0:
            return ""
        shown = " x ".join(f"{_FACTORS[name]} {number}" for name, number in known.items())
        return f"the global batch {total} is {'not' if is_whole else 'no multiple of'} {shown}"

    def _factors(self) -> dict[str, int]:
        """Return the factors of the global batch that are known."""
        return {name: number for name in _FACTORS if (number := getattr(self, name)) is not None}
