"""One thread for the explorer's own linear algebra: its matrices are small, and threads that wait for work spin.

A second thread would double the processor time of a decision, on the processors that the job itself is measured on.
"""

from __future__ import annotations

import os

VARIABLE = "OPENBLAS_NUM_THREADS"  # of the library that numpy's wheels bring along; read when numpy is imported
_is_ours = False


def use_one_thread() -> None:
    """Set it for this process, where the user has not; before numpy is imported."""
    global _is_ours
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = "1"
        _is_ours = True


def users_environment() -> dict[str, str]:
    """Return the environment as the user made it: workers run the user's program, whose threads are the user's."""
    return {name: value for name, value in os.environ.items() if not (_is_ours and name == VARIABLE)}
