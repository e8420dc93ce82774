"""How ranks come: the command of a launcher that starts them, and the socket that they call, with a key.

As a program, `python -m bexplore.engine.process.launcher NUM_RANKS WORKER...`, it starts them by Ray.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any, cast

from bexplore.engine.protocol.messages import Hello, receive
from bexplore.errors import EngineError
from bexplore.host import logs
from bexplore.host.process_tree import WORKER_MARK

LOOPBACK = "127.0.0.1"
KEY_VARIABLE = "BEXPLORE_WORKER_KEY"  # of the environment: a command line and a log are read by others
# From its connection on, a client has so long in all to prove that it has the key and to say who it is. Seconds.
HANDSHAKE_S = 10.0
# Clients that have not proved yet that they have the key; one more, and the oldest of them is refused.
MOST_HANDSHAKES = 64
_PAUSE_S = 0.1  # before the next try, where the host has no descriptor left for a connection
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A rank that has called."""

    connection: Connection
    hello: Hello
    address: str  # from which it called


class RankListener:
    """Accepts ranks in a thread; what comes without the key is refused, counted, and costs nobody else any time.

    However many clients connect and however slowly they send, the thread accepts the next one. A client that has the
    key is never refused for one that has not shown it.
    """

    def __init__(self, host: str = LOOPBACK, port: int = 0, key: str | None = None) -> None:
        self.key = key or secrets.token_hex(_KEY_BYTES)
        try:
            self._server = socket.create_server((host, port), backlog=MOST_HANDSHAKES)
        except OSError as error:
            raise EngineError(
                f"cannot listen for ranks on {host}:{port}: {error.strerror or error}",
                hint="set explore.rendezvous to an address of this host and a free port, such as 10.0.0.5:29400",
            ) from error
        self._host = host
        self._callers: SimpleQueue[Caller] = SimpleQueue()
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, None] = {}  # clients that have not proved to have the key, oldest first
        self._num_refused = 0
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """`HOST:PORT`, as ranks type it."""
        return f"{self._host}:{self._server.getsockname()[1]}"

    def next_caller(self, timeout_s: float) -> Caller | None:
        """Return the next rank that has called; None where none does in time."""
        try:
            return self._callers.get(timeout=timeout_s)
        except Empty:
            return None

    def close(self) -> None:
        """Listen no more; safe to call twice."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            for client in self._unproven:
                _shut_down(client)
            number = self._num_refused
        _shut_down(self._server)  # a thread that waits in accept() keeps a socket that is only closed listening
        self._server.close()
        if number > 1 and not was_closed:
            logs.log.warning("refused connections", number=number)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, address = self._server.accept()
            except OSError:
                time.sleep(_PAUSE_S)
                continue
            with self._lock:
                self._unproven[client] = None
                if len(self._unproven) > MOST_HANDSHAKES:
                    oldest = next(iter(self._unproven))
                    del self._unproven[oldest]
                    _shut_down(oldest)  # its thread refuses it
            try:
                threading.Thread(target=self._greet, args=(client, str(address[0])), daemon=True).start()
            except RuntimeError as error:  # the host has no thread left
                self._refuse(client, str(address[0]), str(error))

    def _greet(self, client: socket.socket, address: str) -> None:
        handshake = cast("Connection[Any, Any]", _Handshake(client, time.monotonic() + HANDSHAKE_S))
        try:
            deliver_challenge(handshake, self.key.encode())
            with self._lock:
                self._unproven.pop(client, None)
            answer_challenge(handshake, self.key.encode())
            hello = receive(handshake, (Hello,))
            client.settimeout(None)
        except Exception as error:  # whatever a stranger sends ends its own connection alone
            self._refuse(client, address, f"{type(error).__name__}: {error}")
            return
        self._callers.put(Caller(connection=Connection(client.detach()), hello=hello, address=address))

    def _refuse(self, client: socket.socket, address: str, reason: str) -> None:
        """End a connection. The first one is logged with its reason, further ones as a number that grows tenfold."""
        client.close()
        with self._lock:
            self._unproven.pop(client, None)
            if self._is_closed:
                return  # shut down by `close`, which has told the number
            self._num_refused += 1
            number = self._num_refused
            if number == 1:
                logs.log.warning("refused a connection", address=address, reason=reason)
            elif math.log10(number).is_integer():
                logs.log.warning("refused connections", number=number, address=address, reason=reason)


class _Handshake:
    """The messages of a connection, of which all together must come before a deadline.

    A limit on each read would let a client that sends a byte now and then stay for ever.
    Source of the frames: `multiprocessing.connection.Connection`, a length of 4 bytes before each message.
    """

    def __init__(self, client: socket.socket, until_s: float) -> None:
        self._client, self._until_s = client, until_s

    def send_bytes(self, message: bytes) -> None:
        """Send one message."""
        self._limit()
        self._client.sendall(struct.pack("!i", len(message)) + message)

    def recv_bytes(self, max_bytes: int) -> bytes:
        """Return the next message."""
        (length,) = struct.unpack("!i", self._read(4))
        if not 0 <= length <= max_bytes:
            raise OSError(f"a message of {length} bytes")
        return self._read(length)

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._limit()
            part = self._client.recv(length - len(data))
            if not part:
                raise EOFError("the connection ended")
            data += part
        return bytes(data)

    def _limit(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._client.settimeout(left_s)


def _shut_down(one: socket.socket) -> None:
    """End a connection, or a socket that listens, whose thread waits for it."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended


# The user starts the launcher, on hosts without a scheduler: see `external_hint`.
EXTERNAL = "external"
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How the ranks of a job are started."""

    kind: str  # `torchrun`, `srun`, `ray`, `external`, or a command with `{worker}` and perhaps `{num_ranks}`
    num_ranks: int
    host: str = LOOPBACK  # at which ranks call; loopback where all are on this host
    port: int = 0  # 0 for any

    @property
    def environment(self) -> dict[str, str]:
        """What the launcher adds to the environment of a rank: one that runs alone has the same, and is comparable.

        Source: `config_from_args` in torch/distributed/run.py; `set_omp_num_threads_if_unset` in Ray's utils.py, where
        a rank has one processor.
        """
        sets_threads = self.num_ranks > 1 and self.kind in ("torchrun", "ray")
        return {THREADS: "1"} if sets_threads and THREADS not in os.environ else {}

    @property
    def is_external(self) -> bool:
        """Whether the user starts the ranks, and a launcher of theirs starts them again after each end."""
        return self.kind == EXTERNAL

    def command(self, address: str, preload: Sequence[str]) -> list[str]:
        """Return the words that start all ranks, each of which calls an address.

        Source: `torchrun --help`; srun(1); Ray: `start_by_ray`.
        """
        worker = [sys.executable, "-P", "-m", "bexplore.engine.worker", "--connect", address, *preload]
        count = str(self.num_ranks)
        if self.kind == "torchrun":
            run = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
            return [*run, "--max-restarts", "0", "--no-python", *worker]
        if self.kind == "srun":
            # Inside an allocation another step may hold its tasks: this one shares them.
            shared = ["--overlap"] if "SLURM_JOB_ID" in os.environ else []
            return ["srun", "--ntasks", count, "--kill-on-bad-exit=1", *shared, *worker]
        if self.kind == "ray":
            return [sys.executable, "-P", "-m", "bexplore.engine.process.launcher", count, *worker]
        words = [word.replace("{num_ranks}", count) for word in shlex.split(self.kind)]
        return [part for word in words for part in (worker if word == "{worker}" else [_fill(word, worker)])]


def _fill(word: str, worker: Sequence[str]) -> str:
    """Put the worker's command into a word that holds more, such as a script of a shell."""
    return word.replace("{worker}", shlex.join(worker))


def external_hint(address: str, num_ranks: int) -> str:
    """Return what to type on each host where the user starts the launcher."""
    return (
        f"with {KEY_VARIABLE} set as here, type on each host: torchrun --nnodes HOSTS --nproc-per-node DEVICES "
        f"--max-restarts 1000 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500 --no-python bexplore worker "
        f"--connect {address}   ({num_ranks} ranks in all)"
    )


# Variables of this process that ranks need, wherever they run.
_CARRIED = (KEY_VARIABLE, WORKER_MARK, "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR")


def run_rank(rank: int, num_ranks: int, worker: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the worker of one rank to its end, with the devices that Ray has given to this task."""
    own = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks)}
    # In a session of its own: a rank that ends kills its process group.
    return subprocess.run(
        worker, env=os.environ | dict(environment) | own, start_new_session=True, check=False
    ).returncode


def start_by_ray(num_ranks: int, worker: Sequence[str]) -> None:
    """Start all ranks and wait for their end; a local cluster where the environment names none.

    A placement group has one bundle a rank, and in each a task runs the worker as a process of its own: Ray's own
    workers, which live on, are not ranks.
    """
    import ray  # an optional extra, and slow to import
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS")
    local: dict[str, Any] = {} if address else {"num_cpus": num_ranks, "include_dashboard": False}
    ray.init(address=address, log_to_driver=True, **local)
    has_devices = ray.cluster_resources().get("GPU", 0) >= num_ranks
    bundle = {"CPU": 1, "GPU": 1} if has_devices else {"CPU": 1}
    group = placement_group([bundle] * num_ranks, strategy="PACK")
    ray.get(group.ready())
    remote = ray.remote(num_cpus=1, num_gpus=1 if has_devices else 0, max_retries=0)(run_rank)
    environment = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    ranks = [
        remote.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        ).remote(rank, num_ranks, list(worker), environment)
        for rank in range(num_ranks)
    ]
    ray.get(ranks)


if __name__ == "__main__":
    start_by_ray(int(sys.argv[1]), sys.argv[2:])
