"""Options that a script declares one by one, argparse's, absl's and click's, and functions that are commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bexplore.config.training_script.fields import TYPER, Style, list_fields, spell_fields
from bexplore.config.training_script.parameters import Interface, Parameter
from bexplore.config.training_script.source import UNKNOWN, Definition, Node, Program, texts

_NO_VALUE = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
# Flags of absl without a value, with several, and those of ml_collections: their file is Python.
_NO_FLAGS = ("DEFINE_bool", "DEFINE_boolean", "DEFINE_multi_enum", "DEFINE_config_file", "DEFINE_config_dict")
_OWN_PARSERS = ("HfArgumentParser", "TrlParser")  # they read dataclasses: fields.py
_GROUPS = ("add_subparsers", "add_argument_group", "add_mutually_exclusive_group")
_DEEPEST = 8  # names that stand for a parser


def _read_option(call: Node, *, is_click: bool, is_positional: bool | None = None) -> Parameter | None:
    """Return the parameter that a call declares, as argparse and click have it; None for a flag without a value."""
    names = texts(call.arguments)
    is_flag = call.keyword("action").value in _NO_VALUE or call.keyword("is_flag").value is True
    if not names or is_flag or (is_click and "/" in names[0]):
        return None
    spelt = next((name for name in names if name.startswith("--")), names[0])
    default, required, count = call.keyword("default"), call.keyword("required").value, call.keyword("nargs").value
    has_default = is_click and bool(default)
    if not spelt.startswith("-") if is_positional is None else is_positional:
        is_required = count not in ("?", "*", "...", -1) and not has_default and (required is not False or not is_click)
    else:  # where it prompts, nobody is there to answer
        prompts = is_click and call.keyword("prompt").value not in (UNKNOWN, False)
        is_required = (required is True or prompts) and not has_default
        is_positional = False
    is_unset = not (is_required or is_positional) and (not default or default.value is None)
    kind = call.keyword("type")
    choices = (kind.argument(0) if kind.name.endswith("Choice") else call.keyword("choices")).value
    return Parameter(
        name=call.keyword("dest").text or spelt.lstrip("-"),
        head="" if is_positional or not (is_click or spelt.startswith("-")) else spelt,
        is_required=is_required,
        default=default.scalar,
        is_unset=is_unset,
        choices=tuple(map(str, choices)) if isinstance(choices, list | tuple) else (),
        help_text=call.keyword("help").text,
    )


# argparse


@dataclass(eq=False, slots=True)
class _Parser:
    words: list[str] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    commands: list[_Parser] = field(default_factory=list)
    parents: list[_Parser] = field(default_factory=list)

    def interface(self) -> Interface:
        commands = {word: one.interface() for one in self.commands for word in one.words}
        above = self.with_parents()
        switches = [switch for one in above for switch in one.switches]
        return Interface("argparse", [own for one in above for own in one.parameters], commands, switches=switches)

    def with_parents(self) -> list[_Parser]:
        return [*(one for parent in self.parents for one in parent.with_parents()), self]


class _Argparse:
    """The parsers of a program, and what is added to each, by the names through which they are handed on."""

    def __init__(self, program: Program) -> None:
        self.loose = _Parser()  # what is added to a parser that is not found
        self.roots = [self.loose]
        self.inherited: set[int] = set()
        self.made: dict[int, _Parser] = {}
        for call in program.calls:
            self._take(call)

    def interface(self) -> Interface:
        """Return what the parsers take together that no other has as its parent: several read one command line."""
        roots = [one for one in self.roots if id(one) not in self.inherited]
        return _Parser(parents=roots, commands=[command for one in roots for command in one.commands]).interface()

    def _take(self, call: Node) -> None:
        method = call.called
        if method.is_a(ast.Name):  # add = parser.add_argument
            method = next((one for one in method.given() if one.is_a(ast.Attribute)), method)
        if method.method == "add_parser":
            self._find(call)
        elif method.method in ("add_argument", "add"):
            parameter = _read_option(call, is_click=False)
            if call.keyword("action").value == "store_true":
                for parser in self._find(method.owner) or [self.loose]:
                    parser.switches += texts(call.arguments)
            if parameter is not None and (parameter.head or method.method == "add_argument"):  # a set has `add`, too
                for parser in self._find(method.owner) or [self.loose]:
                    parser.parameters.append(parameter)

    def _find(self, expr: Node, depth: int = 0) -> list[_Parser]:
        """Return the parsers that an expression may be."""
        if depth > _DEEPEST:
            return []
        if expr.is_a(ast.Call):
            return self._find_made(expr, depth)
        given = expr.given() if expr.is_a(ast.Name, ast.Attribute) else []
        found = [parser for one in given if one.is_a(ast.expr) for parser in self._find(one, depth + 1)]
        return list(dict.fromkeys(found))

    def _find_made(self, call: Node, depth: int) -> list[_Parser]:
        last = call.last
        if last.endswith(("ArgumentParser", "ArgParser")) and last not in _OWN_PARSERS:
            return [self._make(call, None, depth)]
        if call.owner and last == "add_parser":
            return [self._make(call, one, depth) for one in self._find(call.owner, depth + 1)[:1]]
        if call.owner and last in _GROUPS:
            return self._find(call.owner, depth + 1)
        found = call.called.find()
        returned = found.descend(ast.Return) if found.is_a(ast.FunctionDef) else []
        values = [one.at(one.node.value) for one in returned if one.node.value]
        return self._find(values[-1], depth + 1) if values else []

    def _make(self, call: Node, owner: _Parser | None, depth: int) -> _Parser:
        if id(call.node) in self.made:
            return self.made[id(call.node)]
        parser = self.made[id(call.node)] = _Parser()
        for one in call.each(getattr(call.keyword("parents").node, "elts", ())):
            above = [parent for parent in self._find(one, depth + 1) if parent is not parser]
            parser.parents += above
            self.inherited.update(map(id, above))
        if owner is None:
            self.roots.append(parser)
        else:
            parser.words = _texts_of_loop(call.argument(0))
            owner.commands.append(parser)
        return parser


def _texts_of_loop(expr: Node) -> list[str]:
    """Return the text that an expression is; of the name of a loop over texts all of them."""
    for loop in (one for one in expr.ancestors() if one.is_a(ast.For) and expr.is_a(ast.Name)):
        values = loop.at(loop.node.iter).value
        if loop.at(loop.node.target).unparse() == expr.unparse() and isinstance(values, list | tuple):
            return [value for value in values if isinstance(value, str)]
    return texts([expr])


def read_argparse(program: Program) -> Iterator[Interface]:
    """Yield what `add_argument` gives to the parsers of a program."""
    found = _Argparse(program).interface()
    if found.parameters or found.commands:
        yield found


def makes_options(program: Program) -> bool:
    """Return whether a program adds options whose names its text does not have."""
    added = (call for call in program.calls if call.method == "add_argument" and call.arguments)
    return any(not texts(call.arguments) for call in added)


# absl


def read_absl(program: Program) -> Iterator[Interface]:
    """Yield the flags that `DEFINE_integer` and its like define."""
    parameters: dict[str, Parameter] = {}
    required: set[str] = set()
    for call in program.calls:
        last = call.last
        if last.startswith("DEFINE_") and last not in _NO_FLAGS:
            name, default = (call.argument(0) or call.keyword("name")).text, call.keyword("default") or call.argument(1)
            is_required = call.keyword("required").value is True
            parameter = Parameter(
                name=name,
                head=f"--{name}=",
                is_required=is_required,
                default=default.scalar,
                help_text=(call.keyword("help") or call.argument(2)).text,
            )
            parameters.update({name: parameter} if name else {})
        elif last in ("mark_flag_as_required", "mark_flags_as_required"):
            for value in (one.value for one in call.arguments):
                required.update([value] if isinstance(value, str) else value if isinstance(value, list) else [])
    if parameters:
        known = parameters.values()
        yield Interface("absl", [replace(one, is_required=one.is_required or one.name in required) for one in known])


def find_config_flag(program: Program) -> str:
    """Return the flag that names a file of ml_collections; empty for none."""
    flags = (call.argument(0) or call.keyword("name") for call in program.calls if call.last == "DEFINE_config_file")
    return next((flag.text for flag in flags if flag.text), "")


# Functions that a decorator makes a command: click, typer, cyclopts


@dataclass(eq=False, slots=True)
class _Command:
    word: str
    interface: Interface
    is_owned: bool = False
    has_several: bool = False  # whether a command is named also where it is the only one

    def simplified(self) -> Interface:
        """Return an application whose only command is not named on the command line, as typer has it."""
        inner = list(self.interface.commands.values())
        is_alone = self.interface.style == "typer" and len(inner) == 1 and not self.has_several
        return inner[0] if is_alone and not inner[0].commands else self.interface


_CLICKS = ("click", "rich_click", "asyncclick")
_CYCLOPTS = Style(name="cyclopts", has_dashes=True)
_APPLICATIONS = {"typer.Typer": "typer", "typer.main.Typer": "typer", "cyclopts.App": "cyclopts"}


def read_commands(program: Program) -> Iterator[Interface]:
    """Yield the commands that decorators make, those of a group or an application below it."""
    commands: dict[int, _Command] = {}  # by the function of click, else by the call that made the application
    owners: list[tuple[Node, _Command]] = []
    for node in program.nodes:
        if node.is_a(Definition):
            made = [one for one in node.decorators if _is_click(one)]
            if made and id(node.node) not in commands:
                command = commands[id(node.node)] = _make_click(node, made[0])
                owners.append((made[0].owner, command))
            for decorator in node.decorators:
                _register(commands, decorator, node)
        elif node.is_a(ast.Call) and isinstance(node.node.func, ast.Call):  # app.command()(main)
            _register(commands, node.called, node.argument(0).find())
    for call in program.calls:
        if call.method in ("add_command", "add_typer") and (added := _add(commands, call)) is not None:
            owners.append((call.owner, added))
    for owner, command in owners:
        above = commands.get(id(owner.find().node)) if owner else None
        if above is not None:
            command.is_owned = True
            above.interface.commands[command.word] = command.interface
    yield from (command.simplified() for command in commands.values() if not command.is_owned)


def _add(commands: dict[int, _Command], call: Node) -> _Command | None:
    """Return the command that a call adds to the group or the application whose method it is; None for none."""
    command, is_click = commands.get(id(call.argument(0).find().node)), call.method == "add_command"
    word = (call.argument(1) if is_click else call.keyword("name")).text
    if command is None or not (is_click or word):
        return None
    if not is_click:
        above = call.owner.find()
        if above.name not in _APPLICATIONS:
            return None
        commands.setdefault(id(above.node), _Command("", Interface("typer"))).has_several = True
    command.word = word or command.word
    return command


def _is_click(decorator: Node) -> bool:
    """Return whether a decorator makes a command of click: its own, or a method of a group that click made."""
    first, _, last = decorator.name.rpartition(".")
    if last not in ("command", "group"):
        return False
    group = decorator.owner.find()
    if first in _CLICKS or group.name.endswith("click.Group"):
        return True
    return group.is_a(Definition) and any(map(_is_click, group.decorators))


def _make_click(function: Node, decorator: Node) -> _Command:
    word = next(iter(texts([decorator.argument(0), decorator.keyword("name")])), "")
    name = function.node.name.lower()
    # click 8.2: "the suffixes _command, _cmd, _group and _grp are removed from the name of the function".
    for suffix in ("_command", "_cmd", "_group", "_grp"):
        name = name.removesuffix(suffix)
    interface = Interface("click", list(_read_click_options(function.decorators)))
    interface.runs_alone = decorator.keyword("invoke_without_command").value is True
    return _Command(word or name.replace("_", "-"), interface)


def _read_click_options(decorators: Sequence[Node]) -> Iterator[Parameter]:
    for one in decorators:
        if one.is_a(ast.Call) and one.last in ("option", "argument"):
            parameter = _read_option(one, is_click=True, is_positional=one.last == "argument")
            yield from [] if parameter is None else [parameter]
        elif (shared := one.called.find()).is_a(ast.FunctionDef):  # options that several commands share
            yield from _read_click_options(
                [call for call in shared.descend(ast.Call) if call.last in ("option", "argument")]
            )


def _register(commands: dict[int, _Command], decorator: Node, function: Node) -> None:
    """Note what a decorator of typer or cyclopts adds to its application."""
    made = decorator.owner.find()
    name = _APPLICATIONS.get(made.name) if made.is_a(ast.Call) else None
    if name is None or decorator.method not in ("command", "callback", "default") or not function.is_a(ast.FunctionDef):
        return
    style = TYPER if name == "typer" else _CYCLOPTS
    command = commands.setdefault(id(made.node), _Command("", Interface(name)))
    parameters = spell_fields(style, list_fields(function))
    if decorator.method == "command":
        word = next(iter(texts([decorator.argument(0), decorator.keyword("name")])), "")
        command.interface.commands[word or function.node.name.lower().replace("_", "-")] = Interface(name, parameters)
    else:
        command.interface.parameters += parameters
    # cyclopts names each command; typer its only one where there is a callback.
    command.has_several |= decorator.method == "callback" or name == "cyclopts"
