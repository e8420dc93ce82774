"""How a training script takes its parameters, read from its text: which, how they are spelt, in which order."""

from bexplore.config.training_script.calls import (
    add_to_words,
    call_by_help,
    call_of,
    start_words,
    take_batch_of_a_step,
    unset_variables,
)
from bexplore.config.training_script.notebook import command_of_notebook
from bexplore.config.training_script.parameters import (
    FAR,
    NAMES,
    OF_EVALUATION,
    WRITTEN_FILES,
    Call,
    fill,
    rank,
    spell,
)
from bexplore.config.training_script.source import Program

__all__ = [
    "FAR",
    "NAMES",
    "OF_EVALUATION",
    "WRITTEN_FILES",
    "Call",
    "Program",
    "add_to_words",
    "call_by_help",
    "call_of",
    "command_of_notebook",
    "fill",
    "rank",
    "spell",
    "start_words",
    "take_batch_of_a_step",
    "unset_variables",
]
