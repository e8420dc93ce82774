"""Options of `bexplore explore` that go with a training command."""

from __future__ import annotations

import pytest

from bexplore.cli.training_command import overrides_of_command, refuse_without_command
from bexplore.errors import UserInputError


def test_an_option_of_a_training_command_is_refused_where_there_is_no_command():
    refuse_without_command({"env": (), "replicas": None, "writes_are_fine": False})

    with pytest.raises(UserInputError, match="--global-batch-size goes with a training command"):
        refuse_without_command({"env": (), "global_batch_size": 8})


def test_a_variable_without_a_value_is_refused_with_what_to_type():
    with pytest.raises(UserInputError) as raised:
        list(overrides_of_command(command=("train",), env=("OMP_NUM_THREADS",)))

    assert "--env OMP_NUM_THREADS=1" in raised.value.hint
