"""Observes a training from inside its process: optimizer steps, micro-batches, memory, errors.

It runs in the environment of the user's training: the standard library alone, Python 3.8 and newer, and no import of
bexplore. It is copied whole into the folder of a start, where `sitecustomize` loads it once torch has been executed.
Nothing here raises into the training, changes a number, or is traced by the compiler. After the last observed step
every rank waits for the others and ends without running any further code of the user.
"""

from .steps import install

__all__ = ["install"]
