"""bexplore finds the fastest micro-batch size that fits, for any PyTorch training job, and says how sure it is.

A job is described in YAML; `python -m bexplore schema` prints its JSON Schema. Where `explore.workload.step` names a
whole training step of your own, that is an object with these members (`help(bexplore.TrainingStep)` tells more):

    modules                                  torch modules, frozen ones too: moved to the device, and compiled
    make_batch(micro_batch_size) -> batch    so many samples, as tensors in any nesting
    forward_backward(batch) -> loss          one pass; adds to .grad, and returns the scalar loss
    update() -> None                         clips, steps the optimizers and clears the gradients
    optimizers                               optional: what update() steps
    evaluate(batch) -> loss                  optional: forward only, for evaluation jobs
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if (
    TYPE_CHECKING
):  # what type checkers read in place of `__getattr__`; tests/rules/test_types.py compares it with _PUBLIC
    from bexplore import lightning as lightning
    from bexplore import transformers as transformers
    from bexplore.api import explore as explore
    from bexplore.config.config import Config as Config
    from bexplore.config.load import load_config as load_config
    from bexplore.config.training_step import TrainingStep as TrainingStep
    from bexplore.decorator import find_fastest_batch_size as find_fastest_batch_size
    from bexplore.errors import BexploreError as BexploreError
    from bexplore.exploration.base import ExploreOptions as ExploreOptions
    from bexplore.planning.api import plan as plan
    from bexplore.planning.request import PlanRequest as PlanRequest
    from bexplore.planning.request import Work as Work
    from bexplore.run.events import AlreadyFinished as AlreadyFinished
    from bexplore.run.events import Finished as Finished
    from bexplore.run.events import Planned as Planned
    from bexplore.run.events import Recommended as Recommended
    from bexplore.run.events import Traced as Traced
    from bexplore.search.result import ProbeFinished as ProbeFinished
    from bexplore.search.result import ProbeStarted as ProbeStarted

__version__ = "0.1.0"

# Public name -> module. Imported on first use, so that `import bexplore` costs nothing.
_PUBLIC = {
    "BexploreError": "bexplore.errors",
    "Config": "bexplore.config.config",
    "Finished": "bexplore.run.events",
    "Planned": "bexplore.run.events",
    "ProbeFinished": "bexplore.search.result",
    "ProbeStarted": "bexplore.search.result",
    "Recommended": "bexplore.run.events",
    "AlreadyFinished": "bexplore.run.events",
    "ExploreOptions": "bexplore.exploration.base",
    "Traced": "bexplore.run.events",
    "TrainingStep": "bexplore.config.training_step",
    "explore": "bexplore.api",
    "find_fastest_batch_size": "bexplore.decorator",
    "load_config": "bexplore.config.load",
    "plan": "bexplore.planning.api",
    "PlanRequest": "bexplore.planning.request",
    "Work": "bexplore.planning.request",
}
# Modules of the package that other packages are needed for, imported on first use too.
_MODULES = ("lightning", "transformers")

__all__ = ["__version__", *_PUBLIC]


if not TYPE_CHECKING:  # else every name that is misspelt would have a type

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"bexplore.{name}")
        if name not in _PUBLIC:
            raise AttributeError(f"module 'bexplore' has no attribute {name!r}")

        return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
