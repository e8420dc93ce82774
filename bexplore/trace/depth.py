"""Identical blocks of a deep model, and how to leave most of them out for a while.

A model of n identical blocks costs what two shallow ones say: the step of each further block is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Event, Phase, Place

KEPT_BLOCKS = 3  # the first, the last, and one that is neither
MIDDLE_BLOCK = 1
_MIN_COPIES = 5  # below, the whole model is about as quick to trace
_POSITION_WORDS = ("idx", "index", "layer_id", "layer_number", "depth")
_RATE_WORDS = ("drop",)  # rates that grow with the depth change values, not sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A run of blocks of one container that differ in their weights alone.

    Attributes:
        name: Qualified name of the container.
        container: A `ModuleList` or `Sequential`.
        start: Position of the first block of the run.
        copies: Blocks in the run.
    """

    name: str
    container: nn.ModuleList | nn.Sequential
    start: int
    copies: int

    def owns(self, module: str, block: int) -> bool:
        """Whether modules, in the form of `Place`, include a block, counted from the first of the run."""
        name = f"{self.name}.{self.start + block}"
        return any(f".{part}.".endswith(f".{name}.") for part in module.split(" > "))


def find_repeats(module: nn.Module, *, min_copies: int = _MIN_COPIES) -> list[Repeat]:
    """Find the outermost runs of at least `min_copies` identical blocks."""
    repeats: list[Repeat] = []
    for name, container in module.named_modules():
        inside = any(name.startswith(f"{repeat.name}.") for repeat in repeats)
        if isinstance(container, (nn.ModuleList, nn.Sequential)) and not inside:
            start, copies = _longest_run([_signature(block) for block in container])
            if copies >= min_copies and not _shares_parameters(list(container)):
                repeats.append(Repeat(name=name, container=container, start=start, copies=copies))
    return repeats


@contextlib.contextmanager
def shortened(repeats: list[Repeat]) -> Iterator[None]:
    """Keep only three blocks of each run within this context."""
    originals = [dict(repeat.container._modules) for repeat in repeats]
    try:
        for repeat in repeats:
            blocks = list(repeat.container)
            blocks = blocks[: repeat.start + KEPT_BLOCKS] + blocks[repeat.start + repeat.copies :]
            _set_blocks(repeat.container, {str(index): block for index, block in enumerate(blocks)})
        yield
    finally:
        for repeat, original in zip(repeats, originals, strict=True):
            _set_blocks(repeat.container, original)


def lengthen(repeat: Repeat, events: dict[Phase, list[Event]], gradient_bytes: int) -> dict[Phase, list[Event]]:
    """Put back into the events of a pass what the left out blocks of a run keep.

    While the forward pass walks over identical blocks, each leaves the same activations; while the backward pass
    walks back, each ends them and leaves its gradients. Within a run, what is alive changes by the same amount from
    block to block, so the highest moment lies in the first or in the last block: it is enough to move those two
    apart by what the blocks between them keep.

    Args:
        repeat: The run, traced with three blocks.
        events: Of the traced pass.
        gradient_bytes: New gradients of one block.
    """
    missing = repeat.copies - KEPT_BLOCKS
    kept: dict[Place, Polynomial] = {}
    for event in events[Phase.FORWARD]:
        if repeat.owns(event.place.module, MIDDLE_BLOCK):
            kept[event.place] = kept.get(event.place, Polynomial()) + event.size
    saved = [Event(size.times(missing), place) for place, size in kept.items() if size]
    gradients = Event(Polynomial(gradient_bytes * missing), Place("new gradients"))
    released = [*(Event(-event.size, event.place) for event in saved), gradients]
    freed = Event(-gradients.size, gradients.place)
    last = _first_position(events[Phase.FORWARD], lambda event: repeat.owns(event.place.module, KEPT_BLOCKS - 1))
    middle = _first_position(
        events[Phase.BACKWARD], lambda event: event.size(1) < 0 and repeat.owns(event.place.module, MIDDLE_BLOCK)
    )
    forward, backward = events[Phase.FORWARD], events[Phase.BACKWARD]
    return events | {
        Phase.FORWARD: [*forward[:last], *saved, *forward[last:]],
        Phase.BACKWARD: [*backward[:middle], *released, *backward[middle:], freed],
    }


def _first_position(events: list[Event], condition: Callable[[Event], bool]) -> int:
    return next((index for index, event in enumerate(events) if condition(event)), len(events))


def _set_blocks(container: nn.Module, blocks: dict[str, Any]) -> None:
    container._modules.clear()
    container._modules.update(blocks)


def _longest_run(signatures: list[Any]) -> tuple[int, int]:
    best_start, best_length, start = 0, 0, 0
    for index in range(len(signatures) + 1):
        if index == len(signatures) or signatures[index] != signatures[start]:
            if index - start > best_length:
                best_start, best_length = start, index - start
            start = index
    return best_start, best_length


def _signature(block: nn.Module) -> list[Any]:
    """What decides a block's program: its parts, their settings, their tensors' shapes and types."""
    return [
        (name, type(part), _settings(part), [_tensor_facts(*item) for item in _own_tensors(part)])
        for name, part in block.named_modules()
    ]


def _own_tensors(module: nn.Module) -> list[tuple[str, Any]]:
    return [*module._parameters.items(), *module._buffers.items()]


def _tensor_facts(name: str, tensor: Any) -> tuple[Any, ...]:
    if tensor is None:
        return (name,)
    return name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _settings(module: nn.Module) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or any(word in name for word in _POSITION_WORDS):
            continue
        if isinstance(value, float) and any(word in name for word in _RATE_WORDS):
            settings[name] = bool(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            settings[name] = value
        elif callable(value) and hasattr(value, "__qualname__"):
            settings[name] = value.__qualname__
    return settings


def _shares_parameters(blocks: list[nn.Module]) -> bool:
    seen: set[int] = set()
    for block in blocks:
        own = {id(parameter) for parameter in block.parameters()}
        if own & seen:
            return True
        seen |= own
    return False
