"""The modules and tensors of the process, those that `gc.freeze` hides from the garbage collector, too."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

_frozen: list[weakref.ref[Any]] = []


def watch_freezing(torch: Any) -> None:
    """Remember modules and tensors when a program freezes them: `gc.get_objects` lists them no more."""
    freeze, unfreeze = gc.freeze, gc.unfreeze

    @functools.wraps(freeze)
    def freeze_remembered() -> None:
        _frozen.extend(weakref.ref(one) for one in find_objects(torch.nn.Module, torch.Tensor))
        freeze()

    @functools.wraps(unfreeze)
    def unfreeze_listed() -> None:
        unfreeze()
        _frozen.clear()

    gc.freeze, gc.unfreeze = freeze_remembered, unfreeze_listed


def find_objects(*kinds: Any) -> list[Any]:
    """Return all objects of some kinds.

    By type: a proxy of weakref answers `isinstance` by what it stands for, or with an exception.
    """
    frozen = (reference() for reference in _frozen)
    return [one for one in (*gc.get_objects(), *frozen) if issubclass(type(one), kinds)]
