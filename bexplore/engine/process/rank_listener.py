"""A socket that ranks of a launcher connect to, and the key without which the explorer refuses them."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue

from bexplore.engine.protocol.messages import Hello, receive
from bexplore.errors import EngineError
from bexplore.host import logs

LOOPBACK = "127.0.0.1"
KEY_VARIABLE = "BEXPLORE_WORKER_KEY"  # of the environment: a command line and a log are read by others
# A client that connects has so long to prove that it has the key, and to say who it is. Seconds.
HANDSHAKE_S = 10.0
# Clients that may be in their handshake at once; further ones wait in the kernel's queue.
MOST_HANDSHAKES = 64
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A rank that has called.

    Attributes:
        connection: To it.
        hello: Who it is.
        address: From which it called.
    """

    connection: Connection
    hello: Hello
    address: str


class RankListener:
    """Accepts ranks in a thread; what comes without the key is refused, logged, and costs nobody else any time.

    Args:
        host: Address to listen on: loopback unless ranks are on other hosts.
        port: Port to listen on; 0 for any.
        key: What ranks must prove to have; None for a new one.
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
        self._places = threading.BoundedSemaphore(MOST_HANDSHAKES)
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
        """Listen no more."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                client, address = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._greet, args=(client, str(address[0])), daemon=True).start()

    def _greet(self, client: socket.socket, address: str) -> None:
        try:
            _limit_reads(client, HANDSHAKE_S)
            connection = Connection(client.detach())
            try:
                deliver_challenge(connection, self.key.encode())
                answer_challenge(connection, self.key.encode())
                hello = receive(connection, (Hello,))
            except (AuthenticationError, EOFError, OSError, ValueError) as error:
                connection.close()
                logs.log.warning("refused a connection", address=address, reason=f"{type(error).__name__}: {error}")
                return
            _limit_reads_of(connection, 0.0)
            self._callers.put(Caller(connection=connection, hello=hello, address=address))
        finally:
            self._places.release()


def _limit_reads(client: socket.socket, seconds: float) -> None:
    """Let reads and writes fail that take longer; 0 for no limit."""
    whole, rest = int(seconds), round(seconds % 1 * 1e6)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        client.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, rest))


def _limit_reads_of(connection: Connection, seconds: float) -> None:
    view = socket.socket(fileno=connection.fileno())
    try:
        _limit_reads(view, seconds)
    finally:
        view.detach()
