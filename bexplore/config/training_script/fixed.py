"""A size that a program fixes itself: where it stands, and the smallest edit with which it comes from outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bexplore.config import document
from bexplore.config.training_script.parameters import FAR, OF_EVALUATION, OF_TRAINING, rank
from bexplore.config.training_script.source import Definition, Module, Program

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
    value: ast.expr
    module: Module
    statement: str
    order: int  # how sure it is that this number is the one of the training


def find_fixed_size(program: Program) -> Edit | None:
    """Return the number that is most likely the size of the training; None where a program has none."""
    places = [
        one
        for module, node in program.walk()
        for one in _places(program, module, node)
        if module is program.main or _is_settings_of(program, one)
    ]
    numbers = [
        (place, size)
        for place in places
        if (size := _number(program, place)) is not None and size > 0 and not _is_of_evaluation(place)
    ]
    if not numbers:
        return None
    place, size = min(numbers, key=lambda one: _distance(program, one[0]))
    return _describe_size(program, place, size)


def _number(program: Program, place: _Place) -> int | None:
    """Return the number that an expression is, of `16 if cuda else 4` the first and of `4 * 8` the product."""
    value: ast.expr = place.value
    if isinstance(value, ast.IfExp):
        value = value.body
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        factors = [program.value(place.module, one) for one in (value.left, value.right)]
        return factors[0] * factors[1] if all(type(one) is int for one in factors) else None
    number = program.value(place.module, value)
    return number if type(number) is int else None


def _distance(program: Program, place: _Place) -> tuple[bool, bool, int, bool, int]:
    """Return how far a number is from being that of the training, the nearest first.

    A loader that is named after the training is nearer than others: a script may look at its data through one first.
    """
    near = rank(place.name, "micro_batch_size") or 0
    is_of_training = OF_TRAINING.search(place.statement.partition("=")[0].lower()) is not None
    return place.module is not program.main, near >= FAR, place.order, not is_of_training, near


def _is_settings_of(program: Program, place: _Place) -> bool:
    """Return whether a number in another module is a setting of the script: beside it, or in a file of settings.

    What a library gives as a default in one of its functions is none.
    """
    folder = program.script.resolve().parent
    is_near = place.module.path.resolve().is_relative_to(folder) or _SETTINGS.search(place.module.path.stem)
    return bool(is_near) and place.order in (_ASSIGNED, _FIELD)


def _places(program: Program, module: Module, node: ast.AST) -> Iterator[_Place]:
    """Yield each expression that gives something to a name of the size."""
    for name, value, order in _given(program, module, node):
        # A single letter is a size as an option alone.
        if value is not None and len(name) > 1 and rank(name, "micro_batch_size") is not None:
            yield _Place(name, value, module, _statement(module, value), order)


def _given(program: Program, module: Module, node: ast.AST) -> Iterator[tuple[str, ast.expr | None, int]]:
    if isinstance(node, ast.Call):
        is_loader = program.name(module, node).split(".")[-1].endswith("DataLoader")
        yield from ((one.arg or "", one.value, _HANDED) for one in node.keywords)
        if is_loader and len(node.args) > 1:
            yield "batch_size", node.args[1], _HANDED
    elif isinstance(node, ast.Assign):
        yield from ((_name(target), node.value, _ASSIGNED) for target in node.targets)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from (
                    (_name(one), value, _ASSIGNED) for one, value in zip(target.elts, node.value.elts, strict=False)
                )
    elif isinstance(node, ast.AnnAssign):
        value = node.value
        if isinstance(value, ast.Call):  # field(default=16)
            value = next((one.value for one in value.keywords if one.arg == "default"), None)
        yield _name(node.target), value, _FIELD
    elif isinstance(node, ast.Dict):
        keys = [(program.value(module, key), value) for key, value in zip(node.keys, node.values, strict=True)]
        yield from ((key, value, _ASSIGNED) for key, value in keys if isinstance(key, str))
    elif isinstance(node, ast.FunctionDef):
        places = [*node.args.posonlyargs, *node.args.args]
        behind = places[len(places) - len(node.args.defaults) :]
        pairs = [
            *zip(behind, node.args.defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        yield from ((one.arg, value, _DEFAULT) for one, value in pairs)


def _name(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return getattr(target, "id", "") or getattr(target, "attr", "")


def _statement(module: Module, node: ast.AST) -> str:
    """Return the text of the statement around a node, of a larger one its first line."""
    around = next((one for one in module.ancestors(node) if isinstance(one, ast.stmt)), node)
    return "" if isinstance(around, Definition) else ast.unparse(around)


def _is_of_evaluation(place: _Place) -> bool:
    """Return whether a number is that of an evaluation: by its own name, or by what its loader is called."""
    words = place.name
    if place.order == _HANDED:
        around = (one for one in place.module.ancestors(place.value) if isinstance(one, Definition))
        words = f"{place.name} {place.statement.partition('=')[0]} {' '.join(one.name for one in around)}"
    return OF_EVALUATION.search(words.lower().replace("_", " ")) is not None


def _describe_size(program: Program, place: _Place, size: int) -> Edit:
    module, value = place.module, place.value
    found = program.find(module, value)  # a name that stands for the number
    while found is not None and isinstance(found.node, ast.expr):
        module, value = found.module, found.node
        found = program.find(module, value)
    return _edit(program, module, value, f"{place.name}={size}", f'int(os.environ.get("{VARIABLE}", {{}}))')


def find_settings_file(program: Program) -> tuple[Path, Edit] | None:
    """Return the file beside the script that it names itself and that has a key of the size, and the edit for it."""
    for module, node in program.walk():
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or module is not program.main:
            continue
        path = Path(node.value)
        if path.suffix in _SETTINGS_SUFFIXES and path.is_file() and _KEY.search(document.read_text(path)):
            return path, _edit(program, module, node, node.value, f'os.environ.get("{CONFIG_VARIABLE}", {{}})')
    return None


def _edit(program: Program, module: Module, value: ast.expr, what: str, replacement: str) -> Edit:
    source = module.path.read_bytes().splitlines()[value.lineno - 1]
    before, behind = source[: value.col_offset].decode(), source[value.end_col_offset :].decode()
    own = source[value.col_offset : value.end_col_offset].decode()
    return Edit(
        what=what,
        where=module.where(value),
        line=f"{before}{replacement.format(own)}{behind}".rstrip(),
        is_in_script=module is program.main,
        needs_import="os" not in module.imports,
    )
