"""Whether a script joins a group of ranks in every start, so that torchrun has to start it."""

from __future__ import annotations

import ast

from bexplore.config.training_script.places import read_variables
from bexplore.config.training_script.source import Node, Program

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# Functions that read these variables where no rank is given to them. Sources: the documentation of
# torch.distributed and of deepspeed, which asks mpi4py where they are not set.
_JOINS = ("init_process_group", "init_device_mesh", "deepspeed.init_distributed", "deepspeed.initialize")
_GIVES_RANK = ("rank", "init_method", "store")
_DEEPEST = 4  # functions around such a call
_CONDITIONS = (ast.If, ast.IfExp, ast.Try, ast.While, ast.Match)


def needs_torchrun(program: Program) -> bool:
    """Return whether a script reads variables of ranks and looks for none of them first, or joins a group by them."""
    read = [one for one in read_variables(program) if one.name in _VARIABLES]
    if any(one.is_required for one in read):
        return all(one.is_required for one in read)
    return not _sets_rank(program) and any(_joins(call) and _is_certain(call) for call in program.calls)


def _joins(call: Node) -> bool:
    name = next((one for one in _JOINS if f".{call.name}".endswith(f".{one}")), "")
    # `init_process_group(backend, init_method)`.
    is_placed = name == "init_process_group" and bool(call.argument(1))
    return bool(name) and not is_placed and not call.keyword(*_GIVES_RANK)


def _sets_rank(program: Program) -> bool:
    """Return whether a program gives the variables values itself."""
    names = {one.text for node in program.select(ast.Assign) for one in node.each(_list_keys(node.node))}
    names |= {call.argument(0).text for call in program.calls if call.name.endswith("environ.setdefault")}
    return not names.isdisjoint(_VARIABLES)


def _list_keys(assigned: ast.Assign) -> list[ast.expr]:
    return [target.slice for target in assigned.targets if isinstance(target, ast.Subscript)]


def _is_certain(call: Node, depth: int = 0) -> bool:
    """Return whether each start reaches a call: nothing decides about it, and its function is called so, too."""
    for around in call.ancestors():
        if around.is_a(ast.FunctionDef):
            returns = [one.node.lineno for one in around.descend(ast.Return)]
            is_left = any(line < call.node.lineno for line in returns)
            callers = call.program.list_calls(around.node) if depth < _DEEPEST and not is_left else []
            return any(_is_certain(one, depth + 1) for one in callers)
        if around.is_a(*_CONDITIONS) and "__name__" not in around.at(getattr(around.node, "test", None)).unparse():
            return False
    return True
