"""The batch of a training: micro-batch, accumulation, replicas, global batch; one follows from the others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


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
        micro, steps, replicas, total = (
            self.micro_batch_size,
            self.accumulation,
            self.num_replicas,
            self.global_batch_size,
        )
        if total is None and micro and steps and replicas:
            return dataclasses.replace(self, global_batch_size=micro * steps * replicas)
        if total and steps is None and micro and replicas:
            return self._with_quotient("accumulation", total, micro * replicas)
        if total and micro is None and steps and replicas:
            return self._with_quotient("micro_batch_size", total, steps * replicas)
        if total and replicas is None and micro and steps:
            return self._with_quotient("num_replicas", total, micro * steps)
        return self

    def _with_quotient(self, name: str, total: int, divisor: int) -> Numbers:
        return self if total % divisor else dataclasses.replace(self, **{name: total // divisor})

    def conflict(self) -> str:
        """Return why the numbers exclude each other; empty where they do not."""
        micro, steps, replicas, total = (
            self.micro_batch_size,
            self.accumulation,
            self.num_replicas,
            self.global_batch_size,
        )
        known = {"micro-batch": micro, "accumulation": steps, "replicas": replicas}
        factors = {name: number for name, number in known.items() if number is not None}
        if total is None or not factors:
            return ""
        product = 1
        for number in factors.values():
            product *= number
        is_whole = len(factors) == len(known)
        if product == total if is_whole else total % product == 0:
            return ""
        shown = " x ".join(f"{name} {number}" for name, number in factors.items())
        return f"the global batch {total} is {'not' if is_whole else 'no multiple of'} {shown}"
