"""The worker process: `python -m bexplore.engine.worker FD [MODULE...]`, with one end of a socket pair.

Or, as a rank that a launcher starts, `--connect HOST:PORT [MODULE...]`.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

from bexplore.engine.worker.context import ALONE, call, read_place
from bexplore.engine.worker.own_process import die_with_parent, volunteer_for_the_oom_killer
from bexplore.engine.worker.server import serve

if __name__ == "__main__":
    die_with_parent()
    volunteer_for_the_oom_killer()
    if sys.argv[1] == "--connect":
        place = read_place(os.environ)
        serve(call(sys.argv[2], place), preload=sys.argv[3:], place=place)
    else:
        serve(Connection(int(sys.argv[1])), preload=sys.argv[2:], place=ALONE)
