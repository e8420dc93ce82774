"""The files of a Hydra tree, composed: the place of each value, and the override that changes it.

A primary file names files of its groups in `defaults`. The grammar is that of Hydra's defaults list
(https://hydra.cc/docs/1.3/advanced/defaults_list/): group and option, several options, `@package`, absolute groups,
`optional`, `override`, `_self_` (behind the others where it is absent), and the `# @package` line of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.config import document
from bexplore.config.document import dotted_path
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import paths_below
from bexplore.errors import UserInputError

MAX_FILES = 200  # of one tree
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_GLOBAL = "_global_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A plain value of the tree, as its file has it."""

    path: KeyPath  # from the top of the composed configuration
    value: Any
    where: str  # `file:line`

    @property
    def override(self) -> str:
        """The left side of an override of the value."""
        return dotted_path(self.path)


def is_tree(values: Mapping[str, Any]) -> bool:
    """Return whether a file's values name files of groups."""
    listed = values.get("defaults")
    return isinstance(listed, list) and bool(listed) and all(isinstance(one, str | dict) for one in listed)


def read_leaves(path: Path) -> list[Leaf]:
    """Return the plain values of a tree; of those that stand in several files, the one that wins."""
    first = _Tree(path.parent, {})
    for _ in first.read(path, group="", package=()):
        pass  # a file may override an option that stands before it
    found = _Tree(path.parent, first.overrides).read(path, group="", package=())
    return list({leaf.path: leaf for leaf in found}.values())


class _Tree:
    """The files below a folder.

    Attributes:
        overrides: Option by group, of the entries that override one.
    """

    def __init__(self, folder: Path, chosen: Mapping[str, Any]) -> None:
        self.overrides: dict[str, Any] = {}
        self._folder, self._chosen = folder, chosen  # what a first reading has found to be overridden
        self._num_files = 0

    def read(self, path: Path, *, group: str, package: KeyPath) -> Iterator[Leaf]:
        """Yield the values of a file and of those that it names, the later ones of which win."""
        self._num_files += 1
        if self._num_files > MAX_FILES:
            raise UserInputError(f"{path}: more than {MAX_FILES} files; do two of them name each other?")
        file = document.read(path)
        declared = _PACKAGE.search(document.read_text(path))
        if declared is not None and group:
            parts = declared[1].replace("_group_", group.replace("/", ".")).split(".")
            package = tuple(part for part in parts if part not in ("", _GLOBAL))
        entries: list[Any] = file.values["defaults"] if is_tree(file.values) else []
        for entry in [*entries, *(() if "_self_" in entries else ("_self_",))]:
            if entry == "_self_":
                keys = (key for key in file.values if key not in ("defaults", "hydra"))
                for own in (own for key in keys for own in paths_below(file.values[key], (key,))):
                    yield Leaf(path=(*package, *own), value=file.get(own), where=file.where(own))
            elif isinstance(entry, str):
                yield from self._read_named(path, entry, group, package)
            else:
                for named, options in entry.items():
                    yield from self._read_options(path, named, options, group, package)

    def _read_named(self, by: Path, entry: str, group: str, around: KeyPath) -> Iterator[Leaf]:
        """Read the file of an entry without an option: `name`, `group/name`, `/group/name`."""
        name, _, at = entry.split()[-1].partition("@")
        inner, _, option = name.rpartition("/")
        target = inner.strip("/") if name.startswith("/") else f"{group}/{inner}".strip("/")
        # An entry of the file's own group shares its package; one of a group below has its group's.
        yield from self._read_file(by, target, option, _package(group, target, at, around) if at or inner else around)

    def _read_options(self, by: Path, named: str, option: Any, group: str, around: KeyPath) -> Iterator[Leaf]:
        """Read the files of an entry `group: option`, or note what an `override` puts in its place."""
        *words, name = named.split()
        name, _, at = name.partition("@")
        target = name.strip("/") if name.startswith("/") else f"{group}/{name}".strip("/")
        if "override" in words:
            self.overrides[target] = option
            return
        option = self._chosen.get(target, option)
        if option is None or option == "???" or target.split("/")[0] == "hydra":
            return  # without an option, or of Hydra itself
        for one in option if isinstance(option, list) else [option]:
            is_optional = "optional" in words or "${" in str(one)
            package = _package(group, target, at, around)
            yield from self._read_file(by, target, str(one), package, is_optional=is_optional)

    def _read_file(
        self, by: Path, group: str, option: str, package: KeyPath, *, is_optional: bool = False
    ) -> Iterator[Leaf]:
        stem = option.removesuffix(".yaml").removesuffix(".yml")
        places = [self._folder / group / f"{stem}{suffix}" for suffix in (".yaml", ".yml")]
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            yield from self.read(path, group=group, package=package)
        elif not is_optional:
            raise UserInputError(f"{by}: {places[0]} is absent, which its defaults name")


def _package(group: str, target: str, at: str, around: KeyPath) -> KeyPath:
    """Return the package of a file: behind `@`, else by the keys that its group adds to that of the file around it."""
    if at.split(".")[0] == _GLOBAL:
        return tuple(at.split(".")[1:])
    parts = at.split(".") if at else target.removeprefix(f"{group}/" if group else "").split("/")
    return (*around, *(part for part in parts if part not in ("", "_here_")))
