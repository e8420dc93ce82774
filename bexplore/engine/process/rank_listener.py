"""A socket that ranks of a launcher connect to, and the key without which the explorer refuses them."""

from __future__ import annotations

import math
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any, cast

from bexplore.engine.protocol.messages import Hello, receive
from bexplore.errors import EngineError
from bexplore.host import logs

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
