"""Ends every process that carries a mark in its environment, whatever session or parent it has given itself.

Compiler pools start sessions of their own, and a worker that is killed leaves its children behind: the kernel's own
means (process groups, death signals) reach neither. This file also runs as a program, without any import of ours: it
waits until its standard input ends, as it does when the explorer is killed, and then ends what carries the mark.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

VARIABLE = "BEXPLORE_WORKER"  # its value is `<explorer's mark>-<number of the worker>`
_ROUNDS_S = (0.0, 0.1, 0.5, 1.0, 2.0)  # pauses before each search: a process may be starting another just now


def marked_processes(mark: str) -> list[int]:
    """Return the ids of other processes whose mark begins like this; empty where the system has no /proc."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if any(variable.startswith(wanted) for variable in variables) and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def end_marked(mark: str) -> int:
    """Kill the processes whose mark begins like this; returns how many there were."""
    found = marked_processes(mark)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # ended meanwhile
    return len(found)


def main(mark: str) -> None:
    """Wait for the explorer's end, then end all that it started."""
    while os.read(0, 4096):
        pass
    for pause_s in _ROUNDS_S:
        time.sleep(pause_s)
        end_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])
