"""How many optimizer steps the file trains.

Source: `TrainingLoop` of the public ModelZoo, release 2.10, and the `runconfig` section before it, with the same keys.
"""

from __future__ import annotations

from bexplore.config.dialects.values import as_number, is_number
from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, quoted

_MOST_STEPS = 2**31 - 1  # what their runtime counts to


def read_max_steps(problems: Problems, loop: KeyPath) -> int | None:
    """Return the steps of a training from its beginning; None where the file does not give a number.

    `num_steps` goes before the others; of `max_steps` and of `num_epochs` with `steps_per_epoch`, what ends it first.
    A wrong number is a warning: it decides nothing but how long a search is worth its while.

    Args:
        problems: Of the file; receives the warnings.
        loop: The section with these keys.
    """
    num_steps, max_steps, num_epochs, steps_per_epoch = (
        _read_count(problems, (*loop, key)) for key in ("num_steps", "max_steps", "num_epochs", "steps_per_epoch")
    )
    if num_steps is not None:
        return num_steps
    of_epochs = None if num_epochs is None or steps_per_epoch is None else num_epochs * steps_per_epoch
    return min((steps for steps in (max_steps, of_epochs) if steps is not None), default=None)


def _read_count(problems: Problems, path: KeyPath) -> int | None:
    written = problems.document.get(path)
    value = as_number(written)
    if written is None:
        return None
    if is_number(value) and value == int(value) and 1 <= value <= _MOST_STEPS:
        return int(value)
    problems.warn(
        path,
        f"{path[-1]} must be a whole number from 1 to {_MOST_STEPS}, not {quoted(written)}; it is left out, and "
        "explore.training_time: 10h, say, tells how long the training takes",
    )
    return None
