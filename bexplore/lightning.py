"""A callback of Lightning that finds the fastest micro-batch size, then trains with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, Timer
from lightning.pytorch.utilities.parsing import lightning_hasattr, lightning_setattr
from lightning.pytorch.utilities.rank_zero import rank_zero_only  # type: ignore[attr-defined]

from bexplore.errors import UserInputError
from bexplore.run.result import RunResult
from bexplore.start_again import (
    ENDLESS_STEPS,
    GivenSize,
    ProgramRequest,
    explore_program,
    find_accumulation,
    read_given_size,
    refuse_ranks,
    show_hints,
)


class MicroBatchSizeFinder(Callback):
    """Sets the batch size of the module or data module to the fastest micro-batch size, before `fit` loads any data.

    Each probe starts this program again. In a probe loggers and checkpoints are off; what the module itself writes is
    written.

        Trainer(callbacks=[MicroBatchSizeFinder(global_batch_size=512)])

    Args:
        batch_arg_name: Attribute of the module, its `hparams` or the data module that holds the batch size.
        global_batch_size: Samples of an optimizer step, kept by the trainer's `accumulate_grad_batches`; None leaves
            that as it is.
        model_dir: Folder of the results; None for `model_dir`. A finished exploration is not run again.
        fresh: Start over, even if there is an earlier run.
        settings: Settings of the `explore` section, such as `min`, `max`, `tolerance` and `effort`.

    Attributes:
        result: The result; None before `fit`, and where this process was given its size.
    """

    def __init__(
        self,
        *,
        batch_arg_name: str = "batch_size",
        global_batch_size: int | None = None,
        model_dir: str | None = None,
        fresh: bool = False,
        **settings: Any,
    ) -> None:
        self.result: RunResult | None = None
        self._name, self._global_batch_size = batch_arg_name, global_batch_size
        if global_batch_size is not None:
            settings = {"keep_batch_size": True, **settings, "global_batch_size": global_batch_size}
        self._request = ProgramRequest(
            what=type(self).__name__,
            settings=settings,
            sets_accumulation=global_batch_size is not None,
            model_dir=model_dir,
            fresh=fresh,
        )
        given = read_given_size()
        if given is not None and given.output_dir is not None:
            # Loggers of other ranks than 0 write nothing, and they are set up before any callback.
            rank_zero_only.rank = 1  # type: ignore[attr-defined]

    @show_hints()
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the size and the accumulation: those that were given, else those that an exploration finds."""
        if stage != "fit":
            return
        _refuse_loader(trainer)
        if not lightning_hasattr(pl_module, self._name):
            raise UserInputError(
                f"neither the module, its hparams nor the data module has {self._name}",
                hint="let train_dataloader() use an attribute, and name it: MicroBatchSizeFinder(batch_arg_name=...)",
            )
        given = read_given_size() or self._explored(trainer, pl_module)
        if given.output_dir is not None:
            _lift_ends(trainer)
        lightning_setattr(pl_module, self._name, given.micro_batch_size)
        if given.accumulation is not None:
            trainer.accumulate_grad_batches = given.accumulation

    def _explored(self, trainer: Trainer, pl_module: LightningModule) -> GivenSize:
        refuse_ranks(trainer.world_size)
        what = f"{self._request.what} of {type(pl_module).__qualname__}"
        self.result = explore_program(replace(self._request, what=what))
        accumulation = self._global_batch_size and find_accumulation(self.result, self._global_batch_size)
        return GivenSize(micro_batch_size=self.result.micro_batch_size or 0, accumulation=accumulation)


def _lift_ends(trainer: Trainer) -> None:
    """Let the training of a probe go on until it is ended, and write no checkpoint.

    Steps are many and not endless: a schedule that asks for their number gets one.
    """
    kept: Any = [one for one in trainer.callbacks if not isinstance(one, Checkpoint | EarlyStopping | Timer)]  # type: ignore[attr-defined]
    trainer.callbacks = kept  # type: ignore[attr-defined]
    trainer.fit_loop.max_epochs = -1
    trainer.fit_loop.epoch_loop.max_steps = ENDLESS_STEPS


def _refuse_loader(trainer: Trainer) -> None:
    """Raise UserInputError where `fit` was given a loader, which keeps its own size whatever the attribute is.

    The source of a loader is no public attribute; where it is unknown, the first starts show that a size is ignored.
    """
    source = getattr(trainer.fit_loop, "_data_source", None)
    if source is not None and not source.is_module():
        raise UserInputError(
            "the loader was given to fit(), and keeps its own batch size whatever the attribute is",
            hint="let train_dataloader() of the module or a data module make it, with the attribute as its batch_size",
        )
