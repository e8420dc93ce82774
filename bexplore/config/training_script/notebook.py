"""A notebook: papermill runs it with other values of the cell that has the tag `parameters`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.config.command import quote_words
from bexplore.config.training_script.parameters import OF_EVALUATION, rank
from bexplore.errors import UserInputError
from bexplore.host.json_files import parse_json

_TAG = "parameters"


@dataclass(frozen=True, slots=True)
class _Cell:
    number: int
    tree: ast.Module
    tags: list[str]


def command_of_notebook(path: Path) -> list[str]:
    """Return the command of papermill for a notebook whose tagged cell holds its size; else raise what is missing."""
    cells = list(_read_cells(path))
    size = _find(cells, "micro_batch_size")
    words = ["papermill", str(path), f"{{output_dir}}/{path.name}", "-p"]
    again = f"bexplore init {quote_words([str(path)])}"
    if size is None:
        raise UserInputError(
            f"{path}: no cell gives a number to a name of the micro-batch size",
            hint=f"give it one, such as batch_size = 16, in a cell of its own with the tag {_TAG}, then type\n"
            f"{again}\nor write the name for NAME in: bexplore init -- "
            + quote_words([*words, "NAME", "{micro_batch_size}"]),
        )
    cell, name, where = size
    if _TAG not in cell.tags:
        raise UserInputError(
            f"{path}: cell {cell.number} has {where}, and not the tag {_TAG}, so that papermill cannot change it",
            hint=f'write "tags": ["{_TAG}"] into the metadata of cell {cell.number} (JupyterLab: Property Inspector, '
            f"Cell Tags){_move_rest(cell, name, where)}, then type\n{again}",
        )
    _refuse_use_in_cell(path, cell, name, where)
    words += [name, "{micro_batch_size}"]
    for placeholder in ("accumulation", "output_dir"):
        further = _find([cell], placeholder)
        words += ["-p", further[1], f"{{{placeholder}}}"] if further is not None else []
    return words


def _read_cells(path: Path) -> Iterator[_Cell]:
    try:
        cells = [one for one in parse_json(path.read_bytes())["cells"] if isinstance(one, dict)]
    except OSError as error:
        raise UserInputError(f"{path} cannot be read: {error.strerror}", hint="name the notebook") from None
    except (ValueError, KeyError, TypeError):
        raise UserInputError(f"{path} is not a notebook", hint="save it with Jupyter, in format 4") from None
    for number, cell in enumerate(cells, 1):
        if cell.get("cell_type") == "code":
            metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
            yield _Cell(number, _parse(cell.get("source")), [*map(str, (metadata or {}).get("tags") or [])])


def _parse(source: Any) -> ast.Module:
    text = "".join(map(str, source)) if isinstance(source, list) else str(source or "")
    lines = ["" if line.lstrip().startswith(("%", "!", "?")) else line for line in text.splitlines()]
    try:
        return ast.parse("" if text.startswith("%%") else "\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _find(cells: list[_Cell], placeholder: str) -> tuple[_Cell, str, str] | None:
    """Return the assignment nearest to a placeholder: its cell, the name, the text; a tagged cell before others."""
    found = []
    for cell in cells:
        for statement in cell.tree.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
            value = getattr(statement, "value", None)
            near = rank(target.id, placeholder) if isinstance(target, ast.Name) else None
            if near is None or not isinstance(value, ast.Constant) or OF_EVALUATION.search(target.id.lower()):  # type: ignore[union-attr]
                continue
            if type(value.value) is (str if placeholder == "output_dir" else int):
                found.append(((_TAG not in cell.tags, near), (cell, target.id, ast.unparse(statement))))  # type: ignore[union-attr]
    return min(found, key=lambda one: one[0])[1] if found else None


def _uses(cell: _Cell, name: str) -> bool:
    """Return whether a cell reads a name: papermill's values come behind the cell that gives it."""
    names = (node for node in ast.walk(cell.tree) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in names)


def _move_rest(cell: _Cell, name: str, where: str) -> str:
    return f", leave {where} alone in it and move the rest into the next cell" if _uses(cell, name) else ""


def _refuse_use_in_cell(path: Path, cell: _Cell, name: str, where: str) -> None:
    """Raise an error where the tagged cell uses the size itself."""
    if _uses(cell, name):
        raise UserInputError(
            f"{path}: cell {cell.number} uses {name} itself, before papermill changes it",
            hint=f"leave {where} alone in the cell with the tag {_TAG}, and move the rest into the next cell",
        )
