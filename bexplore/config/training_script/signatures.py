"""Options that a library makes of a function's arguments or of a class's fields.

typer, fire, tyro, transformers' HfArgumentParser, jsonargparse and what is made like them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bexplore.config.training_script.declared import keyword, scalar, texts
from bexplore.config.training_script.parameters import Interface, Parameter
from bexplore.config.training_script.source import Definition, Found, Module, Program

_DEEPEST = 6  # classes as fields of classes
_TRAINING_ARGUMENTS = {"per_device_train_batch_size": 8, "output_dir": None, "gradient_accumulation_steps": 1}
_TRL_SCRIPTS = ("ModelConfig", "ScriptArguments")  # of trl, which are no training arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a library spells the arguments of a function."""

    name: str  # of the library
    has_dashes: bool = False  # whether `_` in a name becomes `-`
    is_assigned: bool = False  # whether it is `name=value` in one word
    prefix: str = "--"  # before the name
    is_nested: bool = True  # whether fields of a class get the name of the argument before theirs
    required_is_positional: bool = False  # whether an argument without a default has its place as its name

    def parameter(self, name: str, field: _Field, default: Any, *, is_required: bool) -> Parameter:
        """Return a field as the command line takes it."""
        spelt = name.replace("_", "-") if self.has_dashes else name
        head = "" if is_required and self.required_is_positional and "." not in name else f"{self.prefix}{spelt}"
        head += "=" if head and self.is_assigned else ""
        return Parameter(name=name, head=head, is_required=is_required, default=default, choices=field.choices)


_TYPER = Style(name="typer", has_dashes=True, required_is_positional=True)
_FIRE = Style(name="fire", is_nested=False, is_assigned=True)
_TYRO = Style(name="tyro", has_dashes=True)
_JSONARGPARSE = Style(name="jsonargparse", required_is_positional=True)
DATACLASSES = "HfArgumentParser"  # the style of what reads the fields of classes
_HF = Style(name=DATACLASSES)
# The function that reads the command line, by its dotted name -> how it spells what it is given.
_CALLS = {
    "typer.run": _TYPER,
    "fire.Fire": _FIRE,
    "fire.core.Fire": _FIRE,
    "tyro.cli": _TYRO,
    "tyro.extras.subcommand_cli_from_dict": _TYRO,
    "cyclopts.run": Style(name="cyclopts", has_dashes=True),
    "defopt.run": Style(name="defopt", has_dashes=True, required_is_positional=True),
    "simple_parsing.parse": Style(name="simple_parsing", is_nested=False),
    "draccus.parse": Style(name="draccus"),
    "pyrallis.parse": Style(name="pyrallis"),
    "pydantic_settings.CliApp.run": Style(name="pydantic-settings"),
    "chz.entrypoint": Style(name="chz", is_assigned=True, prefix=""),
    "chz.nested_entrypoint": Style(name="chz", is_assigned=True, prefix=""),
}
# Methods of jsonargparse's parser: what it is, the key before its names.
_ADDED_WITH_KEY = ("add_class_arguments", "add_dataclass_arguments", "add_function_arguments")
# By the last part of it alone: projects wrap these.
_CALLS_BY_LAST = {"CLI": _JSONARGPARSE, "auto_cli": _JSONARGPARSE}
_WRAPPERS = {"draccus.wrap": _CALLS["draccus.parse"], "pyrallis.wrap": _CALLS["pyrallis.parse"]}


# Arguments of functions, fields of classes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    module: Module
    annotation: ast.expr | None
    default: ast.expr | None
    is_init: bool = True
    choices: tuple[str, ...] = ()


def list_fields(program: Program, found: Found, depth: int = 0) -> list[_Field]:
    """Return the arguments of a function, or of a class what it is made with."""
    if isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _arguments(found.module, found.node)
    assert isinstance(found.node, ast.ClassDef)
    own = {one.name: one for one in found.node.body if isinstance(one, ast.FunctionDef)}
    if "__init__" in own:
        return _arguments(found.module, own["__init__"])[1:]
    fields: dict[str, _Field] = {}
    for base in found.node.bases:
        above = program.find_class(found.module, base)
        if above is not None and depth < _DEEPEST:
            fields.update({one.name: one for one in list_fields(program, above, depth + 1)})
        elif _is_training_arguments(program.name(found.module, base)):
            fields.update({one.name: one for one in _training_fields(found.module)})
    for statement in found.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            one = _class_field(program, found.module, statement.target.id, statement)
            fields.update({one.name: one} if one is not None else {})
    return list(fields.values())


def _arguments(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[_Field]:
    given = function.args
    places = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    named = zip([*places, *given.kwonlyargs], [*defaults, *given.kw_defaults], strict=True)
    return [_Field(name=one.arg, module=module, annotation=one.annotation, default=default) for one, default in named]


def _class_field(program: Program, module: Module, name: str, statement: ast.AnnAssign) -> _Field | None:
    annotation, default = statement.annotation, statement.value
    if "ClassVar" in ast.unparse(annotation) or name.startswith("_") or name == "model_config":
        return None
    if isinstance(default, ast.Call) and program.name(module, default).split(".")[-1] in ("field", "Field", "HfArg"):
        if program.value(module, keyword(default, "init")) is False:
            return None
        given = keyword(default, "default", "default_factory") or next(iter(default.args), None)
        is_missing = given is None or program.value(module, given) is Ellipsis
        default = None if is_missing else given
    if program.name(module, default).split(".")[-1] == "MISSING":  # of omegaconf
        default = None
    choices = _literal_choices(program, module, annotation)
    return _Field(name=name, module=module, annotation=annotation, default=default, choices=choices)


def _literal_choices(program: Program, module: Module, annotation: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(annotation, ast.Subscript) or program.name(module, annotation.value).split(".")[-1] != "Literal":
        return ()
    values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return tuple(texts(program, module, values))


def _is_training_arguments(name: str) -> bool:
    first, _, last = name.rpartition(".")
    is_of_trl = first.split(".")[0] == "trl" and last.endswith("Config") and last not in _TRL_SCRIPTS
    return last.endswith("TrainingArguments") or is_of_trl


def _training_fields(module: Module) -> list[_Field]:
    values = _TRAINING_ARGUMENTS.items()
    return [
        _Field(name=name, module=module, annotation=None, default=ast.Constant(default)) for name, default in values
    ]


def spell_fields(
    program: Program, style: Style, fields: list[_Field], before: str = "", depth: int = 0
) -> list[Parameter]:
    """Return fields as a library's command line takes them, those of a class in a field included."""
    parameters = []
    for field in fields:
        name = f"{before}{field.name}"
        inner = program.find_class(field.module, field.annotation)
        if inner is not None and depth < _DEEPEST and _is_record(inner):
            below = f"{name}." if style.is_nested else ""
            parameters += spell_fields(program, style, list_fields(program, inner), below, depth + 1)
            continue
        default = scalar(program, field.module, field.default)
        is_flag = isinstance(default, bool) or getattr(field.annotation, "id", "") == "bool"
        if not is_flag or field.default is None:
            parameter = style.parameter(name, field, default, is_required=field.default is None)
            is_positional = field.annotation is not None and "Positional" in ast.unparse(field.annotation)  # of tyro
            parameters.append(replace(parameter, head="") if is_positional else parameter)
    return parameters


def _is_record(found: Found) -> bool:
    """Return whether a class has fields, and is no enumeration."""
    assert isinstance(found.node, ast.ClassDef)
    bases = " ".join(ast.unparse(base) for base in found.node.bases)
    return "Enum" not in bases and any(isinstance(one, ast.AnnAssign) for one in found.node.body)


# One call that reads the command line into a function or a class


def read_calls(program: Program) -> Iterator[Interface]:
    """Yield what `fire.Fire(train)`, `tyro.cli(Config)` and their like take."""
    for module, node in program.walk():
        if isinstance(node, ast.Call):
            name = program.name(module, node)
            style = _CALLS.get(name) or _CALLS_BY_LAST.get(name.split(".")[-1])
            if style is not None:
                target = next(iter(node.args), None) or keyword(node, "component", "f", "config_class", "components")
                yield from _component(program, style, module, target)
        elif isinstance(node, ast.FunctionDef):
            styles = [_WRAPPERS.get(program.name(module, one)) for one in node.decorator_list]
            style = next((one for one in styles if one is not None), None)
            if style is not None and node.args.args:
                yield from _component(program, style, module, node.args.args[0].annotation)


def _component(program: Program, style: Style, module: Module, target: ast.expr | None) -> Iterator[Interface]:
    if target is None:  # all of the script
        functions = [
            (name, Found(program.main, node))
            for name, node in program.main.definitions.items()
            if isinstance(node, ast.FunctionDef) and program.main.parents.get(id(node)) is program.main.tree
        ]
        yield _of_several(program, style, functions)
        return
    value = program.find(module, target)
    node = value.node if value is not None else target
    module = value.module if value is not None else module
    if isinstance(node, ast.Dict):
        words = [program.value(module, key) for key in node.keys]
        pairs = [(str(word), program.find(module, one)) for word, one in zip(words, node.values, strict=True)]
        yield _of_several(program, style, [(word, found) for word, found in pairs if found is not None])
    elif isinstance(node, ast.List | ast.Tuple):
        found = [program.find(module, one) for one in node.elts]
        yield _of_several(program, style, [(getattr(one.node, "name", ""), one) for one in found if one is not None])
    elif style is _TYRO and (kinds := _union(program, module, node)):
        words = [(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", ast.unparse(kind)).lower(), kind) for kind in kinds]
        pairs = [(word, program.find(module, kind)) for word, kind in words]
        yield _of_several(program, style, [(word, found) for word, found in pairs if found is not None])
    elif isinstance(node, ast.Call) and (made := program.find_class(module, node)) is not None:
        yield Interface(style.name, [], _methods(program, style, made))
    elif isinstance(node, Definition):
        yield _of_one(program, style, Found(module, node))
    elif isinstance(node, ast.Attribute) and (made := program.find_class(module, node.value)) is not None:
        method = _methods(program, style, made).get(node.attr)  # Fire(Trainer().train)
        yield from [] if method is None else [method]


def _union(program: Program, module: Module, node: ast.AST) -> list[ast.expr]:
    """Return the members of `A | B` and of `Union[A, B]`; none of another expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*(_union(program, module, node.left) or [node.left]), node.right]
    is_union = isinstance(node, ast.Subscript) and program.name(module, node.value).split(".")[-1] == "Union"
    return node.slice.elts if is_union and isinstance(node.slice, ast.Tuple) else []  # type: ignore[attr-defined]


def _of_several(program: Program, style: Style, functions: list[tuple[str, Found]]) -> Interface:
    commands = {name: _of_one(program, style, one) for name, one in functions if isinstance(one.node, Definition)}
    if style is _JSONARGPARSE and len(commands) == 1:  # the only one is not named
        return next(iter(commands.values()))
    return Interface(style.name, [], commands)


def _of_one(program: Program, style: Style, found: Found) -> Interface:
    if style is _TYPER:
        return Interface(style.name, typer_parameters(program, found))
    interface = Interface(style.name, spell_fields(program, style, list_fields(program, found)))
    if isinstance(found.node, ast.ClassDef) and style in (_FIRE, _JSONARGPARSE) and not _is_record(found):
        interface.commands = _methods(program, style, found)
    return interface


def _methods(program: Program, style: Style, found: Found) -> dict[str, Interface]:
    assert isinstance(found.node, ast.ClassDef)
    methods = [one for one in found.node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    return {
        one.name: Interface(style.name, spell_fields(program, style, _arguments(found.module, one)[1:]))
        for one in methods
    }


# transformers, simple_parsing and typed-argument-parser


def read_dataclasses(program: Program) -> Iterator[Interface]:
    """Yield the fields of the classes that HfArgumentParser, TrlParser, simple_parsing and Tap read."""
    fields: list[Parameter] = []
    for module, node in program.walk():
        if isinstance(node, ast.Call):
            last = program.name(module, node).split(".")[-1]
            if last in ("HfArgumentParser", "TrlParser", "H4ArgumentParser"):
                given = next(iter(node.args), None) or keyword(node, "dataclass_types")
                fields += _hf_fields(program, module, given)
            elif last in _ADDED_WITH_KEY and node.args and (found := program.find(module, node.args[0])):
                keys = texts(program, module, node.args[1:2]) or texts(
                    program, module, [one.value for one in node.keywords]
                )
                before = f"{keys[0]}." if keys else ""
                if isinstance(found.node, Definition):
                    fields += spell_fields(program, _HF, list_fields(program, found), before)
            elif last == "add_arguments" and node.args and (found := program.find_class(module, node.args[0])):
                fields += spell_fields(program, replace(_HF, is_nested=False), list_fields(program, found))
        elif isinstance(node, ast.ClassDef):
            bases = [program.name(module, base) for base in node.bases]
            if {"tap.Tap", "tap.TypedArgs"} & set(bases):
                fields += spell_fields(program, _HF, list_fields(program, Found(module, node)))
    if fields:
        yield Interface(_HF.name, fields)


def _hf_fields(program: Program, module: Module, given: ast.expr | None) -> Iterator[Parameter]:
    found = program.find(module, given)
    if found is not None and isinstance(found.node, ast.List | ast.Tuple):
        module, given = found.module, found.node
    for one in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
        own = program.find_class(module, one)
        if own is not None:
            yield from spell_fields(program, _HF, list_fields(program, own))
        elif _is_training_arguments(program.name(module, one)):
            yield from spell_fields(program, _HF, _training_fields(module))


# typer and cyclopts: functions with a decorator of an application


def read_applications(program: Program) -> Iterator[Interface]:
    """Yield the commands that are registered at a `typer.Typer` or a `cyclopts.App`."""
    applications: dict[int, tuple[Interface, bool]] = {}
    for module, node in program.walk():
        if isinstance(node, Definition):
            for decorator in node.decorator_list:
                _register(program, module, decorator, Found(module, node), applications)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call):  # app.command()(main)
            found = program.find(module, next(iter(node.args), None))
            if found is not None:
                _register(program, module, node.func, found, applications)
    owned = set()
    for module, node in program.walk():
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_typer" and node.args:
            owned.add(_attach(program, module, node, applications))
    for key, (interface, has_several) in applications.items():
        if key not in owned:
            yield _without_single_command(interface, has_several=has_several)


def _attach(
    program: Program, module: Module, call: ast.Call, applications: dict[int, tuple[Interface, bool]]
) -> int | None:
    """Make an application the command of another; return the key of the former."""
    assert isinstance(call.func, ast.Attribute)
    above, below = _application(program, module, call.func.value), _application(program, module, call.args[0])
    words = texts(program, module, [one for one in [keyword(call, "name")] if one is not None])
    if above is None or below is None or not words or id(below.node) not in applications:
        return None
    interface, _ = applications.get(id(above.node), (Interface("typer"), True))
    interface.commands[words[0]] = applications[id(below.node)][0]
    applications[id(above.node)] = (interface, True)
    return id(below.node)


def _without_single_command(interface: Interface, *, has_several: bool) -> Interface:
    """Return an application whose only command is not named on the command line, as typer has it."""
    commands = list(interface.commands.values())
    return commands[0] if len(commands) == 1 and not has_several and not commands[0].commands else interface


def _application(program: Program, module: Module, expr: ast.expr) -> Found | None:
    found = program.find(module, expr)
    is_made = found is not None and program.name(found.module, found.node) in (
        "typer.Typer",
        "cyclopts.App",
        "typer.main.Typer",
    )
    return found if is_made and isinstance(found.node, ast.Call) else None  # type: ignore[union-attr]


def _register(
    program: Program,
    module: Module,
    decorator: ast.expr,
    function: Found,
    applications: dict[int, tuple[Interface, bool]],
) -> None:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(called, ast.Attribute) or called.attr not in ("command", "callback", "default"):
        return
    found = _application(program, module, called.value)
    if found is None or not isinstance(function.node, ast.FunctionDef):
        return
    is_typer = "yper" in program.name(found.module, found.node)
    interface, has_several = applications.get(id(found.node), (Interface("typer" if is_typer else "cyclopts"), False))
    parameters = (
        typer_parameters(program, function)
        if is_typer
        else spell_fields(program, _CALLS["cyclopts.run"], list_fields(program, function))
    )
    if called.attr == "command":
        given = [*decorator.args[:1], keyword(decorator, "name")] if isinstance(decorator, ast.Call) else []
        words = texts(program, module, [one for one in given if one is not None])
        word = words[0] if words else function.node.name.lower().replace("_", "-")
        interface.commands[word] = Interface(interface.style, parameters)
    else:
        interface.parameters += parameters
    # cyclopts names each command; typer its only one where there is a callback.
    applications[id(found.node)] = (interface, has_several or called.attr == "callback" or not is_typer)


def typer_parameters(program: Program, function: Found) -> list[Parameter]:
    """Return the arguments of a function as typer takes them, by `Option`, `Argument` and `Annotated`."""
    parameters = []
    for field in list_fields(program, function):
        annotation = ast.unparse(field.annotation) if field.annotation is not None else ""
        if annotation.endswith("Context"):
            continue
        described = _typer_description(program, field)
        last = program.name(field.module, described).split(".")[-1] if described is not None else ""
        default = field.default
        if described is not None and described is field.default:
            default = keyword(described, "default") or next(iter(described.args), None)
        is_required = default is None or program.value(field.module, default) is Ellipsis
        value = scalar(program, field.module, default)
        is_flag = isinstance(value, bool) or annotation.partition("[")[2].startswith("bool") or annotation == "bool"
        if is_flag and not is_required:
            continue
        flags = [
            one for one in texts(program, field.module, described.args if described else []) if one.startswith("-")
        ]
        flag = next((one for one in flags if one.startswith("--")), next(iter(flags), ""))
        is_positional = last == "Argument" or (is_required and last != "Option")
        head = "" if is_positional else flag or f"--{field.name.replace('_', '-')}"
        parameters.append(
            Parameter(name=field.name, head=head, is_required=is_required, default=value, choices=field.choices)
        )
    return parameters


def _typer_description(program: Program, field: _Field) -> ast.Call | None:
    """Return the call of `Option` or `Argument` that describes an argument: its default, or in its annotation."""
    inner = (
        [one for one in ast.walk(field.annotation) if isinstance(one, ast.Call)] if field.annotation is not None else []
    )
    for one in [field.default, *inner]:
        if isinstance(one, ast.Call) and program.name(field.module, one).split(".")[-1] in ("Option", "Argument"):
            return one
    return None
