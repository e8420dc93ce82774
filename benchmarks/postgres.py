"""A PostgreSQL server of one's own, in a temporary folder, for as long as a block."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"  # the server refuses to run as root


def missing() -> str:
    """What is missing for a server here; empty where nothing is."""
    if _program("initdb") is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install '.[postgresql]')"
    return ""


@contextmanager
def server() -> Iterator[str]:
    """Start a server; gives the URL of an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="bexplore-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, USER)
    data, port = folder / "data", _free_port()
    try:
        _run("initdb", "--pgdata", data, "--username", USER, "--auth", "trust", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _run("pg_ctl", "--pgdata", data, "--log", folder / "log", "--options", options, "--wait", "start")
        try:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        finally:
            _run("pg_ctl", "--pgdata", data, "--mode", "immediate", "--wait", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, homes), os.environ.get("PATH", "")]))


def _run(name: str, *arguments: object) -> None:
    command = [str(_program(name)), *map(str, arguments)]
    options = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **options)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
