"""A size that a program fixes itself: where it stands, and the smallest edit with which it comes from outside."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bexplore.config import document
from bexplore.config.training_script.fields import list_fields
from bexplore.config.training_script.parameters import FAR, OF_EVALUATION, OF_TRAINING, rank
from bexplore.config.training_script.source import Definition, Node, Program, name_target

_ASSIGNED, _HANDED, _FIELD, _DEFAULT = range(4)  # how a number is given, the surest first
_SETTINGS = re.compile(r"config|settings|param|option|args|arguments|cfg|conf|const", re.IGNORECASE)
_SETTINGS_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_KEY = re.compile(r"\b\w*(batch_?size|mbs)\b", re.IGNORECASE)
VARIABLE, CONFIG_VARIABLE = "MICRO_BATCH_SIZE", "CONFIG"  # that edits read


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The line of a program that takes a value from the environment in place of its own."""

    what: str  # the value as the program has it
    where: str  # `file:line`
    line: str  # the line as it is to be
    is_in_script: bool  # whether the file is the script itself
    needs_import: bool  # whether the file does not import `os` yet


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    value: Node
    order: int  # how sure it is that this number is the one of the training

    @property
    def is_in_script(self) -> bool:
        return self.value.module is self.value.program.main


def find_fixed_size(program: Program) -> Edit | None:
    """Return the number that is most likely the size of the training; None where a program has none."""
    # A single letter is a size as an option alone.
    named = (one for node in program.nodes for one in _find_places(node) if one.value and len(one.name) > 1)
    sizes = [one for one in named if rank(one.name, "micro_batch_size") is not None]
    places = [one for one in sizes if _read_number(one.value) > 0 and _is_own(one) and not _is_of_evaluation(one)]
    if not places:
        return None
    place = min(places, key=_distance)
    value = _find_divided(place.value)
    while (found := value.find()).is_a(ast.expr):  # a name that stands for the number
        value = found
    what = f"{place.name}={_read_number(place.value)}"
    return _edit(value, what, f'int(os.environ.get("{VARIABLE}", {{}}))')


def _read_number(value: Node) -> int:
    """Return the number that an expression is; 0 for none.

    Of `16 if cuda else 4` and of `16 // num_gpus` it is the first, of `4 * 8` the product.
    """
    value = value.at(value.node.body) if value.is_a(ast.IfExp) else _find_divided(value)
    is_product = value.is_a(ast.BinOp) and isinstance(value.node.op, ast.Mult)
    numbers = [one.value for one in (value.each([value.node.left, value.node.right]) if is_product else [value])]
    return math.prod(numbers) if all(type(one) is int for one in numbers) else 0


def _find_divided(value: Node) -> Node:
    """Return what is divided, as among devices; an expression that divides nothing itself."""
    is_divided = value.is_a(ast.BinOp) and isinstance(value.node.op, ast.FloorDiv)
    return value.at(value.node.left) if is_divided else value


def _distance(place: _Place) -> tuple[bool, bool, int, bool, int]:
    """Return how far a number is from being that of the training, the nearest first.

    A loader that is named after the training is nearer than others: a script may look at its data through one first.
    """
    near = rank(place.name, "micro_batch_size") or 0
    is_of_training = OF_TRAINING.search(_target(place).lower()) is not None
    return not place.is_in_script, near >= FAR, place.order, not is_of_training, near


def _target(place: _Place) -> str:
    """Return what the statement around a number gives a value to; empty for a definition."""
    statement = next((one for one in place.value.ancestors() if one.is_a(ast.stmt)), place.value)
    return "" if statement.is_a(Definition) else statement.unparse().partition("=")[0]


def _is_own(place: _Place) -> bool:
    """Return whether a number is the script's, or a setting of it: beside it, or in a file of settings.

    What a library gives as a default in one of its functions is none.
    """
    folder, path = place.value.program.script.resolve().parent, place.value.module.path
    is_near = path.resolve().is_relative_to(folder) or _SETTINGS.search(path.stem)
    return place.is_in_script or (bool(is_near) and place.order in (_ASSIGNED, _FIELD))


def _find_places(node: Node) -> Iterator[_Place]:
    """Yield each name to which a statement, a call or a dictionary gives an expression."""
    own = node.node
    if isinstance(own, ast.Call):
        yield from (_Place(one.arg or "", node.at(one.value), _HANDED) for one in own.keywords)
        if node.last.endswith("DataLoader"):
            yield _Place("batch_size", node.argument(1), _HANDED)
    elif isinstance(own, ast.Assign):
        for target in own.targets:
            yield _Place(name_target(target), node.at(own.value), _ASSIGNED)
            if isinstance(target, ast.Tuple) and isinstance(own.value, ast.Tuple):
                pairs = zip(target.elts, own.value.elts, strict=False)
                yield from (_Place(name_target(one), node.at(value), _ASSIGNED) for one, value in pairs)
    elif isinstance(own, ast.AnnAssign):
        value = node.at(own.value)
        yield _Place(name_target(own.target), value.keyword("default") if value.is_a(ast.Call) else value, _FIELD)
    elif isinstance(own, ast.Dict):
        yield from (
            _Place(node.at(key).text, node.at(value), _ASSIGNED)
            for key, value in zip(own.keys, own.values, strict=True)
        )
    elif isinstance(own, ast.FunctionDef):
        yield from (_Place(one.name, one.default, _DEFAULT) for one in list_fields(node))


def _is_of_evaluation(place: _Place) -> bool:
    """Return whether a number is that of an evaluation: by its own name, or by what its loader is called."""
    words = place.name
    if place.order == _HANDED:
        around = [one.node.name for one in place.value.ancestors() if one.is_a(Definition)]
        words = " ".join([words, _target(place), *around])
    return OF_EVALUATION.search(words.lower().replace("_", " ")) is not None


def find_settings_file(program: Program) -> tuple[Path, Edit] | None:
    """Return the file beside the script that it names itself and that has a key of the size, and the edit for it."""
    for node in program.select(ast.Constant):
        if isinstance(node.node.value, str) and node.module is program.main:
            path = Path(node.node.value)
            if _has_size(path):
                return path, _edit(node, node.node.value, f'os.environ.get("{CONFIG_VARIABLE}", {{}})')
    return None


def find_file_with_size(folder: Path) -> Path:
    """Return the first file of a folder with a key of the size; a name to replace where none has one."""
    return next(filter(_has_size, sorted(folder.iterdir())), folder / "CONFIG.yaml")


def _has_size(path: Path) -> bool:
    is_of_settings = path.suffix in _SETTINGS_SUFFIXES and path.is_file()
    return is_of_settings and _KEY.search(document.read_text(path)) is not None


def _edit(value: Node, what: str, replacement: str) -> Edit:
    expr, module = value.node, value.module
    source = module.path.read_bytes().splitlines()[expr.lineno - 1]
    before, own, behind = (
        part.decode()
        for part in (
            source[: expr.col_offset],
            source[expr.col_offset : expr.end_col_offset],
            source[expr.end_col_offset :],
        )
    )
    return Edit(
        what=what,
        where=value.where,
        line=f"{before}{replacement.format(own)}{behind}".rstrip(),
        is_in_script=module is value.program.main,
        needs_import="os" not in module.imports,
    )
