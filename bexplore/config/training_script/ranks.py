"""Whether a script joins a group of ranks in every start, so that torchrun has to start it."""

from __future__ import annotations

import ast
import re

from bexplore.config.training_script.places import read_variable, read_variables
from bexplore.config.training_script.source import Node, Program

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# Functions that read these variables where no rank is given to them. Sources: the documentation of
# torch.distributed and of deepspeed, which asks mpi4py where they are not set.
_JOINS = ("init_process_group", "init_device_mesh", "deepspeed.init_distributed", "deepspeed.initialize")
_GIVES_RANK = ("rank", "init_method", "store")
_OF_OTHERS = re.compile("SLURM_|OMPI_|PMIX?_")  # variables of other launchers
_DEEPEST = 4  # functions around such a call
_CONDITIONS = (ast.If, ast.IfExp, ast.Try, ast.While, ast.Match)


def needs_torchrun(program: Program) -> bool:
    """Return whether a script reads variables of ranks and looks for none of them first, or joins a group by them."""
    are_required = [one.is_required for one in read_variables(program) if one.name in _VARIABLES]
    if any(are_required):
        return all(are_required) and any(_is_certain(node, if_unknown=True) for node in _list_reads(program))
    joins = (call for call in program.calls if _joins(call))
    return not _sets_rank(program) and any(_is_certain(call, if_unknown=False) for call in joins)


def _list_reads(program: Program) -> list[Node]:
    nodes = program.select(ast.Subscript, ast.Call)
    return [node for node in nodes if any(one.name in _VARIABLES for one in read_variable(node))]


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


def _is_certain(node: Node, *, if_unknown: bool, depth: int = 0) -> bool:
    """Return whether each start reaches an expression: nothing decides about it, and its function is called so, too.

    Args:
        if_unknown: What is returned for a function whose calls are not seen, such as a method.
    """
    for around in node.ancestors():
        if around.is_a(ast.FunctionDef):
            if any(one.node.lineno < node.node.lineno for one in around.descend(ast.Return)):
                return False
            callers = node.program.list_calls(around.node) if depth < _DEEPEST else []
            found = (_is_certain(one, if_unknown=if_unknown, depth=depth + 1) for one in callers)
            return any(found) if callers else if_unknown
        if around.is_a(*_CONDITIONS) and not _is_entry(around) and not _is_beside_launcher(around, node):
            return False
    return True


def _is_entry(condition: Node) -> bool:
    return "__name__" in condition.at(getattr(condition.node, "test", None)).unparse()


def _is_beside_launcher(condition: Node, node: Node) -> bool:
    """Return whether a condition reads the ranks of Slurm or MPI first, and the expression stands in its `else`."""
    if not condition.is_a(ast.If) or node.node.lineno <= condition.node.body[-1].end_lineno:
        return False
    return any(_OF_OTHERS.search(one.unparse()) for one in condition.each(condition.node.body))
