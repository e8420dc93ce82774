"""The process group of a rank: how it joins the others, and how all of them agree on what they time."""

from __future__ import annotations

import math
import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bexplore.engine.process.launcher import LOOPBACK
from bexplore.engine.protocol.messages import Done, Join, OpenStore
from bexplore.engine.worker.context import Context, Handlers, Place
from bexplore.engine.worker.steps import Agreement


def handlers(context: Context) -> Handlers:
    """Return the handlers that make this worker a member of the group of all ranks."""
    membership = Membership(context.place)

    def open_store(request: OpenStore) -> Done:
        context.report(stage="join")
        return Done(values={"port": membership.open_store(request)})

    def join(request: Join) -> Done:
        context.report(stage="join")
        context.take_ranks(membership.join(request))
        return Done()

    return {OpenStore: open_store, Join: join}


class JoinedRanks:
    """The ranks of a process group, as the steps of one of them see them.

    They agree on the CPU, in a group of their own: a device may still compute.
    """

    def __init__(self) -> None:
        self._control = dist.new_group(backend="gloo")

    def begin_together(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(group=self._control)

    def agree(self, own: Agreement) -> Agreement:
        """Return the largest of each number over all ranks."""
        numbers = torch.tensor([own.seconds, own.waited_s, float(own.num_compilations)], dtype=torch.float64)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._control)
        seconds, waited_s, num_compilations = numbers.tolist()
        return Agreement(seconds, waited_s, int(num_compilations))

    def worst_loss(self, loss: float) -> float:
        """Return the largest loss; infinity where one is not finite."""
        number = torch.tensor(loss if math.isfinite(loss) else math.inf, dtype=torch.float64)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self._control)
        return float(number)


class Membership:
    """One rank's way into the process group."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._store: Any = None  # a TCPStore

    def open_store(self, request: OpenStore) -> int:
        """Open the store in which ranks find each other, on the first rank; return its port.

        torch's store knows no key, and by itself listens on all addresses.
        """
        server = socket.create_server((LOOPBACK if request.is_one_host else "0.0.0.0", 0))
        port = int(server.getsockname()[1])
        self._store = dist.TCPStore(  # type: ignore[attr-defined]  # imported there
            LOOPBACK,
            port,
            self.place.num_ranks,
            True,
            timedelta(seconds=request.timeout_s),
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )
        return port

    def join(self, request: Join) -> JoinedRanks:
        """Join the group of all ranks; return when all have."""
        timeout = timedelta(seconds=request.timeout_s)
        if request.is_one_host:
            # The host's name may stand for an address that the host itself cannot reach.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = self._store or dist.TCPStore(  # type: ignore[attr-defined]  # imported there
            request.address, request.port, self.place.num_ranks, False, timeout
        )
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(
            backend, rank=self.place.rank, world_size=self.place.num_ranks, store=store, timeout=timeout
        )
        return JoinedRanks()
