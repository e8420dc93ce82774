"""The repeated blocks of a model: those that are recomputed, sharded or compiled each by itself."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator

from torch import nn

from bexplore.errors import require


def blocks_of(module: nn.Module, patterns: tuple[str, ...] = (), *, setting: str) -> list[nn.Module]:
    """Return the repeated blocks of a model, or those that the user names, in order.

    Args:
        module: The model with its loss.
        patterns: Paths, `*` for any name; empty to take the members of the outermost lists whose class is there twice.
        setting: Key that takes the patterns, for errors.

    Raises:
        UserInputError: A pattern fits no module, or there is no such list.
    """
    if patterns:
        return [block for pattern in patterns for block in _named(module, pattern, setting)]
    found: dict[str, nn.Module] = {}
    for name, container in module.named_modules():
        is_inside = any(f"{name}.".startswith(f"{block}.") for block in found)
        if isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) and not is_inside:
            prefix = f"{name}." if name else ""
            found |= {f"{prefix}{child}": block for child, block in _repeated(container)}
    require(
        bool(found),
        "The model has no list of repeated blocks.",
        f"Name its blocks in {setting}, such as model.layers.*.",
    )
    return list(found.values())


def fits(name: str, pattern: str) -> bool:
    """Return whether the path of a module fits a pattern, name by name."""
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatch.fnmatchcase, names, patterns))


def _repeated(container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children whose class, none of torch's own layers, is there twice."""
    children = [(name, child) for name, child in container.named_children() if any(True for _ in child.parameters())]
    counts = Counter(type(child) for _, child in children)
    for name, child in children:
        is_layer = type(child).__module__.startswith("torch.nn.modules") and not isinstance(child, nn.Sequential)
        if counts[type(child)] > 1 and not is_layer:
            yield name, child


def _named(module: nn.Module, pattern: str, setting: str) -> list[nn.Module]:
    """Return the modules whose path, or whose path within the user's own model, fits a pattern."""
    own = {name: child for name, child in module.named_modules() if name}
    found = [
        child
        for name, child in own.items()
        if any(fits(part, pattern) for part in (name, name.partition(".")[2]))  # the loss module wraps the model
    ]
    require(
        bool(found),
        f"{setting} has {pattern!r}, which fits no module.",
        f"Modules have names such as {', '.join(list(own)[:4])}.",
    )
    return found
