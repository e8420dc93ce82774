"""Options that a script declares one by one: argparse and what is made like it, click, absl."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bexplore.config.training_script.parameters import Interface, Parameter
from bexplore.config.training_script.source import UNKNOWN, Definition, Module, Program

_NO_VALUE = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
_OWN_PARSERS = ("HfArgumentParser", "TrlParser")  # they read dataclasses: signatures.py
_DEEPEST = 8  # names that stand for a parser


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """Return the value of the first of these keywords that a call has."""
    return next((one.value for name in names for one in call.keywords if one.arg == name), None)


def texts(program: Program, module: Module, exprs: Sequence[ast.expr]) -> list[str]:
    """Return the texts among the values of expressions."""
    return [value for one in exprs if isinstance(value := program.value(module, one), str)]


def scalar(program: Program, module: Module, expr: ast.expr | None) -> Any:
    """Return the number, text or flag that an expression is; None for all else."""
    value = program.value(module, expr)
    return value if isinstance(value, int | float | str) else None


# argparse


@dataclass(eq=False, slots=True)
class _Parser:
    words: list[str] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    commands: list[_Parser] = field(default_factory=list)
    parents: list[_Parser] = field(default_factory=list)

    def interface(self) -> Interface:
        commands = {word: one.interface() for one in self.commands for word in one.words}
        return Interface("argparse", self.own_parameters(), commands)

    def own_parameters(self) -> list[Parameter]:
        return [*(one for parent in self.parents for one in parent.own_parameters()), *self.parameters]


class _Argparse:
    """The parsers of a program, and what is added to each, by the names through which they are handed on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.loose = _Parser()  # what is added to a parser that is not found
        self.roots = [self.loose]
        self.inherited: set[int] = set()
        self.made: dict[int, _Parser] = {}
        for module, node in program.walk():
            if isinstance(node, ast.Call):
                self._take(module, node)

    def interface(self) -> Interface:
        """Return what the parsers take together that no other has as its parent: several read one command line."""
        roots = [one for one in self.roots if id(one) not in self.inherited]
        whole = _Parser(parents=roots, commands=[command for one in roots for command in one.commands])
        return whole.interface()

    def _take(self, module: Module, call: ast.Call) -> None:
        method = call.func
        if isinstance(method, ast.Name):  # add = parser.add_argument
            found = self.program.given(module, method)
            method = next((one.node for one in found if isinstance(one.node, ast.Attribute)), method)
        if not isinstance(method, ast.Attribute):
            return
        if method.attr == "add_parser":
            self._parsers(module, call)
        elif method.attr in ("add_argument", "add"):
            parameter = self._parameter(module, call)
            if parameter is not None and (parameter.head or method.attr == "add_argument"):  # a set has `add`, too
                for parser in self._parsers(module, method.value) or [self.loose]:
                    parser.parameters.append(parameter)

    def _parameter(self, module: Module, call: ast.Call) -> Parameter | None:
        program = self.program
        names = texts(program, module, call.args)
        action = program.value(module, keyword(call, "action"))
        if not names or (isinstance(action, str) and action in _NO_VALUE):
            return None
        long = next((name for name in names if name.startswith("--")), names[0])
        count = program.value(module, keyword(call, "nargs"))
        choices = program.value(module, keyword(call, "choices"))
        is_required = program.value(module, keyword(call, "required")) is True
        if not long.startswith("-"):
            is_required = count not in ("?", "*", "...")
        dest = program.value(module, keyword(call, "dest"))
        return Parameter(
            name=dest if isinstance(dest, str) else long.lstrip("-"),
            head=long if long.startswith("-") else "",
            is_required=is_required,
            default=scalar(program, module, keyword(call, "default")),
            choices=tuple(map(str, choices)) if isinstance(choices, list | tuple) else (),
        )

    def _parsers(self, module: Module, expr: ast.expr, depth: int = 0) -> list[_Parser]:
        if depth > _DEEPEST:
            return []
        if isinstance(expr, ast.Call):
            return self._parsers_of_call(module, expr, depth)
        if not isinstance(expr, ast.Name | ast.Attribute):
            return []
        given = self.program.given(module, expr)
        found = [self._parsers(one.module, one.node, depth + 1) for one in given if isinstance(one.node, ast.expr)]
        return list(dict.fromkeys(parser for parsers in found for parser in parsers))

    def _parsers_of_call(self, module: Module, call: ast.Call, depth: int) -> list[_Parser]:
        last = self.program.name(module, call).split(".")[-1]
        if last.endswith(("ArgumentParser", "ArgParser")) and last not in _OWN_PARSERS:
            return [self._make(module, call, None, depth)]
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if owner is not None and last == "add_parser":
            return [self._make(module, call, one, depth) for one in self._parsers(module, owner, depth + 1)[:1]]
        if owner is not None and last in ("add_subparsers", "add_argument_group", "add_mutually_exclusive_group"):
            return self._parsers(module, owner, depth + 1)
        found = self.program.find(module, call.func)
        if found is None or not isinstance(found.node, ast.FunctionDef):
            return []
        returned = [node.value for node in ast.walk(found.node) if isinstance(node, ast.Return) and node.value]
        return self._parsers(found.module, returned[-1], depth + 1) if returned else []

    def _make(self, module: Module, call: ast.Call, owner: _Parser | None, depth: int) -> _Parser:
        if id(call) in self.made:
            return self.made[id(call)]
        parser = self.made[id(call)] = _Parser()
        parents = keyword(call, "parents")
        for one in parents.elts if isinstance(parents, ast.List | ast.Tuple) else []:
            above = [parent for parent in self._parsers(module, one, depth + 1) if parent is not parser]
            parser.parents += above
            self.inherited.update(map(id, above))
        if owner is None:
            self.roots.append(parser)
        else:
            parser.words = _texts_of_loop(self.program, module, call.args[0]) if call.args else []
            owner.commands.append(parser)
        return parser


def _texts_of_loop(program: Program, module: Module, expr: ast.expr) -> list[str]:
    """Return the text that an expression is; of the name of a loop over texts all of them."""
    loops = [one for one in module.ancestors(expr) if isinstance(one, ast.For) and isinstance(expr, ast.Name)]
    for loop in loops:
        values = program.value(module, loop.iter)
        if ast.unparse(loop.target) == ast.unparse(expr) and isinstance(values, list | tuple):
            return [value for value in values if isinstance(value, str)]
    return texts(program, module, [expr])


def read_argparse(program: Program) -> Iterator[Interface]:
    """Yield what `add_argument` gives to the parsers of a program."""
    found = _Argparse(program).interface()
    if found.parameters or found.commands:
        yield found


def makes_options(program: Program) -> bool:
    """Return whether a program adds options whose names its text does not have."""
    calls = [(module, node) for module, node in program.walk() if isinstance(node, ast.Call) and node.args]
    added = [(module, node) for module, node in calls if getattr(node.func, "attr", "") == "add_argument"]
    return any(not texts(program, module, node.args) for module, node in added)


# click


@dataclass(eq=False, slots=True)
class _Command:
    word: str
    interface: Interface
    is_owned: bool = False


def read_click(program: Program) -> Iterator[Interface]:
    """Yield the commands that click's decorators make, those of a group below it."""
    commands: dict[int, _Command] = {}
    owners: list[tuple[ast.expr, Module, _Command]] = []
    for module, node in program.walk():
        if not isinstance(node, Definition) or id(node) in commands:
            continue
        made = [one for one in node.decorator_list if _is_click(program, module, one)]
        if not made:
            continue
        command = commands[id(node)] = _Command(_click_word(program, module, node, made[0]), Interface("click"))
        alone = keyword(made[0], "invoke_without_command") if isinstance(made[0], ast.Call) else None
        command.interface.runs_alone = program.value(module, alone) is True
        command.interface.parameters += _click_parameters(program, module, node.decorator_list)
        function = made[0].func if isinstance(made[0], ast.Call) else made[0]
        if isinstance(function, ast.Attribute) and not program.name(module, function.value).endswith("click"):
            owners.append((function.value, module, command))
    for module, node in program.walk():
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_command" and node.args:
            found = program.find(module, node.args[0])
            if found is not None and id(found.node) in commands:
                words = texts(program, module, node.args[1:2])
                command = commands[id(found.node)]
                command.word = words[0] if words else command.word
                owners.append((node.func.value, module, command))  # type: ignore[attr-defined]
    for expr, module, command in owners:
        found = program.find(module, expr)
        if found is not None and id(found.node) in commands:
            command.is_owned = True
            commands[id(found.node)].interface.commands[command.word] = command.interface
    yield from (command.interface for command in commands.values() if not command.is_owned)


def _is_click(program: Program, module: Module, decorator: ast.expr) -> bool:
    """Return whether a decorator makes a command of click: its own, or a method of a group that click made."""
    name = program.name(module, decorator)
    first, _, last = name.rpartition(".")
    if last not in ("command", "group"):
        return False
    if first in ("click", "rich_click", "asyncclick"):
        return True
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    group = program.find(module, function.value) if isinstance(function, ast.Attribute) else None
    if group is None or not isinstance(group.node, Definition):
        return group is not None and program.name(group.module, group.node).endswith("click.Group")
    return any(_is_click(program, group.module, one) for one in group.node.decorator_list)


def _click_word(program: Program, module: Module, node: Definition, decorator: ast.expr) -> str:
    given = [*decorator.args[:1], keyword(decorator, "name")] if isinstance(decorator, ast.Call) else []
    words = texts(program, module, [one for one in given if one is not None])
    if words:
        return words[0]
    # click 8.2: "the suffixes _command, _cmd, _group and _grp are removed from the name of the function".
    name = node.name.lower()
    for suffix in ("_command", "_cmd", "_group", "_grp"):
        name = name.removesuffix(suffix)
    return name.replace("_", "-")


def _click_parameters(program: Program, module: Module, decorators: Sequence[ast.expr]) -> Iterator[Parameter]:
    for decorator in decorators:
        last = program.name(module, decorator).split(".")[-1]
        if isinstance(decorator, ast.Call) and last in ("option", "argument"):
            parameter = _click_parameter(program, module, decorator, is_option=last == "option")
            if parameter is not None:
                yield parameter
            continue
        found = program.find(module, decorator.func if isinstance(decorator, ast.Call) else decorator)
        if found is not None and isinstance(found.node, ast.FunctionDef):  # options that several commands share
            calls = [node for node in ast.walk(found.node) if isinstance(node, ast.Call)]
            yield from _click_parameters(
                program, found.module, [one for one in calls if _is_option(program, found.module, one)]
            )


def _is_option(program: Program, module: Module, call: ast.Call) -> bool:
    return program.name(module, call).split(".")[-1] in ("option", "argument")


def _click_parameter(program: Program, module: Module, call: ast.Call, *, is_option: bool) -> Parameter | None:
    names = texts(program, module, call.args)
    if not names or program.value(module, keyword(call, "is_flag")) is True or "/" in names[0]:
        return None
    has_default = keyword(call, "default") is not None
    name = next((name for name in names if name.startswith("--")), names[0])
    is_required = program.value(module, keyword(call, "required")) is True
    if not is_option:
        count = program.value(module, keyword(call, "nargs"))
        is_required = program.value(module, keyword(call, "required")) is not False and not has_default and count != -1
    elif program.value(module, keyword(call, "prompt")) not in (UNKNOWN, False):
        is_required = True  # nobody is there to answer
    return Parameter(
        name=name.lstrip("-"),
        head=name if is_option else "",
        is_required=is_required and not (has_default and is_option),
        default=scalar(program, module, keyword(call, "default")),
        choices=_click_choices(program, module, keyword(call, "type")),
    )


def _click_choices(program: Program, module: Module, expr: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(expr, ast.Call) or not expr.args or not program.name(module, expr).endswith("Choice"):
        return ()
    value = program.value(module, expr.args[0])
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


# absl

# Flags without a value, with several, and those of ml_collections: their file is Python.
_NO_FLAGS = ("DEFINE_bool", "DEFINE_boolean", "DEFINE_multi_enum", "DEFINE_config_file", "DEFINE_config_dict")


def read_absl(program: Program) -> Iterator[Interface]:
    """Yield the flags that `DEFINE_integer` and its like define."""
    parameters: dict[str, Parameter] = {}
    required: set[str] = set()
    for module, node in program.walk():
        if not isinstance(node, ast.Call):
            continue
        last = program.name(module, node).split(".")[-1]
        if last.startswith("DEFINE_") and last not in _NO_FLAGS:
            found = _absl_flag(program, module, node)
            parameters.update({found.name: found} if found is not None else {})
        elif last in ("mark_flag_as_required", "mark_flags_as_required"):
            for one in node.args:
                value = program.value(module, one)
                required.update([value] if isinstance(value, str) else value if isinstance(value, list) else [])
    if parameters:
        own = [_with_required(one, one.is_required or one.name in required) for one in parameters.values()]
        yield Interface("absl", own)


def _absl_flag(program: Program, module: Module, call: ast.Call) -> Parameter | None:
    names = texts(program, module, call.args[:1]) or texts(
        program, module, [one for one in [keyword(call, "name")] if one]
    )
    if not names:
        return None
    default = keyword(call, "default") or (call.args[1] if len(call.args) > 1 else None)
    return Parameter(
        name=names[0],
        head=f"--{names[0]}=",
        is_required=program.value(module, keyword(call, "required")) is True,
        default=scalar(program, module, default),
    )


def _with_required(parameter: Parameter, is_required: bool) -> Parameter:
    return Parameter(name=parameter.name, head=parameter.head, is_required=is_required, default=parameter.default)
