"""The examples that come with the package: each a commented file, some with a module or a baseline beside it."""

from __future__ import annotations

from pathlib import Path

from bexplore.errors import UserInputError, suggestion

_SUFFIXES = (".yaml", ".yml", ".py", ".json")  # the first that an example has is the file to explore or to copy


def listed() -> dict[str, str]:
    """Return the examples by name, each with the first line that it says of itself."""
    names = sorted({path.stem for path in _folder().iterdir() if path.suffix in (".yaml", ".yml")})
    return {name: _about(next(iter(files_of(name).values()))) for name in names}


def files_of(name: str) -> dict[Path, str]:
    """Return the texts of an example by the names of its files, the one to explore first.

    Raises:
        UserInputError: There is no such example.
    """
    found = [path for suffix in _SUFFIXES if (path := _folder() / f"{name}{suffix}").is_file()]
    if not found or Path(name).name != name:
        names = {path.stem for path in _folder().iterdir() if path.suffix in (".yaml", ".yml")}
        raise UserInputError(f"there is no example {name!r}", hint=suggestion(name, sorted(names)))
    # In this project they lie in configs/, and say so; written for a user they lie where the user is.
    return {Path(path.name): path.read_text().replace(f"configs/{path.stem}", path.stem) for path in found}


def _folder() -> Path:
    """Return the folder of the examples: beside this module in an installed package, else that of the clone."""
    installed = Path(__file__).parent / "example_files"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "configs"


def _about(text: str) -> str:
    """Return the first line of a text, up to the command that some name behind it."""
    return text.partition("\n")[0].lstrip("# ").partition(":  ")[0].rstrip(".")
