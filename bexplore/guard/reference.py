"""The reference to compare with: another configuration, another folder, or a git revision in its own worktree."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import bexplore
from bexplore.errors import UserInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The program that the present one is compared with."""

    title: str  # its name for people
    config_path: Path  # its configuration
    # Environment variables with which its workers import its code and not the present one.
    environment: Mapping[str, str] = field(default_factory=dict)
    foreign_root: Path | None = None  # folder from which its workers must import nothing; None for no such folder


@contextmanager
def open_reference(against: str, config_path: Path) -> Iterator[Reference]:
    """Open the reference that the user named; an existing path wins over a revision of the same name.

    Args:
        against: A configuration file, a folder that holds one at the same relative path, or a git revision.
    """
    path = Path(against)
    if path.is_file():
        yield Reference(title=str(path), config_path=path)
    elif path.is_dir():
        yield Reference(title=str(path), config_path=_find_config_in(path, config_path))
    else:
        with _open_worktree(against, config_path) as reference:
            yield reference


def find_foreign_files(files: list[str]) -> list[str]:
    """Return those of the imported files that are the user's own code."""
    own = str(Path(bexplore.__file__).parent)
    return [file for file in files if "site-packages" not in file and not file.startswith((own, sys.prefix))]


def _find_config_in(folder: Path, config_path: Path) -> Path:
    for candidate in (folder / config_path, folder / config_path.name):
        if not config_path.is_absolute() and candidate.is_file():
            return candidate
    if (folder / config_path.name).is_file():
        return folder / config_path.name
    raise UserInputError(
        f"`against={folder}`: there is no {config_path} in it", hint="name the other configuration file itself"
    )


@contextmanager
def _open_worktree(revision: str, config_path: Path) -> Iterator[Reference]:
    folder = config_path.resolve().parent
    root = Path(_git(folder, "rev-parse", "--show-toplevel", revision=revision))
    commit = _git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", revision=revision)
    with tempfile.TemporaryDirectory(prefix="bexplore-guard-") as temporary:
        tree = Path(temporary) / "tree"
        _git(root, "worktree", "add", "--detach", "--quiet", str(tree), commit, revision=revision)
        try:
            relative = config_path.resolve().relative_to(root.resolve())
            if not (tree / relative).is_file():
                raise UserInputError(
                    f"`against={revision}`: there is no {relative} at {commit[:10]}",
                    hint="name an older configuration by its path, or a revision that has this one",
                )
            yield Reference(
                title=f"{revision} ({commit[:10]})",
                config_path=tree / relative,
                environment={"PYTHONPATH": _python_path(root.resolve(), tree)},
                foreign_root=root.resolve(),
            )
        finally:
            _git(root, "worktree", "remove", "--force", str(tree), revision=revision)


def _python_path(root: Path, tree: Path) -> str:
    """Return the import path entries in the checkout, moved to the worktree, without bexplore's own."""
    own = Path(bexplore.__file__).parents[1].resolve()
    paths = [Path(entry).resolve() for entry in sys.path if entry]
    inside = [path for path in dict.fromkeys(paths) if path.is_relative_to(root) and "site-packages" not in path.parts]
    moved = [
        str(tree / path.relative_to(root)) for path in inside if path != own and not path.is_relative_to(sys.prefix)
    ]
    # An editable install maps its package by a finder, not by an entry; the usual layouts are added for it.
    usual = [] if own == root else [str(tree / name) for name in ("", "src") if (tree / name).is_dir()]
    return os.pathsep.join([*dict.fromkeys([*moved, *usual]), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def _git(folder: Path, *arguments: str, revision: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise UserInputError(
            f"`against={revision}`: this is no path, and git is not installed", hint="name a second configuration"
        ) from error
    except subprocess.CalledProcessError as error:
        reasons = error.stderr.strip().splitlines()
        raise UserInputError(
            f"`against={revision}`: neither a path nor a git revision here{': ' + reasons[-1] if reasons else ''}",
            hint="name a revision such as main or HEAD~1 (fetched: actions/checkout needs fetch-depth: 0), or a path",
        ) from error
    return done.stdout.strip()
