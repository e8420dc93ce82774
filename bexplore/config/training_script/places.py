"""What a script takes without a parser: places of `sys.argv`, variables of the environment, names of a configurator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bexplore.config.training_script.declared import keyword, scalar, texts
from bexplore.config.training_script.help_text import read_help
from bexplore.config.training_script.parameters import Interface, Parameter
from bexplore.config.training_script.signatures import list_fields
from bexplore.config.training_script.source import Definition, Found, Module, Program

_DEEPEST = 3  # names that stand for `sys.argv`
_MOST_WORDS = 30  # behind a script that counts them itself
_WRAPPERS = ("int", "float", "str", "Path", "pathlib.Path", "os.path.abspath", "os.path.expanduser", "eval")


# sys.argv


def read_argv(program: Program) -> Iterator[Interface]:
    """Yield the words that a script takes by their number, named by what they are given to."""
    places: dict[int, Parameter] = {}
    named: dict[str, Parameter] = {}
    for module, node in program.walk():
        for option in _option_before(program, module, node):
            named[option] = Parameter(name=option.lstrip("-"), head=option)
        for number, name, expr in _argv_words(program, module, node):
            known = places.get(number)
            if known is None or not known.name or known.name.startswith("arg"):
                places[number] = _argv_parameter(program, module, expr, number, name)
    if max(places, default=0) <= _MOST_WORDS and (places or named):
        numbers = range(1, max(places, default=0) + 1)
        words = [places.get(one, Parameter(name=f"arg{one}", head="")) for one in numbers]
        yield Interface("sys.argv", [*words, *named.values()])


def _option_before(program: Program, module: Module, node: ast.AST) -> list[str]:
    """Return the option whose place gives that of its value: `sys.argv[sys.argv.index("--size") + 1]`."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "index" or not node.args:
        return []
    offset = _argv_offset(program, module, node.func.value)  # type: ignore[attr-defined]
    return texts(program, module, node.args[:1]) if offset is not None else []


def _argv_words(program: Program, module: Module, node: ast.AST) -> Iterator[tuple[int, str, ast.AST]]:
    if isinstance(node, ast.Subscript) and (offset := _argv_offset(program, module, node.value)) is not None:
        number = program.value(module, node.slice)
        if isinstance(number, int) and number + offset >= 1 and isinstance(node.ctx, ast.Load):
            yield number + offset, _name_of_value(program, module, node), node
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        value = node.value
        if isinstance(value, ast.Call) and program.name(module, value) == "map" and len(value.args) > 1:
            value = value.args[1]
        offset = _argv_offset(program, module, value)
        names = [one.id if isinstance(one, ast.Name) else "" for one in node.targets[0].elts]
        if offset is not None and all(names):
            yield from ((number, name, node) for number, name in enumerate(names, offset) if number >= 1)


def _argv_offset(program: Program, module: Module, expr: ast.AST, depth: int = 0) -> int | None:
    """Return the number in `sys.argv` of the first word of a list; None of another thing."""
    if program.name(module, expr) == "sys.argv" and not isinstance(expr, ast.Call):
        return 0
    if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Slice):
        before = _argv_offset(program, module, expr.value, depth)
        start = program.value(module, expr.slice.lower) if expr.slice.lower is not None else 0
        return before + start if before is not None and isinstance(start, int) and start >= 0 else None
    if isinstance(expr, ast.Name) and depth < _DEEPEST:
        offsets = [_argv_offset(program, one.module, one.node, depth + 1) for one in program.given(module, expr)]
        return next((one for one in offsets if one is not None), None)
    return None


def _argv_parameter(program: Program, module: Module, node: ast.AST, number: int, name: str) -> Parameter:
    default: Any = None
    is_optional = False
    inner = node
    words = ast.unparse(node.value) if isinstance(node, ast.Subscript) else "argv"
    for around in module.ancestors(node):
        if isinstance(around, ast.If | ast.IfExp) and inner is not around.test and words in ast.unparse(around.test):
            is_optional = True
            default = scalar(program, module, around.orelse) if isinstance(around, ast.IfExp) else None
        inner = around
    return Parameter(name=name or f"arg{number}", head="", is_required=not is_optional, default=default)


def _name_of_value(program: Program, module: Module, node: ast.AST) -> str:
    """Return the name that a value is given to: a variable, a key, an argument of a function; empty for none."""
    inner, index = node, 0
    for around in module.ancestors(node):
        if isinstance(around, ast.Tuple):
            index = around.elts.index(inner)  # type: ignore[arg-type]
        if isinstance(around, ast.Call) and program.name(module, around) not in _WRAPPERS:
            return _argument_name(program, module, around, inner)
        if isinstance(around, ast.keyword):
            return around.arg or ""
        if isinstance(around, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            target = around.targets[0] if isinstance(around, ast.Assign) else around.target
            return _target_name(target.elts[index] if isinstance(target, ast.Tuple) else target)
        if isinstance(around, ast.Dict) and inner in around.values:
            key = around.keys[around.values.index(inner)]
            return str(program.value(module, key)) if key is not None else ""
        if isinstance(around, ast.stmt):
            return ""
        inner = around
    return ""


def _argument_name(program: Program, module: Module, call: ast.Call, inner: ast.AST) -> str:
    found = program.find(module, call.func)
    if found is None or not isinstance(found.node, Definition) or inner not in call.args:
        return ""
    names = [field.name for field in list_fields(program, found)]
    index = call.args.index(inner)
    return names[index] if index < len(names) else ""


def _target_name(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return getattr(target, "id", "") or getattr(target, "attr", "")


# The environment


def read_variables(program: Program) -> list[Parameter]:
    """Return the variables of the environment that a program reads, those of pydantic's settings included."""
    found: dict[str, Parameter] = {}
    for module, node in program.walk():
        if isinstance(node, ast.ClassDef):
            for parameter in _settings(program, module, node):
                found.setdefault(parameter.name, parameter)
        for variable in _variables(program, module, node):
            found.setdefault(variable.name, variable)
    tested = {name for module, node in program.walk() for name in _tested_variables(program, module, node)}
    return [replace(one, is_required=one.is_required and name not in tested) for name, one in found.items()]


def _tested_variables(program: Program, module: Module, node: ast.AST) -> list[str]:
    """Return the variables that a program reads only where they are there: `if "RANK" in os.environ`."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.In | ast.NotIn):
        return []
    is_tested = program.name(module, node.comparators[0]) == "os.environ"
    return texts(program, module, [node.left]) if is_tested else []


def _variables(program: Program, module: Module, node: ast.AST) -> Iterator[Parameter]:
    """Yield the variable that an expression reads; of a function that is given the name, those of its calls."""
    name: ast.expr | None = None
    default: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        name = node.slice if _is_environment(program, module, node.value) else None
    elif isinstance(node, ast.Call) and node.args:
        owner = node.func.value if getattr(node.func, "attr", "") == "get" else None  # type: ignore[attr-defined]
        if program.name(module, node) == "os.getenv" or (owner and _is_environment(program, module, owner)):
            name = node.args[0]
            default = node.args[1] if len(node.args) > 1 else keyword(node, "default")
    if name is None:
        return
    is_handed = isinstance(name, ast.Name) and name.id not in module.values
    places = program.given(module, name) if isinstance(name, ast.Name) and is_handed else [Found(module, name)]
    for place in places:
        for text in texts(program, place.module, [place.node] if isinstance(place.node, ast.expr) else []):
            value = scalar(program, module, default)
            is_required = isinstance(node, ast.Subscript)
            yield Parameter(name=text, head="", is_required=is_required, default=value, is_variable=True)


def _is_environment(program: Program, module: Module, expr: ast.expr) -> bool:
    if program.name(module, expr) == "os.environ":
        return True
    found = program.find(module, expr)
    return found is not None and program.name(found.module, found.node) == "os.environ"


def _settings(program: Program, module: Module, node: ast.ClassDef) -> Iterator[Parameter]:
    """Yield the variables of a class of pydantic-settings: the fields in capitals, behind its prefix."""
    if not any(program.name(module, base).split(".")[-1] == "BaseSettings" for base in node.bases):
        return
    prefixes = [keyword(one, "env_prefix") for one in ast.walk(node) if isinstance(one, ast.Call)]
    prefix = next(iter(texts(program, module, [one for one in prefixes if one is not None])), "")
    for field in list_fields(program, Found(module, node)):
        default = scalar(program, module, field.default)
        name = f"{prefix}{field.name}".upper()
        yield Parameter(name=name, head="", is_required=field.default is None, default=default, is_variable=True)


# Texts and functions that name the parameters: docopt, sacred


def read_docopt(program: Program) -> Iterator[Interface]:
    """Yield the options that the text at the top of a script describes to `docopt`."""
    calls = (program.name(program.main, node) for _, node in program.walk() if isinstance(node, ast.Call))
    if any(name.split(".")[-1] == "docopt" for name in calls):
        yield replace(read_help(ast.get_docstring(program.main.tree) or ""), style="docopt")


def read_sacred(program: Program) -> Iterator[Interface]:
    """Yield the names that functions with `@experiment.config` give values, which stand behind the word `with`."""
    own: list[Parameter] = []
    for module, node in program.walk():
        if isinstance(node, ast.FunctionDef):
            names = [program.name(module, one) for one in node.decorator_list if not isinstance(one, ast.Call)]
            if any(name.split(".")[-1] == "config" for name in names):
                values = {
                    name: one.value
                    for one in node.body
                    if isinstance(one, ast.Assign)
                    for name in map(_target_name, one.targets)
                }
                own += [
                    Parameter(name=name, head=f"{name}=", default=scalar(program, module, value))
                    for name, value in values.items()
                ]
    if own:
        yield Interface("sacred", [], {"with": Interface("sacred", own)})


# nanoGPT's configurator


def read_configurator(program: Program) -> Iterator[Interface]:
    """Yield the names at the top of a script that `exec(open("configurator.py").read())` sets from the command line."""
    calls = (node for _, node in program.walk() if isinstance(node, ast.Call))
    if not any(program.name(program.main, call) == "exec" and "configurator" in ast.unparse(call) for call in calls):
        return
    values = {name: scalar(program, program.main, expr) for name, expr in program.main.values.items()}
    own = [(name, value) for name, value in values.items() if value is not None and not name.startswith("_")]
    yield Interface("configurator", [Parameter(name=name, head=f"--{name}=", default=value) for name, value in own])
