"""Messages between the explorer and a worker: one JSON object each, length-framed, over a socket pair.

JSON and not pickle: a worker runs the user's code, and what it says is read by a process that must not be harmed.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

MAX_MESSAGE_BYTES = 16 * 2**20


def send(connection: Connection, message: dict[str, Any]) -> None:
    """Send one message.

    Raises:
        OSError: The other side is gone.
    """
    connection.send_bytes(json.dumps(message, default=str).encode())


def receive(connection: Connection) -> dict[str, Any]:
    """Wait for one message.

    Raises:
        EOFError, OSError: The other side is gone.
        ValueError: What came is not a message of ours.
    """
    message = json.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, got {type(message).__name__}")
    return message
