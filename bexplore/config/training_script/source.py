"""The modules of a training script, read and not run: what names mean in them, and what a start of it may reach.

An import is followed to files beside the script, in the current folder and in its `src`; never to installed packages.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bexplore.config import document
from bexplore.errors import UserInputError

MAX_MODULES = 80  # of one program, the nearest first; timm's train.py reaches 200 and its options lie in the first
_DEEPEST = 8  # names that stand for names, imports that hand on imports
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
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

    def where(self, node: ast.AST) -> str:
        """Return `file:line` of a node."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def scope(self, node: ast.AST, text: str = "") -> ast.AST:
        """Return where a name lives: the function around it, of `self.name` the class; else the module."""
        kinds = (ast.ClassDef,) if text.startswith("self.") else (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((one for one in self.ancestors(node) if isinstance(one, kinds)), self.tree)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the nearest first."""
        while (around := self.parents.get(id(node))) is not None:
            yield around
            node = around


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for: a definition or an expression, and the module in which it stands."""

    module: Module
    node: ast.AST


class Program:
    """A script and the modules of its own that it imports."""

    def __init__(self, script: Path) -> None:
        self.script = script
        self.main = _read(script)
        self._roots = dict.fromkeys((script.parent, Path(), Path("src")))
        self._modules: dict[Path, Module | None] = {script.resolve(): self.main}
        self._opened: dict[tuple[Path, str], Module | None] = {}

    # What names mean

    def name(self, module: Module, expr: ast.AST | None) -> str:
        """Return the dotted name of an expression, through imports: `argparse.ArgumentParser`; empty for none."""
        if isinstance(expr, ast.Call):
            expr = expr.func
        if isinstance(expr, ast.Attribute):
            before = self.name(module, expr.value)
            return f"{before}.{expr.attr}" if before else expr.attr
        if not isinstance(expr, ast.Name):
            return ""
        dotted, attribute = module.imports.get(expr.id, (expr.id, None))
        return ".".join(part for part in (dotted, attribute) if part)

    def find(self, module: Module, expr: ast.AST | None, depth: int = 0) -> Found | None:
        """Return what a name or a dotted name stands for in the program's own modules."""
        if isinstance(expr, ast.Name):
            return self._find_name(module, expr.id, depth)
        if isinstance(expr, ast.Attribute) and isinstance(expr.value, ast.Name | ast.Attribute):
            other = self._find_module(module, expr.value)
            return None if other is None else self._find_name(other, expr.attr, depth)
        return None

    def find_class(self, module: Module, expr: ast.AST | None) -> Found | None:
        """Return the class that an annotation or a call names, through `Optional[X]`, `Annotated[X, ...]` and `X()`."""
        if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
            expr = _parse_expression(expr.value)
        if isinstance(expr, ast.Subscript) and self.name(module, expr.value).split(".")[-1] in (
            "Optional",
            "Annotated",
        ):
            expr = expr.slice.elts[0] if isinstance(expr.slice, ast.Tuple) and expr.slice.elts else expr.slice
        if isinstance(expr, ast.Call):
            expr = expr.func
        found = self.find(module, expr)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def value(self, module: Module, expr: ast.AST | None, depth: int = 0) -> Any:
        """Return the value of a literal, or of a name that has one; UNKNOWN otherwise."""
        try:
            return ast.literal_eval(expr) if expr is not None else UNKNOWN
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        found = self.find(module, expr) if depth < _DEEPEST else None
        if found is None or isinstance(found.node, Definition):
            return UNKNOWN
        return self.value(found.module, found.node, depth + 1)

    def _find_name(self, module: Module, name: str, depth: int) -> Found | None:
        if name in module.definitions:
            return Found(module, module.definitions[name])
        if name in module.values:
            return Found(module, module.values[name])
        if depth >= _DEEPEST:
            return None
        if name in module.imports:
            dotted, attribute = module.imports[name]
            other = self._open(module, dotted) if attribute else None
            return self._find_name(other, attribute or "", depth + 1) if other is not None else None
        stars = (dotted for star, (dotted, _) in module.imports.items() if star.startswith("*"))
        others = (self._open(module, dotted) for dotted in stars)
        return next((it for other in others if other and (it := self._find_name(other, name, depth + 1))), None)

    def _find_module(self, module: Module, expr: ast.expr) -> Module | None:
        if isinstance(expr, ast.Attribute):
            return self._open(module, self.name(module, expr))
        dotted, attribute = module.imports.get(getattr(expr, "id", ""), ("", None))
        if attribute is None:
            return self._open(module, dotted)
        return self._open(module, f"{dotted}{'' if dotted.endswith('.') else '.'}{attribute}")

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
            self._opened[key] = self._open_first(module, dotted)
        return self._opened[key]

    def _open_first(self, module: Module, dotted: str) -> Module | None:
        bare = dotted.lstrip(".")
        level = len(dotted) - len(bare)
        folders = [module.path.parent.joinpath(*[".."] * (level - 1))] if level else [*self._roots]
        for folder in folders:
            base = folder.joinpath(*bare.split(".")) if bare else folder
            for path in (base.with_name(f"{base.name}.py"), base / "__init__.py") if bare else (base / "__init__.py",):
                if dotted and path.is_file():
                    return self._load(path)
        return None

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

    def walk(self) -> Iterator[tuple[Module, ast.AST]]:
        """Yield each node that a start may run: all of the script, and of other modules their tops and what is used."""
        yield from self._reached

    @cached_property
    def _reached(self) -> list[tuple[Module, ast.AST]]:
        nodes: list[tuple[Module, ast.AST]] = []
        seen: set[int] = set()
        pending: list[tuple[Module, ast.AST]] = [(self.main, self.main.tree)]
        while pending:
            module, top = pending.pop(0)
            below = deque(self._own_tops(module, top))
            while below:
                node = below.popleft()
                if id(node) not in seen:
                    seen.add(id(node))
                    nodes.append((module, node))
                    below += ast.iter_child_nodes(node)
                    pending += self._leads_to(module, node)
        return nodes

    @cached_property
    def _calls(self) -> dict[int, list[tuple[Module, ast.Call]]]:
        calls: dict[int, list[tuple[Module, ast.Call]]] = {}
        for module, node in self._reached:
            if isinstance(node, ast.Call) and (found := self.find(module, node.func)) is not None:
                calls.setdefault(id(found.node), []).append((module, node))
        return calls

    @cached_property
    def _assigned(self) -> dict[tuple[int, str], list[Found]]:
        assigned: dict[tuple[int, str], list[Found]] = {}
        statements = [(module, node) for module, node in self._reached if isinstance(node, ast.Assign)]
        for module, node in statements:
            for target in node.targets:
                text = ast.unparse(target)
                assigned.setdefault((id(module.scope(target, text)), text), []).append(Found(module, node.value))
        return assigned

    def given(self, module: Module, name: ast.Name | ast.Attribute) -> list[Found]:
        """Return what a name stands for where it is used: its last value before that, or what calls give to it."""
        text = ast.unparse(name)
        scope = module.scope(name, text)
        own = self._assigned.get((id(scope), text), [])
        if not own and isinstance(scope, ast.FunctionDef) and isinstance(name, ast.Name):
            handed = list(self._given_by_calls(scope, text))
            if handed:
                return handed
        values = own or self._assigned.get((id(module.tree), text), [])
        before = [one for one in values if getattr(one.node, "lineno", 0) <= name.lineno]
        return (before or values)[-1:]

    def _given_by_calls(self, function: ast.FunctionDef, name: str) -> Iterator[Found]:
        names = [one.arg for one in function.args.args]
        if name not in names:
            return
        index = names.index(name)
        for module, call in self._calls.get(id(function), []):
            named = next((one.value for one in call.keywords if one.arg == name), None)
            value = call.args[index] if index < len(call.args) else named
            if value is not None:
                yield Found(module, value)

    def _own_tops(self, module: Module, top: ast.AST) -> list[ast.AST]:
        """Return what runs of a definition or of a module: of another than the script only what an import runs."""
        if module is self.main or not isinstance(top, ast.Module):
            return [top]
        return [
            statement
            for statement in top.body
            if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test))
            and not (isinstance(statement, Definition) and not statement.decorator_list)
        ]

    def _leads_to(self, module: Module, node: ast.AST) -> Iterator[tuple[Module, ast.AST]]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            opened = [self._open(module, dotted) for dotted in _dotted_names(node)]
            yield from ((other, other.tree) for other in opened if other is not None)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            found = self.find(module, node)
            if found is not None and isinstance(found.node, Definition):
                yield found.module, found.node


def _read(path: Path) -> Module:
    try:
        tree = ast.parse(document.read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserInputError(f"{path} is not Python: {error}") from None
    return index(path, tree)


def index(path: Path, tree: ast.Module) -> Module:
    """Return a parsed file as a module, with its names."""
    module = Module(path, tree)
    for node in ast.walk(tree):
        module.parents.update((id(child), node) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.imports[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0],
                    None,
                )
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
    separator = "" if dotted.endswith(".") else "."
    return [dotted, *(f"{dotted}{separator}{alias.name}" for alias in node.names)]


def _parse_expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
