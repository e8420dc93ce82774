"""The modules of a training script, read and not run: what names mean in them, and what a start of it may reach.

An import is followed to files beside the script, in the current folder, in that of the project, and in the `src` of
both; never to installed packages.
"""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bexplore.config import document
from bexplore.errors import UserInputError

MAX_MODULES = 80  # of one program, the nearest first; timm's train.py reaches 200 and its options lie in the first
_DEEPEST = 8  # names that stand for names, imports that hand on imports
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_OF_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", ".git")  # what lies at the top of a project
UNKNOWN = object()  # the value of an expression that is no literal


@dataclass(eq=False, slots=True)
class Module:
    """A file of the program."""

    path: Path  # as it is shown to people
    tree: ast.Module  # its syntax
    # Local name -> (module as it is written, with a dot for each level, name in it; None for the module).
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    # Functions and classes at its top, also under `if` and `try`, and in functions.
    definitions: dict[str, Definition] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)  # name -> the expression that its top gives it last
    parents: dict[int, ast.AST] = field(default_factory=dict)  # node -> the node around it, by `id`


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a program: an expression, a statement or a definition, and the module in which it stands."""

    program: Program
    module: Module
    node: Any  # a node of the syntax; None for what is not there

    def __bool__(self) -> bool:
        return self.node is not None

    def at(self, node: Any) -> Node:
        """Return another part of the same module."""
        return Node(self.program, self.module, node)

    def is_a(self, *kinds: Any) -> bool:
        """Return whether it is of one of these kinds of syntax."""
        return isinstance(self.node, kinds)

    # What it means

    @property
    def name(self) -> str:
        """The dotted name, through imports: `argparse.ArgumentParser`; of a call that of what is called; or empty."""
        expr = self.node.func if self.is_a(ast.Call) else self.node
        if isinstance(expr, ast.Attribute):
            before = self.at(expr.value).name
            return f"{before}.{expr.attr}" if before else expr.attr
        if not isinstance(expr, ast.Name):
            return ""
        return ".".join(part for part in self.module.imports.get(expr.id, (expr.id, None)) if part)

    @property
    def last(self) -> str:
        """The last part of the dotted name."""
        return self.name.rpartition(".")[2]

    def find(self) -> Node:
        """Return what a name or a dotted name stands for in the program's own modules."""
        return self.program.find(self)

    def find_class(self) -> Node:
        """Return the class that an annotation or a call names, through `Optional[X]`, `Annotated[X, ...]` and `X()`."""
        expr = self.node
        if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
            expr = _parse_expression(expr.value)
        if isinstance(expr, ast.Subscript) and self.at(expr.value).last in ("Optional", "Annotated"):
            expr = expr.slice.elts[0] if isinstance(expr.slice, ast.Tuple) and expr.slice.elts else expr.slice
        found = self.at(expr.func if isinstance(expr, ast.Call) else expr).find()
        return found if found.is_a(ast.ClassDef) else self.at(None)

    def given(self) -> list[Node]:
        """Return what a name stands for where it is used: its last value before that, or what calls give to it."""
        return self.program.given(self)

    @property
    def value(self) -> Any:
        """The value of a literal, or of a name that has one; UNKNOWN otherwise."""
        found = self
        for _ in range(_DEEPEST + 1):
            try:
                return ast.literal_eval(found.node) if found else UNKNOWN
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                found = found.find()
            if found.is_a(Definition):
                return UNKNOWN
        return UNKNOWN

    @property
    def scalar(self) -> Any:
        """The number, text or flag that it is; None for all else."""
        value = self.value
        return value if isinstance(value, int | float | str) else None

    @property
    def text(self) -> str:
        """The text that it is; empty for all else."""
        value = self.value
        return value if isinstance(value, str) else ""

    # Its parts and what is around it

    def each(self, nodes: Sequence[Any]) -> list[Node]:
        """Return parts of the same module."""
        return [self.at(node) for node in nodes]

    @property
    def called(self) -> Node:
        """What a call calls, or the expression itself: a decorator is written both ways."""
        return self.at(self.node.func if self.is_a(ast.Call) else self.node)

    @property
    def owner(self) -> Node:
        """The `x` of `x.method` and `x.method()`."""
        function = self.called.node
        return self.at(function.value if isinstance(function, ast.Attribute) else None)

    @property
    def method(self) -> str:
        """The `method` of `x.method` and `x.method()`; empty for none."""
        return str(getattr(self.called.node, "attr", ""))

    @property
    def arguments(self) -> list[Node]:
        """The arguments of a call that have no name."""
        return self.each(self.node.args if self.is_a(ast.Call) else [])

    def argument(self, number: int) -> Node:
        """Return an argument of a call by its number."""
        given = self.arguments
        return given[number] if number < len(given) else self.at(None)

    def keyword(self, *names: str) -> Node:
        """Return the value of the first of these keywords that a call has."""
        given = {one.arg: one.value for one in self.node.keywords} if self.is_a(ast.Call) else {}
        return self.at(next((given[name] for name in names if name in given), None))

    @property
    def decorators(self) -> list[Node]:
        """The decorators of a definition."""
        return self.each(getattr(self.node, "decorator_list", ()))

    def descend(self, *kinds: Any) -> list[Node]:
        """Return the parts of these kinds, itself included."""
        return self.each([one for one in ast.walk(self.node) if isinstance(one, kinds)] if self else [])

    def ancestors(self) -> Iterator[Node]:
        """Yield what is around it, the nearest first."""
        node = self.node
        while (node := self.module.parents.get(id(node))) is not None:
            yield self.at(node)

    @property
    def where(self) -> str:
        """The `file:line` at which it stands."""
        return f"{self.module.path}:{getattr(self.node, 'lineno', 1)}"

    def unparse(self) -> str:
        """Return its text; empty for what is not there."""
        return ast.unparse(self.node) if self else ""

    def scope(self) -> ast.AST:
        """Return where a name lives: the function around it, of `self.name` the class; else the module."""
        kinds = (ast.ClassDef,) if self.unparse().startswith("self.") else _FUNCTIONS
        return next((one.node for one in self.ancestors() if one.is_a(*kinds)), self.module.tree)


def texts(nodes: Sequence[Node]) -> list[str]:
    """Return the texts among the values of expressions."""
    return [value for node in nodes if isinstance(value := node.value, str)]


class Program:
    """A script and the modules of its own that it imports."""

    def __init__(self, script: Path) -> None:
        self.script = script
        self.main = _read(script)
        above = script.resolve().parents
        project = next((one for one in above if any((one / mark).exists() for mark in _OF_PROJECT)), Path())
        roots = (script.parent, Path(), Path("src"), Path(os.path.relpath(project)))
        self._roots = dict.fromkeys((*roots, roots[-1] / "src"))
        self._modules: dict[Path, Module | None] = {script.resolve(): self.main}
        self._opened: dict[tuple[Path, str], Module | None] = {}

    # What names mean

    def find(self, named: Node) -> Node:
        """Return what a name or a dotted name stands for in the program's own modules."""
        module, expr = named.module, named.node
        if isinstance(expr, ast.Name):
            return self._find_name(module, expr.id)
        if isinstance(expr, ast.Attribute) and isinstance(expr.value, ast.Name | ast.Attribute):
            other = self._find_module(module, expr.value)
            return named.at(None) if other is None else self._find_name(other, expr.attr)
        return named.at(None)

    def _find_name(self, module: Module, name: str, depth: int = 0) -> Node:
        found = module.definitions.get(name) or module.values.get(name)
        if found is not None or depth >= _DEEPEST:
            return Node(self, module, found)
        if name in module.imports:
            dotted, attribute = module.imports[name]
            other = self._open(module, dotted) if attribute else None
            return self._find_name(other, attribute or "", depth + 1) if other else Node(self, module, None)
        stars = (dotted for star, (dotted, _) in module.imports.items() if star.startswith("*"))
        others = (self._open(module, dotted) for dotted in stars)
        found_there = (self._find_name(other, name, depth + 1) for other in others if other)
        return next(filter(None, found_there), Node(self, module, None))

    def _find_module(self, module: Module, expr: ast.expr) -> Module | None:
        if isinstance(expr, ast.Attribute):
            return self._open(module, Node(self, module, expr).name)
        dotted, attribute = module.imports.get(getattr(expr, "id", ""), ("", None))
        return self._open(module, dotted if attribute is None else _join(dotted, attribute))

    # Files

    def needs_current_folder(self) -> bool:
        """Return whether a start needs the current folder for the script's imports, and not that of the script."""
        dotted = [name for name, _ in self.main.imports.values()]
        if any(name.startswith(".") for name in dotted):
            return True
        firsts = {name.split(".")[0] for name in dotted}
        folder = self.script.parent
        beside = [one for one in firsts if (folder / one).is_dir() or (folder / f"{one}.py").is_file()]
        return not beside and any(Path(f"{one}.py").is_file() or any(Path(one).glob("*.py")) for one in firsts)

    def _open(self, module: Module, dotted: str) -> Module | None:
        key = (module.path.parent, dotted)
        if key not in self._opened:
            found = next((path for path in self._list_places(module, dotted) if path.is_file()), None)
            self._opened[key] = None if found is None else self._load(found)
        return self._opened[key]

    def _list_places(self, module: Module, dotted: str) -> Iterator[Path]:
        bare = dotted.lstrip(".")
        level = len(dotted) - len(bare)
        for folder in [module.path.parent.joinpath(*[".."] * (level - 1))] if level else [*self._roots]:
            base = folder.joinpath(*bare.split("."))
            yield from [base.with_name(f"{base.name}.py")] if bare else []
            yield from [base / "__init__.py"] if dotted else []

    def _load(self, path: Path) -> Module | None:
        key = path.resolve()
        if key not in self._modules:
            if len(self._modules) >= MAX_MODULES:
                return None
            self._modules[key] = None
            try:
                self._modules[key] = _read(path)
            except UserInputError:
                pass  # a module that is not Python is none of ours to judge
        return self._modules[key]

    # What a start may reach

    @cached_property
    def nodes(self) -> list[Node]:
        """What a start may run: all of the script, and of other modules their tops and what is used."""
        nodes: list[Node] = []
        seen: set[int] = set()
        pending = deque([Node(self, self.main, self.main.tree)])
        while pending:
            top = pending.popleft()
            below = deque(self._own_tops(top))
            while below:
                node = below.popleft()
                if id(node) not in seen:
                    seen.add(id(node))
                    nodes.append(top.at(node))
                    below += ast.iter_child_nodes(node)
                    pending += self._leads_to(nodes[-1])
        return nodes

    def select(self, *kinds: Any) -> list[Node]:
        """Return what a start may run of these kinds of syntax."""
        return [one for one in self.nodes if isinstance(one.node, kinds)]

    @cached_property
    def calls(self) -> list[Node]:
        """The calls that a start may run."""
        return self.select(ast.Call)

    def _own_tops(self, top: Node) -> list[ast.AST]:
        """Return what runs of a definition or of a module: of another than the script only what an import runs."""
        if top.module is self.main or not top.is_a(ast.Module):
            return [top.node]
        return [
            statement
            for statement in top.node.body
            if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test))
            and not (isinstance(statement, Definition) and not statement.decorator_list)
        ]

    def _leads_to(self, node: Node) -> Iterator[Node]:
        if node.is_a(ast.Import, ast.ImportFrom):
            opened = [self._open(node.module, dotted) for dotted in _dotted_names(node.node)]
            yield from (Node(self, other, other.tree) for other in opened if other is not None)
        elif node.is_a(ast.Name, ast.Attribute) and isinstance(node.node.ctx, ast.Load):
            found = node.find()
            if found.is_a(Definition):
                yield found

    # What is given to names

    @cached_property
    def _calls_of(self) -> dict[int, list[Node]]:
        calls: dict[int, list[Node]] = {}
        for call in self.calls:
            calls.setdefault(id(call.called.find().node), []).append(call)
        return calls

    @cached_property
    def _assigned(self) -> dict[tuple[int, str], list[Node]]:
        assigned: dict[tuple[int, str], list[Node]] = {}
        for node in self.select(ast.Assign):
            for target in node.each(node.node.targets):
                assigned.setdefault((id(target.scope()), target.unparse()), []).append(node.at(node.node.value))
        return assigned

    def given(self, name: Node) -> list[Node]:
        """Return what a name stands for where it is used: its last value before that, or what calls give to it."""
        text, scope = name.unparse(), name.scope()
        own = self._assigned.get((id(scope), text), [])
        if not own and isinstance(scope, ast.FunctionDef) and name.is_a(ast.Name):
            handed = list(self._given_by_calls(scope, text))
            if handed:
                return handed
        values = own or self._assigned.get((id(name.module.tree), text), [])
        before = [one for one in values if getattr(one.node, "lineno", 0) <= name.node.lineno]
        return (before or values)[-1:]

    def list_calls(self, definition: Definition) -> list[Node]:
        """Return the calls of a function or a class that a start may run."""
        return self._calls_of.get(id(definition), [])

    def _given_by_calls(self, function: ast.FunctionDef, name: str) -> Iterator[Node]:
        names = [one.arg for one in function.args.args]
        calls = self.list_calls(function) if name in names else []
        given = (call.argument(names.index(name)) or call.keyword(name) for call in calls)
        yield from filter(None, given)


def _read(path: Path) -> Module:
    try:
        tree = ast.parse(document.read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserInputError(f"{path} is not Python: {error}") from None
    module = Module(path, tree)
    for node in ast.walk(tree):
        module.parents.update((id(child), node) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                module.imports[alias.asname or first] = (alias.name if alias.asname else first, None)
        elif isinstance(node, ast.ImportFrom):
            dotted = "." * node.level + (node.module or "")
            for number, alias in enumerate(node.names):
                name = f"*{dotted}{number}" if alias.name == "*" else alias.asname or alias.name
                module.imports[name] = (dotted, alias.name)
        elif isinstance(node, Definition):
            module.definitions.setdefault(node.name, node)
    for node in _top_statements(tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is not None:
            module.values.update({target.id: value for target in targets if isinstance(target, ast.Name)})
    return module


def _top_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _top_statements([*statement.body, *getattr(statement, "orelse", [])])


def _dotted_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    dotted = "." * node.level + (node.module or "")
    return [dotted, *(_join(dotted, alias.name) for alias in node.names)]


def _join(dotted: str, name: str) -> str:
    return f"{dotted}{'' if dotted.endswith('.') else '.'}{name}"


def _parse_expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def name_target(target: ast.AST) -> str:
    """Return the name that an assignment gives a value: `x`, of `a.x` and `a["x"]` the last part; empty for none."""
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return getattr(target, "id", "") or getattr(target, "attr", "")
