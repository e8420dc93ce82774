"""Identical blocks of a deep model, and how to leave most of them out for a while.

Each further block of a run of identical blocks adds the same cost, so a truncated model determines the full one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from bexplore.trace.cost_model import NOTHING, Event, Phase, Place, Polynomial

# Traced blocks of a run: as few as possible, more if the middle ones keep different tensors. The first and the last
# differ from the others by what is before and behind the run.
KEPT_BLOCKS = (4, 6)
_MIN_COPIES = KEPT_BLOCKS[0] + 2  # below, the whole model is about as quick to trace
_POSITION_WORDS = ("idx", "index", "layer_id", "layer_number", "depth")
_RATE_WORDS = ("drop",)  # rates that grow with the depth change values, not sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A run of blocks of one container that differ in their weights alone."""

    name: str  # qualified name of the container
    container: nn.ModuleList | nn.Sequential
    start: int  # position of the first block of the run
    copies: int  # blocks in the run

    def owns(self, module: str, block: int) -> bool:
        """Return whether modules, in the form of `Place`, include a block, counted from the first of the run."""
        name = f"{self.name}.{self.start + block}"
        return any(f".{part}.".endswith(f".{name}.") for part in module.split(" > "))


def find_repeats(module: nn.Module, *, min_copies: int = _MIN_COPIES) -> list[Repeat]:
    """Find the outermost runs of at least `min_copies` identical blocks."""
    repeats: list[Repeat] = []
    for name, container in module.named_modules():
        inside = any(name.startswith(f"{repeat.name}.") for repeat in repeats)
        if isinstance(container, (nn.ModuleList, nn.Sequential)) and not inside:
            start, copies = _find_longest_run([_describe_block(block) for block in container])
            if copies >= min_copies and not _shares_parameters(list(container)):
                repeats.append(Repeat(name=name, container=container, start=start, copies=copies))
    return repeats


@contextlib.contextmanager
def truncate(repeats: list[Repeat], kept_blocks: int) -> Iterator[None]:
    """Keep only the first blocks of each run within this context."""
    originals = [dict(repeat.container._modules) for repeat in repeats]
    try:
        for repeat in repeats:
            keep_blocks(repeat, kept_blocks)
        yield
    finally:
        for repeat, original in zip(repeats, originals, strict=True):
            _set_blocks(repeat.container, original)


def keep_blocks(repeat: Repeat, kept_blocks: int) -> list[nn.Module]:
    """Keep only the first blocks of a run, and return the others."""
    blocks = list(repeat.container)
    first, last = repeat.start + min(kept_blocks, repeat.copies), repeat.start + repeat.copies
    kept = blocks[:first] + blocks[last:]
    _set_blocks(repeat.container, {str(index): block for index, block in enumerate(kept)})
    return blocks[first:last]


def inner_blocks(repeat: Repeat, events: dict[Phase, list[Event]], kept_blocks: int) -> tuple[int, ...]:
    """Return the blocks of a truncated run that stand for those left out: one, or two that alternate; empty for none.

    Blocks alternate where each takes over the memory of the one before.
    """
    middle = kept_blocks - 2
    kept = [_sum_kept_of_pass(repeat, events, block) for block in range(middle + 1)]
    if kept[middle] == kept[middle - 1]:
        return (middle,)
    alternates = len(kept) > 4 and kept[middle] == kept[middle - 2] and kept[middle - 1] == kept[middle - 3]
    return (middle - 1, middle) if alternates else ()


def _sum_kept_of_pass(repeat: Repeat, events: dict[Phase, list[Event]], block: int) -> tuple[Polynomial, Polynomial]:
    """Return the bytes that a block keeps from its forward pass, and from what is recomputed before any backward."""
    backward = events[Phase.BACKWARD]
    saved = _sum_kept(repeat, events[Phase.FORWARD], block)
    recomputed = _sum_kept(repeat, backward[: _find_start_of_backward(repeat, backward, block + 1)], block)
    return sum(saved.values(), start=NOTHING), sum(recomputed.values(), start=NOTHING)


def lengthen(
    repeat: Repeat, events: dict[Phase, list[Event]], gradient_bytes: int, block: int, missing: float
) -> dict[Phase, list[Event]]:
    """Add to the events of a pass what the blocks that are like one of a truncated run, and were left out, keep.

    In the forward pass each identical block leaves the same activations; in the backward pass each ends them and leaves
    its gradients. A compiler that recomputes the whole forward pass before it begins with the backward one so keeps the
    same from each block again. Within a run the memory alive changes by the same amount from block to block, so its
    maximum lies in the first or in the last block: it is enough to insert between the two what the missing blocks keep.

    Args:
        events: Events of a pass of the truncated model.
        gradient_bytes: Bytes of the new gradients of one block.
        block: Number in the truncated run; another follows it.
        missing: How many are left out.
    """
    forward, backward = events[Phase.FORWARD], events[Phase.BACKWARD]
    start = _find_start_of_backward(repeat, backward, block + 1)
    saved = _times(_sum_kept(repeat, forward, block), missing)
    recomputed = _times(_sum_kept(repeat, backward[:start], block), missing)
    gradients = Event(Polynomial(gradient_bytes * missing), Place("new gradients"))
    released = [*(Event(-event.size, event.place) for event in (*saved, *recomputed)), gradients]
    freed = Event(-gradients.size, gradients.place)
    following = _find_first(forward, lambda event: repeat.owns(event.place.module, block + 1))
    again = min(start, _find_first(backward, lambda event: repeat.owns(event.place.module, block + 1)))
    cut = start + _find_first(
        backward[start:], lambda event: event.size(1) < 0 and repeat.owns(event.place.module, block)
    )
    return events | {
        Phase.FORWARD: [*forward[:following], *saved, *forward[following:]],
        Phase.BACKWARD: [*backward[:again], *recomputed, *backward[again:cut], *released, *backward[cut:], freed],
    }


def _find_start_of_backward(repeat: Repeat, backward: list[Event], block: int) -> int:
    return _find_first(
        backward,
        lambda event: event.size(1) > 0 and not event.place.is_recomputed and repeat.owns(event.place.module, block),
    )


def _times(kept: dict[Place, Polynomial], factor: float) -> list[Event]:
    return [Event(size.times(factor), place) for place, size in kept.items()]


def _sum_kept(repeat: Repeat, events: list[Event], block: int) -> dict[Place, Polynomial]:
    kept: dict[Place, Polynomial] = {}
    for event in events:
        if repeat.owns(event.place.module, block):
            kept[event.place] = kept.get(event.place, NOTHING) + event.size
    return {place: size for place, size in kept.items() if size}


def _find_first(events: list[Event], condition: Callable[[Event], bool]) -> int:
    return next((index for index, event in enumerate(events) if condition(event)), len(events))


def _set_blocks(container: nn.Module, blocks: dict[str, Any]) -> None:
    container._modules.clear()
    container._modules.update(blocks)


def _find_longest_run(signatures: list[Any]) -> tuple[int, int]:
    best_start, best_length, start = 0, 0, 0
    for index in range(len(signatures) + 1):
        if index == len(signatures) or signatures[index] != signatures[start]:
            if index - start > best_length:
                best_start, best_length = start, index - start
            start = index
    return best_start, best_length


def _describe_block(block: nn.Module) -> list[Any]:
    return [
        (name, type(part), _read_settings(part), [_describe_tensor(*item) for item in _list_own_tensors(part)])
        for name, part in block.named_modules()
    ]


def _list_own_tensors(module: nn.Module) -> list[tuple[str, Any]]:
    return [*module._parameters.items(), *module._buffers.items()]


def _describe_tensor(name: str, tensor: Any) -> tuple[Any, ...]:
    if tensor is None:
        return (name,)
    return name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _read_settings(module: nn.Module) -> dict[str, Any]:
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
