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

from bexplore.config.document import document
from bexplore.config.document.document import Document, dotted_path
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import paths_below
from bexplore.errors import UserInputError

MAX_FILES = 200  # of one tree
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_GLOBAL = "_global_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A plain value of the tree.

    Attributes:
        path: Keys from the top of the composed configuration.
        value: The value as its file has it.
        where: `file:line`.
    """

    path: KeyPath
    value: Any
    where: str

    @property
    def override(self) -> str:
        """The left side of an override of the value."""
        return dotted_path(self.path)


def is_tree(values: Mapping[str, Any]) -> bool:
    """Return whether a file's values name files of groups."""
    listed = values.get("defaults")
    return isinstance(listed, list) and bool(listed) and all(isinstance(one, str | dict) for one in listed)


def leaves(path: Path) -> list[Leaf]:
    """Return the plain values of a tree; of those that stand in several files, the one that wins.

    Raises:
        UserInputError: A file of the tree is absent or wrong, or there are too many.
    """
    first = _Tree(path.parent)
    for _ in first.read(path, group="", package=()):
        pass  # a file may override an option that stands before it
    found = _Tree(path.parent, first.overrides).read(path, group="", package=())
    return list({leaf.path: leaf for leaf in found}.values())


class _Tree:
    """The files below the folder of the primary one.

    Attributes:
        overrides: Option by group, of the entries that override one; those of a first reading hold in a second.
    """

    def __init__(self, folder: Path, overrides: Mapping[str, Any] | None = None) -> None:
        self.overrides: dict[str, Any] = {}
        self._folder, self._chosen = folder, overrides or {}
        self._num_files = 0

    def read(self, path: Path, *, group: str, package: KeyPath) -> Iterator[Leaf]:
        """Yield the values of a file and of those that it names, the later ones of which win."""
        self._num_files += 1
        if self._num_files > MAX_FILES:
            raise UserInputError(f"{path}: more than {MAX_FILES} files; do two of them name each other?")
        read = document.read(path)
        declared = _PACKAGE.search(document.read_text(path))
        if declared is not None and group:
            package = _package(declared[1], group)
        listed: list[Any] = read.values["defaults"] if is_tree(read.values) else []
        own = list(_own(read, package))
        for entry in [*listed, *(() if "_self_" in listed else ("_self_",))]:
            if entry == "_self_":
                yield from own
            elif isinstance(entry, str):
                yield from self._option(path, *_cut(entry), group=group, around=package)
            else:
                for named, options in entry.items():
                    yield from self._member(path, named, options, group=group, around=package)

    def _option(self, by: Path, name: str, at: str, *, group: str, around: KeyPath) -> Iterator[Leaf]:
        """Read a file that an entry without an option names: `name`, `group/name`, `/group/name`."""
        inner, _, option = name.rpartition("/")
        target = _joined(group, inner) if not name.startswith("/") else inner.strip("/")
        # An entry of the file's own group shares its package; one of a group below has its group's.
        package = _placed(at, around) if at else (around if not inner else _below(around, group, target))
        yield from self._file(by, target, option, package, is_optional=False)

    def _member(self, by: Path, named: str, option: Any, *, group: str, around: KeyPath) -> Iterator[Leaf]:
        """Read the files of an entry `group: option`, or note what an `override` puts in its place."""
        *words, name = named.split()
        name, at = _cut(name)
        target = name.strip("/") if name.startswith("/") else _joined(group, name)
        if "override" in words:
            self.overrides[target] = option
            return
        option = self._chosen.get(target, option)
        if option is None or option == "???" or target.split("/")[0] == "hydra":
            return  # without an option, or of Hydra itself
        package = _placed(at, around) if at else _below(around, group, target)
        for one in option if isinstance(option, list) else [option]:
            is_optional = "optional" in words or "${" in str(one)
            yield from self._file(by, target, str(one), package, is_optional=is_optional)

    def _file(self, by: Path, group: str, option: str, package: KeyPath, *, is_optional: bool) -> Iterator[Leaf]:
        stem = option.removesuffix(".yaml").removesuffix(".yml")
        places = [self._folder / group / f"{stem}{suffix}" for suffix in (".yaml", ".yml")]
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            yield from self.read(path, group=group, package=package)
        elif not is_optional:
            raise UserInputError(f"{by}: {places[0]} is absent, which its defaults name")


def _own(read: Document, package: KeyPath) -> Iterator[Leaf]:
    for key, value in read.values.items():
        if key not in ("defaults", "hydra"):
            for path in paths_below(value, (key,)):
                yield Leaf(path=(*package, *path), value=read.get(path), where=read.where(path))


def _cut(name: str) -> tuple[str, str]:
    """Return a name and its package: `group@package`."""
    before, _, package = name.split()[-1].partition("@")
    return before, package


def _joined(group: str, name: str) -> str:
    return f"{group}/{name}".strip("/")


def _below(around: KeyPath, group: str, target: str) -> KeyPath:
    """Return the package of a group that a file names: below the file's own, by the keys that the group adds."""
    if group and target.startswith(f"{group}/"):
        target = target.removeprefix(f"{group}/")
    return (*around, *(part for part in target.split("/") if part))


def _placed(at: str, around: KeyPath) -> KeyPath:
    """Return the package behind `@`, which is relative to that of the file that names it."""
    if at.split(".")[0] == _GLOBAL:
        return tuple(at.split(".")[1:])
    return (*around, *(part for part in at.split(".") if part not in ("", "_here_")))


def _package(declared: str, group: str) -> KeyPath:
    """Return the package that a file declares for itself; `_group_` stands for its group's."""
    parts = declared.replace("_group_", group.replace("/", ".")).split(".")
    return tuple(part for part in parts if part not in ("", _GLOBAL))
