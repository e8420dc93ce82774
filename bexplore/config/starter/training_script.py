"""The text of a training script, read: its options, a size that it fixes itself, its Hydra configuration.

Nothing of the script is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from bexplore.config.document import document
from bexplore.errors import UserInputError

_HYDRA_MAIN = re.compile(r"\bhydra\.main\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """A micro-batch size that a script writes as a number.

    Attributes:
        where: `file:line`.
        text: The assignment, such as `batch_size=32`.
        hint: How the script can take the size from outside.
    """

    where: str
    text: str
    hint: str


def options(path: Path) -> Iterator[str]:
    """Yield each option that a script gives to `add_argument` or `option`; `TrainingArguments` brings its own.

    Raises:
        UserInputError: The file is unreadable, or not Python.
    """
    tree = _tree(path)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if {"HfArgumentParser", "TrainingArguments"} <= names:
        yield from ("--per_device_train_batch_size", "--output_dir")
    if is_of_hydra(path):
        yield "hydra.run.dir"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_argument", "option"):
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (text for text in texts if text.startswith("--"))


def fixed_size(path: Path, names: Container[str]) -> FixedSize | None:
    """Return the first number that a script gives to one of the names, as a keyword or a variable."""
    tree = _tree(path)
    for node in ast.walk(tree):
        found: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Call):
            found = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
        elif isinstance(node, ast.Assign):
            found = [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
        for name, value in found:
            if name.lower() in names and isinstance(value, ast.Constant) and type(value.value) is int:
                text = f"{name}={value.value}"
                return FixedSize(where=f"{path}:{value.lineno}", text=text, hint=_way_out(tree, path, value.value))
    return None


def is_of_hydra(path: Path) -> bool:
    """Return whether a script's main function is Hydra's."""
    return _HYDRA_MAIN.search(document.read_text(path)) is not None


def hydra_configuration(path: Path) -> Path | None:
    """Return the primary file that a script's `hydra.main` names; None where it names none that is there."""
    text = document.read_text(path)
    named = {name: re.search(rf"""{name}\s*=\s*["']([^"'\n]+)["']""", text) for name in ("config_path", "config_name")}
    if not _HYDRA_MAIN.search(text) or named["config_name"] is None:
        return None
    folder = path.parent / (named["config_path"][1] if named["config_path"] else "")
    configuration = folder / f"{named['config_name'][1].removesuffix('.yaml')}.yaml"
    return configuration if configuration.is_file() else None


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(document.read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserInputError(f"{path} is not Python: {error}") from None


def _way_out(tree: ast.Module, path: Path, size: int) -> str:
    """Return how a script of a trainer, or of none, can take its size from outside."""
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {module.split(".")[0] for module in imported}
    if packages & {"lightning", "pytorch_lightning"}:
        return "Trainer(callbacks=[bexplore.lightning.MicroBatchSizeFinder()]) finds it in the script (docs/guide.md)"
    if packages & {"transformers", "trl"}:
        return "bexplore.transformers.explore(make_trainer) finds it in the script (docs/guide.md)"
    return (
        f'write int(os.environ.get("MICRO_BATCH_SIZE", {size})) there, then type\n'
        f"bexplore explore --env MICRO_BATCH_SIZE={{micro_batch_size}} -- python {path}"
    )
