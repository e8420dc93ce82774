"""What data-parallel ranks exchange in a step, how long that takes, and how much of it computation hides.

Replicas add up their gradients by one all-reduce in a step; ranks that share parameters gather them before each forward
and, unless they keep them, each backward pass, and scatter the sum of their gradients. Source: PyTorch Distributed
(arXiv 2006.15704) and FSDP (arXiv 2304.11277).
"""

from __future__ import annotations

from dataclasses import dataclass

from bexplore.job import Parallelism
from bexplore.planning.network_figures import Collective, NetworkFigures

# Share of a pass that is its backward half: it has two of the three matrix products for each weight.
# Source: Kaplan et al., arXiv 2001.08361, section 2.1: 2 N operations a token forward, 4 N backward.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Collectives of one kind in a pass.

    Attributes:
        collective: Which.
        num_bytes: Of the tensors of all of them.
        num_ranks: Ranks that take part in each.
        num_messages: Number of them; each has an equal part of the bytes.
    """

    collective: Collective
    num_bytes: float
    num_ranks: int
    num_messages: int = 1

    def seconds(self, network: NetworkFigures) -> float:
        """Return how long all of them take, one after the other."""
        part = self.num_bytes / self.num_messages
        return self.num_messages * network.seconds(self.collective, part, self.num_ranks)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends."""
        return self.collective.sent_share(self.num_ranks) * self.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What one rank exchanges with the others that train the same weights.

    Attributes:
        every_pass: In each pass.
        last_pass: In the last pass of a step beside that.
    """

    every_pass: tuple[Exchange, ...] = ()
    last_pass: tuple[Exchange, ...] = ()

    def of_pass(self, *, is_last: bool) -> tuple[Exchange, ...]:
        """Return what is exchanged in a pass."""
        return self.every_pass + (self.last_pass if is_last else ())

    def sent_bytes(self, *, is_last: bool) -> float:
        """Return the bytes that each rank sends in a pass."""
        return sum(one.sent_bytes for one in self.of_pass(is_last=is_last))

    def seconds(self, network: NetworkFigures, *, is_last: bool) -> float:
        """Return the seconds of the collectives of a pass, without what computation hides."""
        return sum(one.seconds(network) for one in self.of_pass(is_last=is_last))

    def exposed_s(self, network: NetworkFigures, pass_s: float, overlap: float, *, is_last: bool) -> float:
        """Return what a pass takes longer than its computation.

        Gradients are reduced beside the backward half of the pass, and parameters gathered beside all of it; the last
        message runs alone, as nothing is left to compute.

        Args:
            pass_s: Seconds of the computation of the pass.
            overlap: Share of the computation that hides collectives, 0 to 1.
        """
        exchanged = self.of_pass(is_last=is_last)
        if not exchanged:
            return 0.0
        beside_s = pass_s * (BACKWARD_SHARE if exchanged[0].collective is Collective.ALL_REDUCE else 1.0)
        last_message_s = exchanged[-1].seconds(network) / exchanged[-1].num_messages
        return max(self.seconds(network, is_last=is_last) - overlap * beside_s, last_message_s)


def communication_of(parallelism: Parallelism, gradient_bytes: float, *, num_blocks: int = 0) -> Communication:
    """Return what a rank of data-parallel ranks exchanges.

    Args:
        parallelism: How ranks share the work; what tensor-parallel ranks exchange is no part of it.
        gradient_bytes: One copy of the gradients of one tensor-parallel rank's share of the model; of parameters there
            are as many.
        num_blocks: Blocks that are gathered one by one; 0 if unknown, for one message.
    """
    if parallelism.is_sharded:
        return _of_shards(parallelism, gradient_bytes, num_messages=max(1, num_blocks))
    if not parallelism.is_replicated_only:
        return Communication()
    num_buckets = max(1, round(gradient_bytes / parallelism.bucket_cap_bytes))
    copies = parallelism.data_parallel_replicate_degree
    return _where_reduced((), (_exchange(Collective.ALL_REDUCE, gradient_bytes, copies, num_buckets),), parallelism)


def _of_shards(parallelism: Parallelism, gradient_bytes: float, *, num_messages: int) -> Communication:
    """Return what ranks exchange that share parameters: gathers in each pass, a sum of gradients where it is due."""
    copies, shards = parallelism.data_parallel_replicate_degree, parallelism.data_parallel_shard_degree
    num_gathers = 1 if parallelism.fsdp_reshard_after_forward == "never" else 2
    gathered = _exchange(Collective.ALL_GATHER, num_gathers * gradient_bytes, shards, num_gathers * num_messages)
    reduced = [_exchange(Collective.REDUCE_SCATTER, gradient_bytes, shards, num_messages)]
    if copies > 1:
        reduced.append(_exchange(Collective.ALL_REDUCE, gradient_bytes / shards, copies, num_messages))
    return _where_reduced((gathered,), tuple(reduced), parallelism)


def _exchange(collective: Collective, num_bytes: float, num_ranks: int, num_messages: int) -> Exchange:
    return Exchange(collective=collective, num_bytes=num_bytes, num_ranks=num_ranks, num_messages=num_messages)


def _where_reduced(
    gathered: tuple[Exchange, ...], reduced: tuple[Exchange, ...], parallelism: Parallelism
) -> Communication:
    """Return the collectives with gradients reduced in the last pass of a step, or in each."""
    if parallelism.synchronizes_last:
        return Communication(every_pass=gathered, last_pass=reduced)
    return Communication(every_pass=gathered + reduced)
