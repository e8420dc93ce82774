"""A PostgreSQL server of one's own, in a temporary folder, for as long as a block."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.builders import free_port

USER = "postgres"  # the server refuses to run as root


def missing() -> str:
    """What is missing for a server here; empty where nothing is."""
    if _program("initdb") is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'bexplore[postgresql]')"
    return ""


class Server:
    """A server that can be stopped as by a crash of its host, and started again.

    Args:
        folder: Of its data.
        port: At which it listens.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self.url = f"postgresql://{USER}@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._control("--log", self._folder / "log", "--options", options, "start")

    def stop(self) -> None:
        self._control("--mode", "immediate", "stop")

    def _control(self, *arguments: object) -> None:
        _run("pg_ctl", "--pgdata", self._folder / "data", "--wait", *arguments)


@contextmanager
def server() -> Iterator[Server]:
    """Start a server with an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="bexplore-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, USER)
    try:
        _run("initdb", "--pgdata", folder / "data", "--username", USER, "--auth", "trust", "--no-sync")
        made = Server(folder, free_port())
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, homes), os.environ.get("PATH", "")]))


def _run(name: str, *arguments: object) -> None:
    command = [str(_program(name)), *map(str, arguments)]
    options = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **options)
