"""The fastest micro-batch size of a `Trainer` of transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bexplore.errors import UserInputError
from bexplore.run.parts.answer import AnswerPart
from bexplore.run.result import RunResult
from bexplore.start_again import (
    ENDLESS_STEPS,
    ProgramRequest,
    explore_program,
    name_function,
    read_given_size,
    show_hints,
)

if TYPE_CHECKING:
    from transformers import Trainer


@show_hints()
def explore(
    trainer_factory: Callable[[int], Trainer], *, model_dir: str | None = None, fresh: bool = False, **settings: Any
) -> RunResult:
    """Find the fastest `per_device_train_batch_size` of a trainer.

    Each probe starts this program again, up to this call. There the factory's trainer trains, writes to a temporary
    folder, saves and reports nothing, and is ended after some steps. Each probe and recommendation is a line on stderr,
    and at the end the answer and the path of the report.

        size = bexplore.transformers.explore(make_trainer, max=256).micro_batch_size
        make_trainer(size).train()

    Args:
        trainer_factory: Makes a trainer with a `per_device_train_batch_size`.
        model_dir: Folder of the results; None for `model_dir`. A finished exploration is not run again.
        fresh: Start over, even if there is an earlier run.
        settings: Settings of the `explore` section, such as `min`, `max`, `tolerance` and `global_batch_size`.

    Returns:
        The result; with a given `BEXPLORE_MICRO_BATCH_SIZE` one that holds this size alone.

    Raises:
        UserInputError: The factory is no function, the program cannot be started again, or a setting is wrong.
    """
    if not callable(trainer_factory):
        raise UserInputError(
            f"a {type(trainer_factory).__name__} was given instead of a function that makes a trainer",
            hint="bexplore.transformers.explore(lambda size: make_trainer(per_device_train_batch_size=size))",
        )
    given = read_given_size()
    if given is None:
        what = f"bexplore.transformers.explore of {name_function(trainer_factory)}"
        return explore_program(ProgramRequest(what=what, settings=settings, model_dir=model_dir, fresh=fresh))
    if given.output_dir is None:
        return RunResult(answer=AnswerPart(micro_batch_size=given.micro_batch_size))
    trainer = trainer_factory(given.micro_batch_size)
    _redirect(trainer, given.output_dir)
    trainer.train()
    sys.exit()  # the training ended before it was ended: what follows this call is not the probe's


def _redirect(trainer: Trainer, output_dir: str) -> None:
    trainer.args.max_steps = ENDLESS_STEPS
    trainer.args.output_dir = output_dir
    trainer.args.save_strategy = "no"
    reporting = [
        one
        for one in trainer.callback_handler.callbacks
        if type(one).__module__.startswith("transformers.integrations")
    ]
    for callback in reporting:
        trainer.remove_callback(callback)
