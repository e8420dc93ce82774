"""What a script takes without a parser: places of `sys.argv`, variables of the environment, names of a configurator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from bexplore.config.training_script.fields import list_fields
from bexplore.config.training_script.help_text import read_help
from bexplore.config.training_script.parameters import Interface, Parameter, rank
from bexplore.config.training_script.source import Definition, Node, Program, name_target, texts

_DEEPEST = 3  # names that stand for `sys.argv`
_MOST_WORDS = 30  # behind a script that counts them itself
_WRAPPERS = ("int", "float", "str", "Path", "pathlib.Path", "os.path.abspath", "os.path.expanduser", "eval")


# sys.argv


def read_argv(program: Program) -> Iterator[Interface]:
    """Yield the words that a script takes by their number, named by what they are given to."""
    places: dict[int, Parameter] = {}
    named: list[Parameter] = []
    for node in program.select(ast.Call, ast.Subscript, ast.Assign):
        # The option whose place gives that of its value: `sys.argv[sys.argv.index("--size") + 1]`.
        if node.method == "index" and node.is_a(ast.Call) and _find_offset(node.owner) is not None:
            named += [Parameter(name=one.lstrip("-"), head=one) for one in texts([node.argument(0)])]
        for number, name in _read_words(node):
            known = places.get(number)
            if known is None or known.name.startswith("arg"):
                places[number] = _read_word(node, number, name)
    last = max(places, default=0)
    if last <= _MOST_WORDS and (places or named):
        words = [places.get(one, Parameter(name=f"arg{one}", head="")) for one in range(1, last + 1)]
        yield Interface("sys.argv", [*words, *{one.head: one for one in named}.values()])


def _read_words(node: Node) -> Iterator[tuple[int, str]]:
    """Yield the number and the name of each word that an expression or an assignment takes."""
    if node.is_a(ast.Subscript) and (offset := _find_offset(node.at(node.node.value))) is not None:
        number = node.at(node.node.slice).value
        if isinstance(number, int) and number + offset >= 1 and isinstance(node.node.ctx, ast.Load):
            yield number + offset, _name_value(node)
    elif node.is_a(ast.Assign) and isinstance(node.node.targets[0], ast.Tuple):
        value = node.at(node.node.value)
        if value.is_a(ast.Call) and value.name == "map":
            value = value.argument(1)
        offset = _find_offset(value)
        names = [one.id if isinstance(one, ast.Name) else "" for one in node.node.targets[0].elts]
        if offset is not None and all(names):
            yield from ((number, name) for number, name in enumerate(names, offset) if number >= 1)


def _find_offset(expr: Node, depth: int = 0) -> int | None:
    """Return the number in `sys.argv` of the first word of a list; None of another thing."""
    if expr.name == "sys.argv" and not expr.is_a(ast.Call):
        return 0
    if expr.is_a(ast.Subscript) and isinstance(expr.node.slice, ast.Slice):
        before = _find_offset(expr.at(expr.node.value), depth)
        start = expr.at(expr.node.slice.lower).value if expr.node.slice.lower is not None else 0
        return before + start if before is not None and isinstance(start, int) and start >= 0 else None
    given = expr.given() if expr.is_a(ast.Name) and depth < _DEEPEST else []
    return next((offset for one in given if (offset := _find_offset(one, depth + 1)) is not None), None)


def _read_word(node: Node, number: int, name: str) -> Parameter:
    """Return the word at a place; it may be left out where a condition on the number of words is around it."""
    is_optional, default, inner = False, None, node
    words = ast.unparse(node.node.value) if node.is_a(ast.Subscript) else "argv"
    for around in node.ancestors():
        test = around.at(around.node.test if around.is_a(ast.If, ast.IfExp) else None)
        if test and inner.node is not test.node and words in test.unparse():
            is_optional = True
            default = around.at(around.node.orelse).scalar if around.is_a(ast.IfExp) else None
        inner = around
    return Parameter(name=name or f"arg{number}", head="", is_required=not is_optional, default=default)


def _name_value(node: Node) -> str:
    """Return the name that a value is given to: a variable, a key, an argument of a function; empty for none."""
    inner, index = node.node, 0
    for around in node.ancestors():
        own = around.node
        if isinstance(own, ast.Tuple):
            index = own.elts.index(inner)
        if isinstance(own, ast.Call) and around.name not in _WRAPPERS:
            return _name_argument(around, inner)
        if isinstance(own, ast.keyword):
            return own.arg or ""
        if isinstance(own, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            target = own.targets[0] if isinstance(own, ast.Assign) else own.target
            return name_target(target.elts[index] if isinstance(target, ast.Tuple) else target)
        if isinstance(own, ast.Dict) and inner in own.values:
            key = own.keys[own.values.index(inner)]
            return "" if key is None else str(around.at(key).value)
        if isinstance(own, ast.stmt):
            return ""
        inner = own
    return ""


def _name_argument(call: Node, inner: ast.AST) -> str:
    found = call.called.find()
    if not found.is_a(Definition) or inner not in call.node.args:
        return ""
    return dict(enumerate(field.name for field in list_fields(found))).get(call.node.args.index(inner), "")


# The environment


def read_variables(program: Program) -> list[Parameter]:
    """Return the variables of the environment that a program reads, those of pydantic's settings included.

    One that a condition looks for, `if "RANK" in os.environ`, is not required.
    """
    found: dict[str, Parameter] = {}
    tested: set[str] = set()
    for node in program.select(ast.ClassDef, ast.Subscript, ast.Call, ast.Compare):
        if node.is_a(ast.Compare):
            is_membership = isinstance(node.node.ops[0], ast.In | ast.NotIn)
            if is_membership and node.at(node.node.comparators[0]).name == "os.environ":
                tested.update(texts([node.at(node.node.left)]))
            continue
        for one in _read_settings(node) if node.is_a(ast.ClassDef) else read_variable(node):
            found.setdefault(one.name, one)
    return [replace(one, is_required=one.is_required and name not in tested) for name, one in found.items()]


def read_variable(node: Node) -> Iterator[Parameter]:
    """Yield the variable that an expression reads; of a function that is given the name, those of its calls."""
    is_required, default = node.is_a(ast.Subscript), node.at(None)
    if is_required and isinstance(node.node.ctx, ast.Load) and _is_environment(node.at(node.node.value)):
        name = node.at(node.node.slice)
    elif node.name == "os.getenv" or (node.method == "get" and node.is_a(ast.Call) and _is_environment(node.owner)):
        name, default = node.argument(0), node.argument(1) or node.keyword("default")
        is_required = not default and next(node.ancestors()).name in ("int", "float")  # `int(None)` is an error
    else:
        return
    is_handed = name.is_a(ast.Name) and name.node.id not in name.module.values
    for text in texts([one for one in name.given() if one.is_a(ast.expr)] if is_handed else [name]):
        yield Parameter(
            name=text,
            head="",
            is_required=is_required,
            default=default.scalar,
            is_variable=True,
            given_to=_name_value(node),
        )


def divides_by_accumulation(program: Program) -> bool:
    """Return whether a program takes the batch of a step as its size: `batch_size // gradient_accumulation_steps`."""
    for node in program.select(ast.BinOp):
        if isinstance(node.node.op, ast.FloorDiv | ast.Div):
            size, accumulation = node.at(node.node.left).last, node.at(node.node.right).last
            if rank(size, "micro_batch_size") is not None and rank(accumulation, "accumulation") is not None:
                return True
    return False


def _is_environment(expr: Node) -> bool:
    return "os.environ" in (expr.name, expr.find().name)


def _read_settings(node: Node) -> Iterator[Parameter]:
    """Yield the variables of a class of pydantic-settings: the fields in capitals, behind its prefix."""
    if not any(base.last == "BaseSettings" for base in node.each(node.node.bases)):
        return
    prefix = next(iter(texts([one.keyword("env_prefix") for one in node.descend(ast.Call)])), "")
    for field in list_fields(node):
        name, is_required = f"{prefix}{field.name}".upper(), not field.default
        default = field.default.scalar
        yield Parameter(name=name, head="", is_required=is_required, default=default, is_variable=True)


# Texts, functions and names at the top that say what the parameters are: docopt, sacred, nanoGPT's configurator


def read_docopt(program: Program) -> Iterator[Interface]:
    """Yield the options that the text at the top of a script describes to `docopt`."""
    if any(call.last == "docopt" for call in program.calls):
        yield replace(read_help(ast.get_docstring(program.main.tree) or ""), style="docopt")


def read_sacred(program: Program) -> Iterator[Interface]:
    """Yield the names that functions with `@experiment.config` give values, which stand behind the word `with`."""
    own: list[Parameter] = []
    for function in program.select(ast.FunctionDef):
        if any(one.last == "config" and not one.is_a(ast.Call) for one in function.decorators):
            statements = [one for one in function.node.body if isinstance(one, ast.Assign)]
            values = {name_target(target): one.value for one in statements for target in one.targets}
            own += [_make_assigned(name, "", function.at(value)) for name, value in values.items()]
    if own:
        yield Interface("sacred", [], {"with": Interface("sacred", own)})


def read_configurator(program: Program) -> Iterator[Interface]:
    """Yield the names at the top of a script that `exec(open("configurator.py").read())` sets from the command line."""
    if any(call.name == "exec" and "configurator" in call.unparse() for call in program.calls):
        main = Node(program, program.main, None)
        own = [_make_assigned(name, "--", main.at(expr)) for name, expr in program.main.values.items()]
        known = [one for one in own if one.default is not None and not one.name.startswith("_")]
        yield Interface("configurator", known)


def _make_assigned(name: str, prefix: str, value: Node) -> Parameter:
    return Parameter(name=name, head=f"{prefix}{name}=", default=value.scalar)
