"""What lasts from one training step to the next beside weights: of a step of the user's own, and of L-BFGS."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bexplore.workloads.torch_private import tree_leaves

_MOST_OBJECTS = 20_000  # that are looked into: a judgement, a model of 100 layers has 2,000 modules
_WITHOUT_STATE = (type, types.ModuleType, types.FunctionType, types.MethodType)


def find_lasting(step: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that an object of the user's own holds, with its attribute that leads to them.

    Such are, beside weights and states, their running averages, queues of samples and buffers of replays.
    """
    seen = {id(step)}
    waiting: deque[tuple[str, Any]] = deque([("", step)])
    while waiting and len(seen) < _MOST_OBJECTS:
        name, owner = waiting.popleft()
        for attribute, value in list(getattr(owner, "__dict__", {}).items()):
            own = name or attribute
            for leaf in tree_leaves(value):
                if isinstance(leaf, torch.Tensor):
                    yield own, leaf
                elif hasattr(leaf, "__dict__") and not isinstance(leaf, _WITHOUT_STATE) and id(leaf) not in seen:
                    seen.add(id(leaf))
                    waiting.append((own, leaf))


def fill_histories(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Give L-BFGS, after its first step, the history that it has after many.

    It keeps `history_size` pairs of vectors as long as all parameters, one more each iteration. A few steps would lack
    most of a training's memory, and of the seconds of its updates.
    """
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.register_step_post_hook(_fill_history)


def _fill_history(optimizer: torch.optim.Optimizer, *_arguments: Any) -> None:
    """Put pairs of zeros before those that there are: they change no direction."""
    (group,) = optimizer.param_groups
    state = optimizer.state[group["params"][0]]
    if state.get("old_dirs") is None:  # no iteration yet
        return
    missing = group["history_size"] - len(state["old_dirs"])
    direction = state["d"]
    for name, zero in (("old_dirs", direction), ("old_stps", direction), ("ro", direction.new_empty(()))):
        state[name][:0] = [torch.zeros_like(zero) for _ in range(missing)]
