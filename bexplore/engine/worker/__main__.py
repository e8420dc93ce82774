"""The worker process, started as `python -m bexplore.engine.worker FD [MODULE...]` with one end of a socket pair."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from bexplore.engine.worker.memory_limit import die_with_parent, volunteer_for_the_oom_killer
from bexplore.engine.worker.server import serve

if __name__ == "__main__":
    die_with_parent()
    volunteer_for_the_oom_killer()
    serve(Connection(int(sys.argv[1])), preload=sys.argv[2:])
