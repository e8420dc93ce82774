"""The place of a rank among all ranks, and its call to the explorer; nothing here waits for torch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from typing import NamedTuple

from bexplore.engine.process.rank_listener import KEY_VARIABLE
from bexplore.engine.protocol.messages import Hello, send
from bexplore.host.process_tree import WORKER_MARK

# Variables that name a rank, its number on its host and the number of ranks. Sources: torchrun; Slurm's srun; Open MPI.
_PLACES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
)


# How long a rank waits for an explorer that does not listen yet, and how often it calls. Seconds.
CALL_LIMIT_S = 600.0
CALL_PERIOD_S = 0.5


class Place(NamedTuple):
    """Where a rank stands: its number, its number on its host, and how many there are."""

    rank: int
    local_rank: int
    num_ranks: int


ALONE = Place(0, 0, 1)


def placed(environment: Mapping[str, str]) -> Place:
    """Return the place that a launcher has given to this process; the only rank where none has."""
    for names in _PLACES:
        if all(name in environment for name in names):
            return Place(*(int(environment[name]) for name in names))
    return ALONE


def call(address: str, place: Place) -> Connection:
    """Connect to the explorer, and say who this rank is.

    Raises:
        KeyError: The environment has no key.
        OSError: Nobody listens there, and nobody began to.
        AuthenticationError: The key is another one.
    """
    host, _, port = address.rpartition(":")
    key = os.environ.pop(KEY_VARIABLE)  # the user's code, and what it starts, do not need it
    connection = _connected(host, int(port), key.encode())
    step = ".".join(filter(None, (os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID"))))
    mark = os.environ.get(WORKER_MARK, "")
    send(
        connection,
        Hello(
            rank=place.rank,
            local_rank=place.local_rank,
            num_ranks=place.num_ranks,
            host=socket.gethostname(),
            pid=os.getpid(),
            mark=mark,
            generation=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
            slurm_step=step,
        ),
    )
    return connection


def _connected(host: str, port: int, key: bytes) -> Connection:
    """Connect; where nobody listens yet, wait: ranks that the user starts may be there before the explorer.

    An explorer to which very many connect may end a connection before its handshake: it is called again.
    """
    until_s = time.monotonic() + CALL_LIMIT_S
    while True:
        try:
            return Client((host, port), authkey=key)
        except (ConnectionError, EOFError):
            if time.monotonic() >= until_s:
                raise
            time.sleep(CALL_PERIOD_S)
